"""The literal `snakemake --profile slurm` from the root of a clone: verl's own trainer on two nodes of a real SLURM."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import ENVIRONMENT, HERE, ROOT, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.training, pytest.mark.timeout(1500)]

SITE = {"account": "rl", "gpu_partition": "gpu", "gpu_type": "h200", "cpus_per_gpu": 2, "memory_gib_per_gpu": 8}


class Clone:
    """A clone as a cluster user has it: the project's files, a site file, and a config that overlays the demo's."""

    def __init__(self, cluster, folder: Path):
        self.cluster, self.folder = cluster, folder
        self.environment: dict[str, str] = {}
        folder.mkdir()
        for name in ("Snakefile", "config.yaml", "workflow", "scripts", "profiles", "envs", "slurm"):
            source = ROOT / name
            if source.is_dir() and not source.is_symlink():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("site.yaml", "__pycache__"))
            else:
                shutil.copy(source, folder / name, follow_symlinks=False)
        self.write("profiles/slurm/site.yaml", SITE)
        small = self.small_config()
        small["runs"]["demo"] |= {
            "nodes": 2,
            "gpus_per_node": 1,
            "parallel": {"tensor": 2},
            "runtime_minutes": 30,
        }
        self.write("mine.yaml", small)

    @staticmethod
    def small_config() -> dict:
        """Return the config of the whole chain in a few minutes."""
        return yaml.safe_load((ROOT / "tests/pipeline/config.yaml").read_text())

    def write(self, name: str, content: dict) -> None:
        (self.folder / name).write_text(yaml.safe_dump(content))

    def start(self, *arguments: str, out: str = "out.txt") -> subprocess.Popen:
        command = ["snakemake", "--profile", "slurm", "--configfile", "mine.yaml", *arguments]
        environment = {key: value for key, value in ENVIRONMENT.items() if key != "PYTHONPATH"} | self.environment
        with (self.folder / out).open("w") as said:
            return subprocess.Popen(
                self.cluster.command(*command, folder=self.folder),
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *arguments: str, seconds: float = 900) -> tuple[int, str]:
        status = self.start(*arguments).wait(seconds)
        return status, self.said()

    def said(self) -> str:
        return (self.folder / "out.txt").read_text()

    def json(self, path: str) -> dict:
        return json.loads((self.folder / "results" / path).read_text())


@pytest.fixture(scope="module")
def clone(cluster, shared) -> Clone:
    return Clone(cluster, shared / "clone")


def test_a_dry_run_shows_nodes_gpus_and_time(clone):
    status, said = clone.run("-n")
    assert status == 0, said
    assert "on 2 x 1 GPUs (CPU: processes), 30 minutes a job" in said
    assert "train demo: SLURM says of its job: Job" in said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"acount": "rl"}, "acount = 'rl': unknown key. Did you mean account?"),
        ({"gpu_partition": "nowhere"}, "gpu_partition = 'nowhere': no such partition"),
        ({"cpu_partition": "nowhere"}, "cpu_partition = 'nowhere': no such partition"),
        ({"account": "nobody"}, "account = 'nobody'"),
    ],
)
def test_a_wrong_site_file_is_an_early_clear_error(clone, wrong, words):
    clone.write("profiles/slurm/site.yaml", SITE | wrong)
    status, said = clone.run("-n")
    clone.write("profiles/slurm/site.yaml", SITE)
    assert status != 0
    assert words in said
    assert "Traceback" not in said


def test_a_job_that_slurm_would_refuse_is_an_early_error(clone):
    """Nothing is submitted: sbatch is asked with the training job's own resources."""
    before = clone.cluster.ask("squeue", "--noheader", "--states=all", "--format=%i")
    clone.write("profiles/slurm/site.yaml", SITE | {"cpus_per_gpu": 500})
    status, said = clone.run("-n")
    clone.write("profiles/slurm/site.yaml", SITE)
    assert status != 0
    assert "runs.demo = '2 node(s) x 1': SLURM would refuse the training job" in said
    after = clone.cluster.ask("squeue", "--noheader", "--states=all", "--format=%i")
    assert set(after.split()) <= set(before.split())  # old ones may be forgotten meanwhile


def test_the_chain_trains_on_two_nodes_and_survives_the_end_of_snakemake(clone):
    running = clone.start()
    metrics = clone.folder / "results/demo/train/segments/001/metrics.jsonl"
    wait_until(lambda: running.poll() is not None or (metrics.is_file() and metrics.read_text()), "step 1", 900)
    assert running.poll() is None, clone.said()
    assert clone.start(out="second.txt").wait(120) != 0
    assert "snakemake in this folder is under way already" in (clone.folder / "second.txt").read_text()
    assert running.poll() is None, clone.said()
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    job = clone.json("demo/train/job.json")["job"]
    status, said = clone.run()
    assert status == 0, said
    assert f"found SLURM job {job}, following it" in said
    assert "step 4/4" in said
    assert clone.json("demo/train/job.json")["job"] == job
    assert clone.json("demo/metrics.json")["steps"] == 4
    (segment,) = (clone.folder / "results/demo/train/segments").iterdir()
    assert json.loads((segment / "segment.json").read_text())["host"] == "n1"
    assert "ip=10.77.0.12" in (segment / "main_ppo.log").read_text()  # Ray says so of workers elsewhere
    ledger = clone.json("demo/ledger.json")
    assert ledger["devices"] == 2
    assert ledger["totals"]["training_hours"] > 0
    wait_until(lambda: not any(map(clone.cluster.processes_on, clone.cluster.names)), "nodes without processes", 15)


