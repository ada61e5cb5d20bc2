"""Chart of the longest operators of an analysis, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from opscope.analysis.operators.operators import longest_first
from opscope.core.units import counted_text, share_text
from opscope.program.operators.kinds import Category
from opscope.reports.content.places import layer_text
from opscope.reports.document.html import COLOURS
from opscope.reports.document.text import distinct, plain
from opscope.reports.pictures.pictures import rows_of

if TYPE_CHECKING:
    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator

_NAME = 38
_WIDTH = 440
_TOOLTIPS = ("operator:N", "layer:N", "category:N", "backend:N", "ms:Q", "share:N")


def operator_bars(analysis: Analysis, most: int) -> alt.Chart:
    """Draw the longest operators as bars in milliseconds per inference, the longest first, coloured by category.

    The framework's own time has no bar.

    Args:
        analysis: analysis of one variant or trace.
        most: bars at most; the title says what they leave out.
    """
    operators = [row for row in longest_first(analysis.operators) if row.kind != "framework"]
    drawn = operators[:most]
    labels = distinct(plain(layer_text(row) or row.name, _NAME) for row in drawn)
    rows = [_bar_row(label, row) for label, row in zip(labels, drawn, strict=True)]
    used = {row["category"] for row in rows}
    domain = [category.value for category in Category if category.value in used]
    scale = alt.Scale(domain=domain, range=[COLOURS[Category(name)] for name in domain])
    share = share_text(sum(row.share for row in drawn))
    title = f"{len(drawn)} of {counted_text(len(operators), 'operator')}, {share} of the latency"
    chart: alt.Chart = (
        alt.Chart(rows_of(rows), title=title)
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="ms per inference"),
            y=alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(labelLimit=300)),
            color=alt.Color("category:N", scale=scale, title=None, legend=alt.Legend(orient="top")),
            tooltip=list(_TOOLTIPS),
        )
        .properties(width=_WIDTH)
    )
    return chart


def _bar_row(label: str, row: Operator) -> dict[str, Any]:
    return {
        "label": label,
        "operator": plain(row.name),
        "layer": plain(layer_text(row)),
        "category": row.category.value,
        "backend": plain(row.backend),
        "ms": row.shown_ns / 1e6,
        "share": share_text(row.share),
    }
