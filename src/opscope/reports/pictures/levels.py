"""States of a bisection in their order, with the interval of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from opscope.analysis.bisection import StateLevel
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK
from opscope.reports.pictures.pictures import render_chart, rows_of

if TYPE_CHECKING:
    from opscope.analysis.bisection import BisectedState, Bisection

_COLOURS = {
    StateLevel.GOOD: "#4c78a8",
    StateLevel.BAD: "#e45756",
    StateLevel.UNDECIDED: "#f58518",
    StateLevel.FAILED: "#9d9d9d",
    StateLevel.UNTESTED: "#9d9d9d",
}
_WIDTH, _NAME = 640, 16


def bisection_levels(bisection: Bisection) -> str | None:
    """Return the latency of every measured state with its interval; None if none was measured."""
    names = [plain(state.name, _NAME) for state in bisection.states]
    scale = bisection.ends.baseline_ns / 1e6
    rows = [
        _state_row(name, state, scale)
        for name, state in zip(names, bisection.states, strict=True)
        if state.ratio is not None
    ]
    if not rows:
        return None
    level_names = list(dict.fromkeys(row["level"] for row in rows))
    x = alt.X(
        "state:N", sort=names, scale=alt.Scale(domain=names), title=None, axis=alt.Axis(labelAngle=-45, labelLimit=160)
    )
    y = alt.Y("ms:Q", title="ms", scale=alt.Scale(zero=False, padding=12))
    colour = alt.Color(
        "level:N",
        title=None,
        scale=alt.Scale(domain=level_names, range=[_COLOURS[StateLevel(name)] for name in level_names]),
        legend=alt.Legend(orient="top"),
    )
    base = alt.Chart(rows_of(rows)).encode(x=x, color=colour)
    bars = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title="ms"), y2="high:Q")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(y=y)
    layers = [bars, points]
    if bisection.first_bad is not None:
        first: list[dict[str, Any]] = [{"state": plain(bisection.first_bad, _NAME)}]
        rule = alt.Chart(rows_of(first)).mark_rule(strokeDash=[4, 3], color=INK)
        layers.append(rule.encode(x=x))
    return render_chart(alt.layer(*layers).properties(width=_WIDTH, height=220))


def _state_row(name: str, state: BisectedState, scale: float) -> dict[str, Any]:
    low, high = state.ci95 or (state.ratio, state.ratio)
    return {
        "state": name,
        "level": state.level.value,
        "ms": scale * (state.ratio or 0.0),
        "low": scale * (low or 0.0),
        "high": scale * (high or 0.0),
    }
