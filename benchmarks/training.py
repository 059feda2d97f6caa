"""A training's start and steps by Slipway, by a bare launch of the same config, and with verl's own settings by hand.

    python benchmarks/training.py --configfile gpu.yaml --run smol --out sitting --sides slipway bare slipway hand

One side after the other, in the order that is asked for: the first finds cold caches, so name one twice. Nothing may
have trained the run before. `slipway` is `snakemake` from the shell to the manifest; `bare` is verl's `main_ppo` with
the run's resolved config and what the machine decides; `hand` is that with verl's own trainer, sampler and processes
and micro batches of `--micro-batch` responses. Logs and metrics of each stay in `--out`; one JSON object goes to the
screen.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

import yaml  # noqa: E402  (these need the path above)

from slipway.config import verl  # noqa: E402
from slipway.config.paths import ResultPaths  # noqa: E402
from slipway.config.verl_defaults import verl_defaults  # noqa: E402
from slipway.cpu import environment as cpu_environment  # noqa: E402
from slipway.launch import VERL_SETTINGS, machine, processes, with_registration  # noqa: E402

POLL_SECONDS = 0.1
WRITTEN = "written.jsonl"
DYNAMIC = (
    f"{verl.ACTOR}.use_dynamic_bsz",
    f"{verl.ROLLOUT}.log_prob_use_dynamic_bsz",
    f"{verl.REF}.log_prob_use_dynamic_bsz",
)
# of what the machine decides, that without which nothing would run
LACKING = ("attention_backend", machine.FLASHINFER_SAMPLER)
PHASES = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights")


@dataclass(frozen=True)
class Launch:
    """A command, and where its training writes metrics."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    metrics: str
    """Pattern below `folder`."""


def main() -> None:
    """Measure the sides that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configfile", type=Path, required=True, help="config beside config.yaml that has the run")
    parser.add_argument("--run", required=True)
    parser.add_argument("--out", type=Path, required=True, help="new folder for logs and metrics")
    parser.add_argument("--sides", nargs="+", choices=sorted(LAUNCHES), default=["slipway", "bare", "slipway", "hand"])
    parser.add_argument("--micro-batch", type=int, default=64, help="responses a pass by hand (%(default)s)")
    arguments = parser.parse_args()
    train = ResultPaths(ROOT / "results").train(arguments.run)
    if train.exists():
        parser.error(f"{train} is there: name a run that has not trained yet")
    arguments.out.mkdir(parents=True)
    # of Ray's sockets, whose paths have to be short
    with tempfile.TemporaryDirectory(prefix="slb-", dir="/tmp") as arguments.ray_folder:
        measure_all(arguments, train)


def measure_all(arguments: argparse.Namespace, train: Path) -> None:
    """Measure one side after the other, and print what was found."""
    # what comes before the training is no part of what is measured
    subprocess.run([*_snakemake(arguments.configfile), f"results/{arguments.run}/preflight.json"], cwd=ROOT, check=True)
    found: dict[str, Any] = {}
    for number, side in enumerate(arguments.sides, 1):
        own = arguments.out.resolve() / f"{number}-{side}"
        own.mkdir()
        found[own.name] = measure(LAUNCHES[side](arguments, own), own)
        if train.exists():
            shutil.move(train, own / "train")
        print(f"{own.name}: {found[own.name]}", file=sys.stderr, flush=True)
    print(json.dumps({"sides": found} | ratios(found), indent=1))


def measure(launch: Launch, own: Path) -> dict[str, Any]:
    """Run one side to its end; return its start-up and the means of its steps after the first, in seconds."""
    began = time.time()
    with (own / "log").open("wb") as log:
        process = processes.start_bound(launch.command, launch.environment, launch.folder, log)
        first_written = None
        while process.poll() is None:
            if first_written is None and _lines(launch):
                first_written = time.time()
            time.sleep(POLL_SECONDS)
    steps = [json.loads(line)["data"] for line in _lines(launch)]
    (own / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    if process.returncode or first_written is None:
        raise SystemExit(f"status {process.returncode}, {len(steps)} steps: see {own / 'log'}")
    later = steps[1:]
    # a checkpoint is written after the last step, or as often as asked: it says nothing about steps
    seconds = [step["timing_s/step"] - step.get("timing_s/save_checkpoint", 0.0) for step in later]
    tokens = sum(step["perf/total_num_tokens"] for step in later)
    return {
        "first_step_begins": round(first_written - began - steps[0]["timing_s/step"], 1),
        "first_step": round(steps[0]["timing_s/step"], 1),
        "steps": len(later),
        "step": round(sum(seconds) / len(later), 3),
        "least_and_most": [round(min(seconds), 2), round(max(seconds), 2)],
        "tokens_per_s": round(tokens / sum(seconds)),
        "phases": {phase: _mean(later, f"timing_s/{phase}") for phase in PHASES},
        "peak_gib": round(max(step.get("actor/perf/max_memory_allocated_gb", 0.0) for step in steps), 2),
    }


def _mean(steps: Sequence[Mapping[str, float]], name: str) -> float:
    return round(sum(step.get(name, 0.0) for step in steps) / len(steps), 3)


def _lines(launch: Launch) -> list[str]:
    return [line for file in launch.folder.glob(launch.metrics) for line in file.read_text().splitlines()]


def ratios(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last Slipway's step and start against the last bare one's, and its tokens/s against those by hand."""
    last = {name.partition("-")[2]: figures for name, figures in found.items()}
    slipway, bare, hand = (last.get(side) for side in ("slipway", "bare", "hand"))
    result: dict[str, Any] = {}
    if slipway and bare:
        result["parity_step_ratio"] = round(slipway["step"] / bare["step"], 3)
        result["startup_extra_s"] = round(slipway["first_step_begins"] - bare["first_step_begins"], 1)
    if slipway and hand:
        result["speedup_vs_hand"] = round(slipway["tokens_per_s"] / hand["tokens_per_s"], 2)
    return result


