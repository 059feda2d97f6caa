"""Find the answer in a response."""

import re
from dataclasses import dataclass

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOX = r"\boxed{"


@dataclass(frozen=True)
class Answer:
    """The answer in a response, and whether it stood in the form that was asked for, such as answer tags."""

    text: str
    in_form: bool


def in_tags(response: str) -> str | None:
    """Return the text of the last `<answer>...</answer>` as it stands; None without such tags."""
    tagged = _TAGGED.findall(response)
    return tagged[-1] if tagged else None


def tagged_or_whole(response: str) -> Answer:
    """Return the text in the last answer tags; a response without tags is an answer as a whole."""
    tagged = in_tags(response)
    return Answer((response if tagged is None else tagged).strip(), tagged is not None)


def in_box(response: str) -> str | None:
    r"""Return what stands in the last `\boxed{...}`, braces within it balanced; None without one."""
    start = response.rfind(_BOX)
    if start < 0:
        return None
    depth = 1
    begin = start + len(_BOX)
    for position in range(begin, len(response)):
        depth += {"{": 1, "}": -1}.get(response[position], 0)
        if depth == 0:
            return response[begin:position]
    return None
