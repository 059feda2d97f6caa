"""Base against final on the same questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipway.errors import SlipwayError
from slipway.report.reading import Evaluated, SampleRow
from slipway.statistics import Difference, Interval, accuracy_interval, compare_paired

Verdict = Literal["better", "not shown to be better", "worse"]


@dataclass(frozen=True)
class Accuracy:
    """A measured accuracy with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Comparison:
    """The paired comparison of one evaluation; `gained` and `lost` count questions by their mean accuracy."""

    evaluation: str
    questions: int
    samples: int
    base: Accuracy
    final: Accuracy
    difference: Difference
    gained: int
    lost: int
    base_metrics: dict[str, Any]
    final_metrics: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """What the interval of the difference allows to say."""
        if self.difference.interval.low > 0:
            return "better"
        return "worse" if self.difference.interval.high < 0 else "not shown to be better"


def check_pair(base: Evaluated, final: Evaluated) -> None:
    """Refuse two results that are of the same weights, or of different evaluations or settings."""
    if base.weights == final.weights:
        raise SlipwayError(
            f"the same weights were evaluated twice: base and final both have digest {base.weights[:16]}. "
            "Either training changed nothing, or export_hf exported the base model; look at the run's train "
            "and model folders"
        )
    if set(base.metrics) != set(final.metrics):
        raise SlipwayError(
            f"base was evaluated on {sorted(base.metrics)}, final on {sorted(final.metrics)}; run evaluate again"
        )
    for name in base.metrics:
        before, after = base.metrics[name].get("settings"), final.metrics[name].get("settings")
        if before != after:
            raise SlipwayError(
                f"evaluation {name}: base and final were evaluated with different settings ({before} and "
                f"{after}); run evaluate again"
            )


def compare(base: Evaluated, final: Evaluated, evaluation: str) -> Comparison:
    """Compare two models on the questions of one evaluation.

    Raises `SlipwayError` when the questions or samples differ.
    """
    before, after = answers_by_question(base, evaluation), answers_by_question(final, evaluation)
    if list(before) != list(after):
        raise SlipwayError(f"evaluation {evaluation}: base and final were asked different questions")
    base_correct, final_correct = _correct(base, evaluation, before), _correct(final, evaluation, after)
    change = final_correct.mean(axis=1) - base_correct.mean(axis=1)
    return Comparison(
        evaluation=evaluation,
        questions=len(change),
        samples=base_correct.shape[1],
        base=_accuracy(base_correct),
        final=_accuracy(final_correct),
        difference=compare_paired(base_correct, final_correct),
        gained=int((change > 0).sum()),
        lost=int((change < 0).sum()),
        base_metrics=base.metrics[evaluation],
        final_metrics=final.metrics[evaluation],
    )


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


def _accuracy(correct: NDArray[np.bool_]) -> Accuracy:
    return Accuracy(float(correct.mean()), accuracy_interval(correct))
