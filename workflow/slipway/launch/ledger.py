"""Where a training's device-hours went: `results/<run>/ledger.json`, by segment and in all."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path

from slipway import slurm
from slipway.launch import segments
from slipway.launch.job import LOG
from slipway.manifest import write_json

LEDGER = "ledger.json"


@dataclass(frozen=True)
class Entry:
    """One segment in seconds. All but `queued`, in which it held no device, add up to the time that it held them.

    `starting` is up to the first step, `training` the steps that count, `saving` their checkpoints, `lost` steps
    that a later segment had to train again, `ending` everything after the last step.
    """

    segment: int
    job: str
    ended_by: str
    queued: float
    starting: float
    training: float
    saving: float
    lost: float
    ending: float


def write_ledger(train_folder: Path, run_folder: Path, devices: int, on_slurm: bool) -> None:
    """Write the ledger of a training on so many devices: GPUs, or processes on the CPU."""
    entries = entries_of(train_folder, _queue_times(train_folder) if on_slurm else {})
    times = [field.name for field in fields(Entry) if field.type is float]
    totals = {f"{name}_hours": round(sum(getattr(e, name) for e in entries) * devices / 3600, 4) for name in times}
    # nothing is held in the queue: those are hours of waiting
    totals["queued_hours"] = round(sum(entry.queued for entry in entries) / 3600, 4)
    write_json(
        run_folder / LEDGER,
        {"devices": devices, "totals": totals, "segments": [asdict(entry) for entry in entries]},
    )


def entries_of(train_folder: Path, queued: Mapping[tuple[str, int], float]) -> list[Entry]:
    """Return an entry for each segment; `queued` says how long the n-th start of a job waited."""
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
        kept = following.resumed_from if following is not None else max(steps, default=0)
        last_sign = max(
            (path.stat().st_mtime for path in (folder / LOG, folder / "metrics.jsonl") if path.exists()), default=0
        )
        held = max(0.0, (segment.ended or last_sign) - segment.started)
        saving = sum(seconds for step, seconds in saves.items() if step <= kept)
        training = sum(seconds for step, seconds in steps.items() if step <= kept) - saving
        lost = sum(seconds for step, seconds in steps.items() if step > kept)
        ending = max(0.0, (segment.ended or last_sign) - last_row_time(folder, last_sign)) if steps else 0.0
        entries.append(
            Entry(
                segment=segment.number,
                job=segment.job_id,
                ended_by=segment.reason or ("finished" if segment.exit_status == 0 else "failure"),
                queued=round(queued.get((segment.job_id, start), 0.0), 1),
                starting=round(max(0.0, held - saving - training - lost - ending), 1),
                training=round(training, 1),
                saving=round(saving, 1),
                lost=round(lost, 1),
                ending=round(ending, 1),
            )
        )
    return entries


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
