"""What lies beside the page: metrics.json, and summary.md from the same figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipway.config.schema import Run
from slipway.errors import SlipwayError
from slipway.report.checkpoints_view import Checkpoints, figures_of
from slipway.report.comparison import Comparison
from slipway.report.reading import Training
from slipway.report.timeline import held_hours


def metrics(
    name: str,
    run: Run,
    comparisons: Sequence[Comparison],
    training: Training,
    ledger: Mapping[str, Any] | None,
    checkpoints: Checkpoints | None,
) -> dict[str, Any]:
    """Return the content of metrics.json; the first of `comparisons`, of the model that is judged, decides."""
    first = comparisons[0]
    unit = "gpu_hours" if run.device == "cuda" else "cpu_hours"
    held = {} if ledger is None else {f"{unit}_held": held_hours(ledger)}
    return {
        "format": 1,
        "run": name,
        **_figures(first),
        "evaluation": first.evaluation,
        "steps": training.steps[-1].number,
        "checkpoints": None if checkpoints is None else figures_of(checkpoints),
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
        f"(95 %: {_points(low)} to {_points(high)}) on {figures['questions']} held-out questions{_of_step(figures)}"
    )


def judged_step(figures: Mapping[str, Any]) -> int | None:
    """Return the step that was selected for the report to judge, by its metrics.json; None where it judges the last."""
    checkpoints = figures.get("checkpoints")
    return int(checkpoints["step"]) if checkpoints and checkpoints["select_on"] else None


def _of_step(figures: Mapping[str, Any]) -> str:
    step = judged_step(figures)
    if step is None:
        return ""
    return f" (step {step} of {figures['steps']}, selected on {figures['checkpoints']['select_on']})"


def summary(figures: Mapping[str, Any]) -> str:
    """Return summary.md."""
    costs = f"{figures['steps']} training steps, {cost(figures)}. The whole report: `report.html`."
    parts = [f"# {figures['run']}", "", f"{one_line(figures)}.", "", *results_table(figures), ""]
    return "\n".join([*parts, *checkpoints_table(figures), costs, ""])


def checkpoints_table(figures: Mapping[str, Any]) -> list[str]:
    """Return the accuracy by evaluated step as lines of a markdown table; nothing where only the last was evaluated."""
    checkpoints = figures["checkpoints"]
    if checkpoints is None:
        return []
    names = list(checkpoints["evaluations"])
    steps = zip(*checkpoints["evaluations"].values(), strict=True)
    rows = [f"| {row[0]['step']} | {' | '.join(_percent(one['accuracy']) for one in row)} |" for row in steps]
    return [f"| step | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|", *rows, ""]


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
