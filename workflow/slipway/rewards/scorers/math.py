"""Task `math`: answers compared by math-verify, in a process with a time limit that holds."""

from typing import Any

from slipway.config.schema import Reward
from slipway.rewards import worker
from slipway.rewards.answers import Answer, in_box, in_tags

# A longer answer is text that ends with one.
MOST_WORDS = 12


def find_answer(response: str) -> Answer:
    r"""Return what stands in the last answer tags or the last `\boxed{}`, or the whole response."""
    marked = in_tags(response)
    if marked is None:
        marked = in_box(response)
    return Answer((response if marked is None else marked).strip(), marked is not None)


def correctness(answer: str, entry: dict[str, Any], reward: Reward) -> float:
    """Return 1 for an answer that equals the gold one, 0 for others and for what cannot be compared in time."""
    arguments = [entry["answer"], answer, "\n" in answer or len(answer.split()) > MOST_WORDS]
    return float(worker.call("slipway.rewards.math_answers:equal", arguments, reward.math_seconds, otherwise=False))


def gold_response(entry: dict[str, Any]) -> str:
    """Return the gold answer in tags."""
    return f"<answer>{entry['answer']}</answer>"


def wrong_responses(entry: dict[str, Any]) -> list[str]:
    """Return a number that no problem has for an answer, and words."""
    return ["<answer>-987654321.25</answer>", "<answer>certainly not the answer</answer>"]
