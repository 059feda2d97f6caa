"""Nothing that a user or a cluster does to a training loses work, or makes a second job of it.

Real SLURM, submitit, Ray and launcher; the trainer is small (small_trainer.py), and deterministic: whatever
happened, the weights in the end are those of an undisturbed training, bit for bit.
"""

import contextlib
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SmallTraining, wait_until
from sandbox.cluster import USER

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def assert_same(training: SmallTraining, expected: dict) -> None:
    import torch

    weights = training.weights()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in ("weight", "bias"))
    assert weights["step"] == expected["step"]


def test_two_nodes_train_as_one_process_does(training, undisturbed):
    said = training.finish(training.start("--nodes", 2))
    assert "step 8/8" in said
    log = (training.folder / "train/segments/001/main_ppo.log").read_text()
    assert "shards on ['n1', 'n2']" in log
    assert len(training.jobs()) == 1
    assert_same(training, undisturbed(8))


def test_a_killed_launcher_finds_its_job_again(training, undisturbed):
    launcher = training.start("--steps", 20)
    training.wait_for_step(3)
    training.kill(launcher)
    said = training.finish()
    assert f"found SLURM job {training.job}, following it" in said
    assert len(training.jobs()) == 1
    assert len(training.segments) == 1
    assert_same(training, undisturbed(20))


def test_a_launcher_killed_right_after_sbatch_submits_no_second_job(training, undisturbed, shared):
    """The wrapper is sbatch, and ends its caller in the moment when the job exists and nobody has written its id."""
    wrapper = shared / "wrapper/sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\n/usr/bin/sbatch "$@"\nkill -9 $PPID\n')
    wrapper.chmod(0o755)
    launcher = training.start("--steps", 8, path=str(wrapper.parent))
    assert launcher.wait(60) != 0
    assert training.job is None
    training.finish()
    assert len(training.jobs()) == 1
    assert_same(training, undisturbed(8))


def test_an_interrupted_launcher_leaves_the_training_alone_and_says_so(training, undisturbed):
    launcher = training.start("--steps", 20)
    training.wait_for_step(3)
    training.cluster.run("pkill", "-INT", "-f", f"launch_small.py {training.folder}")
    assert launcher.wait(30) == 130, training.text()
    assert f"SLURM job {training.job} goes on" in training.text()
    assert f"scancel {training.job}" in training.text()
    training.finish()
    assert len(training.segments) == 1
    assert_same(training, undisturbed(20))


def test_two_launchers_at_once_make_one_job(training, undisturbed):
    first = training.start("--steps", 12)
    second = training.start()
    training.finish(first)
    training.finish(second)
    assert len(training.jobs()) == 1
    assert len(training.segments) == 1
    assert_same(training, undisturbed(12))


def test_scancel_fails_at_once_and_the_same_command_continues(training, undisturbed):
    launcher = training.start("--steps", 20)
    training.wait_for_step(5)
    training.cluster.ask("scancel", training.job)
    said = training.fail(launcher, 30)
    assert "CANCELLED" in said
    assert "The checkpoint of step 4 is safe" in said
    training.finish()
    assert [segment["resumed_from"] for segment in training.segments] == [0, 4]
    assert_same(training, undisturbed(20))


def test_a_preempted_job_continues_by_itself(training, undisturbed):
    launcher = training.start("--steps", 30, "--save-every", 100)
    training.wait_for_step(4)
    training.cluster.ask(
        *("sbatch", "--partition=urgent", "--account=rl", "--nodes=2", "--ntasks=2", "--gpus-per-node=4", "--time=1"),
        *("--output=/dev/null", "--wrap=sleep 3"),
    )
    training.finish(launcher, 240)
    first, second = training.segments
    assert first["reason"] == "preempted"
    # saved when SLURM announced it: the next checkpoint would have been the last step's
    assert second["resumed_from"] == first["last_step"] >= 4
    assert len(training.jobs()) == 1
    assert_same(training, undisturbed(30))


def test_the_time_limit_requeues_as_often_as_it_takes(training, undisturbed):
    """SLURM's shortest limit is a minute; it gives some 70 s."""
    launcher = training.start("--steps", 24, "--step-seconds", 2, "--minutes", 1, "--save-every", 1000)
    training.finish(launcher, 280)
    segments = training.segments
    assert len(segments) >= 2
    assert [segment["reason"] for segment in segments[:-1]] == ["time limit"] * (len(segments) - 1)
    assert [segment["resumed_from"] for segment in segments[1:]] == [segment["last_step"] for segment in segments[:-1]]
    assert len(training.jobs()) == 1
    assert_same(training, undisturbed(24))


def test_a_segment_too_short_for_a_step_is_an_error(training):
    launcher = training.start("--steps", 4, "--step-seconds", 200, "--minutes", 1)
    said = training.fail(launcher, 150)
    assert "runtime_minutes" in said
    assert len(training.segments) == 1


def test_a_crashed_node_is_left_behind(training, undisturbed):
    launcher = training.start("--steps", 30)
    training.wait_for_step(5)
    node = training.segments[0]["host"]
    training.cluster.crash(node)
    try:
        training.finish(launcher, 200)
        _, second = training.segments
        assert second["host"] != node
        assert second["resumed_from"] >= 4
        assert len(training.jobs()) == 1
        assert_same(training, undisturbed(30))
    finally:
        training.cluster.boot(node)


