"""Which samples the page shows, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipway.report.comparison import answers_by_question
from slipway.report.reading import Evaluated, SampleRow

# The kinds of pairs: name, right before, right after, and how many are among the first.
QUOTA = (
    ("newly right", False, True, 8),
    ("newly wrong", True, False, 6),
    ("wrong both times", False, False, 4),
    ("right both times", True, True, 2),
)
SAMPLES_SHOWN = sum(quota for *_, quota in QUOTA)
# Characters of all pairs together: a page that is larger opens slowly.
LARGEST = 3_000_000


@dataclass(frozen=True)
class SamplePair:
    """The first answers of base and final to one question."""

    kind: str
    prompt: str
    ground_truth: str
    base: SampleRow
    final: SampleRow


def choose_samples(base: Evaluated, final: Evaluated, evaluation: str) -> list[SamplePair]:
    """Return the pairs of all questions, or as many as a page holds; the first `SAMPLES_SHOWN` are some of each kind.

    What a kind lacks of its share goes to the next ones. Within a kind they are in the order of the questions.
    """
    before, after = answers_by_question(base, evaluation), answers_by_question(final, evaluation)
    pairs = [_pair(before[question][0], after[question][0]) for question in before]
    first: list[SamplePair] = []
    rest: list[SamplePair] = []
    allowance = 0
    for kind, _, _, quota in QUOTA:
        allowance += quota
        of_kind = [pair for pair in pairs if pair.kind == kind]
        room = allowance - len(first)
        first += of_kind[:room]
        rest += of_kind[room:]
    sizes = np.cumsum([len(pair.prompt) + len(pair.base.response) + len(pair.final.response) for pair in first + rest])
    return (first + rest)[: max(len(first), int(np.searchsorted(sizes, LARGEST, side="right")))]


def count_kinds(pairs: Sequence[SamplePair]) -> dict[str, int]:
    """Return how many pairs there are of each kind that occurs."""
    counts = {kind: sum(pair.kind == kind for pair in pairs) for kind, *_ in QUOTA}
    return {kind: count for kind, count in counts.items() if count}


def _pair(base: SampleRow, final: SampleRow) -> SamplePair:
    kind = next(name for name, was, now, _ in QUOTA if (was, now) == (base.correct, final.correct))
    return SamplePair(kind, final.prompt, final.ground_truth, base, final)
