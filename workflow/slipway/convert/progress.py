"""Progress of long copies, in the log."""

import logging
import time

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Logs how many of `total` bytes are done, and how long the rest will take, every few seconds."""

    def __init__(self, logger: logging.Logger, what: str, total: int):
        self._logger = logger
        self._what = what
        self._total = total
        self._done = 0
        self._started = self._last = time.monotonic()

    def add(self, size: int) -> None:
        """Count `size` further bytes; safe to call from several threads (a lost count only delays a line)."""
        self._done += size
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            speed = self._done / (now - self._started)
            self._logger.info(
                "%s: %.1f of %.1f GB, %.2f GB/s, %.0f s left",
                self._what,
                self._done / 1e9,
                self._total / 1e9,
                speed / 1e9,
                (self._total - self._done) / speed,
            )
