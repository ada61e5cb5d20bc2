"""Pictures of the calibration: false calls by method, and power."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from opscope.reports.pictures.pictures import INK, drawn, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from calibration_shares import Share
    from calibration_simulated import Power, Seen

_COLOURS = {"opscope": "#4c78a8", "means": "#f58518", "one process each": "#b279a2", "U test": "#e45756"}
_PROCESS_COLOURS = {"opscope": "#4c78a8", "t-test": "#f58518", "sign flips": "#54a24b", "rank sum": "#b279a2"}
_WIDTH, _ROW = 380, 24


def draw_false_calls(found: dict[str, dict[str, Share]], level: float, path: Path) -> None:
    """Share of identical variants that are called different, a row for each noise, a dot for each method."""
    rows: list[dict[str, Any]] = [
        {"noise": noise, "method": method, "share": shares[method].value}
        for noise, shares in found.items()
        for method in _COLOURS
    ]
    scale = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    dots = (
        alt.Chart(rows_of(rows))
        .mark_point(filled=True, size=70, opacity=0.9)
        .encode(
            x=alt.X(
                "share:Q",
                title="share of comparisons of identical variants called different",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%"),
            ),
            y=alt.Y("noise:N", sort=list(found), title=None, axis=alt.Axis(labelLimit=330, labelPadding=6)),
            color=alt.Color("method:N", scale=scale, title=None, legend=alt.Legend(orient="top")),
            shape=alt.Shape("method:N", scale=alt.Scale(domain=list(_COLOURS)), title=None),
        )
    )
    line = alt.Chart(rows_of([{"share": level}])).mark_rule(color=INK, strokeDash=[4, 3]).encode(x="share:Q")
    path.write_text(drawn(alt.layer(line, dots).properties(width=_WIDTH, height=_ROW * len(found))), encoding="utf-8")


def draw_power(found: dict[tuple[float, int, float], Power], path: Path) -> None:
    """Share of real changes that are called, over their size: a panel for each noise, a line for each number of rounds.

    The broken line is the power for which the smallest detectable change is stated.

    Args:
        found: by standard deviation between processes, rounds and change.
        path: of the SVG.
    """
    rows: list[dict[str, Any]] = [
        {"change": change, "rounds": f"{rounds} rounds", "share": cell.right.value, "noise": _panel(between)}
        for (between, rounds, change), cell in found.items()
    ]
    order = [f"{rounds} rounds" for rounds in dict.fromkeys(rounds for _, rounds, _ in found)]
    panels = list(dict.fromkeys(_panel(between) for between, _, _ in found))
    base = alt.Chart().encode(
        x=alt.X(
            "change:Q",
            title="candidate slower by",
            scale=alt.Scale(type="log", domain=[0.01, 0.1], nice=False),
            axis=alt.Axis(values=[0.01, 0.02, 0.05, 0.1], format="%"),
        ),
        y=alt.Y("share:Q", title="called slower", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
        color=alt.Color("rounds:N", sort=order, title=None, legend=alt.Legend(orient="top")),
    )
    lines = base.mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.6)
    promised = alt.Chart().mark_rule(color=INK, strokeDash=[4, 3]).encode(y=alt.datum(0.8))
    chart = alt.layer(promised, lines, data=rows_of(rows)).properties(width=180, height=180)
    header = alt.Header(labelColor=INK, labelPadding=4)
    path.write_text(drawn(chart.facet(alt.Column("noise:N", sort=panels, title=None, header=header))), encoding="utf-8")


def draw_methods(found: dict[tuple[str, int], Seen], path: Path) -> None:
    """Share of slower candidates that each method calls, over all noises: a dot a noise, a panel a change and rounds.

    Args:
        found: by name of the noise and number of rounds.
        path: of the SVG.
    """
    rows: list[dict[str, Any]] = [
        {"noise": noise, "method": method, "share": one.value, "panel": f"{rounds} rounds, {change:.0%} slower"}
        for (noise, rounds), cell in found.items()
        for change, shares in cell.seen.items()
        for method, one in shares.items()
        if method in _PROCESS_COLOURS
    ]
    scale = alt.Scale(domain=list(_PROCESS_COLOURS), range=list(_PROCESS_COLOURS.values()))
    noises = list(dict.fromkeys(noise for noise, _ in found))
    dots = (
        alt.Chart(rows_of(rows))
        .mark_point(filled=True, size=45, opacity=0.85)
        .encode(
            x=alt.X("share:Q", title="called slower", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            y=alt.Y("noise:N", sort=noises, title=None, axis=alt.Axis(labelLimit=300, labelPadding=6)),
            color=alt.Color("method:N", scale=scale, title=None, legend=alt.Legend(orient="top")),
            shape=alt.Shape("method:N", scale=alt.Scale(domain=list(_PROCESS_COLOURS)), title=None),
        )
        .properties(width=150, height=_ROW * len(noises))
    )
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    header = alt.Header(labelColor=INK, labelPadding=4)
    path.write_text(
        drawn(dots.facet(alt.Facet("panel:N", sort=panels, title=None, header=header), columns=3)), encoding="utf-8"
    )


def _panel(between: float) -> str:
    return f"{between * 100:g} % between processes"
