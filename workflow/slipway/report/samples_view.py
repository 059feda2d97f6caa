"""Which samples the page shows, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipway.report.comparison import answers_by_question
from slipway.report.reading import Evaluated, SampleRow

# How many of each kind, in the order shown; what a kind lacks goes to the next ones.
QUOTA = (
    ("newly right", False, True, 8),
    ("newly wrong", True, False, 6),
    ("wrong both times", False, False, 4),
    ("right both times", True, True, 2),
)


@dataclass(frozen=True)
class SamplePair:
    """The first answers of base and final to one question."""

    kind: str
    prompt: str
    ground_truth: str
    base: SampleRow
    final: SampleRow


def choose_samples(base: Evaluated, final: Evaluated, evaluation: str) -> list[SamplePair]:
    """Return up to 20 pairs, those whose correctness changed first, in the order of the questions."""
    before, after = answers_by_question(base, evaluation), answers_by_question(final, evaluation)
    pairs = [_pair(before[question][0], after[question][0]) for question in before]
    chosen: list[SamplePair] = []
    allowance = 0
    for kind, _, _, quota in QUOTA:
        allowance += quota
        taken = [pair for pair in pairs if pair.kind == kind][: allowance - len(chosen)]
        chosen.extend(taken)
    return chosen


def count_kinds(pairs: Sequence[SamplePair]) -> dict[str, int]:
    """Return how many pairs there are of each kind that occurs."""
    counts = {kind: sum(pair.kind == kind for pair in pairs) for kind, *_ in QUOTA}
    return {kind: count for kind, count in counts.items() if count}


def _pair(base: SampleRow, final: SampleRow) -> SamplePair:
    kind = next(name for name, was, now, _ in QUOTA if (was, now) == (base.correct, final.correct))
    return SamplePair(kind, final.prompt, final.ground_truth, base, final)
