"""What runs inside the allocation: one segment of training, from start to an orderly end."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from slipway.launch import checkpoints, processes, segments
from slipway.manifest import FolderLock

JOB_LOCK = "job.lock"
LOG = "main_ppo.log"
# How long verl may take to exit by itself after the checkpoint of the last step is complete.
EXIT_SECONDS = 60.0
POLL_SECONDS = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingJob:
    """One segment, as submitit pickles it: paths and words only, so that it can be read by any later version.

    `config` is the run's resolved verl config, `environment` what the device needs besides the inherited
    environment, `steps` the training step at which the run is complete.
    """

    config: Path
    train_folder: Path
    steps: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> int:
        """Train until the last step, and return verl's exit status."""
        with FolderLock(self.train_folder / JOB_LOCK, "training"):
            # Ray of a segment that was killed may still hold memory, ports and GPUs.
            processes.end_marked(self._mark)
            unfinished = checkpoints.remove_unfinished(self._checkpoints)
            if unfinished:
                logger.info("removed unfinished checkpoints of steps %s", unfinished)
            segment = segments.begin(
                self.train_folder,
                job_id=os.environ.get("SLURM_JOB_ID") or str(os.getpid()),
                host=socket.gethostname(),
                resumed_from=checkpoints.latest_step(self._checkpoints),
            )
            status = -signal.SIGKILL
            try:
                status = self._run_verl(segments.folder_of(self.train_folder, segment.number))
            finally:
                processes.end_marked(self._mark)
                segments.finish(self.train_folder, segment, status)
            return status

    @property
    def _mark(self) -> str:
        return str(self.train_folder)

    @property
    def _checkpoints(self) -> Path:
        return self.train_folder / "checkpoints"

    def _run_verl(self, folder: Path) -> int:
        # Ray puts sockets there, whose paths may have 107 bytes: TMPDIR is often too long for that.
        ray_folder = tempfile.mkdtemp(prefix="slw-", dir="/tmp")
        try:
            with (folder / LOG).open("ab") as log:
                return self._wait(self._start(folder, ray_folder, log))
        finally:
            shutil.rmtree(ray_folder, ignore_errors=True)

    def _start(self, folder: Path, ray_folder: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-m",
            "verl.trainer.main_ppo",
            f"--config-path={self.config.parent}",
            f"--config-name={self.config.stem}",
            f"hydra.run.dir={folder / 'hydra'}",
        ]
        environment = (
            os.environ
            | dict(self.environment)
            | {
                processes.MARK: self._mark,
                "RAY_TMPDIR": ray_folder,
                "RAY_USAGE_STATS_ENABLED": "0",
                "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
                "HYDRA_FULL_ERROR": "1",
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.pathsep.join(_package_roots()),
            }
        )
        return processes.start_bound(command, environment, folder, log)

    def _wait(self, verl: "subprocess.Popen[bytes]") -> int:
        """Wait for verl to exit; help it when it stays after its work is done."""
        complete_since: float | None = None
        while True:
            try:
                return verl.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            if checkpoints.latest_step(self._checkpoints) < self.steps:
                continue
            complete_since = complete_since or time.monotonic()
            if time.monotonic() - complete_since > EXIT_SECONDS:
                logger.info("verl has saved its last step %.0f s ago and still runs: ending it", EXIT_SECONDS)
                return 0


def _package_roots() -> list[str]:
    """Return where Ray's workers find this package, before whatever the user's path holds."""
    own = str(Path(__file__).resolve().parents[2])
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != own]
    return [own, *inherited]
