"""Where the time of a training went, segment by segment: the ledger of rule train as one drawing."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from slipway.report.charts import COLOURS, WIDTH, Chart, render

# The ledger's states in the order in which a segment passes them, with colours that light and dark can share.
STATES = {
    "queued": "#b3bac4",
    "starting": "#56b4e9",
    "training": "#1f77b4",
    "saving": "#009e73",
    "lost": "#c44e00",
    "ending": "#7f7f7f",
}
# From which duration on a unit is used, seconds; a unit's own seconds.
UNITS = ((3 * 86_400, "days", 86_400), (2 * 3600, "hours", 3600), (180, "minutes", 60), (0, "seconds", 1))
ROW = 26


def held_hours(ledger: Mapping[str, Any]) -> float:
    """Return the hours of all devices that the training held, from the start of each job to its end."""
    return round(sum(ledger["totals"][f"{state}_hours"] for state in STATES if state != "queued"), 4)


def draw_timeline(ledger: Mapping[str, Any]) -> Chart | None:
    """Draw every segment as a bar from its submission to its end.

    None for a ledger of an earlier version, which did not say in which order the time passed.
    """
    segments = ledger["segments"]
    if not segments or not all("spans" in segment for segment in segments):
        return None
    rows = _bars(segments)
    unit, seconds = next((name, size) for least, name, size in UNITS if max(row["end"] for row in rows) >= least)
    for row in rows:
        row["begin"] /= seconds
        row["end"] /= seconds
    known = [state for state in STATES if any(row["state"] == state for row in rows)]
    chart = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH - 60, height=ROW * len(segments))
        .mark_bar(height=ROW - 10)
        .encode(
            x=alt.X("begin:Q", title=f"{unit} since the first submission", axis=alt.Axis(grid=True, tickCount=5)),
            x2="end:Q",
            y=alt.Y(
                "segment:N",
                title=None,
                sort=None,
                axis=alt.Axis(labelColor=COLOURS["ink"], labelLimit=130),
            ),
            color=alt.Color(
                "state:N",
                scale=alt.Scale(domain=known, range=[STATES[state] for state in known]),
                legend=alt.Legend(title=None, orient="bottom", columns=3, symbolType="square"),
            ),
        )
    )
    lost = sum(segment["lost"] for segment in segments)
    hint = "A bar is a segment: one start of the training's job. " + (
        "Lost: steps that were not saved." if lost else "No step was lost."
    )
    return Chart("Segments", hint, render(chart, "timeline"))


def _bars(segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return when each span began and ended, seconds since the first submission."""
    origin = min(segment["started"] - segment["queued"] for segment in segments)
    bars = []
    for segment in segments:
        begin = segment["started"] - segment["queued"] - origin
        for state, lasted in segment["spans"]:
            bars.append({"segment": _label(segment), "state": state, "begin": begin, "end": begin + lasted})
            begin += lasted
    return bars


def _label(segment: Mapping[str, Any]) -> str:
    if segment["first_step"] is None:
        return f"{segment['segment']}: no step"
    return f"{segment['segment']}: steps {segment['first_step']}–{segment['last_step']}"
