"""The problem that a row of the data carries for its scorer: the JSON text in `extra_info["entry"]`."""

import json
from typing import Any, get_args

from slipway.config.schema import Task
from slipway.errors import SlipwayError

# What every task's problem has; `metadata` is what its own scorer needs. `labels`, which
# some have besides, are for figures by group.
ENTRY_KEYS = ("task", "question", "answer", "metadata")

Problem = dict[str, Any]


def read_entry(entry: str) -> Problem:
    """Return the problem in `entry`; raise `SlipwayError` when it is damaged."""
    try:
        problem = json.loads(entry)
    except (TypeError, json.JSONDecodeError) as error:
        raise SlipwayError(f"extra_info.entry: {entry!r} is not JSON ({error}); prepare the data again") from None
    missing = [key for key in ENTRY_KEYS if not isinstance(problem, dict) or key not in problem]
    if missing:
        raise SlipwayError(f"extra_info.entry: has no {', '.join(missing)}: {entry!r}; prepare the data again")
    if problem["task"] not in get_args(Task):
        raise SlipwayError(
            f"extra_info.entry: no task {problem['task']!r}; there are {', '.join(get_args(Task))}; "
            "prepare the data again"
        )
    return dict(problem)


def metadata_of(problem: Problem, *keys: str) -> list[Any]:
    """Return the values of `keys` in the problem's metadata; raise `SlipwayError` that names those missing."""
    metadata = problem["metadata"]
    missing = [key for key in keys if not isinstance(metadata, dict) or key not in metadata]
    if missing:
        raise SlipwayError(
            f"extra_info.entry: a problem of task {problem['task']} needs metadata.{', metadata.'.join(missing)}; "
            f"it has {metadata!r}; prepare the data again"
        )
    return [metadata[key] for key in keys]
