"""All runs of a config side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.config.paths import ResultPaths
from slipway.manifest import write_text
from slipway.report import charts, curves
from slipway.report.page import render
from slipway.report.reading import read_json, read_steps
from slipway.report.summaries import judged_step
from slipway.statistics import holm

NEEDED = (
    *("verdict", "base_accuracy", "base_accuracy_ci95", "final_accuracy", "final_accuracy_ci95"),
    *("difference", "difference_ci95", "p", "questions", "steps", "evaluations"),
)


@dataclass(frozen=True)
class RunRow:
    """One run: its settings that differ from another run's, its metrics.json, and its p corrected for all runs."""

    name: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, Any]
    corrected_p: float

    @property
    def judged_step(self) -> int | None:
        """The step that was selected for the figures, None where they are of the last."""
        return judged_step(self.metrics)


def write_comparison(paths: ResultPaths, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write compare.html from the metrics.json of each run; `runs` are the runs' settings with dotted names.

    Raises `SlipwayError` when a run's metrics are missing.
    """
    differing = settings_that_differ(runs)
    metrics = {name: read_json(paths.run(name) / "metrics.json", "rule report", NEEDED) for name in runs}
    corrected = holm([figures["p"] for figures in metrics.values()])
    rows = [
        RunRow(name, {key: settings.get(key) for key in differing}, metrics[name], p)
        for (name, settings), p in zip(runs.items(), corrected, strict=True)
    ]
    steps = {name: read_steps(paths.metrics(name)).steps for name in runs}
    drawn = [charts.draw_differences(metrics), charts.draw_accuracies_of_runs(metrics)]
    page = render(
        "compare.html.jinja",
        rows=rows,
        differing=differing,
        results=drawn,
        curves=[chart for curve in curves.OVERLAID if (chart := charts.draw_overlaid(steps, curve)) is not None],
        smoothing=charts.SMOOTHING,
    )
    write_text(paths.root / "compare.html", page)


def settings_that_differ(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of settings that are not the same in all runs, in their order."""
    names = dict.fromkeys(name for settings in runs.values() for name in settings)
    return [name for name in names if len({repr(settings.get(name)) for settings in runs.values()}) > 1]
