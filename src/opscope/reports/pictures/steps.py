"""Change between two variants as steps from one latency to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from opscope.core.units import counted_text
from opscope.program.operators.kinds import Category
from opscope.reports.document.html import COLOURS
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK
from opscope.reports.pictures.pictures import render_chart, rows_of

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import Comparison

_STEPS = 7
_LEAST = 0.005
"""Share of the baseline's latency below which steps are drawn together, because they would be invisible."""
_LATENCY = "latency"
_WIDTH = 440
_NAME = 44


def shift_steps(comparison: Comparison) -> str | None:
    """Return :func:`shift_chart` as SVG; None without operators."""
    return render_chart(shift_chart(comparison)) if comparison.kinds else None


def shift_chart(comparison: Comparison) -> alt.LayerChart:
    """Return a waterfall from the baseline's latency to the candidate's, with a step per kind of operator.

    The kinds that change most have a step each, the others share one, so that the steps add up.
    """
    rows = _step_rows(comparison)
    order = [row["step"] for row in rows]
    colours = {category.value: COLOURS[category] for category in Category} | {_LATENCY: INK}
    categories = [name for name in colours if any(row["category"] == name for row in rows)]
    scale = alt.Scale(domain=categories, range=[colours[name] for name in categories])
    steps = alt.Y("step:N", sort=order, title=None, axis=alt.Axis(labelLimit=250, labelPadding=6))
    base = alt.Chart(rows_of(rows)).encode(y=steps)
    bars = base.mark_bar(height=16).encode(
        x=alt.X("low:Q", title="ms per inference"),
        x2="high:Q",
        color=alt.Color(
            "category:N", scale=scale, title=None, legend=alt.Legend(orient="top", labelLimit=200, columnPadding=14)
        ),
    )
    texts = base.mark_text(align="left", dx=5, color=INK, fontSize=11).encode(x="high:Q", text="text:N")
    chart: alt.LayerChart = alt.layer(bars, texts).properties(width=_WIDTH, height=24 * len(rows))
    return chart


def _step_rows(comparison: Comparison) -> list[dict[str, Any]]:
    changed = sorted(comparison.kinds, key=lambda change: -abs(change.saved_ns))
    large_count = sum(abs(change.saved_ns) >= _LEAST * comparison.baseline.headline_ns for change in changed)
    large_changes, rest = changed[: min(_STEPS, large_count)], changed[min(_STEPS, large_count) :]
    start, end = comparison.baseline.headline_ns / 1e6, comparison.candidate.headline_ns / 1e6
    rows = [_bar_row(f"{plain(comparison.baseline.label, _NAME)}: latency", 0, start, _LATENCY, f"{start:.3f}")]
    level = start
    for change in sorted(large_changes, key=lambda change: -change.saved_ns):
        label = plain(f"{change.kind} ({change.backend})", _NAME)
        level = _add_step(rows, label, change.category, change.saved_ns / 1e6, level)
    if rest:
        rest_saved = sum(change.saved_ns for change in rest) / 1e6
        level = _add_step(
            rows,
            counted_text(len(rest), "other kind") if large_changes else "all kinds",
            Category.OTHER,
            rest_saved,
            level,
        )
    for row in comparison.shift.outside:
        if abs(row.saved_ns) >= _LEAST * comparison.baseline.headline_ns:
            level = _add_step(rows, row.name, row.category or Category.OTHER, row.saved_ns / 1e6, level)
    rows.append(_bar_row(f"{plain(comparison.candidate.label, _NAME)}: latency", 0, end, _LATENCY, f"{end:.3f}"))
    return rows


def _add_step(rows: list[dict[str, Any]], label: str, category: Category, saved: float, level: float) -> float:
    """Add a step down, or up, from a level, and return the new level."""
    rows.append(_bar_row(label, min(level, level - saved), max(level, level - saved), category.value, f"{-saved:+.3f}"))
    return level - saved


def _bar_row(step: str, low: float, high: float, category: str, text: str) -> dict[str, Any]:
    return {"step": step, "low": low, "high": high, "category": category, "text": text}
