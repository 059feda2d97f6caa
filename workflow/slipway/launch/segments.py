"""Segments: the stretches of one training between a start and an end, each with its own log and metrics.

verl truncates its metrics file at every start; therefore each segment writes its own, and `merge_metrics` joins
them: where two segments trained the same step, the later one counts, since training went on from it.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.manifest import write_json, write_text

# Why a segment ended before the last step, where SLURM ended it.
TIME_LIMIT = "time limit"
PREEMPTED = "preempted"


@dataclass(frozen=True)
class Segment:
    """One segment; times in seconds since the epoch, None while it runs."""

    number: int
    job_id: str
    host: str
    resumed_from: int
    started: float
    ended: float | None = None
    exit_status: int | None = None
    last_step: int | None = None
    reason: str | None = None


def folder_of(train_folder: Path, number: int) -> Path:
    """Return the folder of one segment: segment.json, metrics.jsonl, main_ppo.log."""
    return train_folder / "segments" / f"{number:03d}"


def begin(train_folder: Path, job_id: str, host: str, resumed_from: int) -> Segment:
    """Record the start of the next segment."""
    number = max((known.number for known in read_all(train_folder)), default=0) + 1
    segment = Segment(number, job_id, host, resumed_from, time.time())
    write_json(folder_of(train_folder, number) / "segment.json", asdict(segment))
    return segment


def finish(train_folder: Path, segment: Segment, exit_status: int, reason: str | None = None) -> Segment:
    """Record how a segment ended."""
    steps = [row["step"] for row in training_rows(folder_of(train_folder, segment.number) / "metrics.jsonl")]
    ended = replace(
        segment, ended=time.time(), exit_status=exit_status, last_step=max(steps, default=None), reason=reason
    )
    write_json(folder_of(train_folder, segment.number) / "segment.json", asdict(ended))
    return ended


def read_all(train_folder: Path) -> list[Segment]:
    """Return the recorded segments in order; raises `SlipwayError` that names a damaged record."""
    return [_read(record) for record in sorted((train_folder / "segments").glob("*/segment.json"))]


def _read(record: Path) -> Segment:
    try:
        return Segment(**json.loads(record.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise SlipwayError(
            f"{record}: damaged ({error!r}). It tells when this segment ran and how it ended, nothing that the "
            "training goes on from: bring it back, or delete its folder"
        ) from None


def training_rows(metrics_file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows `{"step": n, "data": {...}}` of trained steps; an unfinished last line is left out."""
    if not metrics_file.is_file():
        return
    for line in metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "step" in row and row["step"] > 0 and isinstance(row.get("data"), dict):
            yield row


def longest_save(train_folder: Path) -> float | None:
    """Return the longest time in seconds that a checkpoint took so far; None before the first one."""
    times = [
        row["data"]["timing_s/save_checkpoint"]
        for segment in read_all(train_folder)
        for row in training_rows(folder_of(train_folder, segment.number) / "metrics.jsonl")
        if "timing_s/save_checkpoint" in row["data"]
    ]
    return max(times, default=None)


def merge_metrics(train_folder: Path) -> list[dict[str, Any]]:
    """Join the segments' metrics into `metrics.jsonl`, one row a step, and return the rows."""
    by_step: dict[int, dict[str, Any]] = {}
    for segment in read_all(train_folder):
        rows = list(training_rows(folder_of(train_folder, segment.number) / "metrics.jsonl"))
        trained = [row["step"] for row in rows if "timing_s/step" in row["data"]]
        if trained:
            # verl validates again where it resumes: that row says nothing of the step before it
            by_step = {step: row for step, row in by_step.items() if step < min(trained)}
        for row in rows:
            # a step's validation is logged apart from its training metrics
            known = by_step.get(row["step"], {"step": row["step"], "segment": segment.number, "data": {}})
            by_step[row["step"]] = known | {"data": known["data"] | row["data"]}
    merged = [by_step[step] for step in sorted(by_step)]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in merged)
    write_text(train_folder / "metrics.jsonl", text)
    return merged
