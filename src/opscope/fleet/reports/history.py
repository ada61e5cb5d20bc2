"""A history on a terminal and as an HTML page: each series with its changes of level."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import altair as alt
from rich.console import Group

from opscope.analysis.findings.message import note
from opscope.core import units
from opscope.core.parts import explained, noted, part
from opscope.core.stats.segments import FEWEST_RUNS
from opscope.fleet.analysis.history import FigureUnit, LevelDrift
from opscope.fleet.reports.common_moves import move_text
from opscope.fleet.reports.html_parts import Listed, blocks, listed, sparkline
from opscope.reports.document.console import Text
from opscope.reports.document.html import policy, style_sheet
from opscope.reports.document.template import environment
from opscope.reports.document.terminal import message_lines
from opscope.reports.document.text import plain
from opscope.reports.pictures.pictures import INK, drawn, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from opscope.core.parts import PartFailure
    from opscope.fleet.analysis.history import History, LevelChange, Metric, Series, Subject

_PICTURES = 12
"""Series that have a picture; the newest changes."""
_LINES, _MOST_LINES = 30, 1_000
"""Series of each table that are shown at once, and with those that are folded; the JSON has all of them."""
_TOLD = 50
"""Series on a terminal; those that changed are told however many they are."""
_PICTURE_WIDTH, _PICTURE_HEIGHT = 760, 200
_MOST_POINTS = 1_000
_MOST_OUTLIERS = 5


def history_summary(history: History) -> RenderableType:
    """What a person reads after `opscope history`."""
    moves = part("what changes have in common", lambda: moves_text(history), list[str]())
    parts: list[RenderableType] = [Text(f"together: {line}") for line in moves]
    parts += [Text()] if parts else []
    changed, steady = _divided(history)
    shown = steady[: max(0, _TOLD - len(changed))]
    for one in [*changed, *shown]:
        parts += [
            Text(subject_text(one), style="bold"),
            Text(f"  {blocks([point.value for point in one.points])}"),
            Text(f"  {level_text(history.metric, one)}"),
        ]
        parts += _told_changes(history, one)
        parts.append(Text())
    if len(shown) < len(steady):
        more = f"{len(steady) - len(shown):,} more series without a change: --html shows them"
        parts += message_lines([note(more)])
    return Group(*parts, *message_lines(map(note, left_out_lines(history))))


def _told_changes(history: History, series: Series) -> list[RenderableType]:
    named = f"the changes of {subject_text(series)}"
    return explained(
        named,
        lambda: [Text(f"  {line}") for line in changes_text(history, series)],
        lambda failure: [Text(f"  {failure.sentence}")],
    )


def history_html(history: History) -> str:
    """The history as one HTML page that needs nothing else.

    The newest changes have pictures; where there are more, and of series without a change, a table has a line a series.
    """
    style = style_sheet("history.css")
    changed, steady = _divided(history)
    drawn_too = [] if len(history.series) > _PICTURES else [one for one in steady if len(one.points) > 1]
    pictured = [*changed[:_PICTURES], *drawn_too]
    told = {one.subject for one in pictured}
    overview = listed(changed, _LINES, _MOST_LINES) if len(changed) > _PICTURES else listed([], 0, 0)
    rest = listed([one for one in steady if one.subject not in told], _LINES, _MOST_LINES)
    none = Listed([], [], 0)
    lost = {subject_text(one): f"{subject_text(one)}: {level_text(history.metric, one)}" for one in _lost(history)}
    figures: list[tuple[str, str]] = []
    values = {
        "history": history,
        "left_out": left_out_lines(history),
        "moves": noted(lost, "moves", "what changes have in common", lambda: moves_text(history), list[str]()),
        "tiles": noted(lost, "tiles", "the figures of the first screen", lambda: _tiles(history, changed), figures),
        "changed": noted(
            lost, "changed", "the table of changes", lambda: _lines(overview, partial(_changed, history.metric)), none
        ),
        "rows": [_pictured(history, one) for one in pictured],
        "steady": noted(
            lost, "steady", "the table of series", lambda: _lines(rest, partial(_steady, history.metric)), none
        ),
        "failed": list(lost.values()),
        "not_judged": any(one.not_judged for one in rest.first),
        "order": history.order.value,
        "tolerance": units.share_text(history.tolerance),
        "fewest": FEWEST_RUNS,
    }
    return environment({}).get_template("history.html.j2").render(values, style=style, policy=policy(style))


def moves_text(history: History) -> list[str]:
    """What series have in common whose levels changed at the same time: a sentence each, the newest first."""
    return [move_text(move, latency=history.metric.unit is FigureUnit.TIME) for move in history.moves]


def left_out_lines(history: History) -> list[str]:
    """How many runs are not shown, and why; no line where there are none."""
    left = units.counted_text(history.left_out, "run")
    return [f"{left} without this figure, or graded do_not_trust, left out"] if history.left_out else []


def _lines(found: Listed, line: Callable[[Series], dict[str, Any]]) -> Listed:
    return Listed([line(one) for one in found.first], [line(one) for one in found.folded], found.left_out)


def _tiles(history: History, changed: Sequence[Series]) -> list[tuple[str, str]]:
    """How many series there are, and what the newest change of each is."""
    newest = [_newest_change(one) for one in changed]
    judged = sum(1 for one in history.series if one.not_judged is None)
    bug = ", or a bug in opscope" if _lost(history) else ""
    return [
        (f"{len(history.series):,}", "series"),
        (f"{sum(1 for one in newest if not one.better):,}", "whose newest change is for the worse"),
        (f"{sum(1 for one in newest if one.better):,}", "whose newest change is for the better"),
        (f"{judged - len(changed):,}", "without a change"),
        (f"{len(history.series) - judged:,}", f"not judged: too few runs, or zeros{bug}"),
    ]


def _lost(history: History) -> list[Series]:
    return [one for one in history.series if one.is_lost]


def _pictured(history: History, series: Series) -> dict[str, Any]:
    return {
        "title": subject_text(series),
        "level": level_text(history.metric, series),
        "picture": explained(f"the picture of {subject_text(series)}", lambda: picture(history, series), _not_drawn),
        "changes": [_cells(history.metric, change) for change in reversed(series.changes)],
        "notes": [
            *(drift_text(history.metric, drift) for drift in reversed(series.drifts)),
            *([outliers_text(history.metric, series)] if series.outliers else []),
        ],
    }


def _not_drawn(failure: PartFailure) -> str:
    return f"<p>{escape(failure.sentence)}</p>"


def _changed(metric: Metric, series: Series) -> dict[str, Any]:
    """A line of the table of series that changed, by the newest change of each."""
    newest = _newest_change(series)
    return {
        "title": subject_text(series),
        "change": _percent(newest.ratio),
        "better": newest.better,
        "how": f"{'drift' if isinstance(newest, LevelDrift) else 'step'}{_known_text(newest.acknowledged)}",
        "since": f"{plain(newest.first)} to {plain(newest.last)}"
        if isinstance(newest, LevelDrift)
        else plain(newest.label),
        "from": value_text(metric, newest.from_value),
        "to": value_text(metric, newest.to_value),
        "more": len(series.changes) + len(series.drifts) - 1,
        "line": _line_of(series),
    }


def _steady(metric: Metric, series: Series) -> dict[str, Any]:
    """A line of the table of series without a change."""
    return {
        "title": subject_text(series),
        "level": value_text(metric, series.level),
        "scatter": "" if series.scatter is None else units.share_text(series.scatter),
        "runs": len(series.points),
        "judged": series.not_judged is None,
        "outliers": len(series.outliers),
        "line": _line_of(series),
    }


def _line_of(series: Series) -> str:
    return sparkline([point.value for point in series.points])


def _newest_change(series: Series) -> LevelChange | LevelDrift:
    """Of a series that changed."""
    found: list[tuple[int, LevelChange | LevelDrift]] = [(change.index, change) for change in series.changes]
    found += [(drift.index + drift.runs - 1, drift) for drift in series.drifts]
    return max(found, key=lambda pair: pair[0])[1]


def changed_first(history: History) -> list[Series]:
    """The series that changed, the newest change first, and then the others."""
    changed, steady = _divided(history)
    return [*changed, *steady]


def _divided(history: History) -> tuple[list[Series], list[Series]]:
    """The series that changed, the newest change first, and the others in their order."""
    changed = [one for one in history.series if one.changes or one.drifts]
    steady = [one for one in history.series if not (one.changes or one.drifts)]
    return sorted(changed, key=lambda one: one.newest(), reverse=True), steady


def changes_text(history: History, series: Series) -> list[str]:
    """Steps and drifts of a series, the newest first, then its outliers: a sentence each."""
    placed = [(change.index, change_text(history, change)) for change in series.changes]
    placed += [(drift.index, drift_text(history.metric, drift)) for drift in series.drifts]
    told = [text for _, text in sorted(placed, key=lambda one: one[0], reverse=True)]
    return [*told, outliers_text(history.metric, series)] if series.outliers else told


def subject_text(series: Series) -> str:
    """What a series is about, in one line."""
    return subject_line(series.subject)


def subject_line(own: Subject) -> str:
    """The same of what runs are about."""
    model = " ".join(filter(None, (own.model, own.dtype)))
    threads = units.counted_text(own.threads, "thread") if own.threads else ""
    cpus = f"CPUs {own.affinity}" if own.affinity else ""
    how = ", ".join(filter(None, (threads, own.target or "", own.arm or "", cpus)))
    return f"{plain(model)} on {plain(own.device)}, {plain(own.variant)} ({plain(how)})"


def value_text(metric: Metric, value: float) -> str:
    """A value of the figure in its unit."""
    if metric.unit is FigureUnit.TIME:
        return units.time_text(value)
    return units.size_text(round(value)) if metric.unit is FigureUnit.SIZE else units.ratio_text(value)


def level_text(metric: Metric, series: Series) -> str:
    """The current level with its scatter, and why changes were not looked for."""
    scatter = "" if series.scatter is None else f", scatter {units.share_text(series.scatter)}"
    runs = units.counted_text(len(series.current()), "run")
    told = f"{value_text(metric, series.level)} over {runs}{scatter}"
    if series.not_judged:
        return f"{told}; changes were not looked for: {series.not_judged}"
    if series.segments[-1].drifts:
        return f"{told}, still drifting"
    return f"{told}; {'level since the last change' if len(series.segments) > 1 else 'no change of level'}"


def change_text(history: History, change: LevelChange) -> str:
    """A change of level in one sentence."""
    metric = history.metric
    ends = "" if change.ci95 is None else f" {units.interval_text(change.ci95, _percent)}"
    values = f"{value_text(metric, change.from_value)} to {value_text(metric, change.to_value)}"
    word = "better" if change.better else "worse"
    place = f"between {plain(change.before)} and {plain(change.label)}"
    runs = f"{change.runs[0]} and {change.runs[1]} runs"
    known = _known_text(change.acknowledged)
    return f"{word}: {values}, {_percent(change.ratio)}{ends}, {place} ({runs}){known}"


def drift_text(metric: Metric, drift: LevelDrift) -> str:
    """A drift in one sentence."""
    word = "better" if drift.better else "worse"
    values = f"{value_text(metric, drift.from_value)} to {value_text(metric, drift.to_value)}"
    place = f"from {plain(drift.first)} to {plain(drift.last)}"
    runs = units.counted_text(drift.runs, "run")
    known = _known_text(drift.acknowledged)
    return f"{word}: drifts from {values}, {_percent(drift.ratio)}, {place} ({runs}){known}"


def _known_text(note: str | None) -> str:
    return "" if note is None else f"; known: {plain(note)}"


def outliers_text(metric: Metric, series: Series) -> str:
    """The outliers of a series in one sentence, the newest first."""
    told = [
        f"{plain(one.label)} ({value_text(metric, one.value)}, {_percent(one.ratio)})"
        for one in reversed(series.outliers[-_MOST_OUTLIERS:])
    ]
    more = len(series.outliers) - len(told)
    return f"outliers: {', '.join(told)}{f' and {more} earlier' if more else ''}"


def picture(history: History, series: Series) -> str:
    """:func:`series_chart` as SVG."""
    return drawn(series_chart(history, series))


def series_chart(history: History, series: Series) -> alt.LayerChart:
    """The points of a series in their order, with its levels and changes."""
    step = -(-len(series.points) // _MOST_POINTS)
    scale, title = _scale(history.metric)
    points = [
        {"number": number, "label": plain(point.label, 40), "value": point.value / scale}
        for number, point in enumerate(series.points)
        if number % step == 0
    ]
    levels = [
        {
            "number": one.first - 0.5,
            "end": one.end - 0.5,
            "value": one.begins / scale,
            "last": one.ends / scale,
        }
        for one in series.segments
    ]
    axis = alt.Axis(labels=False, ticks=False, title=f"runs by {history.order.value}, {_ends(series)}", grid=False)
    x = alt.X("number:Q", axis=axis, scale=alt.Scale(nice=False, zero=False))
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, nice=True))
    dots = alt.Chart(rows_of(points)).mark_circle(size=26, opacity=0.75, color="#4c78a8").encode(x=x, y=y)
    lines = (
        alt.Chart(rows_of(levels)).mark_rule(strokeWidth=2.4, color="#f58518").encode(x=x, x2="end:Q", y=y, y2="last:Q")
    )
    layers = [dots, lines]
    if series.changes:
        marks = [
            {"number": change.index - 0.5, "text": f"{_percent(change.ratio)} at {plain(change.label, 24)}"}
            for change in series.changes
        ]
        rule = alt.Chart(rows_of(marks)).encode(x="number:Q")
        layers.append(rule.mark_rule(strokeDash=[4, 3], color=INK))
        layers.append(rule.mark_text(align="left", dx=-4, y=-6, color=INK, fontSize=11).encode(text="text:N"))
    chart: alt.LayerChart = alt.layer(*layers).properties(width=_PICTURE_WIDTH, height=_PICTURE_HEIGHT)
    return chart


def history_chart(history: History, most: int) -> alt.VConcatChart:
    """The charts of the series below each other, those that changed first."""
    ordered = changed_first(history)
    charts = [series_chart(history, one).properties(title=_in_a_title(subject_text(one))) for one in ordered[:most]]
    chart: alt.VConcatChart = alt.vconcat(*charts)
    if len(ordered) > len(charts):
        chart = chart.properties(title=f"{len(charts)} of {len(ordered)} series, those that changed first")
    return chart


def _scale(metric: Metric) -> tuple[float, str]:
    name = _in_a_title(plain(metric.name, 40))
    if metric.unit is FigureUnit.TIME:
        return 1e6, f"{name}, ms"
    return (float(1 << 20), f"{name}, MiB") if metric.unit is FigureUnit.SIZE else (1.0, name)


def _in_a_title(text: str) -> str:
    r"""Text for a title of a picture, which Vega reads as part of an expression: there ``\x1b`` is a character."""
    return text.replace("\\", "\N{REVERSE SOLIDUS OPERATOR}")


def _ends(series: Series) -> str:
    first, last = series.points[0].label, series.points[-1].label
    return _in_a_title(plain(first, 40) if first == last else f"{plain(first, 40)} to {plain(last, 40)}")


def _cells(metric: Metric, change: LevelChange) -> Sequence[str]:
    ends = "no interval" if change.ci95 is None else f"{_percent(change.ci95[0])} to {_percent(change.ci95[1])}"
    return (
        plain(change.before),
        plain(change.label),
        value_text(metric, change.from_value),
        value_text(metric, change.to_value),
        _percent(change.ratio),
        ends,
        f"{change.runs[0]}, {change.runs[1]}",
        f"{'better' if change.better else 'worse'}{_known_text(change.acknowledged)}",
    )


def _percent(ratio: float) -> str:
    return units.signed_share_text(ratio - 1)
