"""Rule `train`: submit one job or find it again, wait, and judge by the checkpoint that it wrote.

Starting it again is always right: a finished training is published again without a job, a living job is waited
for, and a dead one is followed by a job that continues from the last complete checkpoint.
"""

import contextlib
import logging
import shutil
import signal
import time
from pathlib import Path
from types import FrameType

from slipway.config.identity import changed_since_start, training_identity
from slipway.config.load import ConfigError
from slipway.errors import SlipwayError
from slipway.launch import checkpoints, local_job, segments, slurm_job
from slipway.launch.job import LOG, TrainingJob
from slipway.launch.ledger import write_ledger
from slipway.launch.logs import cause, last_lines
from slipway.launch.progress import Progress
from slipway.launch.started import Started, read_started, write_started
from slipway.launch.training import Ending, Training
from slipway.manifest import LockHeldError, Product, open_product

VERSION = 1

POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


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
    started = read_started(training.train_folder)
    trained = checkpoints.latest_step(training.train_folder / "checkpoints")
    if started is None or trained == 0:
        write_started(training.train_folder, Started(training_identity(training.resolved), training.inputs))
        return
    problems = changed_since_start(training.run, started.identity, training.resolved)
    if problems:
        raise ConfigError(problems)
    for name, digest in training.inputs.items():
        if started.inputs.get(name) != digest:
            raise SlipwayError(
                f"run {training.run!r} has been trained for {trained} steps on another {name}: its digest "
                f"was {started.inputs.get(name)}, now it is {digest}. Its checkpoints depend on it: give the "
                f"changed run another name, or delete {training.train_folder} to start over."
            )
    if trained > training.steps:
        raise SlipwayError(
            f"runs.{training.run}.steps = {training.steps}: the run has been trained for {trained} steps already. "
            f"Steps can be raised, not lowered; use {trained} or more, or another run name."
        )


def _bring_to_last_step(training: Training, progress: Progress) -> None:
    """Let one job after another train, as long as each gets further and ended for a reason that is no fault."""
    folder = training.train_folder
    job = TrainingJob(
        config=training.config_file.absolute(),
        train_folder=folder.absolute(),
        steps=training.steps,
        environment=dict(training.environment),
        module=training.module,
        ray_node=dict(training.ray_node),
        keep_checkpoints=training.keep_checkpoints,
        evaluated_steps=training.evaluated_steps,
    )
    run = slurm_job.run if training.executor == "slurm" else local_job.run
    while (before := checkpoints.latest_step(folder / "checkpoints")) < training.steps:
        with _interruptible():
            ending = run(training, job, progress)
        progress.update()
        reached = checkpoints.latest_step(folder / "checkpoints")
        if reached < training.steps and not (ending.resumable and reached > before):
            # for the page of the failed run; why the training failed says more than a failure of this
            with contextlib.suppress(OSError, SlipwayError):
                _account(training)
            raise SlipwayError(_explain_failure(training, before, reached, ending))
        if reached < training.steps:
            logger.info("train %s: %s; going on after step %d", training.run, ending.words, reached)
    progress.update()


class _interruptible:
    """Turns SIGTERM into KeyboardInterrupt, so that both end the job in order."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    @staticmethod
    def _interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt


def _explain_failure(training: Training, before: int, reached: int, ending: Ending) -> str:
    known = segments.read_all(training.train_folder)
    if not known:
        where = training.train_folder / "submitit"
        return f"run {training.run!r}: the job ended before training began. {ending.words}; its logs are in {where}"
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
        f"{progress}. {ending.words}. {kept}\n{_disk(training.train_folder)}{_cause(log)}"
        f"The last lines of {log}:\n{last_lines(log)}"
    )


def _disk(folder: Path) -> str:
    """Return a word about a full disk, which torch reports as an unexpected position in a file."""
    usage = shutil.disk_usage(folder)
    if usage.free > usage.total / 100:
        return ""
    return f"The disk of {folder} is full ({usage.free / 2**20:.0f} MiB free): make room first.\n"


def _cause(log: Path) -> str:
    named = cause(log)
    return f"Cause: {named}\n" if named else ""


def _account(training: Training) -> None:
    folder, devices = training.train_folder, training.nodes * training.processes
    write_ledger(folder, folder.parent, devices, on_slurm=training.executor == "slurm")


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
    _account(training)
    checkpoint = checkpoints.step_folder(folder / "checkpoints", training.steps)
    product.publish(
        checkpoints.index_files(checkpoint),
        facts={
            "run": training.run,
            "steps": training.steps,
            "checkpoint": str(checkpoint.relative_to(folder)),
        },
    )
