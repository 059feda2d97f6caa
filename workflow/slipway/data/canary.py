"""The reward's self-test: what is right must be correct, what is wrong must not."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipway.errors import SlipwayError
from slipway.rewards import Score, scorer_for

ROWS = 64
_NONSENSE = ("", "no idea", "<answer></answer>", "<answer>no idea</answer>")

Scoring = Callable[[str, str, str], Score]


def check_rewards(rows: Sequence[Mapping[str, Any]], score: Scoring) -> dict[str, float]:
    """Score gold and wrong answers to the first rows with `score`; return what was counted.

    Gold answers, bare and in the form that the task's scorer gives them, must be correct; nonsense and what the scorer
    knows to be wrong must never be. The answer to another problem may happen to be right where a problem has many
    solutions, but not to half of them. Raises `SlipwayError`.
    """
    sample = rows[:ROWS]
    lucky = 0
    tried = 0
    for row, other in zip(sample, [*sample[1:], *sample[:1]], strict=True):
        entry, reward = row["extra_info"]["entry"], row["extra_info"]["reward"]
        problem = json.loads(entry)
        scorer = scorer_for(problem["task"])
        gold = problem["answer"]
        for response in (gold, scorer.gold_response(problem)):
            _expect(score(response, entry, reward), True, response, entry)
        for response in (*_NONSENSE, *scorer.wrong_responses(problem)):
            _expect(score(response, entry, reward), False, response, entry)
        wrong = other["reward_model"]["ground_truth"]
        if wrong != gold:
            tried += 1
            lucky += score(wrong, entry, reward).correct
    if tried and lucky > tried / 2:
        raise SlipwayError(
            f"reward self-test: {lucky} of {tried} answers to other problems were scored as correct; "
            "this scorer does not tell right from wrong"
        )
    return {"rows": len(sample), "wrong_answers_of_other_rows": tried, "of_these_scored_correct": lucky}


def _expect(result: Score, correct: bool, response: str, entry: str) -> None:
    if result.correct != correct:
        kind = "the gold answer" if correct else "a wrong answer"
        raise SlipwayError(
            f"reward self-test: {kind} {response!r} scored {result.components['correctness']}, so rewards are not to "
            f"be trusted; entry: {entry}"
        )
