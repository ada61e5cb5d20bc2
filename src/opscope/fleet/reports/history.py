"""A history as a document, and its series as charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import altair as alt

from opscope.core import units
from opscope.fleet.analysis.history import FigureUnit
from opscope.fleet.reports.words import cause_text, since_text, subject_text
from opscope.reports.document.blocks import (
    Bullets,
    Document,
    Figures,
    Fold,
    Format,
    HeadlineFigure,
    Section,
    Sentence,
    TableCell,
    Tone,
    changed_ratio,
    column,
    table,
    trend_text,
)
from opscope.reports.document.template import picture
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK
from opscope.reports.pictures.pictures import render_chart, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.fleet.analysis.history import History, Series
    from opscope.reports.document.blocks import Block
    from opscope.reports.pictures.pictures import Rows

    Course: TypeAlias = Callable[[Series], tuple[float, ...] | str]
    """What a cell shows of the runs of a series in their order."""

_PICTURES = 12
"""Series that have a picture; the newest changes."""
_FOLD = Fold(30, 1_000, "--json has all, and --where chooses")
_FORMATS = {FigureUnit.TIME: Format.TIME, FigureUnit.SIZE: Format.SIZE, FigureUnit.RATIO: Format.RATIO}
_PICTURE_WIDTH, _PICTURE_HEIGHT = 560, 200
_MOST_POINTS, _LONGEST_LABEL = 1_000, 40
_SCALES = {FigureUnit.TIME: (1e6, ", ms"), FigureUnit.SIZE: (float(1 << 20), ", MiB"), FigureUnit.RATIO: (1.0, "")}
"""What values are divided by in charts, and the unit behind the name of the figure."""


def history_document(history: History, *, has_pictures: bool = True) -> Document:
    """Return the changes in a table, the newest first, the other series in another, and charts of the newest ones."""
    changed, steady = _split_series(history)
    newest = [series.changes[-1] for series in changed]
    worse = sum(not change.better for change in newest)
    unjudged = sum(series.not_judged is not None for series in history.series)
    figures = [
        HeadlineFigure("series", f"{len(history.series):,}", ""),
        HeadlineFigure("newest regression", f"{worse:,}", ""),
        HeadlineFigure("newest improvement", f"{len(newest) - worse:,}", ""),
        HeadlineFigure("without a change", f"{len(history.series) - unjudged - len(newest):,}", ""),
        HeadlineFigure("not judged", f"{unjudged:,}", "too few runs, or zeros"),
    ]
    left = units.counted_text(history.left_out, "run")
    excluded = f"{left} without this figure or graded do_not_trust: excluded." if history.left_out else ""
    is_latency = history.metric.unit is FigureUnit.TIME
    blocks: list[Block] = [
        Sentence(f"{history.store}. {excluded}".strip(), Tone.DIM),
        Figures(figures, alone=len(history.series) > 1),
        Bullets([f"{cause_text(cause, is_latency=is_latency)}." for cause in history.causes]),
    ]
    course: Course = _values if has_pictures else _draw_in_text
    sections = [_changed_section(history, changed, course)] if changed else []
    sections += [_steady_section(history, steady, course)] if steady else []
    if has_pictures:
        few = [series for series in steady if len(history.series) <= _PICTURES and len(series.points) > 1]
        sections += [_chart_section(history, series) for series in [*changed[:_PICTURES], *few]]
        sections.append(_method_section(history))
    else:
        blocks, sections = [*blocks, *sections], []
    title = f"{history.metric.name} by {history.order.value}"
    runs = units.counted_text(sum(len(series.points) for series in history.series), "run")
    counts = f"{len(changed)} changed{f', {unjudged} not judged' if unjudged else ''}"
    return Document(title, f"{title}: {runs}, {len(history.series)} series: {counts}", blocks, sections)


def _split_series(history: History) -> tuple[list[Series], list[Series]]:
    """Return the series that changed, the newest change first, and the others in their order."""
    changed = [series for series in history.series if series.changes]
    steady = [series for series in history.series if not series.changes]
    return sorted(changed, key=lambda series: series.points[series.changes[-1].seen].placed, reverse=True), steady


def _changed_section(history: History, changed: Sequence[Series], course: Course) -> Section:
    form = _FORMATS[history.metric.unit]
    shown = table(
        [(change, series) for series in changed for change in reversed(series.changes)],
        column("series", Format.TEXT, lambda row: subject_text(row[1].subject)),
        column("change", Format.CHANGE, lambda row: changed_ratio(row[0].ratio, better=row[0].better)),
        column("95 % interval", Format.CHANGE, lambda row: row[0].ci95),
        column("when", Format.TEXT, lambda row: since_text(row[0])),
        column("from", form, lambda row: row[0].from_value),
        column("to", form, lambda row: row[0].to_value),
        column("how", Format.TEXT, lambda row: row[0].kind),
        column("runs", Format.TEXT, lambda row: " and ".join(map(str, row[0].runs)), wide=True),
        column("runs in order", Format.TREND, lambda row: course(row[1])),
        label="Series that changed",
    ).folded(_FOLD)
    return Section(shown.label, [shown], "changed", "Changed")


def _steady_section(history: History, steady: Sequence[Series], course: Course) -> Section:
    shown = table(
        steady,
        column("series", Format.TEXT, lambda series: subject_text(series.subject)),
        column("level", _FORMATS[history.metric.unit], lambda series: series.level),
        column("noise", Format.SHARE, lambda series: series.scatter),
        column(
            "runs",
            Format.COUNT,
            lambda series: TableCell(len(series.points), "not judged" if series.not_judged else ""),
        ),
        column("outliers", Format.COUNT, lambda series: len(series.outliers) or None),
        column("runs in order", Format.TREND, course),
        label="Series without a change",
    ).folded(_FOLD)
    reasons = dict.fromkeys(series.not_judged for series in steady if series.not_judged)
    text = f"Not judged: {'; '.join(list(reasons)[:3])}." if reasons else ""
    return Section(shown.label, [shown, Sentence(text, Tone.DIM)], "steady", "Without a change")


def _values(series: Series) -> tuple[float, ...]:
    return tuple(point.value for point in series.points)


def _draw_in_text(series: Series) -> str:
    return trend_text(_values(series))


def _chart_section(history: History, series: Series) -> Section:
    name, line = subject_text(series.subject), _draw_in_text(series)
    return Section(name, [picture(f"of {name}", lambda: render_chart(series_chart(history, series)), instead=line)])


def _method_section(history: History) -> Section:
    text = (
        "Steps, segments with their own level, and drifts are reported if trimmed runs differ by more than noise in "
        "98 % of series; the newest one to three runs, if they are farther off than noise was in all earlier runs. "
        f"Changes below {units.share_text(history.tolerance)} are not reported. A change lies between two runs with a "
        "probability of 98 %: neighbours where its place is certain. In charts, points are runs in order, not to scale "
        "in time; lines are levels and drifts."
    )
    return Section("How changes are found", [Sentence(text, Tone.DIM)], "method", "Method")


def history_chart(history: History, most: int) -> alt.VConcatChart:
    """Return the charts of the series below each other, those that changed first."""
    changed, steady = _split_series(history)
    charts = [
        series_chart(history, series).properties(title=_escape_title(subject_text(series.subject)))
        for series in [*changed, *steady][:most]
    ]
    chart: alt.VConcatChart = alt.vconcat(*charts)
    if len(history.series) > most:
        chart = chart.properties(title=f"{most} of {len(history.series)} series, changed ones first")
    return chart


def series_chart(history: History, series: Series) -> alt.LayerChart:
    """Return the points of a series in their order, with its levels and changes."""
    every = -(-len(series.points) // _MOST_POINTS)
    scale, unit = _SCALES[history.metric.unit]
    points: Rows = [
        {"number": number, "label": plain(point.label, _LONGEST_LABEL), "value": point.value / scale}
        for number, point in enumerate(series.points)
        if number % every == 0
    ]
    levels: Rows = [
        {"number": one.first - 0.5, "end": one.end - 0.5, "value": one.begins / scale, "last": one.ends / scale}
        for one in series.segments
    ]
    ends = dict.fromkeys(plain(point.label, _LONGEST_LABEL) for point in (series.points[0], series.points[-1]))
    title = f"runs by {history.order.value}, {_escape_title(' to '.join(ends))}"
    axis = alt.Axis(labels=False, ticks=False, title=title, grid=False)
    x = alt.X("number:Q", axis=axis, scale=alt.Scale(nice=False, zero=False))
    name = f"{_escape_title(plain(history.metric.name, _LONGEST_LABEL))}{unit}"
    y = alt.Y("value:Q", title=name, scale=alt.Scale(zero=False, nice=True))
    dots = alt.Chart(rows_of(points)).mark_circle(size=26, opacity=0.75, color="#4c78a8").encode(x=x, y=y)
    rules = alt.Chart(rows_of(levels)).mark_rule(strokeWidth=2.4, color="#f58518")
    layers = [dots, rules.encode(x=x, x2="end:Q", y=y, y2="last:Q")]
    marks: Rows = [
        {
            "number": change.first - 0.5,
            "text": f"{units.signed_share_text(change.ratio - 1)} {_escape_title(since_text(change))}",
        }
        for change in series.changes
        if change.kind == "step"
    ]
    if marks:
        layers.append(alt.Chart(rows_of(marks)).encode(x="number:Q").mark_rule(strokeDash=[4, 3], color=INK))
        middle = len(series.points) / 2  # words stand to the side where there is room for them
        for align, offset, is_early in (("left", -4, True), ("right", 4, False)):
            side = [mark for mark in marks if (mark["number"] < middle) is is_early]
            words = alt.Chart(rows_of(side)).encode(x="number:Q", text="text:N")
            layers.append(words.mark_text(align=align, dx=offset, y=-6, color=INK, fontSize=11))
    chart: alt.LayerChart = alt.layer(*layers).properties(width=_PICTURE_WIDTH, height=_PICTURE_HEIGHT)
    return chart


def _escape_title(text: str) -> str:
    r"""Return text for a picture's title, which Vega reads as part of an expression: there ``\x1b`` is a character."""
    return text.replace("\\", "\N{REVERSE SOLIDUS OPERATOR}")
