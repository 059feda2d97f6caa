"""Training curves as static SVG.

Drawn by Altair, rendered by vl-convert without a browser or network. Colours are named by `COLOURS`; the
page's style sheet replaces them by selectors on the attribute in the dark scheme, so one drawing serves
light, dark and print. Blue and orange of Okabe and Ito's palette can be told apart with any kind of colour
blindness.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from slipway.report.comparison import Comparison
from slipway.report.curves import OTHER, PHASES, Curve
from slipway.report.reading import Step, Training

# Width that a phone shows without shrinking the text.
WIDTH, HEIGHT = 300, 168
FONT = "system-ui, sans-serif"
# Weight of the last value in the exponential moving average; the page says so.
SMOOTHING = 0.3

COLOURS = {
    "ink": "#1c2430",
    "muted": "#5b6675",
    "grid": "#e3e7ec",
    "line": "#0072b2",
    "faint": "#9cc7e3",
    "band": "#e1eef7",
    "second": "#d55e00",
}
# Okabe and Ito, without yellow, which is too pale for lines.
RUN_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#6a3d9a")
DASHES = ([1, 0], [6, 3], [2, 2])
# The unit stands above the drawing, where it has room and reads without turning the head.
UNIT_ABOVE = {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": 0, "titleY": -8}


@dataclass(frozen=True)
class Chart:
    """A drawn chart: title, one sentence on how to read it, and the SVG."""

    title: str
    hint: str
    svg: str


def draw_curves(training: Training, curves: Sequence[Curve]) -> list[Chart]:
    """Draw those of `curves` that were logged and are not the same in every step."""
    return [
        Chart(curve.title, _hint(training.steps, curve), _draw_curve(training.steps, curve))
        for curve in curves
        if len(set(curve.values_of(training.steps))) > 1
    ]


def draw_validation(training: Training) -> list[Chart]:
    """Draw verl's in-loop validation, one chart a metric; none when it was not run."""
    keys = sorted({key for step in training.validations for key in step.values})
    return [
        Chart(
            "Validation in training",
            key.removeprefix("val-core/"),
            _draw_curve(training.validations, Curve(key, "", "score", ""), points=True),
        )
        for key in keys
    ]


def draw_step_time(training: Training) -> list[Chart]:
    """Draw the time of each step, stacked by phase; what no timer covers is "other"."""
    phases = _phases_of(training.steps)
    if not phases:
        return []
    limit, hint = _time_limit(training.steps)
    # a step's block begins half a step before its number; the last one needs an end
    edges = [step.number - 0.5 for step in training.steps] + [training.steps[-1].number + 0.5]
    rows = [
        {"step": edge, "phase": name, "seconds": second, "order": order}
        for order, (name, _, seconds) in enumerate(phases)
        for edge, second in zip(edges, [*seconds, seconds[-1]], strict=True)
    ]
    scale = alt.Scale(domain=[name for name, *_ in phases], range=[colour for _, colour, _ in phases])
    chart = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH, height=HEIGHT)
        .mark_area(interpolate="step-after", clip=True, strokeWidth=0)
        .encode(
            x=_step_axis(),
            y=alt.Y(
                "seconds:Q",
                title="seconds per step",
                stack="zero",
                scale=alt.Scale(domainMax=limit),
                axis=alt.Axis(tickCount=4),
            ),
            color=alt.Color(
                "phase:N",
                scale=scale,
                legend=alt.Legend(title=None, orient="bottom", columns=3, symbolType="square"),
            ),
            order=alt.Order("order:Q"),
        )
    )
    return [Chart("Time of a step", hint, render(chart, "step-time"))]


