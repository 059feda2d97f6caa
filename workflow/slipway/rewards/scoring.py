"""Score a response to a reasoning-gym problem with that dataset's own scorer."""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import reasoning_gym.factory
from reasoning_gym.dataset import ProceduralDataset

from slipway.errors import SlipwayError

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ENTRY_KEYS = ("dataset", "parameters", "question", "answer", "metadata")


@dataclass(frozen=True)
class Score:
    """What a response earned.

    `score` is the dataset's own score, 0 to 1: some datasets give partial credit. `correct` is a score of 1.
    `answered` and `tagged` say whether there was an answer at all, and whether it stood in answer tags.
    """

    score: float
    correct: bool
    answered: bool
    tagged: bool


def extract_answer(response: str) -> tuple[str, bool]:
    """Return the answer in `response`, and whether it stood in tags.

    The answer is the text of the last `<answer>...</answer>`, without surrounding white space; a response without
    such tags is an answer as a whole.
    """
    tagged = _TAGGED.findall(response)
    return (tagged[-1] if tagged else response).strip(), bool(tagged)


def score(response: str, entry: str) -> Score:
    """Score `response` to the problem in `entry`, the JSON text in a row's `extra_info["entry"]`.

    An entry that is damaged raises `SlipwayError`: a silent 0 would train the model on nothing.
    """
    problem = read_entry(entry)
    scorer = _dataset(problem["dataset"], json.dumps(problem["parameters"], sort_keys=True))
    answer, tagged = extract_answer(response)
    value = _value(scorer, answer, problem) if answer else 0.0
    if not 0.0 <= value <= 1.0:
        raise SlipwayError(f"reasoning-gym's {problem['dataset']} scored {answer!r} with {value}, outside 0 to 1")
    return Score(score=value, correct=value == 1.0, answered=bool(answer), tagged=tagged)


def _value(scorer: ProceduralDataset, answer: str, problem: dict[str, Any]) -> float:
    """Return the dataset's score; 0 for an answer that its scorer cannot read and raises about.

    A response that is no number must not end a training. A scorer that raises about everything does not get here: the
    data's self-test asks it to score gold answers with 1.
    """
    try:
        return float(scorer.score_answer(answer, problem))
    except Exception:  # each scorer raises what it likes
        return 0.0


def read_entry(entry: str) -> dict[str, Any]:
    """Return the problem in `entry`; raise `SlipwayError` when it is damaged."""
    try:
        problem = json.loads(entry)
    except (TypeError, json.JSONDecodeError) as error:
        raise SlipwayError(f"extra_info.entry: {entry!r} is not JSON ({error}); prepare the data again") from None
    missing = [key for key in _ENTRY_KEYS if not isinstance(problem, dict) or key not in problem]
    if missing:
        raise SlipwayError(f"extra_info.entry: has no {', '.join(missing)}: {entry!r}; prepare the data again")
    return dict(problem)


@lru_cache(maxsize=64)
def _dataset(name: str, parameters: str) -> ProceduralDataset:
    """Make the dataset whose scorer is wanted; the seed plays no part in scoring."""
    if name not in reasoning_gym.factory.DATASETS:
        raise SlipwayError(f"extra_info.entry: reasoning-gym has no dataset {name!r}; prepare the data again")
    return reasoning_gym.create_dataset(name, seed=0, size=1, **json.loads(parameters))
