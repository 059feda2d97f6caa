"""Task `multiple_choice`: a question, its choices, and which of them is right.

Fields: `question`; `choices`: a list of texts, a mapping of letters to texts, or {text: [...], label: [...]} (ARC);
`answer`: a letter, a number that counts from 0, or the text of a choice.
"""

import json
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from slipway.data.records import Problem, Record, UnusableError


def problem(record: Record) -> Problem:
    """Return the problem; the choices are listed under the question, and the answer is the letter."""
    choices = _choices(record.get("choices"))
    answer = _letter(record.get("answer"), choices)
    listed = "\n".join(f"{letter}. {text}" for letter, text in choices.items())
    question = record.text("question").strip()
    return Problem(f"{question}\n{listed}" if question else "", answer, {"choices": choices})


def _choices(given: Any) -> dict[str, str]:
    if isinstance(given, str):  # CSV has no lists
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            raise UnusableError("choices are text, but no JSON list") from None
    if isinstance(given, Mapping) and isinstance(given.get("text"), list):
        given = given["text"]  # ARC's labels are letters or numbers: the position says the same
    texts = list(given.values()) if isinstance(given, Mapping) else given
    if not isinstance(texts, list) or not 2 <= len(texts) <= len(ascii_uppercase):
        raise UnusableError("choices are no list of 2 to 26")
    choices = [str(text).strip() for text in texts]
    if len(set(choices)) < len(choices) or not all(choices):
        raise UnusableError("two choices are equal, or one is empty")
    return dict(zip(ascii_uppercase, choices, strict=False))


def _letter(given: Any, choices: dict[str, str]) -> str:
    text = "" if given is None else str(given).strip()
    if not text:
        return ""
    if text.upper() in choices:
        return text.upper()
    by_text = [letter for letter, choice in choices.items() if choice == text]
    if by_text:
        return by_text[0]
    if text.isdigit() and int(text) < len(choices):
        return list(choices)[int(text)]
    raise UnusableError(f"the answer {text[:40]!r} is none of the choices")
