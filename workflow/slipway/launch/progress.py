"""One line a training step, for a person who waits."""

import logging
import time
from pathlib import Path
from typing import Any

from slipway.launch import segments

SILENCE_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Progress:
    """Follows the newest segment's metrics and says each new step once."""

    def __init__(self, run: str, train_folder: Path, steps: int):
        self.run = run
        self.train_folder = train_folder
        self.steps = steps
        # what the job is doing while it does not train
        self.waiting_for = "waiting for the job to start"
        self._said = 0
        self._segment = 0
        self._started = time.monotonic()
        self._last_word = self._started

    def update(self) -> None:
        """Say what has happened since the last call."""
        known = segments.read_all(self.train_folder)
        if not known or (known[-1].ended is not None and known[-1].number != self._segment):
            self._say_if_silent(self.waiting_for)
            return
        newest = known[-1]
        if newest.number != self._segment:
            self._segment = newest.number
            self._said = newest.resumed_from
            where = f", continuing after step {newest.resumed_from}" if newest.resumed_from else ""
            self._say(f"segment {newest.number} starts on {newest.host}{where}; Ray, Megatron, rollout come up")
        rows = segments.training_rows(segments.folder_of(self.train_folder, newest.number) / "metrics.jsonl")
        for row in rows:
            # verl logs validation in a row of its own; only a training row has the step's time
            if row["step"] > self._said and "timing_s/step" in row["data"]:
                self._said = row["step"]
                self._say(self._describe(row))
        self._say_if_silent(f"after step {self._said}/{self.steps}")

    def _describe(self, row: dict[str, Any]) -> str:
        data = row["data"]
        parts = [f"step {row['step']}/{self.steps}"]
        for label, key, form in (
            ("reward", "critic/score/mean", ".3f"),
            ("KL", "actor/kl_loss", ".4f"),
            ("entropy", "actor/entropy", ".2f"),
            ("length", "response_length/mean", ".1f"),
        ):
            if isinstance(data.get(key), int | float):
                parts.append(f"{label} {data[key]:{form}}")
        seconds = data["timing_s/step"]
        left = seconds * (self.steps - row["step"])
        parts.append(f"{seconds:.1f} s, about {left / 60:.0f} min left" if left >= 90 else f"{seconds:.1f} s")
        return "  ".join(parts)

    def _say(self, text: str) -> None:
        logger.info("train %s: %s", self.run, text)
        self._last_word = time.monotonic()

    def _say_if_silent(self, state: str) -> None:
        if time.monotonic() - self._last_word > SILENCE_SECONDS:
            self._say(f"{state}, {time.monotonic() - self._started:.0f} s since this launcher began")
