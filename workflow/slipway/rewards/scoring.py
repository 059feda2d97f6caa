"""Score a response: the task's correctness, further components, and the composite that is trained on."""

import math
from dataclasses import dataclass

from slipway.config.schema import Reward
from slipway.errors import SlipwayError
from slipway.rewards import components
from slipway.rewards.custom import call_custom
from slipway.rewards.entry import read_entry
from slipway.rewards.scorers import code, scorer_for
from slipway.rewards.settings import read_reward


@dataclass(frozen=True)
class Score:
    """What a response earned.

    `score` is the composite, which is trained on. `correct` says that the task's own score is 1, whatever else counts.
    `answered` and `tagged` say whether there was an answer at all, and whether it stood in the form that was asked
    for. `components` are the values before weighting: correctness, and every other one that has a weight.
    """

    score: float
    correct: bool
    answered: bool
    tagged: bool
    components: dict[str, float]
    answer: str
    """What was found in the response to score; empty when there was nothing."""


def score(response: str, entry: str, reward: str) -> Score:
    """Score `response` to the problem in `entry` by the settings in `reward`, JSON texts of a row's `extra_info`.

    A damaged entry and a fault in a function of the user's raise `SlipwayError`: a silent 0 would train the model on
    nothing.
    """
    problem = read_entry(entry)
    settings = read_reward(reward)
    scorer = scorer_for(problem["task"])
    answer = scorer.find_answer(response)
    answered = bool(answer.text.strip())
    correctness = scorer.correctness(answer.text, problem, settings) if answered else 0.0
    if not 0.0 <= correctness <= 1.0:
        raise SlipwayError(f"task {problem['task']}: {answer.text!r} scored {correctness}, outside 0 to 1")
    values = {"correctness": correctness}
    if settings.format:
        values["format"] = float(answer.in_form)
    if settings.syntax or settings.style:  # of task code alone
        # an answer may be the rest of a function that its prompt begins
        program = code.program(answer.text, problem) if answered else ""
        if settings.syntax:
            values["syntax"] = components.syntax(program)
        if settings.style:
            values["style"] = components.style(program)
    if settings.length is not None:
        values["length"] = components.length(settings.length, response)
    if settings.custom is not None:
        values["custom"] = call_custom(settings.custom, settings.custom_source, response, problem)
    return Score(
        score=_composite(values, settings),
        correct=correctness == 1.0,
        answered=answered,
        tagged=answer.in_form,
        components=values,
        answer=answer.text if answered else "",
    )


def _composite(values: dict[str, float], settings: Reward) -> float:
    weights = {name: getattr(settings, name) for name in ("correctness", "format", "syntax", "style")}
    weights |= {name: part.weight for name in ("length", "custom") if (part := getattr(settings, name)) is not None}
    total = math.fsum(weights[name] * value for name, value in values.items())
    return total if settings.clip is None else min(max(total, settings.clip[0]), settings.clip[1])
