"""Task `code`: a program is right when it passes its tests, which it cannot see, in the sandbox."""

import logging
import re
from functools import cache
from typing import Any

from slipway.config.schema import Reward
from slipway.errors import SlipwayError
from slipway.rewards import sandbox
from slipway.rewards.answers import Answer, in_tags
from slipway.rewards.entry import metadata_of

# The last fenced block; a response that was cut off has no end of it.
_FENCED = re.compile(r"```(?:[Pp]ython3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
# No answer to a test is that long, and a compiler takes long for it.
LONGEST = 100_000

logger = logging.getLogger(__name__)


def find_answer(response: str) -> Answer:
    """Return the last fenced block, or what stands in the last answer tags, or the whole response.

    White space at the start of the first line stays: a completion may begin indented.
    """
    tagged = in_tags(response)
    text = response if tagged is None else tagged
    fenced = _FENCED.findall(text)
    return Answer((fenced[-1] if fenced else text).strip("\r\n").rstrip(), tagged is not None or bool(fenced))


def correctness(answer: str, entry: dict[str, Any], reward: Reward) -> float:
    """Return 1 for a program that passes every test, else 0.

    Raises `SlipwayError` where there is no sandbox and the settings do not go without it, and for faulty tests.
    """
    style, tests = metadata_of(entry, "style", "tests")
    if len(answer) > LONGEST:
        return 0.0
    place = _place(reward)
    written = program(answer, entry)
    if style == "stdio":
        if not isinstance(tests, list) or not tests:
            raise SlipwayError(f"extra_info.entry: metadata.tests: {tests!r} is no list of input and output")
        return float(sandbox.judge_outputs(written, tests, place).passed)
    if style != "function" or not isinstance(tests, str):
        raise SlipwayError(
            f"extra_info.entry: metadata.style: {style!r} with tests {tests!r}; it is function with Python code, or "
            "stdio with a list of input and output; prepare the data again"
        )
    shown, entry_point = entry["metadata"].get("prompt") or "", entry["metadata"].get("entry_point")
    return float(sandbox.judge_functions(written, tests, shown, entry_point, place).passed)


def program(answer: str, entry: dict[str, Any]) -> str:
    """Return the whole program: `answer` by itself when it defines the function, else the prompt completed by it."""
    shown, entry_point = entry["metadata"].get("prompt") or "", entry["metadata"].get("entry_point")
    if entry_point and re.search(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\b", answer, re.MULTILINE):
        # a prompt's imports and helpers may be wanted, its own unfinished function is defined anew
        return f"{shown}\n\n{answer}\n" if _compiles(shown) else f"{answer}\n"
    return f"{shown}{answer}\n"


def gold_response(entry: dict[str, Any]) -> str:
    """Return the gold program in a fenced block."""
    return f"```python\n{entry['answer']}\n```"


def wrong_responses(entry: dict[str, Any]) -> list[str]:
    """Return programs that do nothing, end at once, or are none."""
    return [f"```python\n{text}\n```" for text in ("pass", "import os\nos._exit(0)", "def (")]


def _place(reward: Reward) -> sandbox.Sandbox:
    limits = sandbox.Limits(
        seconds=reward.code.seconds,
        memory=reward.code.memory_mib * 2**20,
        processes=reward.code.processes,
        files=reward.code.file_mib * 2**20,
        output=reward.code.output_kib * 2**10,
    )
    if not reward.run_code_without_sandbox:
        sandbox.require()
        return sandbox.Sandbox(limits)
    if (why := sandbox.unavailable()) is None:
        return sandbox.Sandbox(limits)
    _warn(why)
    return sandbox.Sandbox(limits, sandboxed=False)


@cache
def _warn(why: str) -> None:
    """Say it once a process."""
    logger.warning(
        "DANGER: reward.run_code_without_sandbox is true and there is no sandbox: programs that a model wrote run with "
        "all your rights: files, keys, network (%s)",
        why,
    )


def _compiles(text: str) -> bool:
    try:
        compile(text, "prompt.py", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
