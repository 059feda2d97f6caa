"""Ownership of a folder by one process at a time, across hosts, surviving `kill -9`.

The lock is a small JSON file that names host, boot, process and SLURM job of its owner. An owner on this host is
alive when a process with the same id and start time is; an owner elsewhere is alive while its heartbeat (the
file's modification time, renewed every `HEARTBEAT_SECONDS`) is fresh, and while SLURM, if it belongs to a job,
does not say that the job has ended or was started anew. A dead owner's lock is taken over.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from slipway import slurm
from slipway.errors import SlipwayError

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
# Far above the attribute cache of any shared file system and a swapping login node.
SILENCE_SECONDS = 300.0


class LockHeldError(SlipwayError):
    """Another live process owns the folder."""


def process_identity(pid: int | None = None) -> dict[str, Any]:
    """Describe a process of this host so that it can be told from a later one with the same id."""
    process = psutil.Process(pid)
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid": process.pid,
        "started": process.create_time(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "slurm_restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }


def is_this_host(identity: dict[str, Any]) -> bool:
    """Return whether `identity` was taken on this host."""
    return identity.get("host") == socket.gethostname()


def is_running(identity: dict[str, Any]) -> bool:
    """Return whether the process that `identity` describes still runs on this host."""
    if not is_this_host(identity) or identity.get("boot") != _boot_id():
        return False
    try:
        process = psutil.Process(identity["pid"])
        # create_time is computed from clock ticks: equal to within a hundredth of a second
        same = abs(process.create_time() - identity["started"]) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class FolderLock:
    """Context manager that owns `path` (a lock file) or raises `LockHeldError`.

    `wait_seconds` is how long to wait for a live owner to finish before giving up.
    """

    def __init__(self, path: Path, purpose: str, wait_seconds: float = 0.0):
        self.path = path
        self.purpose = purpose
        self.wait_seconds = wait_seconds
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> "FolderLock":
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock, taking over a dead owner's."""
        deadline = time.monotonic() + self.wait_seconds
        said = False
        while not self._try_to_create():
            owner = self._read_owner()
            if owner is None:
                continue
            if not self._is_alive(owner):
                self._remove_stale(owner)
            elif time.monotonic() >= deadline:
                raise LockHeldError(
                    f"{self.path}: {self.purpose} is under way already, by {_described(owner)}. Wait for it to end, or "
                    "end it; if it runs no more, the lock frees itself."
                )
            else:
                if not said:
                    logger.info("%s: waiting for %s, which is at work here", self.purpose, _described(owner))
                    said = True
                time.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
        self._beat = threading.Thread(target=self._heartbeat, name="lock-heartbeat", daemon=True)
        self._beat.start()

    def release(self) -> None:
        """Give the lock back; does nothing when another process has taken it over."""
        self._stop.set()
        if self._beat is not None:
            self._beat.join()
            self._beat = None
        owner = self._read_owner()
        if owner is not None and owner.get("token") == self._token:
            self.path.unlink(missing_ok=True)

    def _try_to_create(self) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.{self._token}")
        owner = process_identity() | {"purpose": self.purpose, "token": self._token}
        draft.write_text(json.dumps(owner), encoding="utf-8")
        try:
            # a hard link is created whole or not at all, on NFS too
            os.link(draft, self.path)
            return True
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)

    def _read_owner(self) -> dict[str, Any] | None:
        try:
            owner = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError):
            return {}  # cut off by a full or crashed disk: nobody's
        return owner if isinstance(owner, dict) else {}

    def _is_alive(self, owner: dict[str, Any]) -> bool:
        if not owner:
            return False
        if is_this_host(owner):
            return is_running(owner)
        if _job_is_over(owner):
            return False
        try:
            return time.time() - self.path.stat().st_mtime < SILENCE_SECONDS
        except FileNotFoundError:
            return False

    def _remove_stale(self, owner: dict[str, Any]) -> None:
        # Renaming first lets exactly one of several takers win.
        grave = self.path.with_name(f".{self.path.name}.stale.{self._token}")
        try:
            self.path.rename(grave)
        except FileNotFoundError:
            return
        taken = json.loads(grave.read_text(encoding="utf-8") or "{}") if owner else {}
        if taken.get("token") != owner.get("token"):
            # Between our look and our rename somebody else took it over: give it back.
            with contextlib.suppress(FileExistsError):
                os.link(grave, self.path)
        grave.unlink(missing_ok=True)

    def _heartbeat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path)


def _described(owner: dict[str, Any]) -> str:
    job = f" (SLURM job {owner['slurm_job']})" if owner.get("slurm_job") else ""
    return f"process {owner.get('pid')} on {owner.get('host')}{job}"


def _job_is_over(owner: dict[str, Any]) -> bool:
    """Return whether SLURM says for certain that the owner's job has ended, or has been started again since."""
    job = owner.get("slurm_job")
    if job is None:
        return False
    if job == os.environ.get("SLURM_JOB_ID"):
        # SLURM starts a requeued job again under its old id, when nothing of the former start is left
        return owner.get("slurm_restart") != os.environ.get("SLURM_RESTART_COUNT", "0")
    if not slurm.is_here():
        return False
    try:
        known = slurm.find_job(job)
    except slurm.SlurmUnavailableError:
        return False
    return known is None or (not known.alive and known.state not in slurm.PASSING)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
