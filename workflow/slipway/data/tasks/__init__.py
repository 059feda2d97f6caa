"""Tasks: one module each, whose `problem` turns a source's record into a question and its gold answer.

A new task is a module here, its name in `TASKS` and in `config.schema.Data.task`, and a scorer in `slipway.rewards`.
"""

from collections.abc import Callable

from slipway.data.records import Problem, Record
from slipway.data.tasks import code, math, multiple_choice, reasoning_gym

TASKS: dict[str, Callable[[Record], Problem]] = {
    "reasoning_gym": reasoning_gym.problem,
    "math": math.problem,
    "multiple_choice": multiple_choice.problem,
    "code": code.problem,
}
