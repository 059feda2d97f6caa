"""Compare mathematical answers by math-verify. Called in the worker process: what is compared here may hang.

math-verify reads LaTeX and plain expressions and compares them with sympy. Its own time limits are signals, which do
nothing in verl's threads; they are off here, and the worker process has the limit.
"""

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

# every answer that cannot be read would be a line in the log
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(/\d+)?")
_GROUPS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_MIXED = re.compile(r"([+-]?)(\d+)\s+(\d+)/(\d+)")
_NUMBER_AND_WORDS = re.compile(r"(\S*\d\S*)((?:\s+[A-Za-z]{2,}\.?)+)")
# Longer answers are compared as text; of a whole response, only so much of its end is read.
_LONGEST = 1000
# Words that make another number of the one before them.
_COUNTING = frozenset(
    (
        *("hundred", "thousand", "million", "billion", "trillion", "dozen", "percent", "pi", "sqrt"),
        *("or", "and", "to", "times", "plus", "minus"),
    )
)


def equal(gold: str, answer: str, whole: bool) -> bool:
    """Tell whether `answer` is what `gold` says.

    `whole`: the answer is an entire response, in which its last expression is meant. Raises what math-verify raises.
    """
    if len(answer) > _LONGEST:
        if not whole:
            return answer.strip() == gold.strip()
        answer = answer[-_LONGEST:]
    known, said = _plain(gold), _plain(answer)
    if known and known == said:
        return True
    numbers = _as_number(known), _as_number(said)
    if None not in numbers:
        return numbers[0] == numbers[1]
    parsed = parse(answer, parsing_timeout=None) if whole else _parse(said)
    return bool(verify(_parse_gold(known), parsed, timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parse_gold(plain: str) -> list[Any]:
    # a gold answer is compared with every response of its group
    return _parse(plain)


def _parse(plain: str) -> list[Any]:
    parsed: list[Any] = parse(f"${plain}$", parsing_timeout=None)
    return parsed


def _plain(answer: str) -> str:
    """Return an answer without marks around it, without separators in its numbers, and mixed numbers as fractions."""
    text = answer.rpartition("####")[2].strip().replace("−", "-")
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
            text = text[len(opening) : len(text) - len(closing)].strip()
    text = re.sub(r"(?<=\d)(\\[,!;: ]|\{,\}|\\ )(?=\d)", "", text)
    text = text.rstrip(".").strip() if not text.endswith("...") else text
    if _GROUPS.fullmatch(text):
        text = text.replace(",", "")
    if mixed := _MIXED.fullmatch(text):
        sign, whole, part, of = mixed.groups()
        text = f"{sign}{int(whole) * int(of) + int(part)}/{of}"
    words = _NUMBER_AND_WORDS.fullmatch(text)
    if words and not _COUNTING & set(words[2].lower().replace(".", "").split()):
        text = words[1]
    return text


def _as_number(plain: str) -> Fraction | None:
    """Return a plain number or fraction of numbers exactly; None for anything else."""
    if len(plain) > 100 or not _NUMBER.fullmatch(plain):
        return None
    numerator, _, denominator = plain.partition("/")
    if denominator and int(denominator) == 0:
        return None
    return Fraction(numerator) / int(denominator or 1)