def test_slurm_itself_may_go_away_for_a_while(training, undisturbed):
    """Both daemons in the middle, and slurmdbd when the job ends."""
    launcher = training.start("--steps", 60)
    training.wait_for_step(3)
    training.cluster.stop_daemon("slurmdbd")
    training.cluster.stop_daemon("slurmctld")
    wait_until(lambda: "SLURM does not answer" in training.text(), "the launcher's word about it")
    training.cluster.start_daemon("slurmdbd")
    training.cluster.start_daemon("slurmctld")
    wait_until(lambda: "SLURM answers again" in training.text(), "the launcher's word about it")
    training.cluster.stop_daemon("slurmdbd")
    training.finish(launcher)
    training.cluster.start_daemon("slurmdbd")
    assert len(training.segments) == 1
    assert len(training.jobs()) == 1
    assert_same(training, undisturbed(60))


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSEGV], ids=["out of memory", "segmentation fault"])
def test_a_dead_training_process_ends_the_job_within_seconds(training, which):
    launcher = training.start("--steps", 200, "--nodes", 2)
    training.wait_for_step(5)
    died = time.monotonic()
    training.cluster.run("pkill", f"-{which.value}", "-f", "^ray::Shard")
    said = training.fail(launcher, 60)
    assert time.monotonic() - died < 60
    assert "The checkpoint of step" in said
    assert "ActorDiedError" in said


def test_a_dead_node_process_ends_the_job_within_seconds(training):
    launcher = training.start("--steps", 200, "--nodes", 2)
    training.wait_for_step(5)
    training.cluster.run_on("n2", "pkill", "-9", "raylet")
    said = training.fail(launcher, 60)
    assert "The checkpoint of step" in said


def test_an_exception_of_the_trainer_reaches_the_user(training):
    said = training.fail(training.start("--fail-at-step", 3), 60)
    assert "RuntimeError: the small trainer was told to fail here" in said
    assert "The checkpoint of step 2 is safe" in said


def test_a_truncated_checkpoint_is_not_used(training, undisturbed):
    """The trainer died while it wrote: the folder is there, and verl's note of the newest whole one names another."""
    launcher = training.start("--steps", 20)
    training.wait_for_step(5)
    training.cluster.ask("scancel", training.job)
    training.fail(launcher, 30)
    broken = training.folder / "train/checkpoints/global_step_6"
    broken.mkdir()
    (broken / "state.pt").write_bytes(b"half of a check")
    training.finish()
    assert training.segments[1]["resumed_from"] == 4
    assert_same(training, undisturbed(20))


def test_a_full_disk_at_a_save_costs_nothing_but_that_checkpoint(cluster, small_disk, undisturbed):
    training = SmallTraining(cluster, small_disk / "training")
    launcher = training.start("--steps", 20)
    training.wait_for_step(5)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    said = training.fail(launcher, 60)
    assert f"The disk of {training.folder / 'train'} is full" in said
    assert "is safe: the same command continues" in said
    filler.unlink()
    training.finish()
    assert training.segments[1]["resumed_from"] >= 4
    assert_same(training, undisturbed(20))


def test_a_launcher_inside_a_job_leaves_that_job_alone(training, undisturbed):
    """As Snakemake in a job of its own: what SLURM tells that job is not meant for the training."""
    outer = ("srun", "--quiet", "--account=rl", "--nodes=1", "--ntasks=1", "--mem=2000", "--time=5")
    training.finish(training.start("--nodes", 2, within=outer))
    assert len(training.jobs()) == 1
    assert_same(training, undisturbed(8))


def test_two_users_train_on_one_node_and_do_not_meet(cluster, training, undisturbed):
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreters = [path for path in (sys.executable, f"/usr/bin/{version}") if is_open(Path(path))]
    if not interpreters or not is_open(ROOT):
        pytest.skip(f"another user may enter neither {ROOT} nor an interpreter")
    other = SmallTraining(cluster, training.folder.with_name("of-alice"), USER, interpreters[0])
    both = ("--nodes", 2, "--steps", 40)
    mine, hers = training.start(*both), other.start(*both)
    training.wait_for_step(3, seconds=200)
    other.wait_for_step(3, seconds=200)
    cluster.ask("scancel", training.job)
    training.fail(mine, 30)
    other.finish(hers)
    assert len(other.segments) == 1
    assert_same(other, undisturbed(40))


def is_open(path: Path) -> bool:
    """Whether any user may come to a file or folder."""
    real = path.resolve()
    return real.exists() and all(folder.stat().st_mode & 0o001 for folder in real.parents)


def test_a_refused_submission_is_one_clear_error(training):
    said = training.fail(training.start("--partition", "nowhere"), 60)
    assert "sbatch refused the training job" in said
    assert "invalid partition" in said
    assert "site.yaml" in said
    assert "Traceback" not in said


def test_an_exit_with_status_0_before_the_last_step_is_a_failure(training):
    said = training.fail(training.start("--leave-at-step", 3), 60)
    assert "ended with status 0 before step 8" in said
    assert "The checkpoint of step 2 is safe" in said
    assert not (training.folder / "train/manifest.json").exists()
