"""Signs of trouble: each shows when it should, and a healthy run shows none."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slipway.report.comparison import Accuracy, Comparison
from slipway.report.parity import Parity, SourceParity
from slipway.report.reading import Step, Training
from slipway.report.signs import find_signs
from slipway.statistics import Interval, compare_paired

STEPS = 40


def training(**curves: Any) -> Training:
    """Make curves of a healthy run, some of them replaced: each is a line through the given values, with scatter."""
    healthy = {
        "critic/score/mean": (0.2, 0.8),
        "actor/entropy": (1.5, 0.6),
        "response_length/clip_ratio": (0.05, 0.01),
        "training/rollout_probs_diff_mean": (0.004, 0.004),
    }
    keys = {"reward": "critic/score/mean", "entropy": "actor/entropy", "cut_off": "response_length/clip_ratio"}
    keys["mismatch"] = "training/rollout_probs_diff_mean"
    lines = healthy | {keys[name]: ends for name, ends in curves.items()}
    scatter = np.random.default_rng(0).normal(0, 0.002, STEPS)
    values = {
        key: np.interp(np.arange(STEPS), np.linspace(0, STEPS - 1, len(ends)), ends) for key, ends in lines.items()
    }
    steps = [
        Step(number + 1, {key: float(line[number] * (1 + scatter[number])) for key, line in values.items()})
        for number in range(STEPS)
    ]
    return Training(steps, [], None)


def comparison(final: float, questions: int = 400) -> Comparison:
    before, after = np.arange(questions) < 0.3 * questions, np.arange(questions) < final * questions
    accuracy = Accuracy(0.0, Interval(0.0, 0.0))
    difference = compare_paired(before[:, None], after[:, None])
    return Comparison(
        evaluation="heldout",
        questions=questions,
        samples=1,
        base=accuracy,
        final=accuracy,
        difference=difference,
        corrected_p=None,
        gained=0,
        lost=0,
        base_metrics={},
        final_metrics={"mean_score": final},
    )


BETTER, EQUAL = comparison(0.6), comparison(0.3)


def titles(*arguments: Any) -> list[str]:
    return [sign.title for sign in find_signs(*arguments)]


def test_a_healthy_run_shows_none() -> None:
    assert titles(training(), [BETTER], []) == []


def test_an_empty_run_shows_none() -> None:
    assert titles(None, [], []) == []
    few = replace(training(), steps=training(entropy=(1.0, 0.0)).steps[:10])
    assert titles(few, [EQUAL], []) == []


@pytest.mark.parametrize(
    ("made", "compared", "sign"),
    [
        (training(), EQUAL, "training reward rose by"),
        (training(cut_off=(0.1, 0.4)), BETTER, "% of the answers of the last quarter were cut off"),
        (training(entropy=(1.5, 0.01, 0.01)), BETTER, "entropy fell from"),
        (training(mismatch=(0.03, 0.05)), BETTER, "rollout engine and trainer give tokens probabilities"),
        (training(reward=(0.2, 0.8, 0.8, 0.8)), BETTER, "the reward hardly rose after step 30"),
    ],
)
def test_each_sign(made: Training, compared: Comparison, sign: str) -> None:
    [title] = titles(made, [compared], [])
    assert sign in title


def test_a_reward_that_did_not_rise_is_no_hacking() -> None:
    assert titles(training(reward=(0.3, 0.3)), [EQUAL], []) == []


def test_a_validation_that_disagrees_is_one() -> None:
    same, other = SourceParity("math/a", 100, 0.6, 0.61, 0.05), SourceParity("math/b", 100, 0.3, 0.6, 0.05)
    [sign] = find_signs(training(), [BETTER], [], Parity("heldout", [same, other], []))
    assert sign.title == (
        "math/b: verl's last validation scored 0.300, the evaluation of the same weights and questions 0.600"
    )
    assert find_signs(training(), [BETTER], [], Parity("heldout", [], ["temperature: 0 and 1"])) == []


def test_preflights_warnings_are_repeated_and_its_notes_are_not() -> None:
    finding = {"key": "grpo.x", "why": "wastes memory.", "remedy": "Use 2."}
    warned = [finding | {"severity": "warning"}, finding | {"severity": "note"}]
    [sign] = find_signs(training(), [BETTER], warned)
    assert (sign.title, sign.advice) == ("preflight, grpo.x: wastes memory.", "Use 2.")
