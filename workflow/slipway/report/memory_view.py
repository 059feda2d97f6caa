"""The forecast of a GPU's memory by preflight, beside what verl measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from slipway.report.charts import COLOURS, WIDTH, Chart, render
from slipway.report.reading import Training

GIB = 2**30
# Terms of preflight's forecast (slipway/preflight/planning/memory.py) by what they are to a reader, with colours that
# light and dark can share.
GROUPS = (
    ("weights", "#1f77b4", {"weights", "reference", "bucket"}),
    ("optimizer", "#56b4e9", {"gradients", "optimizer"}),
    ("activations", "#e69f00", {"one pass", "activations and logits", "workspace", "fragmentation"}),
    ("rollout engine", "#009e73", {"rollout engine", "weights of the rollout engine"}),
)
OTHER = ("contexts", "#b3bac4")
MEASURED = (
    ("allocated by torch", "trainer_allocated", "actor/perf/max_memory_allocated_gb"),
    ("reserved by torch", "trainer_reserved", "actor/perf/max_memory_reserved_gb"),
)


@dataclass(frozen=True)
class MemoryRow:
    """The highest memory of the trainer's process on a GPU, GiB; `measured` is None where verl logged none."""

    what: str
    forecast: float
    band: tuple[float, float]
    measured: float | None

    @property
    def off(self) -> float | None:
        """By what share of the measured the forecast is too high."""
        return self.forecast / self.measured - 1 if self.measured else None

    @property
    def is_within(self) -> bool:
        """Whether what was measured lies in the forecast's band."""
        return self.measured is not None and self.band[0] <= self.measured <= self.band[1]


@dataclass(frozen=True)
class MemoryView:
    """The forecast by phase as a drawing, the trainer's part against what was measured, and the band's share."""

    chart: Chart
    rows: list[MemoryRow]
    band: float


def compare_memory(forecast: Mapping[str, Any], training: Training | None) -> MemoryView:
    """Lay the forecast that preflight made beside the peaks that verl logged."""
    band = forecast["band"]
    rows = []
    for what, of_phase, key in MEASURED:
        highest = max(phase[of_phase] for phase in forecast["phases"]) / GIB
        logged = [step.values[key] for step in training.steps if key in step.values] if training else []
        rows.append(MemoryRow(what, highest, (highest * (1 - band), highest * (1 + band)), max(logged, default=None)))
    return MemoryView(_draw(forecast), rows, band)


def _draw(forecast: Mapping[str, Any]) -> Chart:
    """Draw what each phase of a step is forecast to need of the GPU that needs most."""
    rows = [
        {"phase": phase["name"], "part": part, "order": order, "gib": size / GIB}
        for phase in forecast["phases"]
        for order, (part, size) in enumerate(_grouped(phase["terms"]).items())
    ]
    colours = {name: colour for name, colour, _ in GROUPS} | dict([OTHER])
    known = [name for name in colours if any(row["part"] == name and row["gib"] for row in rows)]
    memory = forecast["gpu"] / GIB
    bars = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH - 90, height=22 * len(forecast["phases"]))
        .mark_bar(height=14)
        .encode(
            x=alt.X("gib:Q", title="GiB of one GPU", stack="zero", axis=alt.Axis(grid=True, tickCount=5)),
            y=alt.Y("phase:N", title=None, sort=None, axis=alt.Axis(labelColor=COLOURS["ink"], labelLimit=130)),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=known, range=[colours[name] for name in known]),
                legend=alt.Legend(title=None, orient="bottom", columns=3, symbolType="square"),
            ),
            order=alt.Order("order:Q"),
        )
    )
    limit = (
        alt.Chart(pd.DataFrame([{"gib": memory}]))
        .mark_rule(color=COLOURS["ink"], strokeDash=[4, 3], strokeWidth=1.5)
        .encode(x="gib:Q")
    )
    hint = f"Phases in the order they happen; dashed: the {memory:.0f} GiB that the GPU has."
    return Chart("Memory by phase, forecast", hint, render(bars + limit, "memory-forecast"))


def _grouped(terms: Mapping[str, float]) -> dict[str, float]:
    sums = {name: sum(size for term, size in terms.items() if term in members) for name, _, members in GROUPS}
    return sums | {OTHER[0]: sum(terms.values()) - sum(sums.values())}
