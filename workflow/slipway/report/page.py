"""Assembly of the run's page: figures in words, charts, and the templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2

from slipway.config.schema import Run
from slipway.report import charts, curves
from slipway.report.checkpoints_view import Checkpoints, advice_in_words, draw_checkpoints
from slipway.report.comparison import Comparison
from slipway.report.logs import LogExcerpt
from slipway.report.memory_view import compare_memory
from slipway.report.parity import Parity
from slipway.report.provenance_view import Provenance
from slipway.report.reading import Training
from slipway.report.samples_view import SAMPLES_SHOWN, SamplePair, count_kinds
from slipway.report.signs import CHECKED, Sign
from slipway.report.timeline import STATES, draw_timeline, held_hours

MARKS = {"better": "▲", "worse": "▼", "not shown to be better": "●"}


LEARNING, SYSTEM = "Learning", "Time and memory"


@dataclass(frozen=True)
class Figures:
    """One section's charts, and in words the metrics that never changed."""

    drawn: list[charts.Chart]
    constant: Mapping[str, str]


@dataclass(frozen=True)
class Page:
    """All that the page shows. What a failed run lacks is None or empty, and named in `missing`.

    `ledger` is that of rule train, `forecast` preflight's of a GPU's memory (None on the CPU).
    """

    name: str
    settings: Run
    sections: Mapping[str, Mapping[str, object]]
    training: Training | None
    comparisons: Sequence[Comparison]
    samples: Sequence[SamplePair]
    provenance: Provenance | None
    metrics: Mapping[str, Any] | None
    checkpoints: Checkpoints | None = None
    ledger: Mapping[str, Any] | None = None
    forecast: Mapping[str, Any] | None = None
    signs: Sequence[Sign] = ()
    parity: Parity | None = None
    missing: Sequence[str] = ()
    logs: Sequence[LogExcerpt] = field(default_factory=list)


def render_page(page: Page) -> str:
    """Return the page as one HTML document that loads nothing."""
    return render(
        "page.html.jinja",
        page=page,
        facts=_facts(page),
        figures=_figures(page),
        csv=_csv(page),
        memory=compare_memory(page.forecast, page.training) if page.forecast else None,
        timeline=draw_timeline(page.ledger) if page.ledger else None,
        states=tuple(STATES),
        held=held_hours(page.ledger) if page.ledger else None,
        checked=CHECKED,
        accuracy_chart=charts.draw_accuracies(page.comparisons) if page.comparisons else None,
        step_charts=draw_checkpoints(page.checkpoints) if page.checkpoints else [],
        advice=advice_in_words(page.checkpoints.advice) if page.checkpoints else None,
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
        "gib": gib,
        "signed_percent": signed_percent,
    }
    return environment.get_template(template).render(style=_template_text("style.css"), marks=MARKS, **context)


def _template_text(name: str) -> str:
    return resources.files("slipway.report").joinpath("templates", name).read_text(encoding="utf-8")


def percent(share: float) -> str:
    """Return a share in per cent."""
    return f"{100 * share:.1f} %"


def signed_percent(share: float) -> str:
    """Return a relative difference in per cent, signed, with a true minus."""
    return f"{100 * share:+.0f} %".replace("-", "−")


def gib(amount: float) -> str:
    """Return an amount of memory to a tenth."""
    return f"{amount:.1f}"


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


def _figures(page: Page) -> dict[str, Figures]:
    """Return the curves by heading; headings without any are left out."""
    training = page.training
    if training is None:
        return {}
    figures = {
        heading: Figures(charts.draw_curves(training, shown), _constant(training, shown))
        for heading, shown in _curves(page).items()
    }
    figures[LEARNING].drawn.extend(charts.draw_validation(training))
    figures[SYSTEM].drawn[:0] = charts.draw_step_time(training)
    return {heading: shown for heading, shown in figures.items() if shown.drawn or shown.constant}


def _constant(training: Training, shown: Sequence[curves.Curve]) -> dict[str, str]:
    """Return the metrics that were the same in every step, in words: a drawing of them would say no more."""
    values = {curve: set(curve.values_of(training.steps)) for curve in shown}
    return {curve.title: curve.in_words(only.pop()) for curve, only in values.items() if len(only) == 1}


def _curves(page: Page) -> dict[str, Sequence[curves.Curve]]:
    """Return which metrics are drawn under which heading."""
    logged = {key for step in page.training.steps for key in step.values} if page.training else set()
    return {
        LEARNING: (curves.REWARD, *curves.components_of(logged)),
        "Policy health": curves.POLICY,
        "Lengths": curves.LENGTHS,
        SYSTEM: curves.GPU_SYSTEM if page.settings.device == "cuda" else curves.CPU_SYSTEM,
    }


def _csv(page: Page) -> str:
    if page.training is None:
        return ""
    return curves.as_csv(page.training.steps, [curve for shown in _curves(page).values() for curve in shown])
