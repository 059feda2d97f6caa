"""Assembly of the run's page: figures in words, charts, and the templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2

from slipway.config.schema import Run
from slipway.report import charts, curves
from slipway.report.comparison import Comparison
from slipway.report.logs import LogExcerpt
from slipway.report.provenance_view import Provenance
from slipway.report.reading import Training
from slipway.report.samples_view import SAMPLES_SHOWN, SamplePair, count_kinds
from slipway.report.signs import Sign

MARKS = {"better": "▲", "worse": "▼", "not shown to be better": "●"}


@dataclass(frozen=True)
class Page:
    """All that the page shows. What a failed run lacks is None or empty, and named in `missing`."""

    name: str
    settings: Run
    sections: Mapping[str, Mapping[str, object]]
    training: Training | None
    comparisons: Sequence[Comparison]
    samples: Sequence[SamplePair]
    provenance: Provenance | None
    metrics: Mapping[str, Any] | None
    ledger: Mapping[str, Any] | None = None
    signs: Sequence[Sign] = ()
    missing: Sequence[str] = ()
    logs: Sequence[LogExcerpt] = field(default_factory=list)


def render_page(page: Page) -> str:
    """Return the page as one HTML document that loads nothing."""
    return render(
        "page.html.jinja",
        page=page,
        facts=_facts(page),
        figures=_figures(page.training) if page.training else {},
        accuracy_chart=charts.draw_accuracies(page.comparisons) if page.comparisons else None,
        sample_counts=count_kinds(page.samples),
        samples_shown=SAMPLES_SHOWN,
        script=_template_text("samples.js"),
        smoothing=charts.SMOOTHING,
    )


def render(template: str, **context: object) -> str:
    """Render one of the room's templates, with its filters and style sheet."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("slipway.report", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "p_value": p_value,
        "duration": duration,
        "number": number,
    }
    return environment.get_template(template).render(style=_template_text("style.css"), marks=MARKS, **context)


def _template_text(name: str) -> str:
    return resources.files("slipway.report").joinpath("templates", name).read_text(encoding="utf-8")


def percent(share: float) -> str:
    """Return a share in per cent."""
    return f"{100 * share:.1f} %"


def p_value(value: float) -> str:
    """Return a p-value as text, e.g. `0.0312`."""
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def points(share: float) -> str:
    """Return a difference of shares in percentage points, signed, with a true minus."""
    return f"{100 * share:+.1f}".replace("-", "−")


def number(value: float) -> str:
    """Return a number to four digits."""
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Return a time in the two largest units that fit."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _facts(page: Page) -> dict[str, str]:
    """Return what was run, in a dozen words each."""
    run, grpo = page.settings, page.settings.grpo
    layout = (
        "automatic"
        if run.parallel == "auto"
        else f"TP {run.parallel.tensor}, PP {run.parallel.pipeline}, CP {run.parallel.context}"
    )
    steps = page.training.steps if page.training else []
    seconds = sum(step.values.get("timing_s/step", 0.0) for step in steps)
    return {
        "Model": run.model,
        "Data": run.data,
        "Training": f"{len(steps)} of {run.steps} steps, {duration(seconds)}",
        "Batch": f"{grpo.prompts_per_step} prompts × {grpo.samples_per_prompt} samples",
        "Learning rate": f"{grpo.learning_rate:g}, {grpo.lr_schedule}",
        "KL loss": f"{grpo.kl_coefficient:g} × {grpo.kl_type}" if grpo.kl_coefficient else "none",
        "Rollout": f"temperature {grpo.temperature:g}, up to {grpo.max_response_length} tokens",
        "Devices": f"{run.nodes} × {run.gpus_per_node} {'GPU' if run.device == 'cuda' else 'CPU process'}"
        f"{'es' if run.device == 'cpu' and run.gpus_per_node > 1 else ''}, layout {layout}",
    }


def _figures(training: Training) -> dict[str, list[charts.Chart]]:
    logged = {key for step in training.steps for key in step.values}
    figures = {
        "Learning": charts.draw_curves(training, curves.LEARNING) + charts.draw_validation(training),
        "Reward components": charts.draw_curves(training, curves.components_of(logged)),
        "Policy": charts.draw_curves(training, curves.POLICY),
        "Time and memory": charts.draw_step_time(training) + charts.draw_curves(training, curves.SYSTEM),
    }
    return {heading: drawn for heading, drawn in figures.items() if drawn}
