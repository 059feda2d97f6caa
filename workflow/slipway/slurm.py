"""Questions to SLURM that several rooms ask, and the one rule about answers: no answer is not an answer.

squeue knows every job that waits or runs, and for some minutes (MinJobAge) those that have ended; sacct knows all,
some seconds late, and nothing while its database is down.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from slipway.errors import SlipwayError

# Words of `squeue -o %T`. A job in one of these waits, runs, or will again.
ALIVE = frozenset(
    (
        *("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"),
        *("STAGE_OUT", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    )
)
# These last for a moment when SLURM puts the job back into the queue, and are the end when it does not.
PASSING = frozenset(("PREEMPTED", "NODE_FAIL"))

_FIELDS = "JobIDRaw,State,Reason,NodeList,ExitCode,DerivedExitCode"
_TIMEOUT_SECONDS = 45


class SlurmUnavailableError(SlipwayError):
    """SLURM did not answer: its daemon or database is down, or the network is."""


@dataclass(frozen=True)
class Job:
    """A job as SLURM describes it; `detail` is the rest of the state (`by 1000`), or the reason for waiting."""

    id: str
    state: str
    detail: str = ""
    nodes: str = ""

    @property
    def alive(self) -> bool:
        """Whether the job waits or runs."""
        return self.state in ALIVE


def is_here() -> bool:
    """Return whether SLURM's commands are on PATH."""
    return shutil.which("sbatch") is not None


def find_job(job_id: str) -> Job | None:
    """Return the job, from squeue or else from sacct; None when neither has heard of it.

    Raises `SlurmUnavailableError` when that cannot be told now.
    """
    try:
        listed = _squeue("--jobs", job_id)
    except SlurmUnavailableError:
        listed = []
        if not (job := _from_accounting(job_id)):
            raise
        return job
    return listed[0] if listed else _from_accounting(job_id)


def find_jobs_by_name(name: str) -> list[Job]:
    """Return this user's jobs of that name which squeue still lists."""
    return _squeue("--name", name, "--me")


def ask(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Return what a SLURM command prints; raises `SlurmUnavailableError` with its words when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, env=environment, check=False
        )
    except FileNotFoundError:
        raise SlurmUnavailableError(
            f"{command[0]}: not on PATH. Load the module that brings SLURM's commands, or use profiles/local."
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmUnavailableError(f"{command[0]}: no answer within {_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        raise SlurmUnavailableError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@dataclass(frozen=True)
class Trial:
    """What SLURM says of a job that is not submitted; `words` are its own, empty where it did not answer."""

    accepted: bool
    words: str


def try_submission(*options: str) -> Trial:
    """Ask whether SLURM would take a job with these options of sbatch, and when it would start.

    A controller that does not answer counts as accepting: sbatch itself will tell.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--test-only", *options, "--wrap=true"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            env=environment_for_commands(),
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return Trial(True, "")
    words = " ".join(done.stderr.split()).removeprefix("sbatch: ").removeprefix("error: ").rstrip(".")
    if done.returncode and ("Unable to contact" in words or "timed out" in words):
        return Trial(True, "")
    return Trial(done.returncode == 0, words)


def environment_for_commands() -> dict[str, str]:
    """Return the environment without what SLURM set for a job that we may be part of.

    sbatch and srun take such variables for options. SLURM_CONF stays: without it no command finds its cluster.
    """
    ours = ("SLURM_CONF", "SLURM_CLUSTERS")
    foreign = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMIX_", "PMI_")
    return {key: value for key, value in os.environ.items() if key in ours or not key.startswith(foreign)}


def _squeue(*selection: str) -> list[Job]:
    try:
        printed = ask("squeue", "--noheader", "--states=all", "--format=%i|%T|%r|%N", *selection)
    except SlurmUnavailableError as error:
        if "Invalid job id" in str(error):
            return []
        raise
    return [Job(*line.split("|")) for line in printed.splitlines() if line.strip()]


def _from_accounting(job_id: str) -> Job | None:
    printed = ask("sacct", "--noheader", "--parsable2", "--allocations", f"--format={_FIELDS}", f"--jobs={job_id}")
    rows = [line.split("|") for line in printed.splitlines() if line.strip()]
    if not rows:
        return None
    number, state, _, nodes, *_ = rows[-1]  # the last of several starts of a requeued job
    word, _, detail = state.partition(" ")  # CANCELLED by 1000
    return Job(number, word, detail, nodes)
