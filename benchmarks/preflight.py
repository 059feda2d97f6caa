"""How long preflight takes: the static part of one run and of 1,000, and the whole of the demo's rule.

Each in processes of their own, as a user starts them, after one that has filled the caches under results/.slipway. The
ratio tells what a thousand runs cost beside one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Measure and print the figures as one line of JSON; seconds, medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        one = measure(static(folder, 1), arguments.repeat)
        many = measure(static(folder, arguments.runs), arguments.repeat)
        whole = measure_full(folder, arguments.repeat)
    figures = {
        "static_s": one,
        f"static_s_{arguments.runs}_runs": many,
        "ratio": round(many / one, 2),
        "full_s": whole,
    }
    print(json.dumps(figures))


def static(folder: Path, runs: int) -> list[str]:
    """Return the command of the static part for so many runs of a sweep over seeds."""
    demo = yaml.safe_load((ROOT / "config.yaml").read_text())["runs"]["demo"]
    sweep = {f"run{number:04}": demo | {"grpo": demo["grpo"] | {"seed": number}} for number in range(runs)}
    file = folder / f"sweep-{runs}.yaml"
    file.write_text(yaml.safe_dump({"runs": {"demo": None} | sweep}))
    return [*script("preflight"), str(file), "--static", "--results", str(folder / "results")]


def measure_full(folder: Path, repeat: int) -> float:
    """Return the median seconds of rule preflight's script on the demo, its product removed before each."""
    # data and model of the chain's test: preflight's work hardly depends on their size
    small = ROOT / "tests/pipeline/config.yaml"
    results = folder / "full"
    config = folder / "full.yaml"
    config.write_text(small.read_text())
    for command in (
        [*script("prepare_data"), merged(config, folder), "sums"],
        [*script("make_demo_model"), merged(config, folder), "small"],
        [*script("convert_megatron"), merged(config, folder), "small"],
    ):
        run([*command, "--results", str(results)])
    command = [*script("preflight"), str(config), "demo", "--results", str(results)]

    def forget() -> None:
        (results / "demo/preflight.json").unlink(missing_ok=True)
        (results / "demo/preflight/.complete.json").unlink(missing_ok=True)

    return measure(command, repeat, forget)


def merged(config: Path, folder: Path) -> str:
    """Return a file with the config laid over the defaults, which the other scripts take."""
    sys.path.insert(0, str(ROOT / "workflow"))
    from slipway.config.load import overlay, read_yaml

    whole = folder / "whole.yaml"
    whole.write_text(yaml.safe_dump(overlay(read_yaml(ROOT / "config.yaml"), read_yaml(config))))
    return str(whole)


def script(name: str) -> list[str]:
    """Return the words that start a script."""
    return [sys.executable, "-P", str(ROOT / f"scripts/{name}.py")]


def measure(command: list[str], repeat: int, before: object = None) -> float:
    """Return the median seconds of a command that has been run once before."""
    seconds = []
    for _ in range(repeat + 1):
        if callable(before):
            before()
        began = time.monotonic()
        run(command)
        seconds.append(time.monotonic() - began)
    return round(statistics.median(seconds[1:]), 3)


def run(command: list[str]) -> None:
    """Run a command; end the benchmark where it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
