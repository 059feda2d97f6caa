"""How long `snakemake -n` takes for 1,000 runs, as a ratio to hand-written Snakefiles with the same jobs.

Three sides parse, build the DAG and print the plan, in turn, several times; ratios are those of the medians. Seconds of
processor time are given beside those of the clock: on a machine that others use they tell more.

* `equivalent`: what a careful user would write for the same jobs, with the same config file and profile: rules with
  inputs, outputs, logs, benchmarks, resources, params and messages taken from the config. It checks nothing and writes
  no verl config. The ratio to it is what Slipway's own checks and files cost.
* `bare`: rules with inputs, outputs and shell commands, and nothing else. The ratio to it also counts what Snakemake
  itself spends on logs, resources, params, messages and a config of a thousand runs.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
BARE = """
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

EQUIVALENT = """
import json
configfile: "config.yaml"
RUNS = config["runs"] = {name: run for name, run in config["runs"].items() if run}
localrules: train
wildcard_constraints: run=r"[A-Za-z0-9_-]+", which="base|final"

def settings(wildcards):
    run = RUNS[wildcards.run]
    chosen = {name: config["evaluation"][name] for name in run["evaluation"]}
    return json.dumps([chosen, run["device"], run["grpo"]["max_response_length"]], sort_keys=True)

def evaluated(wildcards):
    run = RUNS[wildcards.run]
    return f"results/{wildcards.run}/model/manifest.json" if wildcards.which == "final" else (
        "results/models/" + run["model"] + "/hf/manifest.json")

def data_of(wildcards):
    return "results/data/" + RUNS[wildcards.run]["data"] + "/manifest.json"

def model_of(wildcards):
    return "results/models/" + RUNS[wildcards.run]["model"] + "/megatron/manifest.json"

rule all:
    input: expand("results/{run}/{file}", run=RUNS, file=["report.html", "metrics.json"]), "results/compare.html"

rule prepare_data:
    output: "results/data/{data}/manifest.json"
    log: "results/data/{data}/prepare.log"
    params: settings=lambda wildcards: json.dumps(config["data"][wildcards.data], sort_keys=True)
    resources: mem_mb=4000, runtime=60
    message: "prepare_data {wildcards.data}"
    shell: "touch {output}"

rule make_demo_model:
    input: "results/data/sums/manifest.json"
    output: "results/models/{model}/hf/manifest.json"
    log: "results/models/{model}/hf.log"
    params: settings=lambda wildcards: json.dumps(config["models"][wildcards.model], sort_keys=True)
    resources: mem_mb=4000, runtime=60
    message: "make_demo_model {wildcards.model}"
    shell: "touch {output}"

rule convert_megatron:
    input: "results/models/{model}/hf/manifest.json"
    output: "results/models/{model}/megatron/manifest.json"
    log: "results/models/{model}/megatron.log"
    resources: mem_mb=4000, runtime=60
    message: "convert_megatron {wildcards.model}"
    shell: "touch {output}"

rule preflight:
    input: data=data_of, model=model_of
    output: "results/{run}/preflight.json"
    log: "results/{run}/logs/preflight.log"
    benchmark: "results/{run}/benchmarks/preflight.tsv"
    resources: mem_mb=4000, runtime=30
    message: "preflight {wildcards.run}"
    shell: "touch {output}"

rule train:
    input: "results/{run}/preflight.json", data=data_of, model=model_of
    output: "results/{run}/train/manifest.json"
    log: "results/{run}/logs/train.log"
    benchmark: "results/{run}/benchmarks/train.tsv"
    params: settings=lambda wildcards: json.dumps(RUNS[wildcards.run], sort_keys=True)
    resources:
        mem_mb=10000,
        runtime=lambda wildcards: RUNS[wildcards.run].get("runtime_minutes", 1440),
        training=1,
        nodes=lambda wildcards: RUNS[wildcards.run]["nodes"],
        gpus_per_node=lambda wildcards: RUNS[wildcards.run]["gpus_per_node"],
    message: "train {wildcards.run} on {resources.nodes} x {resources.gpus_per_node} GPUs"
    shell: "touch {output}"

rule export_hf:
    input: "results/{run}/train/manifest.json"
    output: "results/{run}/model/manifest.json"
    log: "results/{run}/logs/export_hf.log"
    benchmark: "results/{run}/benchmarks/export_hf.tsv"
    resources: mem_mb=4000, runtime=60
    message: "export_hf {wildcards.run}"
    shell: "touch {output}"

rule evaluate:
    input: model=evaluated, data=data_of
    output: "results/{run}/eval/{which}.json"
    log: "results/{run}/logs/evaluate-{which}.log"
    benchmark: "results/{run}/benchmarks/evaluate-{which}.tsv"
    params: settings=settings
    threads: 2
    resources: mem_mb=4000, runtime=240
    message: "evaluate {wildcards.run} ({wildcards.which})"
    shell: "touch {output}"

rule report:
    input:
        "results/{run}/train/manifest.json", "results/{run}/eval/base.json", "results/{run}/eval/final.json",
        "results/{run}/model/manifest.json", data=data_of, model=model_of
    output: "results/{run}/report.html", "results/{run}/metrics.json"
    log: "results/{run}/logs/report.log"
    benchmark: "results/{run}/benchmarks/report.tsv"
    resources: mem_mb=2000, runtime=30
    message: "report {wildcards.run}"
    shell: "touch {output}"

rule compare:
    input: expand("results/{run}/metrics.json", run=RUNS)
    output: "results/compare.html"
    log: "results/compare.log"
    resources: mem_mb=2000, runtime=30
    message: "compare"
    shell: "touch {output}"
"""


