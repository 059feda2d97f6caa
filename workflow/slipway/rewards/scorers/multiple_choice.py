"""Task `multiple_choice`: the letter of one of the choices, or its text."""

import re
from typing import Any

from slipway.config.schema import Reward
from slipway.errors import SlipwayError
from slipway.rewards.answers import Answer, in_tags
from slipway.rewards.entry import metadata_of

_BOXED = re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*([^{}]*?)\s*\}+")
# "The answer is (B)", "Answer: B", "option B"; where it is said twice, the last one counts.
_SAID = re.compile(r"\b(?:answer(?:\s+is)?|option|choice)\s*:?\s+\**\s*(\(?[A-Za-z]\b[^\n]*)", re.IGNORECASE)
_MARKS = " \t\n*_`[]"
_LETTER = re.compile(r"\(?([A-Za-z])\)?[.):]?")
_LETTER_AND_TEXT = re.compile(r"\(?([A-Za-z])(?:\)|[.:]|\s*-)\s*(\S.*)", re.DOTALL)


def find_answer(response: str) -> Answer:
    """Return what stands in the last answer tags, or the whole response."""
    tagged = in_tags(response)
    return Answer((response if tagged is None else tagged).strip(), tagged is not None)


def correctness(answer: str, entry: dict[str, Any], reward: Reward) -> float:
    """Return 1 for the gold letter, alone or with its own text, and for that text alone."""
    (given,) = metadata_of(entry, "choices")
    choices = {str(letter).upper(): _plain(str(text)) for letter, text in given.items()}
    gold = entry["answer"].strip().upper()
    if gold not in choices:
        raise SlipwayError(
            f"extra_info.entry: the answer {entry['answer']!r} is none of the choices {', '.join(choices)}; "
            "prepare the data again"
        )
    return float(_chosen(answer, choices) == gold)


def gold_response(entry: dict[str, Any]) -> str:
    """Return the gold letter in tags."""
    return f"<answer>{entry['answer']}</answer>"


def wrong_responses(entry: dict[str, Any]) -> list[str]:
    """Return every other letter, and all of them at once."""
    letters = [str(letter) for letter in metadata_of(entry, "choices")[0]]
    others = [letter for letter in letters if letter.upper() != entry["answer"].strip().upper()]
    return [f"<answer>{letter}</answer>" for letter in [*others, ", ".join(letters)]]


def _chosen(answer: str, choices: dict[str, str]) -> str | None:
    """Return the letter that is chosen; None where none is, or more than one could be."""
    for pattern in (_BOXED, _SAID):
        if found := pattern.findall(answer):
            answer = found[-1]
    answer = answer.strip(_MARKS)
    if _plain(answer) in choices.values():
        same = [letter for letter, text in choices.items() if text == _plain(answer)]
        return same[0] if len(same) == 1 else None
    if letter := _LETTER.fullmatch(answer):
        return letter[1].upper()
    both = _LETTER_AND_TEXT.fullmatch(answer)
    if both and choices.get(both[1].upper()) == _plain(both[2].strip(_MARKS)):
        return both[1].upper()
    return None


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold().rstrip(".")
