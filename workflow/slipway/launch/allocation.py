"""What a job knows of itself: its place among its tasks, its nodes, when it ends, how it gets back into the queue.

Outside of SLURM a job is one task on one node without an end.
"""

import os
import socket
import time
from datetime import datetime

import psutil

from slipway import slurm
from slipway.errors import SlipwayError


def job_id() -> str | None:
    """Return the id of the SLURM job that our launcher submitted; None otherwise.

    A local training may be started inside a SLURM job too, an interactive one for instance: that job's nodes are not
    ours, and it is not ours to requeue.
    """
    return os.environ.get("SLURM_JOB_ID") if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" else None


def start_id() -> str:
    """Return a name of this start of the job: SLURM restarts a requeued job under its old id."""
    return f"{job_id() or os.getpid()}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def rank() -> int:
    """Return the number of this task, one a node."""
    return int(os.environ.get("SLURM_PROCID", "0")) if job_id() else 0


def nodes() -> list[str]:
    """Return the names of the job's nodes in the order of their tasks."""
    listed = os.environ.get("SLURM_JOB_NODELIST") if job_id() else None
    if listed is None:
        return [socket.gethostname()]
    return slurm.ask("scontrol", "show", "hostnames", listed).split()


def address_towards(host: str) -> str:
    """Return this node's address on the network where `host` is: a node may have several.

    Raises `SlipwayError` when the name cannot be resolved or reached.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing; asks the kernel for a route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SlipwayError(f"{socket.gethostname()}: no way to node {host}: {error}") from None


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with that address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return None


def end_time() -> float | None:
    """Return when SLURM will end the job, seconds since the epoch; None when it has no limit or does not answer."""
    number = job_id()
    if number is None:
        return None
    try:
        printed = slurm.ask("squeue", "--noheader", "--format=%e", f"--jobs={number}").strip()
        return datetime.fromisoformat(printed).timestamp()
    except (slurm.SlurmUnavailableError, ValueError):
        return None


def is_preempted() -> bool:
    """Return whether SLURM is about to take the nodes away for another job, and will itself requeue this one."""
    number = job_id()
    if number is None:
        return False
    try:
        described = slurm.ask("scontrol", "--oneliner", "show", "job", number)
    except slurm.SlurmUnavailableError:
        return False
    fields = dict(word.partition("=")[::2] for word in described.split())
    return fields.get("PreemptTime", "None") not in ("None", "N/A", "") or fields.get("JobState") == "PREEMPTED"


def requeue(attempts: int = 5) -> bool:
    """Put the job back into the queue, under its own id; return whether SLURM agreed. SLURM then ends this start."""
    number = job_id()
    if number is None:
        return False
    for attempt in range(attempts):
        try:
            slurm.ask("scontrol", "requeue", number)
            return True
        except slurm.SlurmUnavailableError:
            time.sleep(2.0**attempt)
    return False
