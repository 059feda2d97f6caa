"""Rule `train`: submit one job or find it again, wait, and judge by the checkpoint that it wrote.

Starting it again is always right: a finished training is published again without a job, a living job is waited
for, and a dead one is followed by a job that continues from the last complete checkpoint.
"""

import json
import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import submitit

from slipway.config.identity import changed_since_start, training_identity
from slipway.config.load import ConfigError
from slipway.errors import SlipwayError
from slipway.launch import STARTED, checkpoints, segments
from slipway.launch.job import JOB_LOCK, LOG, TrainingJob
from slipway.launch.progress import Progress, last_lines
from slipway.manifest import FolderLock, LockHeldError, Product, open_product, write_json

VERSION = 1

JOB = "job.json"
POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """What to train: names, files, and the digests of what goes in.

    `config_file` is the resolved verl config and `resolved` its content; `inputs` are digests of the data and model
    manifests; `environment` is what the device needs in the job's environment; `gpus` are the GPUs of a node, 0 on the
    CPU.
    """

    run: str
    config_file: Path
    resolved: Mapping[str, Any]
    inputs: Mapping[str, str]
    environment: Mapping[str, str]
    train_folder: Path
    runtime_minutes: int
    gpus: int

    @property
    def steps(self) -> int:
        """The step at which the training is complete."""
        return int(self.resolved["trainer"]["total_training_steps"])


def train(training: Training) -> None:
    """Bring the training to its last step and publish its manifest.

    Raises `SlipwayError` when the job ends before, when it trained nothing, or when what the checkpoints depend on
    has changed since the run started.
    """
    folder = training.train_folder
    inputs = {
        "version": VERSION,
        "steps": training.steps,
        "identity": training_identity(training.resolved),
        "inputs": dict(training.inputs),
    }
    progress = Progress(training.run, folder, training.steps)
    while True:
        try:
            with open_product("train", folder / "manifest.json", folder, inputs, wait_seconds=0) as product:
                if product.restore():
                    return
                _refuse_other_training(training)
                _bring_to_last_step(training, progress)
                _publish(training, product)
                return
        except LockHeldError:
            # a launcher whose Snakemake was killed is still at work: its training is ours too
            progress.update()
            time.sleep(POLL_SECONDS)


def _refuse_other_training(training: Training) -> None:
    """Compare with what the run started with; record it when this is the start."""
    record = training.train_folder / STARTED
    started = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
    trained = checkpoints.latest_step(training.train_folder / "checkpoints")
    if started is None or trained == 0:
        write_json(record, {"identity": training_identity(training.resolved), "inputs": dict(training.inputs)})
        return
    problems = changed_since_start(training.run, started["identity"], training.resolved)
    if problems:
        raise ConfigError(problems)
    for name, digest in training.inputs.items():
        if started["inputs"].get(name) != digest:
            raise SlipwayError(
                f"run {training.run!r} has been trained for {trained} steps on another {name}: the manifest's digest "
                f"was {started['inputs'].get(name)}, now it is {digest}. Its checkpoints depend on it: give the "
                f"changed run another name, or delete {training.train_folder} to start over."
            )
    if trained > training.steps:
        raise SlipwayError(
            f"runs.{training.run}.steps = {training.steps}: the run has been trained for {trained} steps already. "
            f"Steps can be raised, not lowered; use {trained} or more, or another run name."
        )


def _bring_to_last_step(training: Training, progress: Progress) -> None:
    before = checkpoints.latest_step(training.train_folder / "checkpoints")
    if _adopt_living_job(training, progress):
        logger.info("train %s: the job that was running already has ended", training.run)
    while checkpoints.latest_step(training.train_folder / "checkpoints") < training.steps:
        _run_job(training, progress)
        if _adopt_living_job(training, progress):
            # our job found another one at work, which was submitted in the moment before a crash
            continue
        reached = checkpoints.latest_step(training.train_folder / "checkpoints")
        if reached < training.steps:
            raise SlipwayError(_explain_failure(training, before, reached))
    progress.update()


def _adopt_living_job(training: Training, progress: Progress) -> bool:
    """Wait for a job that trains in this folder already; return whether there was one."""
    lock = FolderLock(training.train_folder / JOB_LOCK, "looking for a running training")
    adopted = False
    while True:
        try:
            with lock:
                return adopted
        except LockHeldError:
            if not adopted:
                logger.info("train %s: found the training at work, following it", training.run)
            adopted = True
            progress.update()
            time.sleep(POLL_SECONDS)


def _run_job(training: Training, progress: Progress) -> None:
    """Submit one job and wait for its end."""
    executor = submitit.AutoExecutor(folder=training.train_folder / "submitit", cluster="local")
    executor.update_parameters(
        name=f"slipway-{training.run}", timeout_min=training.runtime_minutes, gpus_per_node=training.gpus
    )
    job_function = TrainingJob(
        config=training.config_file.absolute(),
        train_folder=training.train_folder.absolute(),
        steps=training.steps,
        environment=dict(training.environment),
    )
    record = training.train_folder / JOB
    write_json(record, {"state": "submitting"})
    with _interruptible():
        job = executor.submit(job_function)
        write_json(record, {"state": "submitted", "executor": "local", "job": job.job_id})
        try:
            while not job.done():
                progress.update()
                time.sleep(POLL_SECONDS)
        except BaseException:
            logger.info("train %s: interrupted, ending the job; the same command continues it", training.run)
            job.cancel(check=False)
            raise
    progress.update()
    write_json(record, {"state": "ended", "executor": "local", "job": job.job_id})


class _interruptible:
    """Turns SIGTERM into KeyboardInterrupt, so that both end the job in order."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    @staticmethod
    def _interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt


def _explain_failure(training: Training, before: int, reached: int) -> str:
    known = segments.read_all(training.train_folder)
    if not known:
        where = training.train_folder / "submitit"
        return f"run {training.run!r}: the job ended before training began; its logs are in {where}"
    last = known[-1]
    log = segments.folder_of(training.train_folder, last.number) / LOG
    kept = (
        f"The checkpoint of step {reached} is safe: the same command continues from it."
        if reached
        else "No checkpoint was written yet: the same command starts from the beginning."
    )
    progress = "trained no step that was saved" if reached == before else f"got from step {before} to {reached}"
    return (
        f"run {training.run!r}: the training ended with status {last.exit_status} before step {training.steps}; it "
        f"{progress}. {kept}\nThe last lines of {log}:\n{last_lines(log)}"
    )


def _publish(training: Training, product: Product) -> None:
    folder = training.train_folder
    rows = segments.merge_metrics(folder)
    trained = [row["step"] for row in rows if "timing_s/step" in row["data"]]
    # verl saves the last step before it logs it: a kill in between costs that row and nothing else
    if not trained or max(trained) < training.steps - 1:
        raise SlipwayError(
            f"run {training.run!r}: the checkpoint says step {training.steps}, but the metrics in "
            f"{folder / 'segments'} end at step {max(trained, default=0)}. Move {folder} away and train again."
        )
    checkpoint = checkpoints.step_folder(folder / "checkpoints", training.steps)
    product.publish(
        checkpoints.index_files(checkpoint),
        facts={
            "run": training.run,
            "steps": training.steps,
            "checkpoint": str(checkpoint.relative_to(folder)),
        },
    )
