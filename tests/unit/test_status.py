"""`scripts/status.py`: one line a run, from what is in its folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.launch.record import write_record
from slipway.launch.status import status_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def paths(tmp_path):
    return ResultPaths(tmp_path / "results")


def look(paths):
    return status_of("demo", load_config(ROOT / "config.yaml").runs["demo"], paths)


def train_two_steps(paths):
    segment = paths.train("demo") / "segments/001"
    segment.mkdir(parents=True)
    record = {"number": 1, "job_id": "7", "host": "n1", "resumed_from": 0, "started": 0.0}
    (segment / "segment.json").write_text(json.dumps(record))
    rows = [{"step": step, "data": {"timing_s/step": 60.0, "critic/score/mean": 0.25}} for step in (1, 2)]
    (segment / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def put_squeue(folder, monkeypatch, line):
    folder.mkdir(exist_ok=True)
    for name, text in (("squeue", line), ("sacct", "")):
        (folder / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_nothing_has_run_yet(paths):
    assert look(paths).state == "not started"


def test_a_job_in_the_queue(paths, tmp_path, monkeypatch):
    write_record(paths.train("demo"), state="submitted", executor="slurm", job="7")
    put_squeue(tmp_path / "bin", monkeypatch, "7|PENDING|Priority|")
    status = look(paths)
    assert (status.state, status.job) == ("queued (Priority)", "7")
    assert "scancel 7" in status.advice


def test_a_training_at_work(paths, tmp_path, monkeypatch):
    train_two_steps(paths)
    write_record(paths.train("demo"), state="submitted", executor="slurm", job="7")
    put_squeue(tmp_path / "bin", monkeypatch, "7|RUNNING|None|n1")
    status = look(paths)
    assert (status.state, status.step, status.reward, status.left) == ("training", "2/40", "0.250", "00:38:00")


def test_a_stopped_training_says_what_to_do(paths, tmp_path, monkeypatch):
    train_two_steps(paths)
    write_record(paths.train("demo"), state="ended", executor="slurm", job="7", end="CANCELLED")
    put_squeue(tmp_path / "bin", monkeypatch, "7|CANCELLED|None|n1")
    status = look(paths)
    assert status.state == "stopped (cancelled)"
    assert "same snakemake command" in status.advice


def test_the_script_prints_a_line_a_run(paths):
    done = subprocess.run(
        [sys.executable, "-P", ROOT / "scripts/status.py", ROOT / "config.yaml", "--results", paths.root],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
    )
    assert done.returncode == 0, done.stderr
    header, line = done.stdout.splitlines()
    assert header.split()[:2] == ["run", "state"]
    assert line.startswith("demo")


def test_without_a_config_the_one_that_ran_last_is_asked_for(paths):
    done = subprocess.run(
        [sys.executable, "-P", ROOT / "scripts/status.py", "--results", paths.root],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
    )
    assert done.returncode == 1
    assert "name a config file" in done.stderr
