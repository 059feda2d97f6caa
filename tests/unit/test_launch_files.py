"""What the launcher reads back: checkpoints, segments, metrics; and the processes that it owns."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slipway.errors import SlipwayError
from slipway.launch import checkpoints, processes, segments
from slipway.launch.job import JOB_LOCK, TrainingJob
from slipway.manifest import FolderLock, LockHeldError


def checkpoint(folder: Path, step: int, latest: bool = True) -> None:
    (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
    if latest:
        (folder / checkpoints.LATEST).write_text(str(step))


def metrics(train: Path, number: int, steps: range, value: float) -> None:
    rows = [{"step": step, "data": {"critic/score/mean": value, "timing_s/step": 1.0}} for step in steps]
    (segments.folder_of(train, number) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_newest_complete_checkpoint_counts(tmp_path):
    assert checkpoints.latest_step(tmp_path) == 0
    checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 20, latest=False)  # killed while saving
    assert checkpoints.latest_step(tmp_path) == 10
    assert checkpoints.remove_unfinished(tmp_path) == [20]
    assert sorted(path.name for path in tmp_path.glob("global_*")) == ["global_step_10"]


def whole_checkpoint(folder: Path, step: int, latest: bool = True) -> None:
    checkpoint(folder, step, latest)
    for part in ("model", "optimizer", "extra"):
        (folder / f"global_step_{step}" / "actor" / part).mkdir()


def parts(folder: Path) -> dict[int, set[str]]:
    """Return what is there of each checkpoint."""
    found = folder.glob("*global_step_*")
    return {int(path.name.split("_")[-1]): {part.name for part in (path / "actor").iterdir()} for path in found}


def test_the_newest_checkpoints_stay_whole_and_of_evaluated_ones_the_weights(tmp_path):
    for step in (10, 20, 30, 40):
        whole_checkpoint(tmp_path, step)
    whole_checkpoint(tmp_path, 50, latest=False)  # being written
    assert checkpoints.remove_old(tmp_path, newest=2, weights_of=(20, 40)) == [10]
    whole = {"model", "optimizer", "extra"}
    assert parts(tmp_path) == {20: {"model"}, 30: whole, 40: whole, 50: whole}
    assert checkpoints.remove_old(tmp_path, newest=2, weights_of=(20, 40)) == []
    assert checkpoints.saved_steps(tmp_path) == [20, 30, 40]


def test_a_removal_that_was_interrupted_is_finished_by_the_next(tmp_path):
    whole_checkpoint(tmp_path, 20)
    (tmp_path / "removed_global_step_10/actor/model").mkdir(parents=True)
    assert checkpoints.saved_steps(tmp_path) == [20]
    checkpoints.remove_old(tmp_path, newest=1)
    assert list(parts(tmp_path)) == [20]


def test_a_job_removes_what_earlier_processes_wrote_and_keeps_what_is_evaluated(tmp_path, monkeypatch):
    """Three starts of a trainer that saves a step each: none knows what the ones before it have written."""
    (tmp_path / "verl.yaml").write_text("trainer: {device: cpu}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    trainer = tmp_path / "saves_one_step.py"
    trainer.write_text(
        "from pathlib import Path\n"
        "folder = Path.cwd().parents[1] / 'checkpoints'\n"
        "latest = folder / 'latest_checkpointed_iteration.txt'\n"
        "step = int(latest.read_text()) + 1 if latest.exists() else 1\n"
        "for part in ('model', 'optimizer'):\n"
        "    (folder / f'global_step_{step}/actor' / part).mkdir(parents=True)\n"
        "latest.write_text(str(step))\n"
    )
    for steps in (1, 2, 3, 4):
        TrainingJob(
            config=tmp_path / "verl.yaml",
            train_folder=tmp_path / "train",
            steps=steps,
            module="saves_one_step",
            keep_checkpoints=1,
            evaluated_steps=(2,),
        )()
    assert parts(tmp_path / "train/checkpoints") == {2: {"model"}, 4: {"model", "optimizer"}}


def test_a_checkpoint_that_is_named_but_gone_does_not_count(tmp_path):
    (tmp_path / checkpoints.LATEST).write_text("30")
    assert checkpoints.latest_step(tmp_path) == 0


def test_steps_trained_twice_count_once_and_the_later_segment_wins(tmp_path):
    first = segments.begin(tmp_path, "1", "n1", 0)
    metrics(tmp_path, 1, range(1, 8), 0.1)
    segments.finish(tmp_path, first, -9)
    second = segments.begin(tmp_path, "2", "n1", 4)
    metrics(tmp_path, 2, range(5, 11), 0.2)
    ended = segments.finish(tmp_path, second, 0)
    rows = segments.merge_metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert [row["data"]["critic/score/mean"] for row in rows] == [0.1] * 4 + [0.2] * 6
    assert (ended.number, ended.resumed_from, ended.last_step) == (2, 4, 10)
    assert segments.read_all(tmp_path)[0].exit_status == -9


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"number": 1}'])
def test_a_damaged_record_of_a_segment_is_named(content, tmp_path):
    segments.begin(tmp_path, "1", "n1", 0)
    (segments.folder_of(tmp_path, 1) / "segment.json").write_text(content)
    with pytest.raises(SlipwayError, match=r"001/segment.json: damaged"):
        segments.read_all(tmp_path)


def test_a_segment_never_takes_the_folder_of_another(tmp_path):
    segments.begin(tmp_path, "1", "n1", 0)
    segments.begin(tmp_path, "2", "n1", 0)
    shutil.rmtree(segments.folder_of(tmp_path, 1))
    assert segments.begin(tmp_path, "3", "n1", 0).number == 3


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    segments.begin(tmp_path, "1", "n1", 0)
    metrics(tmp_path, 1, range(1, 3), 0.1)
    with (segments.folder_of(tmp_path, 1) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "da')
    assert [row["step"] for row in segments.merge_metrics(tmp_path)] == [1, 2]


def test_validation_at_a_resume_leaves_the_training_row_of_that_step_alone(tmp_path):
    first = segments.begin(tmp_path, "1", "n1", 0)
    metrics(tmp_path, 1, range(1, 7), 0.1)
    segments.finish(tmp_path, first, -9)
    segments.begin(tmp_path, "2", "n1", 4)
    metrics(tmp_path, 2, range(5, 8), 0.1)
    file = segments.folder_of(tmp_path, 2) / "metrics.jsonl"
    file.write_text(json.dumps({"step": 4, "data": {"val-core/x/mean": 0.5}}) + "\n" + file.read_text())
    merged = segments.merge_metrics(tmp_path)
    assert [(row["step"], row["segment"]) for row in merged] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 2)]
    assert merged[3]["data"]["val-core/x/mean"] == 0.5
    assert all("timing_s/step" in row["data"] for row in merged)


def test_validation_of_a_step_joins_its_training_row(tmp_path):
    segments.begin(tmp_path, "1", "n1", 0)
    rows = [
        {"step": 0, "data": {"val-core/acc": 0.1}},
        {"step": 1, "data": {"timing_s/step": 1.0}},
        {"step": 1, "data": {"val-core/acc": 0.2}},
    ]
    (segments.folder_of(tmp_path, 1) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    merged = segments.merge_metrics(tmp_path)
    assert [row["step"] for row in merged] == [1]
    assert merged[0]["data"] == {"timing_s/step": 1.0, "val-core/acc": 0.2}


def sleeper(mark: str) -> subprocess.Popen:
    """Start a process in a session of its own that ignores SIGTERM, as Ray's sometimes do."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {processes.MARK: mark},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"up\n"
    return process


