"""Base against final on the same questions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipway.errors import SlipwayError
from slipway.report.reading import Evaluated, SampleRow
from slipway.statistics import CONFIDENCE, Difference, Interval, accuracy_interval, compare_paired, holm

Verdict = Literal["better", "not shown to be better", "worse"]


@dataclass(frozen=True)
class Accuracy:
    """A measured accuracy with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Comparison:
    """The paired comparison of one evaluation; `gained` and `lost` count questions by their mean accuracy.

    `corrected_p` is None for the evaluation that decides; for a further one it is the p-value of the difference,
    corrected for the number of further ones.
    """

    evaluation: str
    questions: int
    samples: int
    base: Accuracy
    final: Accuracy
    difference: Difference
    corrected_p: float | None
    gained: int
    lost: int
    base_metrics: dict[str, Any]
    final_metrics: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """What the interval of the difference and, for a further evaluation, the corrected p-value allow to say."""
        by_chance = self.corrected_p is not None and self.corrected_p >= 1 - CONFIDENCE
        if self.difference.interval.low > 0 and not by_chance:
            return "better"
        return "worse" if self.difference.interval.high < 0 and not by_chance else "not shown to be better"


def check_pair(base: Evaluated, final: Evaluated) -> None:
    """Refuse two results that are of the same weights, or of different evaluations or settings."""
    if base.weights == final.weights:
        raise SlipwayError(
            f"the same weights were evaluated twice: {base.checkpoint} and {final.checkpoint} both have digest "
            f"{base.weights[:16]}. Either training changed nothing, or export_hf exported the base model; look at the "
            "run's train and model folders"
        )
    check_same_evaluations(base, final)


# What evaluations depend on besides their settings, as `evaluate` records it, and how to make it the same.
_MEASURED_BY = {
    "version": "score both again by `scripts/evaluate.py --rescore`, which generates nothing",
    "engine": "evaluate both where the same engine is installed",
}


def check_same_evaluations(base: Evaluated, final: Evaluated) -> None:
    """Refuse two results that are of different evaluations or settings, or of another engine or version of scoring."""
    one, other = base.checkpoint, final.checkpoint
    for name, remedy in _MEASURED_BY.items():
        before, after = base.manifest.inputs.get(name), final.manifest.inputs.get(name)
        if before != after:
            raise SlipwayError(f"{one} was evaluated by {name} {before}, {other} by {name} {after}; {remedy}")
    if set(base.metrics) != set(final.metrics):
        raise SlipwayError(
            f"{one} was evaluated on {sorted(base.metrics)}, {other} on {sorted(final.metrics)}; run evaluate again"
        )
    for name in base.metrics:
        before, after = base.metrics[name].get("settings"), final.metrics[name].get("settings")
        if before != after:
            raise SlipwayError(
                f"evaluation {name}: {one} and {other} were evaluated with different settings ({before} and "
                f"{after}); run evaluate again"
            )


def compare_all(base: Evaluated, final: Evaluated, evaluations: Sequence[str]) -> list[Comparison]:
    """Compare two models on every evaluation; the first was chosen beforehand to decide, so it needs no correction.

    Raises `SlipwayError` when the two cannot be compared.
    """
    check_pair(base, final)
    first, *further = [_compare(base, final, name) for name in evaluations]
    corrected = holm([comparison.difference.p for comparison in further])
    return [first, *(replace(one, corrected_p=p) for one, p in zip(further, corrected, strict=True))]


def _compare(base: Evaluated, final: Evaluated, evaluation: str) -> Comparison:
    base_correct, final_correct = correct_answers([base, final], evaluation)
    change = final_correct.mean(axis=1) - base_correct.mean(axis=1)
    return Comparison(
        evaluation=evaluation,
        questions=len(change),
        samples=base_correct.shape[1],
        base=accuracy_of(base_correct),
        final=accuracy_of(final_correct),
        difference=compare_paired(base_correct, final_correct),
        corrected_p=None,
        gained=int((change > 0).sum()),
        lost=int((change < 0).sum()),
        base_metrics=base.metrics[evaluation],
        final_metrics=final.metrics[evaluation],
    )


def correct_answers(models: Sequence[Evaluated], evaluation: str) -> list[NDArray[np.bool_]]:
    """Return for each model which answers are right, `[questions, samples]`, rows in the same order of questions.

    Raises `SlipwayError` when they were asked different questions.
    """
    grouped = [answers_by_question(model, evaluation) for model in models]
    for model, answers in zip(models, grouped, strict=True):
        if list(answers) != list(grouped[0]):
            asked = f"{models[0].checkpoint} and {model.checkpoint} were asked different questions"
            raise SlipwayError(f"evaluation {evaluation}: {asked}")
    return [_correct(model, evaluation, answers) for model, answers in zip(models, grouped, strict=True)]


def answers_by_question(evaluated: Evaluated, evaluation: str) -> dict[str, list[SampleRow]]:
    """Return the samples of each question, in the order of the file."""
    grouped: dict[str, list[SampleRow]] = {}
    for row in evaluated.samples[evaluation]:
        grouped.setdefault(row.question_id, []).append(row)
    return grouped


def _correct(evaluated: Evaluated, evaluation: str, grouped: dict[str, list[SampleRow]]) -> NDArray[np.bool_]:
    wanted = list(range(evaluated.metrics[evaluation]["samples_per_question"]))
    for question, rows in grouped.items():
        if [row.sample for row in rows] != wanted:
            raise SlipwayError(
                f"evaluation {evaluation} of {evaluated.checkpoint}: question {question} has samples "
                f"{[row.sample for row in rows]}, expected {wanted}"
            )
    return _matrix(list(grouped.values()))


def _matrix(rows: Sequence[Sequence[SampleRow]]) -> NDArray[np.bool_]:
    return np.array([[sample.correct for sample in row] for row in rows])


def accuracy_of(correct: NDArray[np.bool_]) -> Accuracy:
    """Return the accuracy of answers `[questions, samples]` with its interval."""
    return Accuracy(float(correct.mean()), accuracy_interval(correct))