def draw_accuracies(comparisons: Sequence[Comparison]) -> Chart:
    """Draw the accuracy of base and trained model with its 95 % interval, a pair of rows per evaluation."""
    rows = [
        {
            "row": label if len(comparisons) == 1 else f"{comparison.evaluation}, {label}",
            "value": accuracy.value,
            "low": accuracy.interval.low,
            "high": accuracy.interval.high,
            "label": label,
        }
        for comparison in comparisons
        for label, accuracy in (("base", comparison.base), ("trained", comparison.final))
    ]
    colour = alt.Color(
        "label:N",
        scale=alt.Scale(domain=["base", "trained"], range=[COLOURS["second"], COLOURS["line"]]),
        legend=None,
    )
    base = alt.Chart(pd.DataFrame(rows), width=WIDTH - 20, height=30 * len(rows))
    y = alt.Y("row:N", title=None, sort=None, axis=alt.Axis(labelFontSize=12, labelColor=COLOURS["ink"]))
    x = alt.X(
        "low:Q",
        title="accuracy, with 95 % interval",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", tickCount=5, grid=True),
    )
    interval = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q", y=y, color=colour)
    point = base.mark_point(filled=True, size=90, opacity=1).encode(
        x="value:Q", y=y, color=colour, shape=alt.Shape("label:N", legend=None)
    )
    return Chart("Accuracy", "", render(interval + point, "accuracy"))