def _snakemake(configfile: Path) -> list[str]:
    return ["snakemake", "--profile", "profiles/local", "--configfile", str(configfile.resolve()), "--"]


def by_slipway(arguments: argparse.Namespace, _own: Path) -> Launch:
    """Return the rule `train`, from the shell."""
    manifest = f"results/{arguments.run}/train/manifest.json"
    metrics = f"results/{arguments.run}/train/segments/*/metrics.jsonl"
    return Launch([*_snakemake(arguments.configfile), manifest], os.environ, ROOT, metrics)


def bare(arguments: argparse.Namespace, own: Path) -> Launch:
    """Return `main_ppo` with the run's own config, as the launcher would start it."""
    resolved, environment = _resolved(arguments), _environment(arguments, own)
    settings: dict[str, Any] = {}
    for decision in machine.decide(resolved, environment):
        environment |= decision.environment
        settings |= decision.verl
    return Launch(_main_ppo(arguments, own, settings), with_registration(environment), own, WRITTEN)


def by_hand(arguments: argparse.Namespace, own: Path) -> Launch:
    """Return `main_ppo` with verl's own value of all that Slipway sets for speed, and only what the machine lacks."""
    resolved, environment = _resolved(arguments), _environment(arguments, own)
    keys = (*VERL_SETTINGS, verl.AGENT_WORKERS, verl.REWARD_WORKERS, verl.STORAGE_UNITS, verl.SEQUENCES_AT_ONCE)
    settings = {key: verl_defaults()[key] for key in keys}
    settings |= dict.fromkeys(DYNAMIC, False)
    settings |= verl.micro_batch_settings(verl.MicroBatches(arguments.micro_batch, arguments.micro_batch))
    if resolved["trainer"]["device"] == "cuda":
        settings[verl.VLLM_EXECUTOR] = "mp"
    for decision in machine.decide(resolved, environment):
        environment |= {key: value for key, value in decision.environment.items() if key in LACKING}
        settings |= {key: value for key, value in decision.verl.items() if key.rpartition(".")[2] in LACKING}
    return Launch(_main_ppo(arguments, own, settings), environment, own, WRITTEN)


def _resolved(arguments: argparse.Namespace) -> dict[str, Any]:
    file = ResultPaths(ROOT / "results").verl_config(arguments.run)
    return yaml.safe_load(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _environment(arguments: argparse.Namespace, own: Path) -> dict[str, str]:
    trainer = _resolved(arguments)["trainer"]
    on_cpu = trainer["device"] == "cpu"
    device: dict[str, str] = cpu_environment.environment(trainer["n_gpus_per_node"]) if on_cpu else {}
    return (
        dict(os.environ)
        | device
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "workflow"), os.environ.get("PYTHONPATH")])),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": arguments.ray_folder,
            "VERL_FILE_LOGGER_PATH": str(own / WRITTEN),
        }
    )


def _main_ppo(arguments: argparse.Namespace, own: Path, settings: Mapping[str, Any]) -> list[str]:
    config = ResultPaths(ROOT / "results").verl_config(arguments.run).resolve()
    changed = {"trainer.default_local_dir": str(own / "checkpoints"), **settings}
    return [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        *(f"--config-path={config.parent}", f"--config-name={config.stem}", "hydra.run.dir=hydra"),
        # "++": verl's config need not have the key
        *(f"++{key}={'null' if value is None else value}" for key, value in changed.items()),
    ]


LAUNCHES = {"slipway": by_slipway, "bare": bare, "hand": by_hand}

if __name__ == "__main__":
    main()
