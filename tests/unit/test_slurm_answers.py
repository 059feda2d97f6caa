"""What SLURM's commands print, and what is made of it. The commands are scripts here: real ones are in tests/slurm."""

import os
import subprocess
from pathlib import Path

import pytest

from slipway import slurm
from slipway.launch import allocation
from slipway.preflight.cluster import _minutes

SACCT = Path(__file__).resolve().parents[2] / "profiles/slurm/bin/sacct"
QUERY = "-X --parsable2 --clusters all --noheader --format=JobIdRaw,State --starttime now --endtime now --name run1"


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return a function that puts a command with given output and status on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def put(name: str, output: str, status: int = 0) -> None:
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\ncat <<'E'\n{output}\nE\n[ {status} = 0 ] || echo 'down' >&2\nexit {status}\n")
        script.chmod(0o755)

    return put


def test_a_job_is_asked_of_squeue_first(commands):
    commands("squeue", "7|RUNNING|None|n1")
    commands("sacct", "7|FAILED|||0:0|0:0")
    assert slurm.find_job("7") == slurm.Job("7", "RUNNING", "None", "n1")


def test_a_forgotten_job_is_asked_of_sacct(commands):
    commands("squeue", "")
    commands("sacct", "7|CANCELLED by 1000|None|n1|0:0|0:0")
    job = slurm.find_job("7")
    assert (job.state, job.detail, job.alive) == ("CANCELLED", "by 1000", False)


def test_no_answer_is_not_an_answer(commands):
    commands("squeue", "", 1)
    commands("sacct", "", 1)
    with pytest.raises(slurm.SlurmUnavailableError):
        slurm.find_job("7")


def test_a_job_that_nobody_knows(commands):
    commands("squeue", "")
    commands("sacct", "")
    assert slurm.find_job("7") is None


def test_sacct_without_cancelled_by(commands):
    commands("sacct", "1|CANCELLED by 1000\n2|COMPLETED")
    said = subprocess.run([SACCT, *QUERY.split()], capture_output=True, text=True)
    assert said.stdout.split() == ["1|CANCELLED", "2|COMPLETED"]


def test_during_an_outage_of_accounting_squeue_answers(commands):
    commands("sacct", "", 1)
    commands("squeue", "1|RUNNING")
    said = subprocess.run([SACCT, *QUERY.split()], capture_output=True, text=True)
    assert (said.returncode, said.stdout.split()) == (0, ["1|RUNNING"])


def test_during_an_outage_of_everything_the_plugin_is_told_nothing(commands):
    commands("sacct", "", 1)
    commands("squeue", "", 1)
    said = subprocess.run([SACCT, *QUERY.split()], capture_output=True, text=True)
    assert (said.returncode, said.stdout.strip()) == (0, "")


def test_other_questions_are_passed_on(commands):
    commands("sacct", "1|CANCELLED by 1000", 3)
    said = subprocess.run([SACCT, "--jobs=1"], capture_output=True, text=True)
    assert (said.returncode, said.stdout.strip()) == (3, "1|CANCELLED by 1000")


def test_sbatch_does_not_see_the_job_around_it(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/other.conf")
    kept = slurm.environment_for_commands()
    assert "SLURM_CPUS_PER_TASK" not in kept
    assert "SBATCH_PARTITION" not in kept
    assert kept["SLURM_CONF"] == "/etc/slurm/other.conf"


def test_a_local_training_inside_an_interactive_job_takes_nothing_of_it(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    assert allocation.job_id() is None
    assert allocation.rank() == 0
    assert len(allocation.nodes()) == 1
    assert not allocation.requeue()
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    assert (allocation.job_id(), allocation.rank()) == ("5", 3)


@pytest.mark.parametrize(
    ("printed", "minutes"),
    [("infinite", None), ("30:00", 30), ("1:00:00", 60), ("1-00:00:00", 1440), ("2-12:30:30", 3630.5)],
)
def test_time_limits(printed, minutes):
    assert _minutes(printed) == minutes
