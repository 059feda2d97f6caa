"""What should make a reader careful: signs of trouble in curves and evaluation, and what preflight warned of.

The thresholds are rules of thumb: a sign asks for a look, it proves nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from slipway.report.comparison import Comparison
from slipway.report.parity import Parity
from slipway.report.reading import CUT_OFF, Training

REWARD, ENTROPY, MISMATCH = "critic/score/mean", "actor/entropy", "training/rollout_probs_diff_mean"
# A quarter of fewer steps says nothing.
FEWEST_STEPS = 20
# Two quarters of a curve differ when their means are so many standard errors apart.
STANDARD_ERRORS = 3.0
CUT_OFF_SHARE = 0.1
# Of the whole rise of the reward; who gains less in the last quarter has stopped learning.
LATE_SHARE = 0.05
# Of what entropy was in the first quarter.
ENTROPY_LEFT = 0.1
# Mean difference of token probabilities between rollout engine and trainer; 0.002 to 0.008 in healthy runs
# (docs/measurements).
MOST_MISMATCH = 0.02

CHECKED = (
    "reward that rises while held-out accuracy does not, verl's validation against the evaluation, answers cut off, "
    "entropy gone, rollout engine and trainer that disagree, a reward that stopped rising, warnings of preflight"
)
"""What `find_signs` looks at, for a page without any sign."""


@dataclass(frozen=True)
class Sign:
    """A sign in one line, and what it may mean and what to do about it."""

    title: str
    advice: str


def find_signs(
    training: Training | None,
    comparisons: Sequence[Comparison],
    findings: Sequence[Mapping[str, Any]],
    parity: Parity | None = None,
) -> list[Sign]:
    """Return the signs, the gravest first; `findings` are those of preflight."""
    curves = _Curves(training) if training else None
    return list(
        chain(
            _reward_hacking(curves, comparisons),
            _disagreement(parity),
            _policy(curves) if curves else (),
            _stopped_learning(curves) if curves else (),
            (
                Sign(f"preflight, {finding['key']}: {finding['why']}", finding["remedy"])
                for finding in findings
                if finding["severity"] == "warning"
            ),
        )
    )


class _Curves:
    """The first and the last quarters of training curves."""

    def __init__(self, training: Training):
        self.training = training

    def quarter(self, key: str, number: int) -> np.ndarray:
        """Return quarter `number` (0 to 3) of a curve; empty where there are too few steps."""
        values = np.array([step.values[key] for step in self.training.steps if key in step.values])
        return np.array_split(values, 4)[number] if len(values) >= FEWEST_STEPS else np.array([])

    def last(self, key: str) -> float | None:
        """Return the mean of the last quarter."""
        values = self.quarter(key, 3)
        return float(values.mean()) if values.size else None

    def rise(self, key: str, before: int) -> tuple[float, bool] | None:
        """Return by how much the last quarter lies above another, and whether that is more than scatter."""
        earlier, last = self.quarter(key, before), self.quarter(key, 3)
        if not earlier.size or not last.size:
            return None
        error = math.sqrt(earlier.var(ddof=1) / len(earlier) + last.var(ddof=1) / len(last))
        change = float(last.mean() - earlier.mean())
        return change, change > STANDARD_ERRORS * error


def _reward_hacking(curves: _Curves | None, comparisons: Sequence[Comparison]) -> Iterator[Sign]:
    rise = curves.rise(REWARD, before=0) if curves else None
    if rise is None or not comparisons:
        return
    change, real = rise
    if real and comparisons[0].verdict != "better":
        yield Sign(
            f"training reward rose by {change:.3g}, held-out accuracy did not",
            "The policy may have learnt to please the scorer, or the training questions by heart. Read the samples "
            "whose score is high and whose answer is wrong, and look at the reward's components.",
        )


def _disagreement(parity: Parity | None) -> Iterator[Sign]:
    for source in parity.sources if parity else ():
        if not source.agrees:
            yield Sign(
                f"{source.name}: verl's last validation scored {source.validated:.3f}, the evaluation of the same "
                f"weights and questions {source.evaluated:.3f}",
                f"Sampling explains a difference up to {source.tolerance:.3f}. Look at whether the exported model says "
                "the same as the trained one, and at the prompts and stop tokens of the two engines.",
            )


def _policy(curves: _Curves) -> Iterator[Sign]:
    cut_off = curves.last(CUT_OFF)
    if cut_off is not None and cut_off > CUT_OFF_SHARE:
        yield Sign(
            f"{100 * cut_off:.0f} % of the answers of the last quarter were cut off",
            "A cut-off answer can hardly score, and the policy learns to be short instead of right. Raise "
            "grpo.max_response_length.",
        )
    first, last = curves.quarter(ENTROPY, 0), curves.last(ENTROPY)
    if last is not None and last < ENTROPY_LEFT * first.mean():
        yield Sign(
            f"entropy fell from {first.mean():.3g} to {last:.3g} nats",
            "The policy hardly explores any more: all answers of a group are alike, and the advantage is 0. A higher "
            "temperature, kl_coefficient or clip range, or fewer steps, keep it open.",
        )
    mismatch = curves.last(MISMATCH)
    if mismatch is not None and mismatch > MOST_MISMATCH:
        yield Sign(
            f"rollout engine and trainer give tokens probabilities that differ by {mismatch:.3f}",
            "Then the policy is trained on samples of another policy. Look at the engines' dtypes, at the vocabulary "
            "against the tokenizer, and at the weight transfer.",
        )


def _stopped_learning(curves: _Curves) -> Iterator[Sign]:
    total, late = curves.rise(REWARD, before=0), curves.rise(REWARD, before=2)
    if total is None or late is None:
        return
    if total[1] and late[0] < LATE_SHARE * total[0]:
        steps = curves.training.steps[-1].number
        yield Sign(
            f"the reward hardly rose after step {steps * 3 // 4} or so",
            "A shorter training may have come as far for less: let the run's checkpoints.evaluate_every evaluate "
            "earlier checkpoints.",
        )
