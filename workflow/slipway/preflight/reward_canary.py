"""Try the reward function as verl's reward workers call it, before a rollout depends on it.

verl/experimental/reward_loop/reward_manager/naive.py awaits a coroutine function, and runs any other in a thread of its
event loop's executor, all responses of a worker at once. A scorer that works in the main thread only (one whose time
limit is a signal, such as math-verify's) fails there, and where it catches its own errors, every answer silently
scores 0.
"""

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.preflight.findings import Finding, Severity
from slipway.rewards import scorer_for

# Rows that the reward is tried on.
ROWS = 16
# Groups of the base model's answers that are scored.
GROUPS = 64
# Above that, scoring a step's thousands of responses takes longer than generating them.
SLOW_SECONDS = 1.0
# Above that share of groups without variance, most of a step's rollouts teach nothing.
MANY_WITHOUT_VARIANCE = 0.9

Row = dict[str, Any]
Reward = Callable[..., Any]
Result = Mapping[str, float]


@dataclass(frozen=True)
class Trial:
    """A response to a row, whether it is right, and what the reward function returned."""

    row: Row
    response: str
    right: bool
    result: Result


@dataclass(frozen=True)
class Groups:
    """Groups of the base model's answers, and how many have one score for all of their answers: GRPO learns nothing."""

    groups: int
    without_variance: int

    @property
    def share(self) -> float:
        """The share without variance."""
        return self.without_variance / self.groups


def check_reward(name: str, rows: Sequence[Row], compute_score: Reward) -> tuple[list[Finding], float | None]:
    """Return what is wrong with the reward of data set `name`, and the mean seconds a score takes.

    Gold answers must be correct, wrong ones neither correct nor earn as much; a function that raises has no time.
    """
    key = f"data.{name}"
    asked = [known for row in list(rows)[:ROWS] for known in _known_responses(row)]
    began = time.monotonic()
    try:
        results = score_as_verl_does(compute_score, [(row, response) for row, response, _ in asked])
    except Exception as error:  # a user's function may raise anything; in a training it would end the rollout
        why = f"the reward function raises {type(error).__name__}: {error}"
        return [Finding("S6", Severity.ERROR, key, None, why, "Mend the reward function.")], None
    seconds = (time.monotonic() - began) / len(asked)
    trials = [Trial(*known, result) for known, result in zip(asked, results, strict=True)]
    findings = _gold_is_right(key, trials) or _wrong_is_not(key, trials)
    if seconds > SLOW_SECONDS:
        findings.append(
            Finding(
                "S9",
                Severity.WARNING,
                key,
                None,
                f"a score takes {seconds:.1f} s: a step waits for one of each response.",
                "Make the reward function faster, or give the score a time limit.",
            )
        )
    return findings, seconds


def check_variance(run: str, samples: Path, rows: Sequence[Row], compute_score: Reward) -> tuple[list[Finding], Groups]:
    """Score a sample of the base model's answers to `rows`, which `evaluate` wrote to `samples`, group by group.

    A group is the answers to one question; questions with a single answer are left out.
    """
    by_question = {row["extra_info"]["question_id"]: row for row in rows}
    groups: dict[str, list[str]] = {}
    for line in samples.read_text(encoding="utf-8").split("\n"):
        if line:
            sample = json.loads(line)
            groups.setdefault(sample["question_id"], []).append(sample["response"])
    chosen = [name for name, responses in groups.items() if len(responses) > 1 and name in by_question][:GROUPS]
    asked = [(by_question[name], response) for name in chosen for response in groups[name]]
    results = iter(score_as_verl_does(compute_score, asked))
    spread = [len({next(results)["score"] for _ in groups[name]}) for name in chosen]
    counted = Groups(len(chosen), spread.count(1))
    if not chosen or counted.share <= MANY_WITHOUT_VARIANCE:
        return [], counted
    why = (
        f"in {counted.without_variance} of {counted.groups} groups of the base model's answers all earn the same: "
        "such groups teach nothing."
    )
    remedy = "Use easier or harder problems, more samples a prompt, or a reward with partial credit."
    return [Finding("S23", Severity.WARNING, f"runs.{run}.data", None, why, remedy)], counted


def score_as_verl_does(compute_score: Reward, asked: Sequence[tuple[Row, str]]) -> list[Result]:
    """Return what the reward function returns for each row and response, called as a reward worker of verl does."""

    async def score_all() -> list[Result]:
        return list(await asyncio.gather(*(_score(compute_score, row, response) for row, response in asked)))

    return asyncio.run(score_all())


def _known_responses(row: Row) -> list[tuple[Row, str, bool]]:
    """Return responses to a row whose correctness is known: its task's scorer makes them."""
    entry = json.loads(row["extra_info"]["entry"])
    scorer = scorer_for(entry["task"])
    right = [(row, scorer.gold_response(entry), True)]
    return right + [(row, response, False) for response in scorer.wrong_responses(entry)]


def _gold_is_right(key: str, trials: Sequence[Trial]) -> list[Finding]:
    bad = next((trial for trial in trials if trial.right and _correctness(trial) < 1), None)
    if bad is None:
        return []
    why = (
        f"the gold answer to {bad.row['prompt'][-1]['content']!r} scores {_correctness(bad)} instead of 1 in a "
        "thread, as verl calls it: the reward would mislead."
    )
    return [Finding("S6", Severity.ERROR, key, bad.row["reward_model"]["ground_truth"], why)]


def _wrong_is_not(key: str, trials: Sequence[Trial]) -> list[Finding]:
    """Refuse a wrong answer that counts as right, or that earns as much as the gold answer to the same question."""
    earned = 0.0
    for trial in trials:
        if trial.right:
            earned = trial.result["score"]
        elif _correctness(trial) >= 1:
            why = f"a wrong answer scores {_correctness(trial)}."
            return [Finding("S7", Severity.ERROR, key, trial.response, why)]
        elif trial.result["score"] >= earned:
            why = f"a wrong answer earns {trial.result['score']:g}, and the gold answer {earned:g}."
            return [Finding("S7", Severity.ERROR, key, trial.response, why, "Raise `reward.correctness`.")]
    return []


def _correctness(trial: Trial) -> float:
    # a function that is not Slipway's returns no more than a score
    return trial.result.get("correctness", trial.result["score"])


async def _score(compute_score: Reward, row: Row, response: str) -> Result:
    def score() -> Any:
        return compute_score(
            data_source=row["data_source"],
            solution_str=response,
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=dict(row["extra_info"]),
        )

    if inspect.iscoroutinefunction(compute_score):
        result = await score()
    else:
        result = await asyncio.get_running_loop().run_in_executor(None, score)
    return result if isinstance(result, dict) else {"score": float(result)}
