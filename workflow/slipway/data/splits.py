"""Splits without a question in two of them: made so, and checked so."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from blake3 import blake3

from slipway.data.problems import Problem
from slipway.errors import SlipwayError


def split(problems: Sequence[Problem], sizes: Mapping[str, int], seed: int) -> dict[str, list[Problem]]:
    """Deal `problems`, whose questions are distinct, into splits of the given sizes.

    The order is that of a hash of seed and question. So it depends on the questions alone, not on how they were
    generated, and a question cannot be in two splits.
    """
    if sum(sizes.values()) != len(problems):
        raise ValueError(f"{len(problems)} problems do not fill splits of {dict(sizes)}")
    ordered = sorted(problems, key=lambda problem: blake3(f"{seed}\n{problem.question}".encode()).digest())
    dealt = {}
    start = 0
    for name, size in sizes.items():
        dealt[name] = ordered[start : start + size]
        start += size
    return dealt


def check_splits(questions: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Check that no question is twice in one split or in two splits; return the number shared by each pair: all 0.

    `questions` maps each split to the text of its questions, as read back from the files. White space and letter
    case are not told apart. Raises `SlipwayError` that names the splits and one shared question.
    """
    normal = {name: [" ".join(text.split()).casefold() for text in texts] for name, texts in questions.items()}
    for name, texts in normal.items():
        if len(set(texts)) != len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise SlipwayError(f"split {name} holds a question more than once, e.g. {twice!r}")
    found = {}
    for one, other in combinations(normal, 2):
        shared = set(normal[one]) & set(normal[other])
        if shared:
            raise SlipwayError(
                f"splits {one} and {other} share {len(shared)} questions, e.g. {min(shared)!r}: "
                "held-out accuracy would be worthless"
            )
        found[f"{one}/{other}"] = len(shared)
    return found
