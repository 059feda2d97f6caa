"""What lies beside the page: metrics.json, and summary.md from the same figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipway.config.schema import Run
from slipway.errors import SlipwayError
from slipway.report.comparison import Comparison
from slipway.report.reading import Training
from slipway.report.timeline import held_hours


def metrics(
    name: str,
    run: Run,
    comparisons: Sequence[Comparison],
    training: Training,
    ledger: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the content of metrics.json; the first evaluation decides the verdict."""
    first = comparisons[0]
    unit = "gpu_hours" if run.device == "cuda" else "cpu_hours"
    held = {} if ledger is None else {f"{unit}_held": held_hours(ledger)}
    return {
        "format": 1,
        "run": name,
        **_figures(first),
        "evaluation": first.evaluation,
        "steps": training.steps[-1].number,
        unit: device_hours(run, training),
        **held,
        "evaluations": {comparison.evaluation: _figures(comparison) for comparison in comparisons},
    }


def device_hours(run: Run, training: Training) -> float:
    """Return the time of all training steps times the number of GPUs (on the CPU: of training processes).

    Without queueing, start-up and evaluation. Raises `SlipwayError` when no step was timed.
    """
    seconds = [step.values.get("timing_s/step") for step in training.steps]
    known = [value for value in seconds if value is not None]
    if not known:
        raise SlipwayError("the training metrics hold no timing_s/step, so its cost is unknown")
    return round(sum(known) * run.nodes * run.gpus_per_node / 3600, 4)


def one_line(figures: Mapping[str, Any]) -> str:
    """Return the result in one line."""
    low, high = figures["difference_ci95"]
    return (
        f"{figures['run']}: {figures['verdict']}: accuracy {_percent(figures['base_accuracy'])} -> "
        f"{_percent(figures['final_accuracy'])}, difference {_points(figures['difference'])} points "
        f"(95 %: {_points(low)} to {_points(high)}) on {figures['questions']} held-out questions"
    )


def summary(figures: Mapping[str, Any]) -> str:
    """Return summary.md."""
    costs = f"{figures['steps']} training steps, {cost(figures)}. The whole report: `report.html`."
    return "\n".join([f"# {figures['run']}", "", f"{one_line(figures)}.", "", *results_table(figures), "", costs, ""])


def _figures(comparison: Comparison) -> dict[str, Any]:
    difference = comparison.difference
    return {
        "verdict": comparison.verdict,
        "base_accuracy": comparison.base.value,
        "base_accuracy_ci95": [comparison.base.interval.low, comparison.base.interval.high],
        "final_accuracy": comparison.final.value,
        "final_accuracy_ci95": [comparison.final.interval.low, comparison.final.interval.high],
        "difference": difference.value,
        "difference_ci95": [difference.interval.low, difference.interval.high],
        "p": difference.p,
        "corrected_p": comparison.corrected_p,
        "mcnemar_p": difference.mcnemar_p,
        "detectable_difference": difference.detectable,
        "questions": comparison.questions,
        "samples_per_question": comparison.samples,
    } | _groups(comparison)


# Figures of a group besides its accuracy, in metrics.json with the prefixes base_ and final_.
_OF_GROUP = ("accuracy", "accuracy_ci95", "answered_rate", "tagged_rate", "response_tokens_mean", "stopped_by_length")


def _groups(comparison: Comparison) -> dict[str, Any]:
    """Return the figures of both models by group; nothing where the questions are in none."""
    base, final = (metrics.get("by_group", {}) for metrics in (comparison.base_metrics, comparison.final_metrics))
    if not base:
        return {}
    return {
        "by_group": {
            name: {
                value: {"questions": row["questions"]}
                | {f"base_{key}": row[key] for key in _OF_GROUP}
                | {f"final_{key}": final[name][value][key] for key in _OF_GROUP}
                for value, row in groups.items()
            }
            for name, groups in base.items()
        }
    }


def results_table(figures: Mapping[str, Any]) -> list[str]:
    """Return the evaluations as lines of a markdown table."""
    head = "| evaluation | questions | base | trained | difference (95 %), points | verdict |"
    return [head, "|---|---|---|---|---|---|", *map(_row, figures["evaluations"].items())]


def _row(item: tuple[str, Mapping[str, Any]]) -> str:
    name, row = item
    low, high = row["difference_ci95"]
    cells = [
        name,
        str(row["questions"]),
        _percent(row["base_accuracy"]),
        _percent(row["final_accuracy"]),
        f"{_points(row['difference'])} ({_points(low)} to {_points(high)})",
        row["verdict"],
    ]
    return f"| {' | '.join(cells)} |"


def cost(figures: Mapping[str, Any]) -> str:
    """Return what the training cost, in words."""
    unit = "gpu_hours" if "gpu_hours" in figures else "cpu_hours"
    return f"{figures[unit]:.3g} {'GPU-hours' if unit == 'gpu_hours' else 'CPU process hours'} of training"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
