"""Start processes in a sandbox, watch them, and end them with all their children."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from slipway.rewards.sandbox import isolation as isolating
from slipway.rewards.sandbox import seccomp
from slipway.rewards.sandbox.isolation import Isolation, Limits

# How often the memory of a sandbox's processes together is looked at.
LOOK_SECONDS = 0.1
# More at a time would only wait for each other, and run into their time limits.
_turns = threading.BoundedSemaphore(os.cpu_count() or 1)


@dataclass(frozen=True)
class Sandbox:
    """Where programs run: with which limits and protections; `sandboxed` False: with all the user's rights."""

    limits: Limits
    isolation: Isolation = isolating.FULL
    sandboxed: bool = True


@dataclass(frozen=True)
class Output:
    """What came out: the start of it, and why it was ended (None: it ended by itself, with `code`)."""

    text: bytes
    code: int | None
    ended: str | None


@contextmanager
def started(
    sandbox: Sandbox, job: dict[str, Any], fds: Sequence[int] = (), stdin: Any = subprocess.DEVNULL, read: bool = False
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `job` (see inside.py) with open `fds`; on the way out nothing of it is left alive.

    Its output can be read when `read` is true, and goes nowhere otherwise.
    """
    limits = isolating.inner_limits(sandbox.isolation, sandbox.limits, sandbox.sandboxed)
    filtering = seccomp.program() if sandbox.sandboxed and sandbox.isolation.call_filter else None
    with tempfile.TemporaryFile() as job_file, isolating.filter_file(filtering) as filter_fd:
        job_file.write(json.dumps(job | {"limits": limits}).encode())
        job_file.seek(0)
        inner = [isolating.python(), "-I", "-S", "-c", isolating.prelude(), str(job_file.fileno())]
        outer = isolating.command(sandbox.isolation, sandbox.limits, filter_fd) if sandbox.sandboxed else []
        process = subprocess.Popen(
            [*outer, *inner],
            stdin=stdin,
            stdout=subprocess.PIPE if read else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[job_file.fileno(), *fds, *([] if filter_fd is None else [filter_fd])],
            env={} if sandbox.isolation.empty_environment else None,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process; bubblewrap takes what it started along, and without it the process group is killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def read_output(
    process: "subprocess.Popen[bytes]",
    sandbox: Sandbox,
    deadline: float,
    others: Sequence["subprocess.Popen[bytes]"] = (),
) -> Output:
    """Read until the process closes its output, or it or one of `others` reaches a limit."""
    assert process.stdout is not None
    longest = sandbox.limits.output if sandbox.isolation.output_limit else sys.maxsize
    text = bytearray()
    looked = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if now > deadline:
                return Output(bytes(text), None, "time limit")
            if now - looked > LOOK_SECONDS:
                looked = now
                if sandbox.isolation.memory_limit and any(
                    _memory(watched.pid) > sandbox.limits.memory for watched in (process, *others)
                ):
                    return Output(bytes(text), None, "memory limit")
            if not selector.select(min(deadline - now, LOOK_SECONDS)):
                continue
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                break
            text += part
            if len(text) > longest:
                return Output(bytes(text[:longest]), None, "output limit")
    try:
        # an output can be closed long before the end
        return Output(bytes(text), process.wait(max(deadline - time.monotonic(), 0)), None)
    except subprocess.TimeoutExpired:
        return Output(bytes(text), None, "time limit")


@contextmanager
def turn() -> Iterator[None]:
    """Wait for a free core."""
    with _turns:
        yield


def _memory(pid: int) -> int:
    """Return the resident memory, in bytes, of a process and all below it."""
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
    except psutil.Error:
        pass
    return total
