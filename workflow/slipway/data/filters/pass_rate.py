"""How often an evaluated model solved each question."""

import json
from collections import defaultdict
from pathlib import Path

from slipway.errors import SlipwayError


def read_pass_rates(path: Path, key: str) -> dict[int, float]:
    """Return the share of correct answers by question, from the samples that rule evaluate wrote.

    Raises `SlipwayError` that names file and line.
    """
    right: dict[int, int] = defaultdict(int)
    asked: dict[int, int] = defaultdict(int)
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    sample = json.loads(line)
                    question, correct = int(sample["question_id"], 16), sample["correct"]
                    if not isinstance(correct, bool):
                        raise TypeError("correct is not true or false")
                except (ValueError, KeyError, TypeError) as error:
                    raise SlipwayError(
                        f"{path} line {number}: no sample of an evaluation ({error!r}); give a file of rule evaluate, "
                        "results/<run>/eval/base/<evaluation>.jsonl"
                    ) from None
                asked[question] += 1
                right[question] += correct
    except OSError as error:
        raise SlipwayError(f"{key}: {str(path)!r} cannot be read: {error.strerror}") from None
    if not asked:
        raise SlipwayError(f"{key}: {str(path)!r} holds no samples")
    return {question: right[question] / asked[question] for question in asked}
