"""A history as a document, each series with its changes of level, and as charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from opscope.core import units
from opscope.core.parts import explained, noted
from opscope.core.stats.segments import FEWEST_RUNS
from opscope.fleet.analysis.history import FigureUnit, LevelDrift
from opscope.fleet.reports.common_moves import move_text
from opscope.reports.document.blocks import (
    Block,
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
from opscope.reports.document.html import html_document
from opscope.reports.document.template import picture
from opscope.reports.document.terminal import terminal_document
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK
from opscope.reports.pictures.pictures import drawn, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from opscope.fleet.analysis.history import History, LevelChange, Metric, Series, Subject
    from opscope.reports.pictures.pictures import Rows

_PICTURES = 12
"""Series that have a picture; the newest changes."""
_FOLD = Fold(30, 1_000, "--json has all, and --where chooses")
_TOLD = 50
"""Series on a terminal; those that changed are told however many they are."""
_FORMATS = {FigureUnit.TIME: Format.TIME, FigureUnit.SIZE: Format.SIZE, FigureUnit.RATIO: Format.RATIO}
_PICTURE_WIDTH, _PICTURE_HEIGHT = 560, 200
_MOST_POINTS = 1_000
_MOST_OUTLIERS = 5


def history_summary(history: History) -> RenderableType:
    """What a person reads after `opscope history`: those that changed, and of the others as many as have room."""
    changed, steady = _divided(history)
    shown = steady[: max(0, _TOLD - len(changed))]
    more = len(steady) - len(shown)
    sections = [_series_section(history, one) for one in [*changed, *shown]]
    rest = [Section(f"{more:,} more series without a change", [Sentence("--html shows them.")])] if more else []
    return terminal_document(_document(history, {}, [*sections, *rest], []))


def history_html(history: History) -> str:
    """The history as one HTML page that needs nothing else."""
    return html_document(history_document(history), styles=("fleet.css",))


def history_document(history: History) -> Document:
    """The newest changes with pictures; where there are more, and of series without a change, tables of a line each."""
    changed, steady = _divided(history)
    few = len(history.series) <= _PICTURES
    series = [*changed[:_PICTURES], *(one for one in steady if few and len(one.points) > 1)]
    subjects = {one.subject for one in series}
    rest = [one for one in steady if one.subject not in subjects]
    lost: dict[str, str] = {}
    sections: list[Section | None] = [_series_section(history, one) for one in series]
    if len(changed) > _PICTURES:
        sections.insert(0, noted(lost, "changed", "the table of changes", lambda: _changed(history, changed), None))
    if rest:
        sections.append(noted(lost, "steady", "the table of series", lambda: _steady(history, rest), None))
    return _document(history, lost, [], [*filter(None, sections), _method(history)])


def _document(history: History, lost: dict[str, str], blocks: Sequence[Block], sections: Sequence[Section]) -> Document:
    bugs = {
        subject_text(one.subject): f"{subject_text(one.subject)}: {level_text(history.metric, one)}"
        for one in _lost(history)
    }
    moves = noted(bugs, "moves", "what changes have in common", lambda: moves_text(history), list[str]())
    tiles = noted(bugs, "tiles", "the figures of the first screen", lambda: _tiles(history), list[HeadlineFigure]())
    order = "One series per model, device, variant and method. Changed series come first, newest change first."
    first = [
        Sentence(f"{history.store}. {order}", Tone.DIM),
        *(Sentence(f"{line}.", Tone.DIM) for line in left_out_lines(history)),
        *([Figures(tiles, alone=len(history.series) > 1)] if tiles else []),
        *(Sentence(line, Tone.BAD) for line in [*bugs.values(), *lost.values()]),
        *(Sentence(f"Together: {line}.") for line in moves),
        *blocks,
    ]
    return Document(f"{history.metric.name} by {history.order.value}", history_answer(history), first, sections)


def history_answer(history: History) -> str:
    """How many runs and series there are, and how many of them changed."""
    changed, steady = _divided(history)
    short = sum(1 for one in steady if one.not_judged)
    runs = units.counted_text(sum(len(one.points) for one in history.series), "run")
    judged = f"{len(changed)} changed{f', {short} not judged' if short else ''}"
    return f"{history.metric.name} by {history.order.value}: {runs}, {len(history.series)} series: {judged}"


def moves_text(history: History) -> list[str]:
    """What series have in common whose levels changed at the same time: a sentence each, the newest first."""
    return [move_text(move, latency=history.metric.unit is FigureUnit.TIME) for move in history.moves]


def left_out_lines(history: History) -> list[str]:
    """How many runs are not shown, and why; no line where there are none."""
    left = units.counted_text(history.left_out, "run")
    return [f"{left} without this figure or graded do_not_trust: excluded"] if history.left_out else []


def _tiles(history: History) -> list[HeadlineFigure]:
    """How many series there are, and what the newest change of each is."""
    newest = [_newest_change(one) for one in _divided(history)[0]]
    judged = sum(1 for one in history.series if one.not_judged is None)
    bug = ", or a bug in opscope" if _lost(history) else ""
    return [
        HeadlineFigure("series", f"{len(history.series):,}", ""),
        HeadlineFigure("newest regression", f"{sum(1 for one in newest if not one.better):,}", ""),
        HeadlineFigure("newest improvement", f"{sum(1 for one in newest if one.better):,}", ""),
        HeadlineFigure("without a change", f"{judged - len(newest):,}", ""),
        HeadlineFigure("not judged", f"{len(history.series) - judged:,}", f"too few runs, or zeros{bug}"),
    ]


def _lost(history: History) -> list[Series]:
    return [one for one in history.series if one.is_lost]


def _series_section(history: History, series: Series) -> Section:
    name, line = subject_text(series.subject), trend_text(_values(series))
    runs = picture(f"of {name}", lambda: drawn(series_chart(history, series)), instead=line)
    texts = explained(f"the changes of {name}", lambda: changes_text(history, series), lambda one: [one.sentence])
    return Section(name, [runs, Sentence(f"{level_text(history.metric, series)}."), Bullets(texts)])


def _changed(history: History, changed: Sequence[Series]) -> Section:
    """Series that changed, by the newest change of each."""
    form = _FORMATS[history.metric.unit]
    shown = table(
        [(_newest_change(one), one) for one in changed],
        column("change", Format.CHANGE, lambda row: changed_ratio(row[0].ratio, better=row[0].better)),
        column("when", Format.TEXT, lambda row: _when(row[0])),
        column("series", Format.TEXT, lambda row: subject_text(row[1].subject)),
        column("from", form, lambda row: row[0].from_value),
        column("to", form, lambda row: row[0].to_value),
        column("how", Format.TEXT, lambda row: f"{row[0].kind}{_known_text(row[0].acknowledged)}"),
        column("earlier", Format.COUNT, lambda row: len(row[1].steps_and_drifts()) - 1 or None),
        column("runs in order", Format.TREND, lambda row: _values(row[1])),
        label="Series that changed",
    ).folded(_FOLD)
    text = f"Sorted by newest change; charts of the {_PICTURES} newest are below."
    return Section(shown.label, [shown, Sentence(text, Tone.DIM)], "changed", "Changed")


def _when(change: LevelChange | LevelDrift) -> str:
    if isinstance(change, LevelDrift):
        return f"{change.first} to {change.last}"
    return change.label if change.earliest == change.latest else f"{change.before} to {change.label}"


def _steady(history: History, steady: Sequence[Series]) -> Section:
    """A line for each series without a change."""
    shown = table(
        steady,
        column("series", Format.TEXT, lambda one: subject_text(one.subject)),
        column("level", _FORMATS[history.metric.unit], lambda one: one.level),
        column("scatter", Format.SHARE, lambda one: one.scatter),
        column("runs", Format.COUNT, lambda one: TableCell(len(one.points), "not judged" if one.not_judged else "")),
        column("outliers", Format.COUNT, lambda one: len(one.outliers) or None),
        column("runs in order", Format.TREND, _values),
        label="Series without a change",
    ).folded(_FOLD)
    short = any(one.not_judged for one in steady)
    why = f"Not judged: there are fewer than {FEWEST_RUNS} runs, or some values are zero. " if short else ""
    sentence = Sentence(f"{why}A single run has no noise estimate and no line.", Tone.DIM)
    return Section(shown.label, [shown, sentence], "steady", "Without a change")


def _values(series: Series) -> tuple[float, ...]:
    return tuple(point.value for point in series.points)


def _method(history: History) -> Section:
    """How changes were found."""
    text = (
        "Steps, segments with their own level, and drifts are reported if trimmed runs differ by more than noise in "
        "98 % of series. Noise correlated from run to run widens the limits. Changes below "
        f"{units.share_text(history.tolerance)} are not reported. A change lies between two runs with a probability of "
        "98 %: neighbours where its place is certain. In charts, points are runs in order, not to scale in time; "
        "lines are levels and drifts. Brackets: the 95 % interval of a change."
    )
    return Section("How changes are found", [Sentence(text, Tone.DIM)], "method", "Method")


def _newest_change(series: Series) -> LevelChange | LevelDrift:
    """Of a series that changed."""
    return max(series.steps_and_drifts(), key=lambda change: change.seen)


def changed_first(history: History) -> list[Series]:
    """The series that changed, the newest change first, and then the others."""
    changed, steady = _divided(history)
    return [*changed, *steady]


def _divided(history: History) -> tuple[list[Series], list[Series]]:
    """The series that changed, the newest change first, and the others in their order."""
    changed = [one for one in history.series if one.steps_and_drifts()]
    steady = [one for one in history.series if not one.steps_and_drifts()]
    return sorted(changed, key=_when_seen, reverse=True), steady


def _when_seen(series: Series) -> str:
    """When the newest change was seen; runs of a version or a commit stand together, whenever they were added."""
    return max(series.points[change.seen].placed for change in series.steps_and_drifts())


def changes_text(history: History, series: Series) -> list[str]:
    """Steps and drifts of a series, the newest first, then its outliers: a sentence each."""
    newest_first = sorted(series.steps_and_drifts(), key=lambda change: change.index, reverse=True)
    texts = [change_text(history.metric, change) for change in newest_first]
    return [*texts, outliers_text(history.metric, series)] if series.outliers else texts


def subject_text(subject: Subject) -> str:
    """What runs are about, in one line."""
    model = " ".join(filter(None, (subject.model, subject.dtype)))
    threads = units.counted_text(subject.threads, "thread") if subject.threads else ""
    cpus = f"CPUs {subject.affinity}" if subject.affinity else ""
    how = ", ".join(filter(None, (threads, subject.target or "", subject.arm or "", cpus)))
    variant = ", ".join(filter(None, (subject.variant, subject.method)))
    return f"{plain(model)} on {plain(subject.device)}, {plain(variant)} ({plain(how)})"


def value_text(metric: Metric, value: float) -> str:
    """A value of the figure in its unit."""
    if metric.unit is FigureUnit.TIME:
        return units.time_text(value)
    return units.size_text(round(value)) if metric.unit is FigureUnit.SIZE else units.ratio_text(value)


def level_text(metric: Metric, series: Series) -> str:
    """The current level with its scatter, and why changes were not looked for."""
    scatter = "" if series.scatter is None else f", noise {units.share_text(series.scatter)}"
    runs = units.counted_text(len(series.current()), "run")
    text = f"{value_text(metric, series.level)} over {runs}{scatter}"
    if series.not_judged:
        return f"{text}; not searched for changes: {series.not_judged}"
    if series.segments[-1].drifts:
        return f"{text}, still drifting"
    return f"{text}; {'level since the last change' if len(series.segments) > 1 else 'no change of level'}"


def change_text(metric: Metric, change: LevelChange | LevelDrift) -> str:
    """A change of level, or a drift, in one sentence."""
    word = "better" if change.better else "worse"
    values = f"{value_text(metric, change.from_value)} to {value_text(metric, change.to_value)}"
    if isinstance(change, LevelDrift):
        values, ends = f"drifts from {values}", ""
        place = f"from {plain(change.first)} to {plain(change.last)}"
        runs = units.counted_text(change.runs, "run")
    else:
        ends = f" {units.interval_text(change.ci95, _percent)}"
        place = f"between {plain(change.before)} and {plain(change.label)}"
        runs = f"{change.runs[0]} and {change.runs[1]} runs"
    return f"{word}: {values}, {_percent(change.ratio)}{ends}, {place} ({runs}){_known_text(change.acknowledged)}"


def _known_text(note: str | None) -> str:
    return "" if note is None else f"; known: {plain(note)}"


def outliers_text(metric: Metric, series: Series) -> str:
    """The outliers of a series in one sentence, the newest first."""
    texts = [
        f"{plain(one.label)} ({value_text(metric, one.value)}, {_percent(one.ratio)})"
        for one in reversed(series.outliers[-_MOST_OUTLIERS:])
    ]
    more = len(series.outliers) - len(texts)
    return f"outliers: {', '.join(texts)}{f' and {more} earlier' if more else ''}"


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
        marks: Rows = [
            {"number": change.index - 0.5, "text": f"{_percent(change.ratio)} {_place(change)}"}
            for change in series.changes
        ]
        rule = alt.Chart(rows_of(marks)).encode(x="number:Q")
        layers.append(rule.mark_rule(strokeDash=[4, 3], color=INK))
        middle = len(series.points) / 2  # words stand to the side where there is room for them
        early, late = ([mark for mark in marks if (mark["number"] < middle) is left] for left in (True, False))
        layers.append(_words(early).mark_text(align="left", dx=-4, y=-6, color=INK, fontSize=11))
        layers.append(_words(late).mark_text(align="right", dx=4, y=-6, color=INK, fontSize=11))
    chart: alt.LayerChart = alt.layer(*layers).properties(width=_PICTURE_WIDTH, height=_PICTURE_HEIGHT)
    return chart


def _place(change: LevelChange) -> str:
    if change.earliest == change.latest:
        return f"at {plain(change.label, 24)}"
    return f"between {plain(change.before, 24)} and {plain(change.label, 24)}"


def _words(marks: Rows) -> alt.Chart:
    chart: alt.Chart = alt.Chart(rows_of(marks)).encode(x="number:Q", text="text:N")
    return chart


def history_chart(history: History, most: int) -> alt.VConcatChart:
    """The charts of the series below each other, those that changed first."""
    ordered = changed_first(history)
    charts = [
        series_chart(history, one).properties(title=_in_a_title(subject_text(one.subject))) for one in ordered[:most]
    ]
    chart: alt.VConcatChart = alt.vconcat(*charts)
    if len(ordered) > len(charts):
        chart = chart.properties(title=f"{len(charts)} of {len(ordered)} series, changed ones first")
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


def _percent(ratio: float) -> str:
    return units.signed_share_text(ratio - 1)
