"""The change between two variants as steps from one latency to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from opscope.core.units import counted_text
from opscope.program.operators.kinds import Category
from opscope.reports.document.html import COLOURS
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK
from opscope.reports.pictures.pictures import drawn, rows_of

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import Comparison

_STEPS = 7
_LEAST = 0.005
"""Steps below this share of the baseline's latency are drawn together: they could not be seen."""
_WHOLE = "latency"
_WIDTH = 440
_NAME = 44


def shift_steps(comparison: Comparison) -> str | None:
    """:func:`shift_chart` as SVG; None without operators."""
    return drawn(shift_chart(comparison)) if comparison.kinds else None


def shift_chart(comparison: Comparison) -> alt.LayerChart:
    """A waterfall: latency of the baseline, what each kind of operator takes away or adds, latency of the candidate.

    The kinds that change most are named, the rest is one step, so that the steps add up.
    """
    rows = _rows(comparison)
    order = [row["step"] for row in rows]
    colours = {category.value: COLOURS[category] for category in Category} | {_WHOLE: INK}
    shown = [name for name in colours if any(row["category"] == name for row in rows)]
    scale = alt.Scale(domain=shown, range=[colours[name] for name in shown])
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


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    changed = sorted(comparison.kinds, key=lambda change: -abs(change.saved_ns))
    large = sum(abs(change.saved_ns) >= _LEAST * comparison.baseline.headline_ns for change in changed)
    named, rest = changed[: min(_STEPS, large)], changed[min(_STEPS, large) :]
    start, end = comparison.baseline.headline_ns / 1e6, comparison.candidate.headline_ns / 1e6
    rows = [_bar(f"{plain(comparison.baseline.label, _NAME)}: latency", 0, start, _WHOLE, f"{start:.3f}")]
    level = start
    for change in sorted(named, key=lambda change: -change.saved_ns):
        label = plain(f"{change.kind} ({change.backend})", _NAME)
        level = _add(rows, label, change.category, change.saved_ns / 1e6, level)
    if rest:
        left = sum(change.saved_ns for change in rest) / 1e6
        level = _add(rows, counted_text(len(rest), "other kind") if named else "all kinds", Category.OTHER, left, level)
    for row in comparison.shift.outside:
        if abs(row.saved_ns) >= _LEAST * comparison.baseline.headline_ns:
            level = _add(rows, row.name, row.category or Category.OTHER, row.saved_ns / 1e6, level)
    rows.append(_bar(f"{plain(comparison.candidate.label, _NAME)}: latency", 0, end, _WHOLE, f"{end:.3f}"))
    return rows


def _add(rows: list[dict[str, Any]], label: str, category: Category, saved: float, level: float) -> float:
    """Add a step down, or up, from a level; the level behind it."""
    rows.append(_bar(label, min(level, level - saved), max(level, level - saved), category.value, f"{-saved:+.3f}"))
    return level - saved


def _bar(step: str, low: float, high: float, category: str, text: str) -> dict[str, Any]:
    return {"step": step, "low": low, "high": high, "category": category, "text": text}
