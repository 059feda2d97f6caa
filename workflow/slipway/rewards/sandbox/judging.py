"""Does a program pass its tests? Asked so that the program cannot answer for them."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from slipway.errors import SlipwayError
from slipway.rewards.sandbox.process import Sandbox, read_output, started, turn


@dataclass(frozen=True)
class Verdict:
    """Whether all tests passed, and if not, what was wrong first."""

    passed: bool
    why: str | None = None


def judge_functions(program: str, tests: str, prompt: str, entry_point: str | None, sandbox: Sandbox) -> Verdict:
    """Run `tests`, which assert about functions, against `program`, each in a sandbox of its own.

    `prompt` is the code that the problem shows; its functions are the tests' helpers. The program sees arguments
    alone, never a test. Raises `SlipwayError` for tests that do not compile, or test nothing.
    """
    with turn(), _Pipes() as pipes:
        (asked, ask), (answer, answered) = pipes.open(), pipes.open()
        deadline = time.monotonic() + sandbox.limits.wall_seconds
        candidate = {"part": "candidate", "program": program, "read": asked, "write": answered}
        judge = {
            "part": "judge",
            "prompt": prompt,
            "tests": tests,
            "entry_point": entry_point,
            "read": answer,
            "write": ask,
            "longest": sandbox.limits.output,
        }
        with (
            started(sandbox, candidate, (asked, answered)) as judged,
            started(sandbox, judge, (answer, ask), read=True) as judging,
        ):
            # when the last holder of an end is gone, the other side hears of it
            pipes.close()
            output = read_output(judging, sandbox, deadline, (judged,))
    if output.ended is not None:
        return Verdict(False, output.ended)
    try:
        verdict = json.loads(output.text)
    except ValueError:
        return Verdict(False, "the tests were ended")
    if "faulty" in verdict:
        raise SlipwayError(f"code: {verdict['faulty']}: {tests!r}; a program cannot be judged by them")
    return Verdict(verdict["passed"] is True, verdict["why"])


def judge_outputs(program: str, tests: Sequence[dict[str, str]], sandbox: Sandbox) -> Verdict:
    """Run `program` once for each of `tests`, with its `input`, and compare what it prints with its `output`.

    White space at the ends of lines and of the text does not count. All runs share one time limit.
    """
    with turn():
        deadline = time.monotonic() + sandbox.limits.wall_seconds
        for number, test in enumerate(tests, start=1):
            with tempfile.TemporaryFile() as stdin:
                stdin.write(test["input"].encode())
                stdin.seek(0)
                with started(sandbox, {"part": "program", "program": program}, stdin=stdin, read=True) as process:
                    output = read_output(process, sandbox, deadline)
            if output.ended is not None:
                return Verdict(False, f"test {number}: {output.ended}")
            if output.code != 0:
                return Verdict(False, f"test {number}: ended with status {output.code}")
            if _lines(output.text.decode(errors="replace")) != _lines(test["output"]):
                return Verdict(False, f"test {number}: another output")
    return Verdict(True)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


class _Pipes:
    """Pipes between two processes, of which this one keeps no end."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def __enter__(self) -> "_Pipes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> tuple[int, int]:
        """Return a new pipe's ends to read from and to write to."""
        ends = os.pipe()
        self._ends += ends
        return ends

    def close(self) -> None:
        """Close all ends that are still open here."""
        while self._ends:
            os.close(self._ends.pop())