def test_marked_processes_are_ended_and_others_left_alone():
    mine, other = sleeper("/runs/mine"), sleeper("/runs/other")
    try:
        assert processes.end_marked("/runs/mine", patience_seconds=0.3) == [mine.pid]
        assert not psutil.pid_exists(mine.pid)
        assert other.poll() is None
    finally:
        mine.kill()
        other.kill()


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_a_bound_process_dies_with_its_parent(tmp_path, way):
    code = (
        "import os, sys, time; from pathlib import Path; from slipway.launch.processes import start_bound\n"
        "child = start_bound(['sleep', '60'], os.environ, Path('.'), open(os.devnull, 'wb'))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    time.sleep(0.3)
    assert child.is_running()
    parent.send_signal(way)
    parent.wait()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_second_job_leaves_the_training_of_the_first_alone(tmp_path):
    """Submitted in spite of everything, it finds the folder owned, and must not end the owner's processes."""
    environment = os.environ | {processes.MARK: str(tmp_path)}
    with subprocess.Popen(["sleep", "60"], env=environment) as trainer:
        try:
            with FolderLock(tmp_path / JOB_LOCK, "the first job"), pytest.raises(LockHeldError):
                TrainingJob(config=tmp_path / "verl.yaml", train_folder=tmp_path, steps=4)()
            assert trainer.poll() is None
        finally:
            trainer.kill()
