"""Task `multiple_choice`: a question, its choices, and which of them is right.

Fields: `question`; `choices`: a list of texts, a mapping of labels to texts, or {text: [...], label: [...]} (ARC);
`answer`: a label, a number that counts from 0 (MMLU), or the text of a choice. Choices are shown as A, B, C...
"""

import json
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from slipway.data.records import Problem, Record, UnusableError


def problem(record: Record) -> Problem:
    """Return the problem; the choices are listed under the question, and the answer is the letter."""
    labels, texts = _choices(record.get("choices"))
    choices = dict(zip(ascii_uppercase, texts, strict=False))
    answer = _letter(record.get("answer"), labels, texts)
    listed = "\n".join(f"{letter}. {text}" for letter, text in choices.items())
    question = record.text("question").strip()
    return Problem(f"{question}\n{listed}" if question else "", answer, {"choices": choices})


def _choices(given: Any) -> tuple[list[str], list[str]]:
    """Return the source's labels, none for a mere list, and the texts."""
    if isinstance(given, str):  # CSV has no lists
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            raise UnusableError("choices are text, but no JSON list") from None
    labels: list[Any] = []
    if isinstance(given, Mapping) and isinstance(given.get("text"), list):
        labels, given = given.get("label") or [], given["text"]
    elif isinstance(given, Mapping):
        labels, given = list(given), list(given.values())
    if not isinstance(given, list) or not 2 <= len(given) <= len(ascii_uppercase):
        raise UnusableError("choices are no list of 2 to 26")
    texts = [str(text).strip() for text in given]
    if len(set(texts)) < len(texts) or not all(texts):
        raise UnusableError("two choices are equal, or one is empty")
    if labels and len(set(map(str, labels))) != len(texts):
        raise UnusableError("choices and labels differ in number, or two labels are equal")
    return [str(label).strip() for label in labels], texts


def _letter(given: Any, labels: list[str], texts: list[str]) -> str:
    """Return the letter of the right choice; an empty answer when none is given."""
    if isinstance(given, int) and not isinstance(given, bool) and not labels:
        return _at(given, given, len(texts))
    text = "" if given is None else str(given).strip()
    if not text:
        return ""
    for known in (labels or list(ascii_uppercase[: len(texts)]), texts):
        if text in known:
            return ascii_uppercase[known.index(text)]
    if text.isascii() and text.isdigit() and not labels:
        return _at(int(text), given, len(texts))
    raise UnusableError(f"the answer {text[:40]!r} is none of the choices")


def _at(index: int, given: Any, count: int) -> str:
    if not 0 <= index < count:
        raise UnusableError(f"the answer {given!r} is none of the choices, which count from 0")
    return ascii_uppercase[index]
