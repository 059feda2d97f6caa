"""Task `reasoning_gym`: the dataset's own scorer decides."""

import json
from functools import lru_cache
from typing import Any

import reasoning_gym.factory
from reasoning_gym.dataset import ProceduralDataset

from slipway.config.schema import Reward
from slipway.errors import SlipwayError
from slipway.rewards.answers import Answer, tagged_or_whole
from slipway.rewards.entry import metadata_of


def find_answer(response: str) -> Answer:
    """Return what stands in the last answer tags, or the whole response."""
    return tagged_or_whole(response)


def correctness(answer: str, entry: dict[str, Any], reward: Reward) -> float:
    """Return the dataset's score, 0 to 1; 0 for an answer that its scorer cannot read and raises about.

    A response that is no number must not end a training. A scorer that raises about everything does not get here: the
    data's self-test asks it to score gold answers with 1.
    """
    name, parameters, made = metadata_of(entry, "dataset", "parameters", "metadata")
    scorer = _dataset(name, json.dumps(parameters, sort_keys=True))
    try:
        return float(scorer.score_answer(answer, entry | {"metadata": made}))
    except Exception:  # each scorer raises what it likes
        return 0.0


def gold_response(entry: dict[str, Any]) -> str:
    """Return the gold answer in tags."""
    return f"<answer>{entry['answer']}</answer>"


def wrong_responses(entry: dict[str, Any]) -> list[str]:
    """Return text that no dataset takes for an answer."""
    return ["<answer></answer>", "<answer>certainly not the answer</answer>"]


@lru_cache(maxsize=64)
def _dataset(name: str, parameters: str) -> ProceduralDataset:
    """Make the dataset whose scorer is wanted; the seed plays no part in scoring."""
    if name not in reasoning_gym.factory.DATASETS:
        raise SlipwayError(f"extra_info.entry: reasoning-gym has no dataset {name!r}; prepare the data again")
    return reasoning_gym.create_dataset(name, seed=0, size=1, **json.loads(parameters))
