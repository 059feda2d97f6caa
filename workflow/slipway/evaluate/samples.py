"""Answers as JSONL, and the journal of an evaluation under way."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.manifest import atomic_path, fingerprint


@dataclass(frozen=True)
class Answer:
    """What a model said to one question: with the question, all that is needed to score it without the model.

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

    @property
    def unscored(self) -> Answer:
        """The answer alone."""
        return Answer(**{field.name: getattr(self, field.name) for field in fields(Answer)})


def answers_digest(answers: Iterable[Answer]) -> str:
    """Return a digest of what was said, in this order; scoring does not change it."""
    return fingerprint([[getattr(answer, field.name) for field in fields(Answer)] for answer in answers])


def read_samples(path: Path) -> list[Sample]:
    """Read what `write_samples` wrote; raises `SlipwayError` when the file is missing or damaged."""
    try:
        return [Sample(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; rule evaluate writes it") from None
    except (ValueError, TypeError) as error:
        raise SlipwayError(f"{path}: damaged ({error}); run rule evaluate again") from None


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write one JSON object a line, atomically."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_line(asdict(sample)) for sample in samples)


class Journal:
    """Answers of one model with one sampling, in the order they were generated, kept through a `kill -9`.

    What the model was shown is part of an answer, and only to that it is one: a question whose wording or instruction
    has changed is another. Answers are never dropped, so that what was generated once is not generated again.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> dict[tuple[str, str, int], Answer]:
        """Return the answers by (prompt, question, sample); the file is cut off where a crash damaged it."""
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
            answers[answer.prompt, answer.question_id, answer.sample] = answer
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
