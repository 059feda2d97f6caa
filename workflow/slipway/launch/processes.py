"""Start a process that cannot outlive us, and end what it leaves behind.

verl starts Ray, which starts dozens of processes in sessions of their own. Every one of them inherits the
environment variable `MARK`, by which they are found again, after a `kill -9` too.
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

MARK = "SLIPWAY_TRAINING"

logger = logging.getLogger(__name__)


def start_bound(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, output: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start `command` in a session of its own, bound to die when this process dies, however that happens.

    The calling thread must stay alive as long as the command: Linux ties the signal to the thread.
    """
    setpriv = shutil.which("setpriv")  # util-linux, part of every distribution's base system
    bound = [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else list(command)
    return subprocess.Popen(
        bound,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # SLURM sends SIGUSR2 to every process of a job; it is meant for the job alone, and ends who does not expect it
        preexec_fn=_ignore_user_signal,
    )


def _ignore_user_signal() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def end_marked(mark: str, patience_seconds: float = 5.0) -> list[int]:
    """End every process on this host whose environment says `MARK=mark`; return their ids.

    They get SIGTERM, and after `patience_seconds` SIGKILL. This process and its parents are left alone.
    """
    marked = find_marked(mark)
    for process in marked:
        _signal(process, psutil.Process.terminate)
    psutil.wait_procs(marked, timeout=patience_seconds)
    # workers may have been started meanwhile, by one that is gone now
    deadline = time.monotonic() + 10
    while (remaining := find_marked(mark)) and time.monotonic() < deadline:
        for process in remaining:
            _signal(process, psutil.Process.kill)
        psutil.wait_procs(remaining, timeout=1)
    ended = [process.pid for process in marked]
    if ended:
        logger.info("ended %d processes of an earlier or finished training", len(ended))
    return ended


def find_marked(mark: str) -> list[psutil.Process]:
    """Return the living processes of this host that carry the mark, without us and our parents."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid not in ours
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == mark
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _signal(process: psutil.Process, action: Callable[[psutil.Process], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        action(process)
