"""Little programming problems for the demo of code, as JSON lines in HumanEval's form.

    python -m slipway.data.little_programs problems.jsonl

Each asks in words for a function of three whole numbers, e.g. "the larger of a and 3, times b"; the gold program has
two lines, and the tests are calls with their results. Equal numbers of problems and seeds give equal bytes.
"""

import argparse
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path

from slipway.errors import SlipwayError
from slipway.manifest import write_if_changed

NAMES = ("a", "b", "c")
LEAVES = (*NAMES, *map(str, range(1, 10)))
TESTS = 4
# Arguments of the tests are from -LARGEST to LARGEST.
LARGEST = 20
# Enough that no test tells nothing: results of a problem's tests are not all the same.
_TRIES = 100


@dataclass(frozen=True)
class Operation:
    """An operation of two numbers: how it is said, and how it is written."""

    words: str
    code: str


FIRST = (
    Operation("{} plus {}", "({} + {})"),
    Operation("{} minus {}", "({} - {})"),
    Operation("{} times {}", "{} * {}"),
    Operation("the larger of {} and {}", "max({}, {})"),
    Operation("the smaller of {} and {}", "min({}, {})"),
)
TIMES = Operation("{}, times {}", "{} * {}")
THEN = (
    Operation("{}, plus {}", "{} + {}"),
    Operation("{}, minus {}", "{} - {}"),
    TIMES,
    Operation("{}, or {} if that is larger", "max({}, {})"),
    Operation("{}, or {} if that is smaller", "min({}, {})"),
)


def problems(count: int, seed: int) -> list[dict[str, str]]:
    """Return `count` distinct problems; raises `SlipwayError` when there are not so many."""
    chances = random.Random(seed)
    forms = list(itertools.product(FIRST, LEAVES, LEAVES, THEN, LEAVES))
    # a function of its arguments, not a number in disguise
    forms = [form for form in forms if form[1] in NAMES and form[2] != form[1]]
    if count > len(forms):
        raise SlipwayError(f"--problems {count}: there are only {len(forms)}")
    return [_problem(*form, chances) for form in chances.sample(forms, count)]


def _problem(
    first: Operation, left: str, right: str, then: Operation, last: str, chances: random.Random
) -> dict[str, str]:
    words = then.words.format(first.words.format(left, right), last)
    inner = first.code.format(left, right)
    if then is not TIMES and inner.startswith("("):
        inner = inner[1:-1]  # brackets only where they count
    expression = then.code.format(inner, last)
    for _ in range(_TRIES):
        calls = [tuple(chances.randint(-LARGEST, LARGEST) for _ in NAMES) for _ in range(TESTS)]
        results = [eval(expression, {"max": max, "min": min}, dict(zip(NAMES, call, strict=True))) for call in calls]
        if len(set(results)) > 1:
            break
    tests = [f"assert f{call} == {result}" for call, result in zip(calls, results, strict=True)]
    return {
        "prompt": f"# f(a, b, c) is {words}\n",
        "canonical_solution": f"def f(a, b, c):\n    return {expression}",
        "test": "\n".join(tests),
        "entry_point": "f",
    }


def main() -> None:
    """Read the command line, and write the file where it is not there as it would be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the .jsonl file to write")
    parser.add_argument("--problems", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lines = [json.dumps(problem) for problem in problems(arguments.problems, arguments.seed)]
    write_if_changed(arguments.file, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
