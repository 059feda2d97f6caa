"""The job's side of stopping in time: what SLURM says of its end becomes the trainer's stop order."""

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipway.launch import allocation, segments, stop

# How often SLURM is asked when the job will end: an administrator may change it.
ASK_END_SECONDS = 60.0

logger = logging.getLogger(__name__)


class StopOrders:
    """Keeps the segment's stop order true: SLURM's end time, and a signal that it sends."""

    def __init__(self, folder: Path, train_folder: Path):
        self.file = folder / "stop.json"
        self.reason: str | None = None
        self._save_seconds = segments.longest_save(train_folder)
        self._deadline: float | None = None
        self._asked = float("-inf")
        self._signalled = False
        self._now = False
        self._given: stop.StopOrder | None = None
        self.update()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGUSR2, with which SLURM announces an end: submitit asks for it, and would take it itself."""

        def note(_number: int, _frame: object) -> None:
            self._signalled = True

        before = signal.signal(signal.SIGUSR2, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR2, before)

    def update(self) -> None:
        """Ask SLURM now and then, and write the order anew when it has changed."""
        if time.monotonic() - self._asked > ASK_END_SECONDS:
            self._asked = time.monotonic()
            self._deadline = allocation.end_time() or self._deadline
        if self._signalled:
            self._signalled = False
            self._obey_signal()
        order = stop.StopOrder(
            self._deadline,
            self._now,
            self._save_seconds if self._save_seconds is not None else _guess(self._deadline),
        )
        if order != self._given:
            stop.give(order, self.file)
            self._given = order

    def _obey_signal(self) -> None:
        """Stop after this step when the job is preempted, or when its end is not known otherwise.

        SLURM counts limits in minutes and announces them up to a minute early: where the end time is known, it is
        the better guide.
        """
        if allocation.is_preempted():
            self.reason = segments.PREEMPTED
        elif self._deadline is None:
            self.reason = segments.TIME_LIMIT
        else:
            return
        logger.info("SLURM announces the end of this job: %s", self.reason)
        self._now = True

    def reason_of_end(self, status: int) -> str | None:
        """Return why training ended before its last step; None when it ended of itself."""
        if self.reason is None and stop.was_obeyed(self.file):
            self.reason = segments.TIME_LIMIT
        if self.reason is None and status != 0 and allocation.is_preempted():
            # SLURM's SIGTERM reached verl and Ray as well
            self.reason = segments.PREEMPTED
        return self.reason


def _guess(deadline: float | None) -> float:
    """Return a guess of how long the first checkpoint takes: a twentieth of the segment, two minutes at most."""
    return 120.0 if deadline is None else min(120.0, max(0.0, deadline - time.time()) / 20)
