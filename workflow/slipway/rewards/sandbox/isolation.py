"""The bubblewrap command: what of the machine a model-written program gets to see, and what it may use."""

import math
import os
import random
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

MIB = 2**20
# Above the users of any machine, below what counts as negative.
USERS = range(2_000_000_000, 2_100_000_000)
# The sandbox's own: bubblewrap's monitor is counted where users have a namespace of their own.
OWN_PROCESSES = 1
ENVIRONMENT = {"PATH": "/nowhere", "HOME": "/tmp", "LANG": "C.UTF-8"}
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
MACHINE = "/machine"
LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64")


@dataclass(frozen=True)
class Limits:
    """What a program may use. Times are seconds of CPU a process; sizes are bytes.

    The wall clock is a multiple of the CPU time: a busy machine must not make right programs wrong.
    """

    seconds: float = 5.0
    memory: int = 512 * MIB
    processes: int = 16
    files: int = 16 * MIB
    output: int = 256 * 1024

    @property
    def wall_seconds(self) -> float:
        """When everything is killed, whatever it does."""
        return 3 * self.seconds + 5


@dataclass(frozen=True)
class Isolation:
    """The protections, one by one. All are on, except in the tests that prove that each is needed."""

    namespaces: bool = True  # own processes, network, inter-process communication
    own_files: bool = True  # nothing of the machine's but Python; else all of it in the folder MACHINE
    read_only: bool = True  # of that folder
    empty_environment: bool = True
    process_limit: bool = True
    memory_limit: bool = True
    file_limit: bool = True
    output_limit: bool = True
    time_limit: bool = True
    call_filter: bool = True


FULL = Isolation()


def bubblewrap() -> str | None:
    """Return the path of bubblewrap; None where it is not installed."""
    return shutil.which("bwrap")


@contextmanager
def filter_file(text: bytes | None) -> Iterator[int | None]:
    """Open a system call filter for bubblewrap, which reads it from a file descriptor."""
    if text is None:
        yield None
        return
    with tempfile.TemporaryFile() as file:
        file.write(text)
        file.seek(0)
        yield file.fileno()


def command(isolation: Isolation, limits: Limits, filter_fd: int | None) -> list[str]:
    """Return the command line that makes the sandbox; what runs in it follows."""
    size = limits.files if isolation.file_limit else 1024 * MIB
    line = [str(bubblewrap()), "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if isolation.namespaces:
        line += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        line += ["--hostname", "sandbox"]
    if as_root():
        # the prelude takes on a user of its own, and with it gives up these two as well
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        line += ["--unshare-user", "--disable-userns"] if isolation.namespaces else []
    if isolation.empty_environment:
        line.append("--clearenv")
        for name, value in ENVIRONMENT.items():
            line += ["--setenv", name, value]
    for device in DEVICES:
        line += ["--dev-bind", device, device]
    for path in map(Path, runtime()):
        # a home on the way would keep others than its owner out, here too
        for folder in [folder for folder in reversed(path.parents) if folder != Path("/")]:
            line += ["--perms", "0755", "--dir", str(folder)]
        line += ["--symlink", str(path.readlink())] if path.is_symlink() else ["--ro-bind", str(path)]
        line.append(str(path))
    if not isolation.own_files:
        line += ["--ro-bind" if isolation.read_only else "--bind", "/", MACHINE]
    line += ["--size", str(size), "--perms", "1777", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    # its own, and of no limited size
    line += ["--remount-ro", "/"]
    if filter_fd is not None:
        line += ["--seccomp", str(filter_fd)]
    return [*line, "--"]


@lru_cache(maxsize=1)
def runtime() -> tuple[str, ...]:
    """Return the files and folders that Python needs, and nothing else of the machine: no program besides it."""
    bases = {"installed_base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    wanted = [python(), *(sysconfig.get_path(name, vars=bases) for name in ("stdlib", "platstdlib")), *LIBRARIES]
    shared = Path(sysconfig.get_config_var("LIBDIR") or "") / (sysconfig.get_config_var("INSTSONAME") or "")
    if shared.is_file():
        wanted.append(str(shared))
    # links such as /lib -> usr/lib, through which programs name their loader
    wanted += [path for path in ("/lib", "/lib32", "/lib64") if Path(path).exists()]
    if Path("/etc/ld.so.cache").is_file():
        wanted.append("/etc/ld.so.cache")
    return tuple(dict.fromkeys(path for path in wanted if Path(path).exists()))


def python() -> str:
    """Return the interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@lru_cache(maxsize=1)
def prelude() -> str:
    """Return the source of what runs inside."""
    return resources.files(__package__).joinpath("inside.py").read_text(encoding="utf-8")


def as_root() -> bool:
    """Tell whether the sandbox can be made with root's rights, and so must give each program a user of its own.

    The kernel does not limit the number of root's processes, whatever namespace they are in.
    """
    if os.geteuid() != 0:
        return False
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
    return any(int(first) <= USERS.start and USERS.stop <= int(first) + int(count) for first, _, count in ranges)


def inner_limits(isolation: Isolation, limits: Limits, sandboxed: bool) -> dict[str, Any]:
    """Return what the prelude sets: the user to take on (None: none) and the kernel's limits of resources."""
    cpu = math.ceil(limits.seconds)
    found: dict[str, int] = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 64, "RLIMIT_MEMLOCK": 0, "RLIMIT_MSGQUEUE": 0}
    if isolation.time_limit:
        found["RLIMIT_CPU"] = cpu
    if isolation.memory_limit:
        found |= {"RLIMIT_AS": limits.memory, "RLIMIT_STACK": min(8 * MIB, limits.memory // 8)}
    if isolation.file_limit:
        found["RLIMIT_FSIZE"] = limits.files
    if isolation.process_limit and sandboxed:
        found["RLIMIT_NPROC"] = limits.processes + (0 if as_root() else OWN_PROCESSES)
    return {"user": random.choice(USERS) if sandboxed and as_root() else None, "resources": found}
