"""A reward function of the user's own."""

import linecache
import math
import traceback
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any

from slipway.config.schema import CustomReward
from slipway.errors import SlipwayError
from slipway.rewards.entry import Problem


def read_source(settings: CustomReward) -> str:
    """Return the source of the user's file, whose function is there; raise `SlipwayError` otherwise."""
    path = Path(settings.function.rpartition(":")[0]).expanduser()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SlipwayError(f"reward.custom: {settings.function}: {path.absolute()} cannot be read: {error}") from None
    load_custom(settings.function, source)
    return source


def call_custom(settings: CustomReward, source: str | None, response: str, problem: Problem) -> float:
    """Return what the user's function gives `response`; `source` is its file's text, None: as the file is now.

    Raises `SlipwayError` with file, line and exception when it fails or returns no finite number.
    """
    function = load_custom(settings.function, source if source is not None else read_source(settings))
    try:
        value = function(response, problem["answer"], problem)
    except Exception as error:  # a user's function may raise anything
        raise SlipwayError(f"reward.custom: {settings.function}: {_fault(error)}") from error
    if not isinstance(value, Real) or not math.isfinite(value):
        raise SlipwayError(f"reward.custom: {settings.function} returned {value!r} to {response!r}: no finite number")
    return float(value)


@lru_cache(maxsize=16)
def load_custom(name: str, source: str) -> Callable[..., Any]:
    """Return the function that `name`, path.py:function, means in `source`; raise `SlipwayError` without one."""
    path, _, attribute = name.rpartition(":")
    # tracebacks show these lines, even when the file has changed since
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    namespace: dict[str, Any] = {"__name__": "slipway_custom_reward", "__file__": path}
    try:
        exec(compile(source, path, "exec"), namespace)  # the user's own code, with the user's own rights
    except Exception as error:
        raise SlipwayError(f"reward.custom: {name}: cannot be loaded: {_fault(error)}") from error
    function = namespace.get(attribute)
    if not callable(function):
        raise SlipwayError(f"reward.custom: {name}: {path} defines no function {attribute}")
    loaded: Callable[..., Any] = function
    return loaded


def _fault(error: Exception) -> str:
    if isinstance(error, SyntaxError):  # its own text names file and line
        return f"SyntaxError: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (line {last.lineno} of {last.filename})"
