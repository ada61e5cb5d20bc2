"""Operators under the measured ceilings of their machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import altair as alt

from opscope.core.table.places import by_operator
from opscope.reports.content.places import bound_text, layer_text
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK
from opscope.reports.pictures.pictures import render_chart, rows_of

if TYPE_CHECKING:
    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.roofline import Placement
    from opscope.program.ceilings import Ceilings

    Rows: TypeAlias = list[dict[str, Any]]

_WIDTH, _HEIGHT = 860, 340
_BOUNDS = ("compute", "memory", "overhead", "below both ceilings", "too short to tell", "not known")
_COLOURS = ("#4c78a8", "#f58518", "#b279a2", "#e45756", "#9d9d9d", "#54a69f")
_MOST_LABELS = 4
MOST_POINTS = 400
"""Most operators that are drawn, the longest ones."""
_GIGA = 1e9
_ALIKE, _SAME = 1.3, 1.12


def roofline_picture(analysis: Analysis) -> str | None:
    """Return multiply-accumulates per second over intensity, on logarithmic scales.

    Lines are the ceilings that apply to the points: level for arithmetic, rising for memory at two working sets. The
    area of a point grows with its time. None without ceilings or without operators that multiply.
    """
    if analysis.roofline is None or analysis.ceilings is None:
        return None
    points = _operator_points(analysis)[:MOST_POINTS]
    if not points:
        return None
    lowest = min(min(point["intensity"] for point in points) / 2, 0.2)
    highest = max(max(point["intensity"] for point in points) * 4, 60.0)
    lines = _ceiling_lines(analysis, lowest, highest)
    chart = alt.layer(_line_chart(lines), *_line_names(lines), _dot_chart(points), _dot_names(points))
    return render_chart(chart.properties(width=_WIDTH, height=_HEIGHT))


def _operator_points(analysis: Analysis) -> Rows:
    """Return operators that multiply and have a time to divide by, longest first."""
    assert analysis.roofline is not None  # noqa: S101 - the caller has looked
    rows, placements = by_operator(analysis.operators), by_operator(analysis.roofline.operators)
    points = [
        _operator_point(row, placement, placement.macs_per_s.low)
        for key, placement in placements.items()
        if placement.macs_per_s and (row := rows.get(key)) and row.macs and row.bytes
    ]
    return sorted(points, key=lambda point: -point["ms"])


def _operator_point(row: Operator, placement: Placement, least: float) -> dict[str, Any]:
    """Return a point at the middle of the possible rates; at the lowest one if the time may be zero."""
    rate = row.macs / (row.shown_ns + row.uncertainty_ns / 2) if row.macs and row.shown_ns else least / _GIGA
    return {
        "intensity": (row.macs or 0) / (row.bytes or 1),
        "gmacs": rate,
        "ms": row.shown_ns / 1e6,
        "bound": bound_text(placement.bound),
        "layer": plain(layer_text(row), 40),
    }


def _ceiling_lines(analysis: Analysis, lowest: float, highest: float) -> Rows:
    """Return two points per ceiling: arithmetic ceilings that apply to an operator, and two memory ones."""
    assert analysis.roofline is not None  # noqa: S101 - the caller has looked
    assert analysis.ceilings is not None  # noqa: S101 - the caller has looked
    used = {placement.ceiling for placement in analysis.roofline.operators if placement.ceiling}
    best: dict[str, float] = {}
    for ceiling in analysis.ceilings.compute:
        name = f"products in {ceiling.dtype}"
        best[name] = max(best.get(name, 0.0), ceiling.rate.best / _GIGA)
    levels = _merge_close_levels({name: rate for name, rate in best.items() if name in used})
    top = max(levels.values(), default=max((point["gmacs"] for point in _operator_points(analysis)), default=1.0))
    rows: Rows = [
        {"line": name, "intensity": x, "gmacs": rate, "end": x == highest, "kind": "arithmetic"}
        for name, rate in levels.items()
        for x in (lowest, highest)
    ]
    for name, bandwidth in _memory_bandwidths(analysis.ceilings, analysis.roofline.footprint_bytes):
        corner = min(highest, top / bandwidth)
        for x in (lowest, corner):
            point = {"line": name, "intensity": x, "gmacs": x * bandwidth, "end": x == corner, "kind": "memory"}
            rows.append(point)
    return rows


def _merge_close_levels(levels: dict[str, float]) -> dict[str, float]:
    """Merge levels that are drawn on top of each other into one line with all their names."""
    merged: list[tuple[list[str], float]] = []
    for name, rate in sorted(levels.items(), key=lambda item: -item[1]):
        if merged and merged[-1][1] < _SAME * rate:
            merged[-1][0].append(name)
        else:
            merged.append(([name], rate))
    return {", ".join(names): rate for names, rate in merged}


def _memory_bandwidths(ceilings: Ceilings, footprint: int) -> list[tuple[str, float]]:
    """Return the GB/s of a cache-sized working set and of the working set of a whole inference."""
    near, far = ceilings.bandwidth(256 << 10), ceilings.bandwidth(footprint) if footprint else None
    if near and far and near < _ALIKE * far:
        return [("memory", near / _GIGA)]
    bandwidths = ("memory in cache, 256 KiB", near), ("memory of the whole inference", far)
    return [(name, rate / _GIGA) for name, rate in bandwidths if rate]


def _log_scales() -> dict[str, Any]:
    log = alt.Scale(type="log", nice=False, padding=18)
    return {
        "x": alt.X("intensity:Q", scale=log, title="multiply-accumulates per byte"),
        "y": alt.Y("gmacs:Q", scale=log, title="GMAC/s"),
    }


def _line_chart(rows: Rows) -> alt.Chart:
    dash = alt.StrokeDash("kind:N", legend=None)
    lines = alt.Chart(rows_of(rows)).mark_line(color=INK, strokeWidth=1.3)
    chart: alt.Chart = lines.encode(**_log_scales(), detail="line:N", strokeDash=dash)
    return chart


def _line_names(rows: Rows) -> list[alt.Chart]:
    """Return names at the right end of level lines, and at the lower end of rising ones."""
    level = [row for row in rows if row["kind"] == "arithmetic" and row["end"]]
    rising = [row for row in rows if row["kind"] == "memory" and not row["end"]]
    charts = [alt.Chart(rows_of(level)).mark_text(align="right", baseline="bottom", dy=-3, color=INK, fontSize=11)]
    charts += [
        alt.Chart(rows_of([row])).mark_text(align="left", baseline="middle", dx=8, dy=dy, color=INK, fontSize=11)
        for row, dy in zip(rising, (-18, 14), strict=False)
    ]
    return [chart.encode(**_log_scales(), text="line:N") for chart in charts]


def _dot_chart(points: Rows) -> alt.Chart:
    colour = alt.Color(
        "bound:N",
        scale=alt.Scale(domain=list(_BOUNDS), range=list(_COLOURS)),
        title=None,
        legend=alt.Legend(orient="top", labelLimit=220, columnPadding=30),
    )
    size = alt.Size("ms:Q", legend=None, scale=alt.Scale(range=[14, 500]))
    chart: alt.Chart = (
        alt.Chart(rows_of(points)).mark_circle(opacity=0.75).encode(**_log_scales(), color=colour, size=size)
    )
    return chart


def _dot_names(points: Rows) -> alt.Chart:
    names = alt.Chart(rows_of(points[:_MOST_LABELS])).mark_text(align="left", dx=10, color=INK, fontSize=11)
    chart: alt.Chart = names.encode(**_log_scales(), text="layer:N")
    return chart