def draw_differences(runs: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Draw how much better each run's trained model is than its base, with its interval."""
    rows = [
        {
            "run": name,
            "value": 100 * metrics["difference"],
            "low": 100 * metrics["difference_ci95"][0],
            "high": 100 * metrics["difference_ci95"][1],
        }
        for name, metrics in runs.items()
    ]
    base = alt.Chart(pd.DataFrame(rows), width=WIDTH - 20, height=max(60, 26 * len(rows)))
    y = alt.Y("run:N", title=None, sort=None, axis=alt.Axis(labelColor=COLOURS["ink"], labelLimit=110))
    signed = alt.Axis(labelExpr="datum.value ? format(datum.value, '+') : '0'", tickCount=4, grid=True)
    x = alt.X("low:Q", title="percentage points, trained minus base", axis=signed)
    zero = alt.Chart(pd.DataFrame([{"zero": 0.0}])).mark_rule(color=COLOURS["muted"]).encode(x="zero:Q")
    interval = base.mark_rule(strokeWidth=3, color=COLOURS["line"]).encode(x=x, x2="high:Q", y=y)
    point = base.mark_point(filled=True, size=80, opacity=1, color=COLOURS["line"]).encode(x="value:Q", y=y)
    hint = "Of accuracy, with 95 % intervals; right of the line is better."
    return Chart("Difference", hint, render(zero + interval + point, "differences"))


def draw_accuracies_of_runs(runs: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Draw each run's accuracy before and after, with intervals, on the evaluation that decides."""
    rows = [
        {
            "run": name,
            "label": label,
            "value": metrics[f"{key}_accuracy"],
            "low": metrics[f"{key}_accuracy_ci95"][0],
            "high": metrics[f"{key}_accuracy_ci95"][1],
        }
        for name, metrics in runs.items()
        for key, label in (("base", "base"), ("final", "trained"))
    ]
    base = alt.Chart(pd.DataFrame(rows), width=WIDTH - 20, height=max(60, 32 * len(runs)))
    labels = ["base", "trained"]
    colour = alt.Color(
        "label:N",
        scale=alt.Scale(domain=labels, range=[COLOURS["second"], COLOURS["line"]]),
        legend=alt.Legend(title=None, orient="bottom"),
    )
    y = alt.Y("run:N", title=None, sort=None, axis=alt.Axis(labelColor=COLOURS["ink"], labelLimit=110))
    offset = alt.YOffset("label:N", sort=labels)
    x = alt.X(
        "low:Q",
        title="accuracy",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", tickCount=5, grid=True),
    )
    interval = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q", y=y, yOffset=offset, color=colour)
    point = base.mark_point(filled=True, size=70, opacity=1).encode(
        x="value:Q", y=y, yOffset=offset, color=colour, shape=alt.Shape("label:N", scale=alt.Scale(domain=labels))
    )
    return Chart("Accuracy", "Of the first evaluation, with 95 % intervals.", render(interval + point, "accuracies"))


def draw_overlaid(runs: Mapping[str, Sequence[Step]], curve: Curve) -> Chart | None:
    """Draw a smoothed metric of all runs; colours repeat after eight runs, dashes then differ.

    None when no run logged it, or it was 0 throughout.
    """
    rows: list[dict[str, Any]] = []
    for name, steps in runs.items():
        known = [step for step in steps if curve.key in step.values]
        smooth = _moving_average(curve.values_of(steps))
        rows += [{"run": name, "step": step.number, "value": value} for step, value in zip(known, smooth, strict=True)]
    if curve.logarithmic:
        rows = [row for row in rows if row["value"] > 0]
    if not any(row["value"] for row in rows):
        return None
    values = [float(row["value"]) for row in rows]
    names = list(runs)
    colour = alt.Color(
        "run:N",
        scale=alt.Scale(domain=names, range=[RUN_COLOURS[index % 8] for index in range(len(names))]),
        legend=alt.Legend(title=None, orient="bottom", columns=3, symbolType="stroke", labelLimit=110),
    )
    dash = alt.StrokeDash(
        "run:N",
        scale=alt.Scale(domain=names, range=[DASHES[index // 8 % len(DASHES)] for index in range(len(names))]),
        legend=None,
    )
    scale, axis = _value_scale(curve, values)
    chart = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH, height=HEIGHT)
        .mark_line(strokeWidth=2)
        .encode(
            x=_step_axis(),
            y=alt.Y("value:Q", title=curve.unit, scale=scale, axis=axis),
            color=colour,
            strokeDash=dash,
        )
    )
    return Chart(curve.title, curve.hint, render(chart, f"runs-{_slug(curve.key)}"))


def render(chart: alt.Chart | alt.LayerChart, name: str) -> str:
    """Return `chart` as SVG that equal data make equal; `name` keeps its ids apart from other charts'."""
    svg = str(vl_convert.vegalite_to_svg(_styled(chart)))
    found = list(dict.fromkeys(re.findall(r'id="([^"]+)"', svg)))
    for number, identity in enumerate(found):
        svg = re.sub(rf'(id="|url\(#){re.escape(identity)}(?=["\)])', rf"\g<1>{name}-{number}", svg)
    # vl-convert sets a size in pixels; without it the drawing fills its figure
    return re.sub(r'(<svg [^>]*?) width="[\d.]+" height="[\d.]+"', r'\1 aria-hidden="true"', svg, count=1)


def _draw_curve(steps: Sequence[Step], curve: Curve, points: bool = False) -> str:
    known = [(step.number, step.values[curve.key]) for step in steps if curve.key in step.values]
    if curve.logarithmic:
        known = [(number, value) for number, value in known if value > 0]
    values = [value for _, value in known]
    rows = [
        {"step": number, "value": value, "smooth": average}
        for (number, value), average in zip(known, _moving_average(values), strict=True)
    ]
    spread = _ranges(steps, curve)
    base = alt.Chart(pd.DataFrame(rows), width=WIDTH, height=HEIGHT)
    scale, axis = _value_scale(curve, values)
    x, y = _step_axis(), alt.Y("value:Q", title=curve.unit, scale=scale, axis=axis)
    if points:
        drawn = base.mark_line(color=COLOURS["line"], point=alt.OverlayMarkDef(color=COLOURS["line"]))
        return render(drawn.encode(x=x, y=y), _slug(curve.key))
    if curve.exact:
        return render(base.mark_line(color=COLOURS["line"], strokeWidth=2.2).encode(x=x, y=y), _slug(curve.key))
    raw = base.mark_line(color=COLOURS["faint"], strokeWidth=1).encode(x=x, y=y)
    average = base.mark_line(color=COLOURS["line"], strokeWidth=2.2).encode(x=x, y="smooth:Q")
    if not spread:
        return render(raw + average, _slug(curve.key))
    band = alt.Chart(pd.DataFrame(spread)).mark_area(color=COLOURS["band"]).encode(x=x, y="low:Q", y2="high:Q")
    return render(band + raw + average, _slug(curve.key))


def _hint(steps: Sequence[Step], curve: Curve) -> str:
    return f"{curve.hint} Shaded: lowest to highest." if _ranges(steps, curve) else curve.hint


def _ranges(steps: Sequence[Step], curve: Curve) -> list[dict[str, float]]:
    """Return the lowest and the highest value by step, where the curve has them and they were logged."""
    if curve.range is None:
        return []
    low, high = curve.range
    return [
        {"step": step.number, "low": step.values[low], "high": step.values[high]}
        for step in steps
        if low in step.values and high in step.values
    ]


def _number_format(values: Sequence[float]) -> str:
    largest = max(map(abs, values), default=1.0)
    if min(values, default=0.0) == max(values, default=0.0):
        return ".3~g"  # one tick tells vega no precision
    return "~e" if 0 < largest < 1e-3 else "~f"


def _value_scale(curve: Curve, values: Sequence[float]) -> tuple[alt.Scale, alt.Axis]:
    if curve.logarithmic:
        return alt.Scale(type="log", nice=False), alt.Axis(values=_logarithmic_ticks(values), format="~g")
    number_format = "~%" if curve.percent else _number_format(values)
    return alt.Scale(zero=False, nice=True), alt.Axis(tickCount=4, format=number_format)


def _logarithmic_ticks(values: Sequence[float]) -> list[float]:
    """Return the powers of ten within the values, with round multiples of them where these are few."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    for parts in ((1,), (1, 2, 5), tuple(range(1, 10))):
        ticks = [part * 10.0**power for power in powers for part in parts]
        shown = [tick for tick in ticks if min(values) <= tick <= max(values)]
        if len(shown) >= 3:
            break
    return shown


def _step_axis() -> alt.X:
    return alt.X(
        "step:Q",
        title="training step",
        scale=alt.Scale(nice=False),
        axis=alt.Axis(tickCount=5, tickMinStep=1),
    )


def _phases_of(steps: Sequence[Step]) -> list[tuple[str, str, list[float]]]:
    """Return name, colour and seconds by step of each phase that was timed."""
    phases = []
    rest = [step.values.get("timing_s/step", 0.0) for step in steps]
    for timer, name, colour in PHASES:
        seconds = [step.values.get(f"timing_s/{timer}", 0.0) for step in steps]
        if any(seconds):
            phases.append((name, colour, seconds))
            rest = [total - part for total, part in zip(rest, seconds, strict=True)]
    if any(remainder > 0 for remainder in rest):
        phases.append((*OTHER, [max(0.0, remainder) for remainder in rest]))
    return phases


def _time_limit(steps: Sequence[Step]) -> tuple[float, str]:
    """Return the top of the time axis and the chart's hint.

    The first step warms up everything; where it would flatten the others it is cut, and the hint says so.
    """
    seconds = [step.values.get("timing_s/step", 0.0) for step in steps]
    later = max(seconds[1:], default=0.0)
    hint = "Phases bottom to top in the order they happen."
    if later > 0 and seconds[0] > 2 * later:
        return 1.1 * later, f"{hint} The first step took {seconds[0]:.0f} s and is cut off."
    return 1.02 * max(seconds), hint


def _moving_average(values: Sequence[float]) -> list[float]:
    averages: list[float] = []
    for value in values:
        last = averages[-1] if averages else value
        averages.append(last + SMOOTHING * (value - last))
    return averages


def _styled(chart: alt.Chart | alt.LayerChart) -> dict[str, Any]:
    axis = {
        "labelColor": COLOURS["muted"],
        "titleColor": COLOURS["muted"],
        "gridColor": COLOURS["grid"],
        "domainColor": COLOURS["muted"],
        "tickColor": COLOURS["muted"],
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    }
    styled = chart.configure(
        background="transparent",
        font=FONT,
        padding=2,
        aria=False,
        view=alt.ViewConfig(stroke=None),
        axis=axis,
        axisX={"grid": False},
        axisY={"domain": False, "ticks": False} | UNIT_ABOVE,
        legend={"labelColor": COLOURS["ink"], "labelFontSize": 11, "symbolSize": 70, "padding": 0},
    )
    specification: dict[str, Any] = styled.to_dict()
    return specification


def _slug(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", key.lower())
