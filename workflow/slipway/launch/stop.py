"""When a training has to stop: said by the job in a file, obeyed by the trainer between two steps.

verl 0.9.1 saves every `save_freq` steps and at the last one, and knows nothing of a job's time limit. The job knows
when it will be ended, the trainer how long a step and a checkpoint take.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from slipway.manifest import write_json

VARIABLE = "SLIPWAY_STOP_FILE"
# Between the last saved byte and the end of the job: Ray, verl and the file system need a moment to end in order.
RESERVE_SECONDS = 20.0


@dataclass(frozen=True)
class StopOrder:
    """`deadline`: when the job will be ended, seconds since the epoch; `now`: stop after the present step.

    `save_seconds` is how long a checkpoint took in earlier segments, or a guess.
    """

    deadline: float | None = None
    now: bool = False
    save_seconds: float = 60.0


def give(order: StopOrder, file: Path) -> None:
    """Write the order, whole or not at all."""
    write_json(file, asdict(order))


def read(file: Path) -> StopOrder:
    """Return the present order; none was given when there is no file."""
    try:
        return StopOrder(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return StopOrder()


def was_obeyed(file: Path) -> bool:
    """Return whether the trainer has stopped because of the order in `file`."""
    return _mark_of(file).exists()


def _mark_of(file: Path) -> Path:
    return file.with_suffix(".obeyed")


class StopWatch:
    """Measures steps and checkpoints; says after a step whether there is time for another one and its checkpoint."""

    def __init__(self, file: Path | None):
        self._file = file
        self._longest_step = 0.0
        self._longest_save: float | None = None
        self._step_began = time.monotonic()

    @classmethod
    def from_environment(cls) -> "StopWatch":
        """Return the watch of the job that this process belongs to; without one it never stops anything."""
        named = os.environ.get(VARIABLE)
        return cls(Path(named) if named else None)

    def step_begins(self) -> None:
        """Note the time at the start of a step."""
        self._step_began = time.monotonic()

    def saved(self, seconds: float) -> None:
        """Note how long a checkpoint took."""
        self._longest_save = max(seconds, self._longest_save or 0.0)

    def must_stop(self) -> bool:
        """Return whether training has to end with the step that has just been made; leave word if so."""
        if self._file is None or not self._has_to_end(self._file):
            return False
        _mark_of(self._file).touch()
        return True

    def _has_to_end(self, file: Path) -> bool:
        self._longest_step = max(self._longest_step, time.monotonic() - self._step_began)
        order = read(file)
        if order.now:
            return True
        if order.deadline is None:
            return False
        save = order.save_seconds if self._longest_save is None else self._longest_save
        # Half as much again: neither steps nor checkpoints take the same time twice.
        needed = 1.5 * (self._longest_step + save) + RESERVE_SECONDS
        return time.time() + needed > order.deadline
