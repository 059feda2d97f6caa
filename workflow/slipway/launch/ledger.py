"""Where a training's device-hours went: `results/<run>/ledger.json`, by segment and in all."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from slipway import slurm
from slipway.launch import checkpoints, segments
from slipway.launch.job import LOG
from slipway.manifest import write_json

LEDGER = "ledger.json"
# What a segment's time is spent on, in the order in which it begins.
STATES = ("queued", "starting", "training", "saving", "lost", "ending")

Span = tuple[str, float]
"""A state and for how many seconds it lasted."""


@dataclass(frozen=True)
class Entry:
    """One segment in seconds. All but `queued`, in which it held no device, add up to the time that it held them.

    `starting` is up to the first step, `training` the steps that count, `saving` their checkpoints, `lost` steps
    that a later segment had to train again, `ending` everything after the last step. `spans` are the same seconds in
    the order in which they passed; `started`, seconds since the epoch, is when the first one after `queued` began.
    Steps `first_step` to `last_step` were trained (None: none was), and those up to `kept_step` count.
    """

    segment: int
    job: str
    ended_by: str
    started: float
    first_step: int | None
    last_step: int | None
    kept_step: int
    queued: float
    starting: float
    training: float
    saving: float
    lost: float
    ending: float
    spans: list[Span]


def write_ledger(train_folder: Path, run_folder: Path, devices: int, on_slurm: bool) -> None:
    """Write the ledger of a training on so many devices: GPUs, or processes on the CPU."""
    saved = checkpoints.latest_step(train_folder / "checkpoints")
    entries = entries_of(train_folder, _queue_times(train_folder) if on_slurm else {}, saved)
    totals = {f"{name}_hours": round(sum(getattr(e, name) for e in entries) * devices / 3600, 4) for name in STATES}
    # nothing is held in the queue: those are hours of waiting
    totals["queued_hours"] = round(sum(entry.queued for entry in entries) / 3600, 4)
    write_json(
        run_folder / LEDGER,
        {"devices": devices, "totals": totals, "segments": [asdict(entry) for entry in entries]},
    )


def entries_of(train_folder: Path, queued: Mapping[tuple[str, int], float], saved: int) -> list[Entry]:
    """Return an entry for each segment.

    `queued` says how long the n-th start of a job waited, `saved` is the step of the newest checkpoint: what the last
    segment trained beyond it is lost.
    """
    known = segments.read_all(train_folder)
    starts: dict[str, int] = {}
    entries = []
    for segment, following in zip(known, [*known[1:], None], strict=True):
        start = starts.get(segment.job_id, 0)
        starts[segment.job_id] = start + 1
        folder = segments.folder_of(train_folder, segment.number)
        rows = [row for row in segments.training_rows(folder / "metrics.jsonl") if "timing_s/step" in row["data"]]
        steps = {row["step"]: row["data"]["timing_s/step"] for row in rows}
        saves = {row["step"]: row["data"].get("timing_s/save_checkpoint", 0.0) for row in rows}
        kept = saved if following is None else following.resumed_from
        last_sign = max(
            (path.stat().st_mtime for path in (folder / LOG, folder / "metrics.jsonl") if path.exists()), default=0
        )
        end = segment.ended or last_sign
        held = max(0.0, end - segment.started)
        ending = max(0.0, end - last_row_time(folder, last_sign)) if steps else 0.0
        starting = max(0.0, held - sum(steps.values()) - ending)
        waited = queued.get((segment.job_id, start), 0.0)
        spans = _joined(
            [("queued", waited), ("starting", starting), *_step_spans(steps, saves, kept), ("ending", ending)]
        )
        entries.append(
            Entry(
                segment=segment.number,
                job=segment.job_id,
                ended_by=segment.reason or ("finished" if segment.exit_status == 0 else "failure"),
                started=segment.started,
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                kept_step=kept,
                queued=_total(spans, "queued"),
                starting=_total(spans, "starting"),
                training=_total(spans, "training"),
                saving=_total(spans, "saving"),
                lost=_total(spans, "lost"),
                ending=_total(spans, "ending"),
                spans=[(state, round(seconds, 1)) for state, seconds in spans],
            )
        )
    return entries


def _step_spans(steps: Mapping[int, float], saves: Mapping[int, float], kept: int) -> Iterator[Span]:
    """Yield what each step's seconds went to; verl's time of a step includes its checkpoint."""
    for step in sorted(steps):
        if step > kept:
            yield "lost", steps[step]
        else:
            yield "training", steps[step] - saves[step]
            yield "saving", saves[step]


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that last, neighbours of one state as one."""
    lasting = [span for span in spans if span[1] > 0]
    return [(state, sum(seconds for _, seconds in group)) for state, group in groupby(lasting, key=itemgetter(0))]


def _total(spans: Iterable[Span], state: str) -> float:
    return round(sum((seconds for name, seconds in spans if name == state), 0.0), 1)


def last_row_time(folder: Path, fallback: float) -> float:
    """Return when the last step was logged, seconds since the epoch."""
    file = folder / "metrics.jsonl"
    return file.stat().st_mtime if file.exists() else fallback


def _queue_times(train_folder: Path) -> dict[tuple[str, int], float]:
    """Return how long each start of each job waited in the queue, seconds; empty where accounting does not answer."""
    waited = {}
    for job in {segment.job_id for segment in segments.read_all(train_folder)}:
        try:
            printed = slurm.ask(
                *("sacct", "--duplicates", "--allocations", "--noheader", "--parsable2"),
                *("--format=Submit,Start", f"--jobs={job}"),
            )
        except slurm.SlurmUnavailableError:
            continue
        for number, line in enumerate(printed.splitlines()):
            submitted, _, started = line.strip().partition("|")
            try:
                seconds = (datetime.fromisoformat(started) - datetime.fromisoformat(submitted)).total_seconds()
            except ValueError:
                continue  # it never started
            waited[job, number] = max(0.0, seconds)
    return waited
