"""Hosts as namespaces: start a host's first process, run commands in a host."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

# Own network, hostname, mounts and process ids. Killing a host's first process ends everything inside it.
KINDS = ("--net", "--uts", "--mount", "--pid")


class SandboxError(Exception):
    """The sandbox could not be brought to where it should be."""


def start_host(command: Sequence[str], output: Path, within: int | None = None) -> int:
    """Start `command` as the first process of a new host, nested in the host whose first process is `within`.

    Returns its process id as this machine sees it.
    """
    unshare = ["unshare", *KINDS, "--fork", "--mount-proc", *command]
    with output.open("a") as log:
        outer = subprocess.Popen(
            unshare if within is None else inside(within, unshare),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found: list[int] = []

    def first_process() -> bool:
        if outer.poll() is not None:
            raise SandboxError(f"no namespaces could be made; root is needed. {output} says:\n{output.read_text()}")
        found[:] = [child.pid for child in psutil.Process(outer.pid).children(recursive=True) if _is_first(child)]
        return bool(found)

    wait_for(first_process, "new namespaces", 10)
    return found[0]


def _is_first(process: psutil.Process) -> bool:
    try:
        return process.parent().name() == "unshare" and process.name() != "unshare"
    except (psutil.NoSuchProcess, AttributeError):
        return False


def pid_within(pid: int, outer_levels: int) -> int:
    """Return a process's id as seen `outer_levels` process-id namespaces further out than its own."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    ids = next(line for line in status if line.startswith("NSpid:")).split()[1:]
    return int(ids[-1 - outer_levels])


def inside(pid: int, command: Sequence[str], folder: Path | None = None) -> list[str]:
    """Return the command line that runs `command` in the host whose first process is `pid`."""
    entered = ["nsenter", f"--target={pid}", *KINDS, "--"]
    if folder is not None:
        # nsenter's own option looks the folder up outside
        return [*entered, "sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder), *command]
    return [*entered, *command]


def wait_for(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until `condition` holds; raises `SandboxError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SandboxError(f"{what}: not there after {seconds:g} s")
        time.sleep(0.05)
