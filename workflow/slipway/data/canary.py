"""The reward's self-test: what is right must score 1, what is wrong must not."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipway.errors import SlipwayError
from slipway.rewards import Score

ROWS = 64
_NONSENSE = ("", "no idea", "<answer></answer>", "<answer>no idea</answer>")


def check_rewards(rows: Sequence[Mapping[str, Any]], score: Callable[[str, str], Score]) -> dict[str, float]:
    """Score gold and wrong answers to the first rows with `score`; return what was counted.

    Gold answers, bare and in tags, must be correct; nonsense must never be. The answer to another problem may
    happen to be right where a problem has many solutions, but not to half of them. Raises `SlipwayError`.
    """
    sample = rows[:ROWS]
    lucky = 0
    tried = 0
    for row, other in zip(sample, [*sample[1:], *sample[:1]], strict=True):
        entry = row["extra_info"]["entry"]
        gold = row["reward_model"]["ground_truth"]
        for response in (gold, f"<answer>{gold}</answer>"):
            _expect(score(response, entry), True, response, entry)
        for response in _NONSENSE:
            _expect(score(response, entry), False, response, entry)
        wrong = other["reward_model"]["ground_truth"]
        if wrong != gold:
            tried += 1
            lucky += score(wrong, entry).correct
    if tried and lucky > tried / 2:
        raise SlipwayError(
            f"reward self-test: {lucky} of {tried} answers to other problems were scored as correct; "
            "this scorer does not tell right from wrong"
        )
    return {"rows": len(sample), "wrong_answers_of_other_rows": tried, "of_these_scored_correct": lucky}


def _expect(result: Score, correct: bool, response: str, entry: str) -> None:
    if result.correct != correct:
        kind = "the gold answer" if correct else "a nonsense answer"
        raise SlipwayError(
            f"reward self-test: {kind} {response!r} scored {result.score}, so rewards are not to be trusted; "
            f"entry: {entry}"
        )
