"""What runs inside the allocation, one task a node: one segment of training, from start to an orderly end."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from slipway.errors import SlipwayError
from slipway.launch import (
    allocation,
    checkpoints,
    machine,
    processes,
    ray_cluster,
    segments,
    stop,
    with_registration,
)
from slipway.launch.stop_orders import StopOrders
from slipway.launch.training import MAIN_PPO
from slipway.launch.validation import record_validation
from slipway.manifest import FolderLock

JOB_LOCK = "job.lock"
LOG = "main_ppo.log"
# How long verl may take to exit by itself after the checkpoint of the last step is complete.
EXIT_SECONDS = 60.0
POLL_SECONDS = 0.5
# How long SLURM may take to end a start that it has put back into the queue.
REQUEUE_SECONDS = 600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingJob:
    """One segment, as submitit pickles it: paths and words only, so that it can be read by any later version.

    `config` is the run's resolved verl config, `environment` what the device needs besides the inherited
    environment, `steps` the training step at which the run is complete, `module` what `python -m` trains with.
    On several nodes `ray_node` tells Ray of the resources of each where it cannot see them. The newest
    `keep_checkpoints` stay (None: all), and of older ones in `evaluated_steps` the weights.
    """

    config: Path
    train_folder: Path
    steps: int
    environment: Mapping[str, str] = field(default_factory=dict)
    module: str = MAIN_PPO
    ray_node: Mapping[str, int] = field(default_factory=dict)
    keep_checkpoints: int | None = None
    evaluated_steps: tuple[int, ...] = ()

    def __call__(self) -> int:
        """Train until the last step or until the job has to stop; raises `SlipwayError` when training failed."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        if allocation.rank() > 0:
            return self._serve()
        with FolderLock(self.train_folder / JOB_LOCK, "training"):
            # Ray of a start that was killed may still hold memory, ports and GPUs of this node.
            processes.end_marked(self._mark)
            unfinished = checkpoints.remove_unfinished(self._checkpoints)
            if unfinished:
                logger.info("removed unfinished checkpoints of steps %s", unfinished)
            segment = segments.begin(
                self.train_folder,
                job_id=allocation.job_id() or str(os.getpid()),
                host=socket.gethostname(),
                resumed_from=checkpoints.latest_step(self._checkpoints),
            )
            folder = segments.folder_of(self.train_folder, segment.number)
            order = StopOrders(folder, self.train_folder)
            status = -signal.SIGKILL
            try:
                with order.listening():
                    status = self._train(folder, order)
                self._remove_old_checkpoints()
            finally:
                processes.end_marked(self._mark)
                segment = segments.finish(self.train_folder, segment, status, order.reason_of_end(status))
        # without the lock: where SLURM ends this start, it does so during a wait in `_end`
        return self._end(segment)

    def _end(self, segment: segments.Segment) -> int:
        """Judge the segment by its checkpoint; where the job had to stop, put it back into the queue."""
        reached, resumed_from, status = (
            checkpoints.latest_step(self._checkpoints),
            segment.resumed_from,
            segment.exit_status,
        )
        if reached >= self.steps:
            return 0
        if segment.reason == segments.PREEMPTED or (segment.reason == segments.TIME_LIMIT and reached > resumed_from):
            logger.info("%s after step %d; back into the queue", segment.reason, reached)
            # SLURM would requeue a preempted job itself when its grace time is over: this frees the nodes earlier
            if allocation.requeue() or segment.reason == segments.PREEMPTED:
                time.sleep(REQUEUE_SECONDS)
            # the launcher submits another job then
            return 0
        if segment.reason == segments.TIME_LIMIT:
            raise SlipwayError(
                f"the job's time limit came before a step after step {resumed_from} was made and saved: another such "
                "segment would get no further. Raise the run's runtime_minutes."
            )
        raise SlipwayError(f"{self.module} ended with status {status} at step {reached} of {self.steps}")

    @property
    def _mark(self) -> str:
        return str(self.train_folder)

    @property
    def _checkpoints(self) -> Path:
        return self.train_folder / "checkpoints"

    def _serve(self) -> int:
        """Be one of the further nodes."""
        try:
            with _short_folder() as ray_folder, (self.train_folder / f"node-{allocation.rank()}.log").open("ab") as log:
                environment = self._environment()[0] | {"RAY_TMPDIR": ray_folder}
                status = ray_cluster.serve(self.train_folder, self.ray_node, environment, log)
        finally:
            processes.end_marked(self._mark)
        if status:
            raise SlipwayError(f"Ray ended on node {socket.gethostname()} with status {status} before the training did")
        return 0

    def _train(self, folder: Path, order: StopOrders) -> int:
        of_segment = {stop.VARIABLE: str(order.file), "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
        record_validation(self._resolved(), folder)
        environment, decisions = self._environment()
        machine.record(decisions, folder)
        # "++": verl's config need not have the key
        decided = tuple(f"++{key}={value}" for decision in decisions for key, value in decision.verl.items())
        others = allocation.nodes()[1:]
        with _short_folder() as ray_folder, (folder / LOG).open("ab") as log:
            environment["RAY_TMPDIR"] = ray_folder
            if not others:
                return self._wait(self._start(folder, environment | of_segment, log, decided), order)
            with ray_cluster.Head(self.train_folder, others, self.ray_node, environment, of_segment, log) as head:
                return self._wait(self._start(folder, head.environment, log, (*decided, *_JOIN_CLUSTER)), order)

    def _remove_old_checkpoints(self) -> None:
        if self.keep_checkpoints is None:
            return
        removed = checkpoints.remove_old(self._checkpoints, self.keep_checkpoints, self.evaluated_steps)
        if removed:
            logger.info("removed old checkpoints of steps %s", removed)

    def _start(
        self, folder: Path, environment: Mapping[str, str], log: IO[bytes], overrides: tuple[str, ...] = ()
    ) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-m",
            self.module,
            f"--config-path={self.config.parent}",
            f"--config-name={self.config.stem}",
            # relative to the folder it starts in: Hydra's grammar has no place for some characters of a path
            "hydra.run.dir=hydra",
            *overrides,
        ]
        return processes.start_bound(command, environment, folder, log)

    def _resolved(self) -> dict[str, Any]:
        return yaml.safe_load(self.config.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def _environment(self) -> tuple[dict[str, str], list[machine.Decision]]:
        """Return the environment of a training's processes on this node, and what this node decided."""
        environment = with_registration(os.environ | dict(self.environment)) | {
            processes.MARK: self._mark,
            "RAY_USAGE_STATS_ENABLED": "0",
            "HYDRA_FULL_ERROR": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(_package_roots()),
        }
        decisions = machine.decide(self._resolved(), environment)
        for decision in decisions:
            environment |= decision.environment
        return environment, decisions

    def _wait(self, verl: "subprocess.Popen[bytes]", order: StopOrders) -> int:
        """Wait for verl to exit; help it when it stays after its work is done."""
        complete_since: float | None = None
        while True:
            try:
                return verl.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                order.update()
                self._remove_old_checkpoints()
            if checkpoints.latest_step(self._checkpoints) < self.steps:
                continue
            complete_since = complete_since or time.monotonic()
            if time.monotonic() - complete_since > EXIT_SECONDS:
                logger.info("verl has saved its last step %.0f s ago and still runs: ending it", EXIT_SECONDS)
                return 0


# ray.init takes no resources when it joins a cluster.
_JOIN_CLUSTER = tuple(
    f"++ray_kwargs.ray_init.{key}=null" for key in ("num_cpus", "num_gpus", "object_store_memory", "include_dashboard")
)


@contextmanager
def _short_folder() -> Iterator[str]:
    """Make a folder for Ray's sockets, whose paths may have 107 bytes: TMPDIR is often too long for that."""
    folder = tempfile.mkdtemp(prefix="slw-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _package_roots() -> list[str]:
    """Return where Ray's workers find this package, before whatever the user's path holds."""
    own = str(Path(__file__).resolve().parents[2])
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != own]
    return [own, *inherited]
