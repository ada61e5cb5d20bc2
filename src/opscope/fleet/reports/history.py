"""A history on a terminal and as an HTML page: each series with its changes of level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
from rich.console import Group

from opscope.analysis.findings.message import note
from opscope.core import units
from opscope.fleet.analysis.history import FigureUnit
from opscope.reports.content.console import Text
from opscope.reports.content.template import environment
from opscope.reports.content.text import plain
from opscope.reports.html.pictures import INK, drawn, rows_of
from opscope.reports.html.sections import policy, style_sheet
from opscope.reports.terminal import message_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from opscope.fleet.analysis.history import History, LevelChange, LevelDrift, Metric, Series

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60
_PICTURE_WIDTH, _PICTURE_HEIGHT = 760, 200
_MOST_POINTS = 1_000
_MOST_OUTLIERS = 5


def history_summary(history: History) -> RenderableType:
    """What a person reads after `opscope history`."""
    parts: list[RenderableType] = []
    for one in changed_first(history):
        parts += [
            Text(subject_text(one), style="bold"),
            Text(f"  {_line(one)}"),
            Text(f"  {level_text(history.metric, one)}"),
        ]
        parts += [Text(f"  {line}") for line in changes_text(history, one)]
        parts.append(Text())
    if history.left_out:
        parts += message_lines([note(f"{units.counted_text(history.left_out, 'run')} without this figure")])
    return Group(*parts)


def history_html(history: History) -> str:
    """The history as one HTML page that needs nothing else."""
    style = style_sheet("combined.css")
    rows = [
        {
            "title": subject_text(one),
            "level": level_text(history.metric, one),
            "picture": picture(history, one),
            "changes": [_cells(history.metric, change) for change in reversed(one.changes)],
            "notes": [
                *(drift_text(history.metric, drift) for drift in reversed(one.drifts)),
                *([outliers_text(history.metric, one)] if one.outliers else []),
            ],
        }
        for one in changed_first(history)
    ]
    values = {
        "history": history,
        "rows": rows,
        "order": history.order.value,
        "tolerance": units.share_text(history.tolerance),
    }
    return environment({}).get_template("history.html.j2").render(values, style=style, policy=policy(style))


def changed_first(history: History) -> list[Series]:
    """The series that changed, the newest change first, and the others in their order."""
    changed = [one for one in history.series if one.changes or one.drifts]
    steady = [one for one in history.series if not (one.changes or one.drifts)]
    return sorted(changed, key=lambda one: one.newest(), reverse=True) + steady


def changes_text(history: History, series: Series) -> list[str]:
    """Steps and drifts of a series, the newest first, then its outliers: a sentence each."""
    placed = [(change.index, change_text(history, change)) for change in series.changes]
    placed += [(drift.index, drift_text(history.metric, drift)) for drift in series.drifts]
    told = [text for _, text in sorted(placed, key=lambda one: one[0], reverse=True)]
    return [*told, outliers_text(history.metric, series)] if series.outliers else told


def subject_text(series: Series) -> str:
    """What a series is about, in one line."""
    own = series.subject
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
    ends = "" if change.ci95 is None else f" [{_percent(change.ci95[0])}, {_percent(change.ci95[1])}]"
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
    """The charts of the series below each other, those that changed first.

    Args:
        history: of a figure.
        most: series at most; the title says how many there are.
    """
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


def _line(series: Series) -> str:
    """The points as blocks of eight heights; long series are binned by medians."""
    values = [point.value for point in series.points]
    size = -(-len(values) // _WIDEST)
    binned = [sorted(values[i : i + size])[len(values[i : i + size]) // 2] for i in range(0, len(values), size)]
    low, high = min(binned), max(binned)
    if high <= low:
        return _BLOCKS[3] * len(binned)
    return "".join(_BLOCKS[min(7, int(8 * (value - low) / (high - low)))] for value in binned)


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
    return f"{(ratio - 1) * 100:+.1f} %"
