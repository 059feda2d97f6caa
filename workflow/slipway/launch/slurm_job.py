"""A training as a SLURM job, by submitit: submitted once, found again whatever happened to its launcher.

The job's name follows from the training's folder. A launcher looks for the job that its record names, and else for
one of that name, before it submits any.
"""

import contextlib
import hashlib
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, JobPaths

from slipway import slurm
from slipway.errors import SlipwayError
from slipway.launch.job import TrainingJob
from slipway.launch.progress import Progress
from slipway.launch.record import read_record, write_record
from slipway.launch.training import Ending, Training

POLL_SECONDS = 3.0
# How long a job may be in a state that SLURM leaves when it requeues the job, or unknown to squeue and sacct alike.
PASSING_SECONDS = 60.0
# Before a time limit or a preemption SLURM sends SIGUSR2 this early. The time limit needs no signal: the job knows it.
SIGNAL_SECONDS = 30

logger = logging.getLogger(__name__)


def run(training: Training, job: TrainingJob, progress: Progress) -> Ending:
    """Follow the run's job, or submit it; return when it has ended for good.

    Raises `SlipwayError` when sbatch refuses. An interrupt leaves the job alone and says how to end it.
    """
    number = _find(training)
    if number is not None:
        logger.info("train %s: found SLURM job %s, following it", training.run, number)
        _give_pickle(training, number)
    else:
        number = _submit(training, job)
    write_record(training.train_folder, state="submitted", executor="slurm", job=number, name=name_of(training))
    try:
        ended = _follow(number, progress)
    except BaseException:
        logger.info(
            "train %s: SLURM job %s goes on without its launcher. The same command follows it; `scancel %s` ends it.",
            training.run,
            number,
            number,
        )
        raise
    # for status.py only; on a full disk the reason why the training failed says more than this write's failure
    with contextlib.suppress(OSError):
        write_record(
            training.train_folder, state="ended", executor="slurm", job=number, name=name_of(training), end=ended.state
        )
    return _ending(number, ended)


def name_of(training: Training) -> str:
    """Return the job's name: the same for every launcher of this folder, and no other folder's."""
    digest = hashlib.sha256(str(training.train_folder.resolve()).encode()).hexdigest()[:10]
    return f"slipway-{training.run}-{digest}"


def _find(training: Training) -> str | None:
    """Return the id of a living job of this training; waits while SLURM does not answer."""
    while True:
        try:
            record = read_record(training.train_folder)
            if record.get("executor") == "slurm" and record.get("job"):
                known = slurm.find_job(record["job"])
                if known is not None and (known.alive or known.state in slurm.PASSING):
                    return known.id
            living = [job for job in slurm.find_jobs_by_name(name_of(training)) if job.alive]
            return living[0].id if living else None
        except slurm.SlurmUnavailableError as error:
            if not slurm.is_here():
                raise
            logger.info("train %s: cannot tell whether a job runs already, asking again: %s", training.run, error)
            time.sleep(10 * POLL_SECONDS)


def _submit(training: Training, job: TrainingJob) -> str:
    folder = training.train_folder / "submitit"
    with _outside_of_jobs():
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**_parameters(training))
        write_record(training.train_folder, state="submitting", executor="slurm", name=name_of(training))
        try:
            submitted = executor.submit(job)
        except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
            write_record(training.train_folder, state="refused", executor="slurm", name=name_of(training))
            raise SlipwayError(
                f"run {training.run!r}: sbatch refused the training job: {str(error).strip()}\nThe names of account, "
                "partitions and GPU type come from profiles/slurm/site.yaml, nodes, gpus_per_node and "
                "runtime_minutes from the run."
            ) from None
    logger.info("train %s: submitted SLURM job %s (%s)", training.run, submitted.job_id, name_of(training))
    return submitted.job_id


