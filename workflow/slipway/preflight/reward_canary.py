"""Try the reward function as verl's reward workers call it, before a rollout depends on it.

verl/experimental/reward_loop/reward_manager/naive.py awaits a coroutine function, and runs any other in a thread of its
event loop's executor. A scorer that works in the main thread only (one whose time limit is a signal, such as
math-verify's) fails there, and where it catches its own errors, every answer silently scores 0.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.preflight.findings import Finding, Severity

# Rows that the reward is tried on.
ROWS = 16
WRONG_ANSWER = "certainly not the answer"
# Above that, scoring a step's thousands of responses takes longer than generating them.
SLOW_SECONDS = 1.0

Row = dict[str, Any]
Reward = Callable[..., Any]


@dataclass(frozen=True)
class Trial:
    """Scores of right and of wrong answers to the tried rows, and the mean seconds of one score."""

    gold: tuple[float, ...]
    wrong: tuple[float, ...]
    seconds: float


def check_reward(name: str, rows: Sequence[Row], compute_score: Reward) -> tuple[list[Finding], float | None]:
    """Return what is wrong with the reward of data set `name`, and the mean seconds a score takes.

    Gold answers must score 1, wrong ones less; a function that raises has no time.
    """
    key = f"data.{name}"
    sample = list(rows)[:ROWS]
    try:
        trial = asyncio.run(_try(sample, compute_score))
    except Exception as error:  # a user's function may raise anything; in a training it would end the rollout
        why = f"the reward function raises {type(error).__name__}: {error}"
        return [Finding("S6", Severity.ERROR, key, None, why, "Mend the reward function.")], None
    findings = []
    if min(trial.gold) < 1:
        bad = sample[trial.gold.index(min(trial.gold))]
        findings.append(
            Finding(
                "S6",
                Severity.ERROR,
                key,
                bad["reward_model"]["ground_truth"],
                f"the gold answer to {bad['prompt'][-1]['content']!r} scores {min(trial.gold)} instead of 1 in a "
                "thread, as verl calls it: the reward would mislead.",
            )
        )
    if max(trial.wrong) >= 1:
        findings.append(
            Finding("S7", Severity.ERROR, key, WRONG_ANSWER, f"a wrong answer scores {max(trial.wrong)}.", "")
        )
    if trial.seconds > SLOW_SECONDS:
        findings.append(
            Finding(
                "S9",
                Severity.WARNING,
                key,
                None,
                f"a score takes {trial.seconds:.1f} s: a step waits for one of each response.",
                "Make the reward function faster, or give the score a time limit.",
            )
        )
    return findings, trial.seconds


async def _try(rows: Sequence[Row], compute_score: Reward) -> Trial:
    began = time.monotonic()
    gold = [await _score(compute_score, row, row["reward_model"]["ground_truth"]) for row in rows]
    wrong = [await _score(compute_score, row, WRONG_ANSWER) for row in rows]
    return Trial(tuple(gold), tuple(wrong), (time.monotonic() - began) / (2 * len(rows)))


async def _score(compute_score: Reward, row: Row, answer: str) -> float:
    def score() -> Any:
        return compute_score(
            data_source=row["data_source"],
            solution_str=answer,
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=dict(row["extra_info"]),
        )

    if inspect.iscoroutinefunction(compute_score):
        result = await score()
    else:
        result = await asyncio.get_running_loop().run_in_executor(None, score)
    return float(result["score"] if isinstance(result, dict) else result)
