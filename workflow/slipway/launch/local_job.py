"""A training as a process of this machine, by submitit's local executor."""

import contextlib
import logging
import time

import submitit

from slipway.launch.job import JOB_LOCK, TrainingJob
from slipway.launch.progress import Progress
from slipway.launch.record import write_record
from slipway.launch.training import Ending, Training
from slipway.manifest import FolderLock, LockHeldError

POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


def run(training: Training, job: TrainingJob, progress: Progress) -> Ending:
    """Follow the training that is at work in the folder, or start it; return when it has ended."""
    if _follow_living(training, progress):
        return Ending("the training that was at work already has ended", resumable=True)
    executor = submitit.AutoExecutor(folder=training.train_folder / "submitit", cluster="local")
    executor.update_parameters(
        name=f"slipway-{training.run}", timeout_min=training.runtime_minutes, gpus_per_node=training.gpus
    )
    write_record(training.train_folder, state="submitting", executor="local")
    submitted = executor.submit(job)
    write_record(training.train_folder, state="submitted", executor="local", job=submitted.job_id)
    try:
        while not submitted.done():
            progress.update()
            time.sleep(POLL_SECONDS)
    except BaseException:
        logger.info("train %s: interrupted, ending the job; the same command continues it", training.run)
        submitted.cancel(check=False)
        raise
    # for status.py only; on a full disk the reason why the training failed says more than this write's failure
    with contextlib.suppress(OSError):
        write_record(training.train_folder, state="ended", executor="local", job=submitted.job_id)
    # submitted in the moment before a crash, another one may have been there first: then ours has ended at once
    followed = _follow_living(training, progress)
    return Ending("the training process ended", resumable=followed)


def _follow_living(training: Training, progress: Progress) -> bool:
    """Wait for a process that trains in this folder; return whether there was one."""
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
