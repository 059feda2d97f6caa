"""The evaluated checkpoints of a run: accuracy by step, which one is chosen, whether fewer steps had been enough."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slipway.report.charts import COLOURS, HEIGHT, WIDTH, Chart, render
from slipway.report.comparison import Accuracy, accuracy_of, check_same_evaluations, correct_answers
from slipway.report.reading import Evaluated
from slipway.statistics import CONFIDENCE, Difference, compare_paired, holm, minimum_detectable_difference, paired_test


@dataclass(frozen=True)
class CheckpointRow:
    """One evaluated step on one evaluation; `corrected_p` is None on the evaluation that chooses."""

    step: int
    accuracy: Accuracy
    difference: Difference
    corrected_p: float | None


@dataclass(frozen=True)
class CheckpointTable:
    """The evaluated steps on one evaluation, in order, and the base model's accuracy there."""

    evaluation: str
    base: Accuracy
    rows: list[CheckpointRow]


@dataclass(frozen=True)
class Advice:
    """The earliest evaluated step that no later one is shown to beat.

    `later` are the steps it was compared with, `detectable` is the gain that the least sensitive of these comparisons
    finds four times out of five (None where there is none).
    """

    evaluation: str
    questions: int
    step: int
    last: int
    later: list[int]
    detectable: float | None


@dataclass(frozen=True)
class Checkpoints:
    """All of it; `judged` is the step that the report's verdict is about: the selected one, or the last."""

    tables: list[CheckpointTable]
    select_on: str | None
    judged: int
    last: int
    advice: Advice
    shared_questions: Mapping[str, int]
    """By evaluation, how many of its questions also chose the checkpoint, where any did (data sets with some in
    common; within one data set the config refuses it)."""

    @property
    def comparisons(self) -> int:
        """The number of comparisons that the p-values are corrected for."""
        return sum(row.corrected_p is not None for table in self.tables for row in table.rows)


def choose_step(models: Mapping[int, Evaluated], select_on: str | None) -> int:
    """Return the step that the report judges, of the evaluated `models` by step: the last, or the best on `select_on`.

    Of equally good ones the earliest.
    """
    if select_on is None:
        return max(models)
    steps = sorted(models)
    accuracies = [float(correct.mean()) for correct in correct_answers([models[step] for step in steps], select_on)]
    return steps[int(np.argmax(accuracies))]


def view_checkpoints(
    base: Evaluated, models: Mapping[int, Evaluated], evaluations: Sequence[str], select_on: str | None
) -> Checkpoints:
    """Lay the models of a run's evaluated steps, the last one included, beside each other.

    `evaluations` are the run's, the one that decides first. Raises `SlipwayError` when two models were not asked the
    same questions in the same way.
    """
    steps = sorted(models)
    for step in steps:
        check_same_evaluations(base, models[step])
    correct = {name: correct_answers([base, *(models[step] for step in steps)], name) for name in evaluations}
    tables = _corrected([_table(name, steps, correct[name]) for name in evaluations], select_on)
    advising = select_on or evaluations[0]
    chosen = _questions(base, select_on) if select_on else set()
    shared = {name: len(chosen & _questions(base, name)) for name in evaluations if name != select_on}
    return Checkpoints(
        tables=tables,
        select_on=select_on,
        judged=choose_step(models, select_on),
        last=steps[-1],
        advice=_advise(advising, steps, correct[advising][1:]),
        shared_questions={name: count for name, count in shared.items() if count},
    )


def _questions(model: Evaluated, evaluation: str) -> set[str]:
    return {row.question_id for row in model.samples[evaluation]}


def _table(evaluation: str, steps: Sequence[int], correct: Sequence[NDArray[np.bool_]]) -> CheckpointTable:
    base, *trained = correct
    rows = [
        CheckpointRow(step, accuracy_of(answers), compare_paired(base, answers), None)
        for step, answers in zip(steps, trained, strict=True)
    ]
    return CheckpointTable(evaluation, accuracy_of(base), rows)


def _corrected(tables: Sequence[CheckpointTable], select_on: str | None) -> list[CheckpointTable]:
    """Correct the p-values of all evaluations but the one that chooses for their number."""
    reported = [table for table in tables if table.evaluation != select_on]
    corrected = iter(holm([row.difference.p for table in reported for row in table.rows]))
    return [
        replace(table, rows=[replace(row, corrected_p=next(corrected)) for row in table.rows])
        if table.evaluation != select_on
        else table
        for table in tables
    ]