def test_nothing_runs_again(clone):
    status, said = clone.run()
    assert status == 0, said
    assert "Nothing to be done" in said


def test_one_failing_run_of_a_sweep_does_not_stop_the_others(cluster, clone, shared):
    """With the small trainer: the chain's files, rules, jobs and launchers are the real ones."""
    sweep = Clone(cluster, shared / "sweep")
    for name in ("models", "data"):
        if (made := clone.folder / "results" / name).is_dir():
            shutil.copytree(made, sweep.folder / "results" / name)
    script = sweep.folder / "scripts/train.py"
    text = script.read_text()
    assert text.count("executor=arguments.executor,") == 1
    script.write_text(
        text.replace("executor=arguments.executor,", 'executor=arguments.executor, module="small_trainer",')
    )
    sweep.environment["PYTHONPATH"] = str(HERE)
    config = yaml.safe_load((sweep.folder / "mine.yaml").read_text())
    demo, small = yaml.safe_load((ROOT / "config.yaml").read_text())["runs"]["demo"], config["runs"]["demo"]
    grpo = demo["grpo"] | small["grpo"]
    run = demo | small | {"nodes": 1, "parallel": "auto", "steps": 30, "grpo": grpo}
    sweep.write("mine.yaml", config | {"runs": {"demo": None, "one": run, "fails": run, "two": run}})
    names = ("one", "fails", "two")
    status, said = sweep.run("--", *(f"results/{name}/train/manifest.json" for name in names))
    assert status != 0
    assert (sweep.folder / "results/one/train/manifest.json").is_file(), said
    assert (sweep.folder / "results/two/train/manifest.json").is_file()
    spans = [sweep.json(f"{name}/train/segments/001/segment.json") for name in ("one", "two")]
    assert max(span["started"] for span in spans) < min(span["ended"] for span in spans), "not side by side"
    (summary,) = [line for line in said.splitlines() if line.startswith("fails ")]
    assert "stopped" in summary
    assert "step 2" in summary
    assert "RuntimeError: the small trainer was told to fail here" in summary


def jobs_of(clone, rule: str) -> list[str]:
    """Return the ids of all jobs that SLURM has had of a rule."""
    listed = clone.cluster.ask("squeue", "--noheader", "--states=all", "--format=%i|%k")
    return [
        number for number, comment in (line.split("|") for line in listed.splitlines()) if f"rule_{rule}" in comment
    ]


def test_a_second_start_waits_for_the_job_of_the_first(clone):
    """Snakemake was killed; its job lives on. The second job takes what the first one makes."""
    target = "results/models/small/hf/manifest.json"
    model = (clone.folder / target).parent
    shutil.rmtree(model, ignore_errors=True)
    before = set(jobs_of(clone, "make_demo_model"))
    running = clone.start("--", target)
    wait_until(lambda: (model / ".lock").exists(), "the first job's lock")
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    status, said = clone.run("--", target)
    assert status == 0, said
    first, _ = sorted(set(jobs_of(clone, "make_demo_model")) - before, key=int)
    made = json.loads((model / "provenance.json").read_text())
    assert made["slurm_job"] == first
    log = (clone.folder / "results/models/small/logs/make_demo_model.log").read_text()
    assert "nothing to do" in log


def test_a_cancelled_job_of_a_rule_fails_at_once(clone):
    """The executor plugin alone would wait for ever: sacct says CANCELLED by 0."""
    shutil.rmtree(clone.folder / "results/data", ignore_errors=True)
    before = set(jobs_of(clone, "prepare_data"))
    running = clone.start("--", "results/data/sums/manifest.json")
    wait_until(lambda: set(jobs_of(clone, "prepare_data")) - before, "the job")
    (job,) = set(jobs_of(clone, "prepare_data")) - before
    clone.cluster.ask("scancel", job)
    assert running.wait(120) != 0
    assert "CANCELLED" in clone.said()


def test_a_second_attempt_asks_for_more(clone):
    """As after a job that ran out of memory: the first attempt fails here, whatever it would have needed."""
    shutil.rmtree(clone.folder / "results/data", ignore_errors=True)
    script = clone.folder / "scripts/prepare_data.py"
    text = script.read_text()
    first = """
import pathlib, sys
if not pathlib.Path("tried").exists():
    pathlib.Path("tried").touch()
    sys.exit(1)
"""
    script.write_text(first + text)
    before = set(jobs_of(clone, "prepare_data"))
    status, said = clone.run("--retries", "1", "--", "results/data/sums/manifest.json")
    script.write_text(text)
    assert status == 0, said
    jobs = sorted(set(jobs_of(clone, "prepare_data")) - before, key=int)
    asked = clone.cluster.ask("squeue", "--noheader", "--states=all", "--format=%i|%m|%l", "--jobs", ",".join(jobs))
    assert sorted(asked.split()) == [f"{jobs[0]}|4000M|1:00:00", f"{jobs[1]}|8000M|2:00:00"]
