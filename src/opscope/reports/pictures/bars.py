"""Bars of a page, drawn in per cent: as wide as the page, with letters of one size on any screen.

Names of lines stand beside a picture as text of the page, in a column that is as wide as they need, on a narrow screen
as on a wide one.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Role
from opscope.core.units import ratio_text, share_text, time_text
from opscope.program.operators.kinds import Category
from opscope.reports.document.html import COLOURS, legend
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.reports.content.content import ReportContent


INK = "#808080"
"""Grey that is legible on light and dark ground."""
_BETWEEN = 0.5
"""Opacity of pale segments."""
_BAR, _GAP = 20, 6
_LEAST = 0.0005
_LABELLED, _ROOMY = 0.055, 0.13
_LONGEST_NAME = 30


class BarSegment(NamedTuple):
    """Part of a bar: its label, its share of the bar, its colour, and whether it is pale."""

    label: str
    share: float
    colour: str
    pale: bool = False


class Bar(NamedTuple):
    """Line of a bar chart: its name, its segments, its length relative to the longest, or words in their place."""

    name: str
    segments: Sequence[BarSegment]
    length: float = 1.0
    words: str = ""


def bars(rows: Sequence[Bar], title: str) -> str:
    """Return a bar chart with a bar per row, its segments side by side."""
    height = len(rows) * (_BAR + _GAP)
    elements = (part for number, row in enumerate(rows) for part in _bar_elements(number * (_BAR + _GAP), row))
    return beside("bars", [row.name for row in rows], svg("bars", title, height, elements))


def _bar_elements(top: int, row: Bar) -> Iterator[str]:
    start = 0.0
    if row.words:
        yield lettering(0, top + 14, row.words)
    for segment in row.segments:
        part = segment.share * row.length
        width = part * 100
        if part >= _LEAST:
            opacity = f' fill-opacity="{_BETWEEN}"' if segment.pale else ""
            title = escape(f"{segment.label}: {share_text(segment.share)}")
            yield (
                f'<rect x="{start:.3f}%" y="{top}" width="{width:.3f}%" height="{_BAR}" fill="{segment.colour}"'
                f"{opacity}><title>{title}</title></rect>"
            )
        if part >= _LABELLED:
            colour = "currentColor" if segment.pale else "#000000"
            text = f"{segment.share * 100:.0f} %"
            yield lettering(start + width / 2, top + 14, text, "middle", colour, minor=part < _ROOMY)
        start += width


def beside(kind: str, names: Sequence[str], picture: str) -> str:
    """Return a picture with the names of its lines in a column to the left."""
    lines = "".join(f"<span>{escape(plain(name, _LONGEST_NAME))}</span>" for name in names)
    return f'<div class="lines {kind}"><div class="names">{lines}</div>{picture}</div>'


def lettering(x: float, y: float, words: str, anchor: str = "start", colour: str = INK, *, minor: bool = False) -> str:
    """Return a text element; a minor one is hidden on a narrow screen."""
    kind = ' class="minor"' if minor else ""
    position = f'x="{x:.2f}%" y="{y:g}" text-anchor="{anchor}"'
    return f'<text{kind} {position} font-size="12" fill="{colour}">{escape(words)}</text>'


def svg(kind: str, title: str, height: int, elements: Iterable[str]) -> str:
    """Return a picture as wide as its page."""
    content = "\n".join(elements)
    head = f'<svg class="{kind}" role="img" aria-label="{escape(title)}" width="100%" height="{height}">'
    return f"{head}\n{content}\n</svg>"


_PAIR = 2


class SplitBar(NamedTuple):
    """Latency of a variant and the times of its categories in ns; no times if only shares are known."""

    name: str
    headline_ns: float
    times_ns: Mapping[Category, float]
    factor: float  # of the traced call to the latency: too large or too small where there are no times


def category_shift(content: ReportContent) -> str | None:
    """Return a bar per variant, of two the baseline first; None if no category has a time."""
    analysed = [(result.variant, result.analysis) for result in content.variants if result.analysis is not None]
    if len(analysed) == _PAIR:
        analysed.sort(key=lambda pair: pair[0].role is not Role.BASELINE)
    rows = [
        SplitBar(
            variant.name,
            analysis.headline_ns,
            {row.category: row.time_ns for row in analysis.categories if row.time_ns is not None},
            analysis.factor,
        )
        for variant, analysis in analysed
    ]
    return split_bars(rows)


def compared_split(comparison: Comparison) -> str | None:
    """Return a bar for either side of a comparison."""
    changes, (before, after) = comparison.categories, (comparison.baseline, comparison.candidate)
    sides = (
        ("baseline", before.headline_ns, {row.category: row.baseline_ns for row in changes}, before.factor),
        ("candidate", after.headline_ns, {row.category: row.candidate_ns for row in changes}, after.factor),
    )
    return split_bars([SplitBar(*side) for side in sides])


def split_bars(rows: Sequence[SplitBar]) -> str | None:
    """Return the bars with a legend; a row without times says why it has no bar."""
    longest = max((row.headline_ns for row in rows if row.times_ns), default=0)
    if longest <= 0:
        return None
    drawn = [
        Bar(_row_name(row), _category_segments(row), row.headline_ns / longest, _no_times_text(row)) for row in rows
    ]
    return f"{legend((category.value, category) for category in Category)}{bars(drawn, 'Latency by category')}"


def _row_name(row: SplitBar) -> str:
    return f"{row.name}, {time_text(row.headline_ns)}"


def _no_times_text(row: SplitBar) -> str:
    if row.times_ns or not row.factor:
        return ""
    return f"tracing takes {ratio_text(row.factor)}: shares only"


def _category_segments(row: SplitBar) -> list[BarSegment]:
    return [
        BarSegment(category.value, time / row.headline_ns, COLOURS[category])
        for category in Category
        if (time := row.times_ns.get(category, 0)) > 0
    ]