def main() -> None:
    """Measure all sides and print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = {side: Path(temporary, side) for side in ("slipway", "equivalent", "bare")}
        profile = prepare_slipway(folders["slipway"], arguments.runs)
        prepare_equivalent(folders["equivalent"], folders["slipway"])
        prepare_bare(folders["bare"], arguments.runs)
        commands = {"slipway": profile, "equivalent": profile, "bare": ["snakemake", "-n"]}
        first = dry_run(profile, folders["slipway"])  # writes every run's verl.yaml; later ones find them there
        times: dict[str, list[tuple[float, float]]] = {side: [] for side in folders}
        for _ in range(arguments.repeat):
            for side, folder in folders.items():
                times[side].append(dry_run(commands[side], folder))
    medians, processor = (
        {side: statistics.median(one[which] for one in values) for side, values in times.items()} for which in (0, 1)
    )
    figures = {
        "runs": arguments.runs,
        "first_s": round(first[0], 2),
        **{f"{side}_s": round(median, 2) for side, median in medians.items()},
        f"ratio_{arguments.runs}_runs": round(medians["slipway"] / medians["equivalent"], 3),
        **{f"{side}_cpu_s": round(median, 2) for side, median in processor.items()},
        f"cpu_ratio_{arguments.runs}_runs": round(processor["slipway"] / processor["equivalent"], 3),
        f"ratio_to_bare_{arguments.runs}_runs": round(medians["slipway"] / medians["bare"], 3),
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


def prepare_equivalent(folder: Path, slipway: Path) -> None:
    """Write the hand-written Snakefile to `folder`, with Slipway's own config and profile."""
    folder.mkdir()
    (folder / "Snakefile").write_text(EQUIVALENT)
    for name in ("config.yaml", "sweep.yaml"):
        shutil.copy(slipway / name, folder)
    shutil.copytree(slipway / "profiles", folder / "profiles")


def prepare_bare(folder: Path, runs: int) -> None:
    """Write the bare Snakefile to `folder`."""
    folder.mkdir()
    (folder / "Snakefile").write_text(BARE.format(runs=runs))


def dry_run(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the seconds that a dry run takes, and those of processor time; ends the benchmark where it fails."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    used, began = processor_seconds(), time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds, processor = time.monotonic() - began, processor_seconds() - used
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    jobs = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("total"))
    print(f"{folder.name}: {jobs} jobs in {seconds:.1f} s, {processor:.1f} of processor time", file=sys.stderr)
    return seconds, processor


def processor_seconds() -> float:
    """Return what the commands of this process have used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