def _advise(evaluation: str, steps: Sequence[int], correct: Sequence[NDArray[np.bool_]]) -> Advice:
    """Find the earliest step that no later one beats.

    The tests are not corrected for their number: that would find fewer later gains, and so advise to stop too early.
    """
    by_step = dict(zip(steps, correct, strict=True))
    earliest = next(
        step
        for step in steps
        if not any(_beats(by_step[later], by_step[step]) for later in steps if later > step)  # always so for the last
    )
    later = [step for step in steps if step > earliest]
    samples = correct[0].shape[1]
    detectable = [
        minimum_detectable_difference(by_step[step].mean(axis=1) - by_step[earliest].mean(axis=1), samples)
        for step in later
    ]
    return Advice(evaluation, len(correct[0]), earliest, steps[-1], later, max(detectable, default=None))


def _beats(later: NDArray[np.bool_], earlier: NDArray[np.bool_]) -> bool:
    return bool(later.mean() > earlier.mean() and paired_test(earlier, later) < 1 - CONFIDENCE)


def advice_in_words(advice: Advice) -> str:
    """Return what the comparison of steps says about stopping earlier, and what it cannot say."""
    where = f"on {advice.evaluation} ({advice.questions} questions)"
    if advice.detectable is None:
        return (
            f"Every evaluated step before the last is beaten by a later one {where}: nothing speaks for stopping "
            f"before step {advice.last}."
        )
    return (
        f"No later step is shown to be better than step {advice.step} {where}: {advice.step} of {advice.last} steps "
        f"may have been enough. That is no proof that the later ones gained nothing: only a true gain of "
        f"{100 * advice.detectable:.1f} points or more would have been found four times out of five."
    )


def figures_of(checkpoints: Checkpoints) -> dict[str, Any]:
    """Return what metrics.json says of the evaluated checkpoints."""
    advice = checkpoints.advice
    return {
        "select_on": checkpoints.select_on,
        "step": checkpoints.judged,
        "earliest_not_beaten": {
            "evaluation": advice.evaluation,
            "step": advice.step,
            "detectable_difference": advice.detectable,
        },
        "evaluations": {
            table.evaluation: [
                {
                    "step": row.step,
                    "accuracy": row.accuracy.value,
                    "accuracy_ci95": [row.accuracy.interval.low, row.accuracy.interval.high],
                    "difference": row.difference.value,
                    "difference_ci95": [row.difference.interval.low, row.difference.interval.high],
                    "corrected_p": row.corrected_p,
                }
                for row in table.rows
            ]
            for table in checkpoints.tables
        },
    }


def draw_checkpoints(checkpoints: Checkpoints) -> list[Chart]:
    """Draw the accuracy by step with its interval, one chart an evaluation; the base is step 0."""
    return [_draw(table, checkpoints, number) for number, table in enumerate(checkpoints.tables)]


def _draw(table: CheckpointTable, checkpoints: Checkpoints, number: int) -> Chart:
    points = [(0, table.base), *((row.step, row.accuracy) for row in table.rows)]
    rows = [
        {
            "step": step,
            "value": accuracy.value,
            "low": accuracy.interval.low,
            "high": accuracy.interval.high,
            "kind": "base" if step == 0 else "judged" if step == checkpoints.judged else "other",
        }
        for step, accuracy in points
    ]
    base = alt.Chart(pd.DataFrame(rows), width=WIDTH, height=HEIGHT)
    x = alt.X("step:Q", title="training step", axis=alt.Axis(tickCount=5, tickMinStep=1))
    y = alt.Y(
        "low:Q", title="accuracy", scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(format=".0%", tickCount=4)
    )
    colour = alt.condition("datum.kind == 'base'", alt.value(COLOURS["second"]), alt.value(COLOURS["line"]))
    line = base.mark_line(color=COLOURS["faint"], strokeWidth=1.5).encode(x=x, y="value:Q")
    interval = base.mark_rule(strokeWidth=2).encode(x=x, y=y, y2="high:Q", color=colour)
    shape = alt.condition("datum.kind == 'judged'", alt.value("diamond"), alt.value("circle"))
    size = alt.condition("datum.kind == 'judged'", alt.value(150), alt.value(60))
    marks = base.mark_point(filled=True, opacity=1).encode(x=x, y="value:Q", color=colour, shape=shape, size=size)
    role = "It chose the step; accuracy there flatters it." if table.evaluation == checkpoints.select_on else ""
    hint = f"Step 0 is the base, the diamond step {checkpoints.judged}, which the verdict is about; bars: 95 %. {role}"
    return Chart(
        f"Accuracy by step: {table.evaluation}", hint.strip(), render(line + interval + marks, f"steps-{number}")
    )
