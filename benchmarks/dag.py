"""How long `snakemake -n` takes for 1,000 runs, as a ratio to a minimal hand-written Snakefile with the same jobs.

Both sides parse, build the DAG and print the plan, alternating, several times; the ratio is that of the medians. The
minimal one has the same rules with inputs, outputs and shell commands, and nothing else: no config to check, no verl
config to resolve, no params, resources, logs or messages.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
MINIMAL = """
RUNS = [f"run{{number:04}}" for number in range({runs})]

rule all:
    input: expand("results/{{run}}/report.html", run=RUNS), "results/compare.html"

rule prepare_data:
    output: "results/data/sums/manifest.json"
    shell: "touch {{output}}"

rule make_demo_model:
    input: "results/data/sums/manifest.json"
    output: "results/models/small/hf/manifest.json"
    shell: "touch {{output}}"

rule convert_megatron:
    input: "results/models/small/hf/manifest.json"
    output: "results/models/small/megatron/manifest.json"
    shell: "touch {{output}}"

rule preflight:
    input: "results/data/sums/manifest.json", "results/models/small/megatron/manifest.json"
    output: "results/{{run}}/preflight.json"
    shell: "touch {{output}}"

rule train:
    input: "results/{{run}}/preflight.json", "results/data/sums/manifest.json",
        "results/models/small/megatron/manifest.json"
    output: "results/{{run}}/train/manifest.json"
    shell: "touch {{output}}"

rule export_hf:
    input: "results/{{run}}/train/manifest.json"
    output: "results/{{run}}/model/manifest.json"
    shell: "touch {{output}}"

rule evaluate_base:
    input: "results/data/sums/manifest.json", "results/models/small/hf/manifest.json"
    output: "results/{{run}}/eval/base.json"
    shell: "touch {{output}}"

rule evaluate_final:
    input: "results/data/sums/manifest.json", "results/{{run}}/model/manifest.json"
    output: "results/{{run}}/eval/final.json"
    shell: "touch {{output}}"

rule report:
    input: "results/{{run}}/train/manifest.json", "results/{{run}}/eval/base.json", "results/{{run}}/eval/final.json",
        "results/{{run}}/model/manifest.json"
    output: "results/{{run}}/report.html"
    shell: "touch {{output}}"

rule compare:
    input: expand("results/{{run}}/report.html", run=RUNS)
    output: "results/compare.html"
    shell: "touch {{output}}"
"""


def main() -> None:
    """Measure both sides and print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        ours, minimal = Path(temporary, "slipway"), Path(temporary, "minimal")
        command = prepare_slipway(ours, arguments.runs)
        prepare_minimal(minimal, arguments.runs)
        first = dry_run(command, ours)  # writes every run's verl.yaml; later ones find them there
        times: dict[str, list[float]] = {"slipway": [], "minimal": []}
        for _ in range(arguments.repeat):
            times["slipway"].append(dry_run(command, ours))
            times["minimal"].append(dry_run(["snakemake", "-n"], minimal))
    medians = {name: statistics.median(values) for name, values in times.items()}
    figures = {
        "runs": arguments.runs,
        "slipway_s": round(medians["slipway"], 2),
        "minimal_s": round(medians["minimal"], 2),
        "first_s": round(first, 2),
        f"ratio_{arguments.runs}_runs": round(medians["slipway"] / medians["minimal"], 3),
    }
    print(json.dumps(figures))


def prepare_slipway(folder: Path, runs: int) -> list[str]:
    """Copy the workflow to `folder` with a config of so many runs; return the command of its dry run."""
    folder.mkdir()
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / name, folder)
    for name in ("workflow", "scripts", "profiles", "envs"):
        shutil.copytree(ROOT / name, folder / name)
    run = yaml.safe_load((ROOT / "config.yaml").read_text())["runs"]["demo"]
    sweep = {f"run{number:04}": run | {"grpo": run["grpo"] | {"seed": number}} for number in range(runs)}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"runs": {"demo": None} | sweep}))
    return ["snakemake", "--profile", "profiles/local", "--configfile", "sweep.yaml", "-n"]


def prepare_minimal(folder: Path, runs: int) -> None:
    """Write the minimal Snakefile to `folder`."""
    folder.mkdir()
    (folder / "Snakefile").write_text(MINIMAL.format(runs=runs))


def dry_run(command: list[str], folder: Path) -> float:
    """Return how many seconds a dry run takes; ends the benchmark where it fails."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    jobs = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("total"))
    print(f"{folder.name}: {jobs} jobs in {seconds:.1f} s", file=sys.stderr)
    return seconds


if __name__ == "__main__":
    main()
