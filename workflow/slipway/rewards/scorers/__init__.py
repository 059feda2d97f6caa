"""One file a task: what an answer is, how right it is, and answers whose score is known.

A task's scorer is a module of this folder with the functions of `Scorer`; nothing else has to know of it.
"""

import importlib
import pkgutil
from functools import cache
from typing import Any, Protocol, cast

from slipway.config.schema import Reward
from slipway.errors import SlipwayError
from slipway.rewards.answers import Answer

Entry = dict[str, Any]


class Scorer(Protocol):
    """What a task's scorer offers; `entry` is the problem with its `question`, `answer` and `metadata`."""

    def find_answer(self, response: str, /) -> Answer:
        """Return the answer in a response, and whether it is in the form that was asked for."""

    def correctness(self, answer: str, entry: Entry, reward: Reward, /) -> float:
        """Return how right an answer is, from 0 to 1; `reward` has the limits of time and memory."""

    def gold_response(self, entry: Entry, /) -> str:
        """Return a response in the form that is asked for, with the gold answer."""

    def wrong_responses(self, entry: Entry, /) -> list[str]:
        """Return a few responses in that form that are surely wrong."""


@cache
def scorer_for(task: str) -> Scorer:
    """Return the scorer of a task; raises `SlipwayError` for a task that has none."""
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if task not in known:
        raise SlipwayError(f"extra_info.entry: no scorer for task {task!r}; there are {', '.join(known)}")
    return cast(Scorer, importlib.import_module(f"{__name__}.{task}"))
