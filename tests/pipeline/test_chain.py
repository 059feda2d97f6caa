"""The whole chain by `snakemake --profile profiles/local`, and everything that a user does to it afterwards.

The tests build on one another's results and run in the order of the file.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import psutil
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ("snakemake", "--profile", "profiles/local", "--configfile", "test.yaml")
RULES = (
    "prepare_data", "make_demo_model", "convert_megatron", "preflight", "train", "export_hf", "evaluate", "report",
    "compare", "export_step",
)  # fmt: skip
TRAINING_TIMEOUT = 900

pytestmark = [pytest.mark.training, pytest.mark.timeout(1800)]


class Clone:
    """A working folder like a user's, whose config the tests edit."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("Snakefile", "config.yaml", "workflow", "scripts", "profiles", "envs"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / name)
        shutil.copy(ROOT / "tests/pipeline/config.yaml", folder / "test.yaml")

    def edit(self, *keys: str, value: object) -> None:
        """Set a key of the test's config."""
        file = self.folder / "test.yaml"
        config = yaml.safe_load(file.read_text())
        inner = config
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
        file.write_text(yaml.safe_dump(config))

    def start(self, *arguments: str) -> subprocess.Popen:
        """Start Snakemake in a session of its own, writing to out.txt."""
        with (self.folder / "out.txt").open("w") as out:
            return subprocess.Popen(
                [*PROFILE, *arguments], cwd=self.folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run Snakemake to its end; return its status and what it said."""
        process = self.start(*arguments)
        status = process.wait(TRAINING_TIMEOUT)
        return status, (self.folder / "out.txt").read_text()

    def json(self, path: str) -> dict:
        return json.loads((self.folder / "results" / path).read_text())

    def planned(self) -> set[str]:
        """Return the rules that a dry run would start."""
        status, said = self.run("-n")
        assert status == 0, said
        return {rule for rule in RULES if f": {rule} " in said or f": {rule}:" in said}

    def segments(self) -> list[dict]:
        files = sorted((self.folder / "results/demo/train/segments").glob("*/segment.json"))
        return [json.loads(file.read_text()) for file in files]

    def wait_for_step(self, segment: int, step: int) -> None:
        """Wait until a segment has logged a step."""
        file = self.folder / f"results/demo/train/segments/{segment:03d}/metrics.jsonl"
        deadline = time.monotonic() + TRAINING_TIMEOUT
        while time.monotonic() < deadline:
            if file.is_file() and any(json.loads(line)["step"] >= step for line in file.read_text().splitlines()):
                return
            time.sleep(0.5)
        raise TimeoutError(f"step {step} of segment {segment} did not come:\n{(self.folder / 'out.txt').read_text()}")


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Clone:
    return Clone(tmp_path_factory.mktemp("clone"))


def marked_processes(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLIPWAY_TRAINING", "").startswith(str(folder)):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def test_a_dry_run_shows_every_stage_and_starts_nothing(clone):
    assert clone.planned() == {*RULES} - {"export_step"}
    assert not (clone.folder / "results/data").exists()
    assert (clone.folder / "results/demo/verl.yaml").is_file()


def test_every_mistake_is_told_at_once_before_anything_runs(clone):
    good = (clone.folder / "test.yaml").read_text()
    clone.edit("runs", "demo", "stepps", value=3)
    clone.edit("runs", "demo", "parallel", value={"tensor": 3})
    clone.edit("runs", "demo", "grpo", "micro_batch_size", value=7)
    clone.edit("models", "other", value={"path": "/no/such/model"})
    status, said = clone.run("-n")
    (clone.folder / "test.yaml").write_text(good)
    assert status != 0
    for words in (
        "runs.demo.stepps = 3: unknown key",
        "runs.demo.parallel.tensor = 3: the model has 4 attention heads",
        "models.other.path = '/no/such/model': no such folder",
    ):
        assert words in said
    assert "Traceback" not in said


def test_the_whole_chain_runs(clone):
    status, said = clone.run()
    assert status == 0, said
    assert "train demo: step 4/4" in said
    metrics = clone.json("demo/metrics.json")
    assert metrics["steps"] == 4
    low, high = metrics["difference_ci95"]
    assert low <= metrics["difference"] <= high
    assert metrics["difference"] == pytest.approx(metrics["final_accuracy"] - metrics["base_accuracy"])
    for path in ("demo/report.html", "demo/summary.md", "compare.html", "demo/preflight.json", "demo/preflight.md"):
        assert (clone.folder / "results" / path).stat().st_size > 0


def test_snakemakes_own_report_has_the_pages_with_captions_and_labels(clone):
    status, said = clone.run("--report", "report.zip")
    assert status == 0, said
    with zipfile.ZipFile(clone.folder / "report.zip") as packed:
        names = {Path(name).name: name for name in packed.namelist() if "/data/" in name}
        for name in ("demo/report.html", "demo/metrics.json", "compare.html"):
            assert packed.read(names[Path(name).name]) == (clone.folder / "results" / name).read_bytes()
        page = packed.read("report/report.html").decode()
    for text in ("What came out of run demo", "The figures of run demo", "All runs of the config side by side"):
        assert text in page
    for label in ("report", "figures", "comparison"):
        assert re.search(rf'"content": "{label}"', page)


def test_training_was_verls_own_and_started_from_the_converted_checkpoint(clone):
    log = (clone.folder / "results/demo/train/segments/001/main_ppo.log").read_text()
    config = yaml.safe_load((clone.folder / "results/demo/verl.yaml").read_text())
    actor = config["actor_rollout_ref"]["actor"]
    assert config["model_engine"] == "megatron"
    assert actor["megatron"]["use_distributed_optimizer"]
    assert actor["kl_loss_type"] == "low_var_kl"
    assert actor["megatron"]["dist_checkpointing_path"].endswith("results/models/small/megatron/checkpoint")
    assert "Training Progress" in log
    rows = [json.loads(line) for line in (clone.folder / "results/demo/train/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    first = rows[0]["data"]
    assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-3)  # actor and reference start equal
    # two implementations of the model, transformers and Megatron-core, agree on what was sampled
    assert first["training/rollout_actor_probs_pearson_corr"] > 0.999
    assert any(row["data"]["critic/score/mean"] > 0 for row in rows)  # a reward that is always 0 teaches nothing


def test_each_component_of_the_reward_is_logged_and_reported(clone):
    rows = [json.loads(line) for line in (clone.folder / "results/demo/train/metrics.jsonl").read_text().splitlines()]
    page = (clone.folder / "results/demo/report.html").read_text()
    for key in ("reward/correctness", "reward/answered", "reward/correct", "reward/tagged"):
        assert all(0 <= row["data"][key] <= 1 for row in rows), key
        assert key in page
    for row in rows:  # correctness is the only one that has a weight here
        assert row["data"]["reward/correctness"] == pytest.approx(row["data"]["critic/score/mean"], abs=1e-6)


def test_base_and_final_are_two_models(clone):
    base, final = clone.json("demo/eval/base.json"), clone.json("demo/eval/final.json")
    assert base["facts"]["weights"] != final["facts"]["weights"]


def test_no_process_is_left(clone):
    assert marked_processes(clone.folder) == []


def test_a_second_run_does_nothing_and_says_so(clone):
    status, said = clone.run()
    assert status == 0
    assert "Nothing to be done" in said


def test_touching_files_changes_nothing(clone):
    for path in ("config.yaml", "test.yaml", "results/demo/verl.yaml", "results/data/sums/manifest.json"):
        os.utime(clone.folder / path)
    os.utime(clone.folder / "scripts/train.py")
    assert clone.planned() == set()


def test_a_changed_evaluation_runs_evaluation_and_report_alone(clone):
    clone.edit("evaluation", "heldout", "seed", value=1)
    assert clone.planned() == {"evaluate", "report", "compare"}
    status, said = clone.run()
    assert status == 0, said
    assert len(clone.segments()) == 1


def test_a_deleted_report_is_remade_alone(clone):
    before = (clone.folder / "results/demo/report.html").read_bytes()
    (clone.folder / "results/demo/report.html").unlink()
    assert clone.planned() == {"report", "compare"}
    status, said = clone.run()
    assert status == 0, said
    assert (clone.folder / "results/demo/report.html").read_bytes() == before


def test_a_lost_manifest_of_the_training_is_written_again_without_a_job(clone):
    manifest = clone.folder / "results/demo/train/manifest.json"
    before = manifest.read_bytes()
    manifest.unlink()
    status, said = clone.run("--", "results/demo/train/manifest.json")
    assert status == 0, said
    assert "train: nothing to do" in said
    assert manifest.read_bytes() == before
    assert len(clone.segments()) == 1


def test_a_changed_learning_rate_asks_for_a_new_run(clone):
    clone.edit("runs", "demo", "grpo", "learning_rate", value=5e-4)
    status, said = clone.run("-n")
    clone.edit("runs", "demo", "grpo", "learning_rate", value=1e-3)
    assert status != 0
    assert "runs.demo.grpo.learning_rate = 0.0005" in said
    assert "demo-2" in said
    assert "checkpoints depend on it" in said


def test_more_steps_continue_and_survive_the_death_of_snakemake_and_of_the_training(clone):
    data = (clone.folder / "results/data/sums/manifest.json").stat().st_mtime_ns
    clone.edit("runs", "demo", "steps", value=9)
    assert "evaluate" in (planned := clone.planned())
    assert not planned & {"prepare_data", "make_demo_model", "convert_megatron"}

    # the training dies: the run fails, names the checkpoint that is safe, and leaves nothing behind
    first = clone.start()
    clone.wait_for_step(2, 7)
    driver = next(p for p in marked_processes(clone.folder) if "verl.trainer.main_ppo" in " ".join(p.cmdline()))
    driver.kill()
    assert first.wait(TRAINING_TIMEOUT) != 0
    assert "The checkpoint of step 6 is safe" in (clone.folder / "out.txt").read_text()
    assert (clone.folder / "results/demo/report.partial.html").is_file()
    assert marked_processes(clone.folder) == []

    # Snakemake dies: the training goes on, and the same command follows it to its end
    second = clone.start()
    clone.wait_for_step(3, 7)
    second.send_signal(signal.SIGKILL)
    second.wait()
    status, said = clone.run()
    assert status == 0, said
    segments = clone.segments()
    assert [segment["resumed_from"] for segment in segments] == [0, 4, 6]
    assert clone.json("demo/train/manifest.json")["facts"]["steps"] == 9
    assert clone.json("demo/metrics.json")["steps"] == 9
    rows = [json.loads(line) for line in (clone.folder / "results/demo/train/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert (clone.folder / "results/data/sums/manifest.json").stat().st_mtime_ns == data
    assert clone.planned() == set()


def test_earlier_checkpoints_of_a_finished_training_are_evaluated_where_they_are_there(clone):
    saved = sorted(path.name for path in (clone.folder / "results/demo/train/checkpoints").glob("global_step_*"))
    assert saved == ["global_step_8", "global_step_9"]  # the newest two, over three processes of verl
    clone.edit("evaluation", "heldout", "skip_questions", value=16)
    clone.edit("evaluation", "tuning", value={"data": "sums", "questions": 16, "samples": 2, "temperature": 1.0})
    clone.edit("runs", "demo", "evaluation", value=["heldout", "tuning"])
    clone.edit("runs", "demo", "checkpoints", value={"evaluate_every": 4, "select_on": "tuning"})
    status, said = clone.run("-n")
    assert status != 0
    assert "runs.demo.checkpoints.evaluate_every = 4: the run has been trained for 9 steps and has not kept" in said
    assert "step 4; there are: steps 8, 9. Use 8, of whose steps none is missing" in said

    clone.edit("runs", "demo", "checkpoints", "evaluate_every", value=8)
    assert clone.planned() == {"export_step", "evaluate", "report", "compare"}
    status, said = clone.run()
    assert status == 0, said
    assert len(clone.segments()) == 3
    weights = {
        which: clone.json(f"demo/eval/{which}.json")["facts"]["weights"] for which in ("base", "step-8", "final")
    }
    assert len(set(weights.values())) == 3
    figures = clone.json("demo/metrics.json")["checkpoints"]
    assert figures["step"] in (8, 9)
    for rows in figures["evaluations"].values():
        assert [row["step"] for row in rows] == [8, 9]
    assert "<h2>Checkpoints</h2>" in (clone.folder / "results/demo/report.html").read_text()


def test_a_training_that_goes_on_keeps_what_is_evaluated_and_evaluates_it_once(clone):
    before = clone.json("demo/eval/step-8.json")
    clone.edit("runs", "demo", "steps", value=12)
    clone.edit("runs", "demo", "keep_checkpoints", value=1)
    clone.edit("runs", "demo", "checkpoints", "evaluate_every", value=2)
    status, said = clone.run("-n")
    assert status != 0
    assert "steps 2, 4, 6; there are: steps 8, 9" in said
    clone.edit("runs", "demo", "checkpoints", "evaluate_every", value=8)
    status, said = clone.run()
    assert status == 0, said
    # one process removed 10 after 12, and of 8, which another process wrote, all but the weights
    folder = clone.folder / "results/demo/train/checkpoints"
    assert sorted(path.name for path in folder.glob("*step_*")) == ["global_step_12", "global_step_8"]
    assert sorted(path.name for path in (folder / "global_step_8/actor").iterdir() if path.is_dir()) == ["model"]
    log = (clone.folder / "results/demo/logs/evaluate-step-8.log").read_text()
    assert "evaluate: nothing to do" in log
    assert clone.json("demo/eval/step-8.json") == before
    assert [row["step"] for row in clone.json("demo/metrics.json")["checkpoints"]["evaluations"]["heldout"]] == [8, 12]
    assert clone.planned() == set()


def test_fewer_steps_are_refused(clone):
    trained = clone.json("demo/train/manifest.json")["facts"]["steps"]
    clone.edit("runs", "demo", "steps", value=trained - 1)
    status, said = clone.run("-n")
    clone.edit("runs", "demo", "steps", value=trained)
    assert status != 0
    assert f"runs.demo.steps = {trained - 1}: the run has been trained for {trained} steps already" in said
