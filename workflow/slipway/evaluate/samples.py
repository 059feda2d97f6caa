"""Answers as JSONL, and the journal of an evaluation under way."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway.manifest import atomic_path


@dataclass(frozen=True)
class Answer:
    """What a model said to one question: all that is needed to score it without the model.

    `prompt` is the rendered chat; `response_tokens` counts the end-of-sequence token, as verl does; `stop` is
    "eos" or "length".
    """

    question_id: str
    sample: int
    prompt: str
    response: str
    response_tokens: int
    stop: str


@dataclass(frozen=True)
class Sample(Answer):
    """A scored answer: whether there was one at all, whether in the asked form, and the reward's components."""

    score: float
    correct: bool
    answered: bool
    tagged: bool
    components: dict[str, float]
    ground_truth: str
    answer: str


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write one JSON object a line, atomically."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_line(asdict(sample)) for sample in samples)


class Journal:
    """Answers in the order they were generated, kept through a `kill -9`.

    The name of the file carries a fingerprint of everything that the answers depend on, so that a journal is
    never continued with other settings.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> dict[tuple[str, int], Answer]:
        """Return the answers by (question, sample); from a line that a crash damaged on, the file is cut off."""
        if not self.path.is_file():
            return {}
        answers = {}
        whole = 0
        lines = self.path.read_bytes().splitlines(keepends=True)
        for line in lines:
            try:
                answer = Answer(**json.loads(line))
            except (ValueError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            answers[answer.question_id, answer.sample] = answer
            whole += len(line)
        if whole < sum(map(len, lines)):
            os.truncate(self.path, whole)
        return answers

    def append(self, answers: Iterable[Answer]) -> None:
        """Add answers; they are on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(_line(asdict(answer)) for answer in answers)
            file.flush()
            os.fsync(file.fileno())


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
