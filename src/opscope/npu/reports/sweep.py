"""A sweep over traces of AI Engine tiles: one table and one picture, on a terminal, in Markdown and HTML."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import altair as alt

from opscope.analysis.findings.message import note
from opscope.core.units import counted_text, rate_text, share_text
from opscope.npu.reports.answer import by_text, clock_text, gmac_text
from opscope.reports.document.blocks import Document, Format, Messages, Sentence, TableCell, Tone, column, table
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.template import picture
from opscope.reports.document.terminal import terminal_document
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK
from opscope.reports.pictures.pictures import drawn, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from opscope.npu.analysis.sweep import Sweep, SweepRow
    from opscope.reports.document.blocks import TableBlock

    Rows: TypeAlias = list[dict[str, Any]]

_WIDTH, _HEIGHT = 860, 320
_BOUNDS = ("#4c78a8", "#f58518", "#54a69f", "#b279a2", "#e45756", "#9d9d9d")
_MOST_LABELS = 24
_LEFT, _RIGHT = 0.05, 0.16
"""Room beside the smallest and the largest product, as a share of the logarithmic reach."""
_APART = 0.07
_FEW_POWERS = 4


def sweep_summary(sweep: Sweep) -> RenderableType:
    """What a person reads after `opscope aie` of several traces."""
    return terminal_document(sweep_document(sweep))


def sweep_sentence(sweep: Sweep) -> str:
    """Range of what the traces reach, and what bounds most of them."""
    count = counted_text(len(sweep.rows), "trace")
    used = [(row.utilisation, _sizes(row) or row.label) for row in sweep.rows if row.utilisation is not None]
    rates = [(row.mac_per_cycle, row.label) for row in sweep.rows if row.mac_per_cycle is not None]
    bounds = [row.bound_by for row in sweep.rows if row.bound_by]
    most = max(bounds, key=bounds.count, default=None)
    by = f"; {bounds.count(most)} of {len(sweep.rows)} {by_text(most)}" if most else ""
    if used:
        low, high = (f"{share_text(value)} ({plain(label, 40)})" for value, label in (min(used), max(used)))
        return f"{count}: {low} to {high} of the peak{by}"
    if rates:
        return f"{count}: {rate_text(min(rates)[0])} to {rate_text(max(rates)[0])} MAC per cycle per core{by}"
    return f"{count}: rate unknown{by}"


def sweep_picture(sweep: Sweep) -> str | None:
    """What each trace reaches over the work of its product, by what bounds it; None without rates."""
    shares = any(row.utilisation is not None for row in sweep.rows)
    points = [point for place, row in enumerate(sweep.rows) if (point := _point(row, place, shares))]
    if not points:
        return None
    macs = sorted({point["macs"] for point in points if point["macs"]})
    spread = len(macs) > 1 and all(point["macs"] for point in points)
    x = _work_axis(macs) if spread else _place_axis([point["place"] for point in points])
    top = alt.Scale(domain=[0, 100]) if shares else alt.Scale(zero=True)
    y = alt.Y("value:Q", scale=top, title="% of the peak" if shares else "MAC per cycle per core")
    names = list(dict.fromkeys(point["bound"] for point in points))
    scale = alt.Scale(domain=names, range=[_BOUNDS[number % len(_BOUNDS)] for number in range(len(names))])
    legend = alt.Legend(orient="top", labelLimit=260, columnPadding=30)
    dots = alt.Chart(rows_of(points)).mark_circle(size=80, opacity=0.85)
    dots = dots.encode(x=x, y=y, color=alt.Color("bound:N", scale=scale, title=None, legend=legend))
    labels = alt.Chart(rows_of(points[:_MOST_LABELS])).mark_text(align="left", dx=8, dy=-6, color=INK, fontSize=11)
    return drawn(alt.layer(dots, labels.encode(x=x, y=y, text="label:N")).properties(width=_WIDTH, height=_HEIGHT))


def _work_axis(macs: Sequence[int]) -> alt.X:
    """The work of the products, with room for the labels to the right."""
    reach = math.log(macs[-1] / macs[0])
    domain = [macs[0] * math.exp(-_LEFT * reach), macs[-1] * math.exp(_RIGHT * reach)]
    axis = alt.Axis(values=_ticks(macs, reach), format=".3~s", labelOverlap=False)
    scale = alt.Scale(type="log", nice=False, domain=domain)
    return alt.X("macs:Q", scale=scale, axis=axis, title="multiply-accumulates of the whole product (log scale)")


def _ticks(macs: Sequence[int], reach: float) -> list[float]:
    """The products themselves where their labels have room, else one, two and five of each power of ten."""
    apart = min(math.log(after / before) for before, after in pairwise(macs))
    if apart >= _APART * reach:
        return list(map(float, macs))
    powers = range(math.floor(math.log10(macs[0])), math.ceil(math.log10(macs[-1])) + 1)
    steps = (1, 2, 5) if len(powers) <= _FEW_POWERS else (1,)
    return [step * 10.0**power for power in powers for step in steps]


def _place_axis(places: Sequence[int]) -> alt.X:
    """The traces by their number in the table, each with a tick while they are few."""
    ticks = list(places) if len(places) <= _MOST_LABELS else None
    axis = alt.Axis(values=ticks, format="d", tickMinStep=1) if ticks else alt.Axis(format="d", tickMinStep=1)
    scale = alt.Scale(nice=False, zero=False, domain=[min(places) - 0.5, max(places) + 1])
    return alt.X("place:Q", scale=scale, axis=axis, title="trace, in table order")


def _point(row: SweepRow, place: int, shares: bool) -> dict[str, Any] | None:
    value = row.utilisation if shares else row.mac_per_cycle
    if value is None:
        return None
    label = _sizes(row) if row.macs else plain(row.label, 30)
    shown = value * 100 if shares else value
    return {"macs": row.macs, "place": place + 1, "value": shown, "bound": row.bound_by or "not known", "label": label}


def sweep_markdown(sweep: Sweep) -> str:
    """The table in Markdown."""
    return markdown_document(sweep_document(sweep))


def sweep_html(sweep: Sweep) -> str:
    """Table and picture as one HTML page that needs nothing else."""
    return html_document(sweep_document(sweep), styles=("tiles.css",))


def sweep_document(sweep: Sweep) -> Document:
    """What the traces reach, and what bounds each."""
    clocks = "; ".join(dict.fromkeys(clock_text(row.gmac_per_s) for row in sweep.rows if row.gmac_per_s))
    seconds = f"GMAC/s are {clocks}. " if clocks else ""
    text = f"Cycles and rates cover the calls in each trace. {seconds}Empty: unknown."
    return Document(
        title=counted_text(len(sweep.rows), "trace"),
        heading=f"Sweep over {counted_text(len(sweep.rows), 'trace')} of AI Engine tiles",
        answer=sweep_sentence(sweep),
        blocks=[
            picture("sweep", lambda: sweep_picture(sweep)),
            _table(sweep.rows),
            Messages([note(one) for one in sweep.notes]),
            Sentence(text, Tone.DIM),
        ],
        sections=[],
    )


def _table(rows: Sequence[SweepRow]) -> TableBlock:
    """A line a trace; what is known of none has no column."""
    columns = (
        column("product or trace", Format.NAME, _named),
        column("one call", Format.TEXT, _tile, wide=True),
        column("cores", Format.COUNT, lambda row: None if row.problem else row.cores, wide=True),
        column("MAC/cycle", Format.RATE, lambda row: row.mac_per_cycle, total=True),
        column("of peak", Format.SHARE, lambda row: row.utilisation),
        column(
            "GMAC/s per core", Format.TEXT, lambda row: gmac_text(row.gmac_per_s) if row.gmac_per_s else "", wide=True
        ),
        column("in calls", Format.SHARE, lambda row: row.in_calls),
        column("largest stall", Format.TEXT, _stall, wide=True),
        column("iteration", Format.COUNT, lambda row: row.iteration_cycles, wide=True),
        column("period", Format.COUNT, lambda row: row.period_cycles),
        column("call", Format.COUNT, lambda row: row.call_cycles, wide=True),
        column("bound by", Format.TEXT, _bound),
        column("coverage", Format.SHARE, lambda row: row.coverage, wide=True),
    )
    known = [one for one in columns if any(one.of(row) not in {None, ""} for row in rows)]
    return table(rows, *known, sortable=True)


def _named(row: SweepRow) -> TableCell:
    sizes = _sizes(row)
    return TableCell(sizes or row.label, row.label if sizes else "")


def _stall(row: SweepRow) -> str:
    return f"{row.stall} {'' if row.stall_share is None else share_text(row.stall_share)}".strip() if row.stall else ""


def _bound(row: SweepRow) -> str:
    return row.problem or f"{row.bound_by or 'not known'}{'' if row.complete else ' (trace cut off)'}"


def _sizes(row: SweepRow) -> str:
    whole = row.tiling
    return "" if whole is None or whole.macs is None else f"{whole.M} x {whole.K} x {whole.N}"


def _tile(row: SweepRow) -> str:
    tile = row.tiling
    return "" if tile is None else f"{tile.m} x {tile.k} x {tile.n}"
