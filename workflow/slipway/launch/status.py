"""How far every run is, from its files and one question to SLURM: read by `scripts/status.py`, while things run."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway import slurm
from slipway.config.paths import ResultPaths
from slipway.config.schema import Run
from slipway.launch import checkpoints, segments
from slipway.launch.job import JOB_LOCK, LOG
from slipway.launch.logs import cause
from slipway.launch.record import read_record
from slipway.manifest import FolderLock, LockHeldError


@dataclass(frozen=True)
class Status:
    """One run on one line: what it does, its job, steps, reward, time left, what the user may do, what stopped it."""

    run: str
    state: str
    job: str = ""
    step: str = ""
    reward: str = ""
    left: str = ""
    checkpoint: str = ""
    advice: str = ""
    cause: str = ""


def status_of(name: str, run: Run, paths: ResultPaths) -> Status:
    """Look at one run; starts and changes nothing."""
    if (paths.run(name) / "report.html").is_file() and (paths.train(name) / "manifest.json").is_file():
        return Status(name, "finished", advice=f"read {paths.run(name) / 'report.html'}")
    train = paths.train(name)
    saved = checkpoints.latest_step(paths.checkpoints(name))
    checkpoint = f"step {saved}" if saved else ""
    rows = _rows(train)
    step = f"{rows[-1]['step']}/{run.steps}" if rows else ""
    if (train / "manifest.json").is_file():
        return Status(name, "trained", step=step, checkpoint=checkpoint, advice="evaluation and report follow")
    state, job, advice = _training_state(train)
    if state is None:
        return Status(name, *_before_training(name, paths))
    left = ""
    reward = ""
    if rows and state == "training":
        mean = sum(row["data"]["timing_s/step"] for row in rows[-5:]) / len(rows[-5:])
        left = _duration(mean * (run.steps - rows[-1]["step"]))
    if rows:
        score = rows[-1]["data"].get("critic/score/mean")
        reward = f"{score:.3f}" if isinstance(score, int | float) else ""
    stopped_by = _cause(train) if state.startswith("stopped") else ""
    return Status(name, state, job, step, reward, left, checkpoint, advice, stopped_by)


def _training_state(train: Path) -> tuple[str | None, str, str]:
    """Return state, job and advice of a training that has been launched; (None, "", "") of one that has not."""
    record = read_record(train)
    if record.get("executor") == "slurm" and record.get("job"):
        number = record["job"]
        try:
            job = slurm.find_job(number)
        except slurm.SlurmUnavailableError as error:
            return "unknown", number, f"SLURM does not answer: {error}"
        if job is not None and job.state == "PENDING":
            return f"queued ({job.detail})", number, f"`scancel {number}` ends it"
        if job is not None and job.alive:
            return "training", f"{number} on {job.nodes}", f"`scancel {number}` ends it"
        word = job.state.lower() if job is not None else "gone"
        return f"stopped ({word})", number, "the same snakemake command continues it"
    if _is_owned(train):
        return "training", str(record.get("job", "")), ""
    if record:
        return "stopped", str(record.get("job", "")), "the same snakemake command continues it"
    return None, "", ""


def _before_training(name: str, paths: ResultPaths) -> tuple[str, str, str, str, str, str, str]:
    findings = paths.preflight(name) / "findings.json"
    if (paths.run(name) / "preflight.json").is_file():
        return "checked", "", "", "", "", "", "training follows"
    if findings.is_file():
        faults = [entry for entry in json.loads(findings.read_text(encoding="utf-8")) if _is_error(entry)]
        if faults:
            return f"refused: {len(faults)} faults", "", "", "", "", "", f"read {findings.with_suffix('.md')}"
    return "not started", "", "", "", "", "", "data and model come first"


def _is_error(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("severity") == "error"


def _is_owned(train: Path) -> bool:
    lock = train / JOB_LOCK
    if not lock.exists():
        return False
    try:
        with FolderLock(lock, "asking for the status"):
            return False
    except LockHeldError:
        return True


def _rows(train: Path) -> list[dict[str, Any]]:
    known = segments.read_all(train)
    if not known:
        return []
    folder = segments.folder_of(train, known[-1].number)
    return [row for row in segments.training_rows(folder / "metrics.jsonl") if "timing_s/step" in row["data"]]


def _cause(train: Path) -> str:
    """Return the error that ended the newest segment, where its log names one."""
    known = segments.read_all(train)
    if not known:
        return ""
    return cause(segments.folder_of(train, known[-1].number) / LOG) or ""


def _duration(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) if seconds < 86400 else f"{seconds / 86400:.1f} days"