def _parameters(training: Training) -> dict[str, Any]:
    """Return what sbatch is told, in submitit's names."""
    site = training.site
    parameters: dict[str, Any] = {
        "job_name": name_of(training),
        "time": training.runtime_minutes,
        "nodes": training.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": site.cpus_per_gpu * training.processes,
        "mem": f"{site.memory_gib_per_gpu * training.processes}G",
        "partition": site.gpu_partition,
        "account": site.account,
        "qos": site.qos,
        "exclude": site.exclude,
        "signal_delay_s": SIGNAL_SECONDS,
        "stderr_to_stdout": True,
        "setup": list(site.setup) or None,
        "comment": f"slipway run {training.run}",
        # one task that dies takes the others with it, at once
        "srun_args": ["--kill-on-bad-exit=1", "--wait=60", "--cpu-bind=none"]
        + ([f"--container-image={site.container}"] if site.container else []),
        "additional_parameters": {"requeue": True}
        | ({"reservation": site.reservation} if site.reservation else {})
        | dict(site.sbatch),
    }
    if training.gpus:
        gpus = f"{site.gpu_type}:{training.gpus}" if site.gpu_type else training.gpus
        parameters["gpus_per_node"] = gpus
    return {key: value for key, value in parameters.items() if value is not None}


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Hide what SLURM set for a job that this launcher may be part of: sbatch would take it for options."""
    before = dict(os.environ)
    kept = slurm.environment_for_commands()
    for key in set(before) - set(kept):
        del os.environ[key]
    try:
        yield
    finally:
        os.environ.update(before)


def _give_pickle(training: Training, number: str) -> None:
    """Name the pickle of a launcher that died between sbatch and doing so; the job waits for it, for a minute."""
    paths = JobPaths(training.train_folder / "submitit", number)
    if paths.submitted_pickle.exists():
        return
    left = sorted(paths.folder.glob("*.pkl"), key=lambda path: path.stat().st_mtime)
    unnamed = [path for path in left if not path.stem.endswith(("_submitted", "_result"))]
    if unnamed:
        paths.move_temporary_file(unnamed[-1], "submitted_pickle")


def _follow(number: str, progress: Progress) -> slurm.Job:
    """Wait until the job has ended for good: longer than a moment in an end state, or unknown to SLURM."""
    ended_since: float | None = None
    silent_since: float | None = None
    while True:
        progress.update()
        try:
            job = slurm.find_job(number) or slurm.Job(number, "UNKNOWN")
        except slurm.SlurmUnavailableError as error:
            if silent_since is None:
                logger.info("SLURM does not answer about job %s; waiting: %s", number, error)
                silent_since = time.monotonic()
            time.sleep(POLL_SECONDS)
            continue
        if silent_since is not None:
            logger.info("SLURM answers again after %.0f s", time.monotonic() - silent_since)
            silent_since = None
        if job.alive:
            ended_since = None
            progress.waiting_for = _why_waiting(job)
        elif job.state not in slurm.PASSING and job.state != "UNKNOWN":
            progress.update()
            return job
        else:
            ended_since = ended_since or time.monotonic()
            if time.monotonic() - ended_since > PASSING_SECONDS:
                return job
        time.sleep(POLL_SECONDS)


def _why_waiting(job: slurm.Job) -> str:
    if job.state == "PENDING":
        return f"SLURM job {job.id} waits in the queue ({job.detail})"
    return f"SLURM job {job.id} is {job.state.lower()} on {job.nodes}"


def _ending(number: str, job: slurm.Job) -> Ending:
    words = f"SLURM says of job {number}: {job.state}" + (f" (on {job.nodes})" if job.nodes else "")
    if job.state == "CANCELLED":
        words += ". Somebody has ended it, with scancel for instance"
    if job.state == "TIMEOUT":
        words += ". The run's runtime_minutes must be enough for the start-up, one step and one checkpoint"
    return Ending(words, resumable=job.state in ("TIMEOUT", "COMPLETED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"))


def logs_of(train_folder: Path, number: str) -> list[Path]:
    """Return the logs of a job's tasks, those with something in them."""
    return [path for path in sorted((train_folder / "submitit").glob(f"{number}_*_log.out")) if path.stat().st_size]
