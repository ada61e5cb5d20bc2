"""Pictures of AI Engine tiles as SVG: where the cycles go, the array, and what happened when.

Places are in per cent, so a picture is as wide as its page. Colours are those of the stalls in every picture.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.units import share_text
from opscope.reports.content.text import plain
from opscope.reports.html.pictures import INK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints

COLOURS = {
    "vector": "#54a69f",
    "memory_stall": "#f58518",
    "stream_stall": "#4c78a8",
    "cascade_stall": "#b279a2",
    "lock_stall": "#e45756",
    "other": "#9d9d9d",
}
"""Colour of each category of cycles."""
KIND_COLOURS = ("#4c78a8", "#f58518", "#54a69f", "#b279a2", "#e45756", "#9d9d9d")
"""Colours of kinds of kernels, in their order."""
_BETWEEN = 0.5
"""Opacity of cycles between calls."""
_BAR, _GAP, _LABEL = 20, 6, 9.0
_BINS = 1000
_LEVELS = 4
_LANE = 18
_CELL_HEIGHT = 46
_LEAST = 0.0005
_LABELLED = 0.055
_ALIKE = 0.02


class BarSegment(NamedTuple):
    """A part of a bar: what it is, its share of the bar, its colour, and whether it is drawn pale."""

    label: str
    share: float
    colour: str
    pale: bool = False


class Cell(NamedTuple):
    """A tile of the array: its place, its value from 0 to 1, and the texts in and behind it."""

    row: int
    column: int
    value: float | None
    text: str
    title: str


class Lane(NamedTuple):
    """A line of a timeline: its label, its colour, and sorted, disjoint stretches of cycles, the ends not in them."""

    label: str
    colour: str
    start: Ints
    end: Ints


def bars(rows: Sequence[tuple[str, Sequence[BarSegment]]], title: str) -> str:
    """One bar a row, its segments side by side."""
    height = len(rows) * (_BAR + _GAP)
    inside = (part for place, row in enumerate(rows) for part in _bar(place * (_BAR + _GAP), *row))
    return _svg("bars", title, height, inside)


def _bar(top: int, label: str, segments: Sequence[BarSegment]) -> Iterator[str]:
    yield _text(_LABEL - 0.6, top + 14, plain(label, 14), anchor="end")
    left, scale = _LABEL, (100 - _LABEL)
    for segment in segments:
        width = segment.share * scale
        if segment.share >= _LEAST:
            opacity = f' fill-opacity="{_BETWEEN}"' if segment.pale else ""
            title = escape(f"{segment.label}: {share_text(segment.share)}")
            yield (
                f'<rect x="{left:.3f}%" y="{top}" width="{width:.3f}%" height="{_BAR}" fill="{segment.colour}"'
                f"{opacity}><title>{title}</title></rect>"
            )
        if segment.share >= _LABELLED:
            yield _text(
                left + width / 2,
                top + 14,
                f"{segment.share * 100:.0f} %",
                "middle",
                "currentColor" if segment.pale else "#000000",
            )
        left += width


def heat_map(cells: Sequence[Cell], title: str) -> str:
    """The array as it lies on the chip: row 0 at the bottom, columns from left to right; the stronger the larger."""
    rows = sorted({cell.row for cell in cells}, reverse=True)
    columns = list(range(min(cell.column for cell in cells), max(cell.column for cell in cells) + 1))
    width = (100 - _LABEL) / max(len(columns), 4)
    inside = [_text(_LABEL - 0.6, place * _CELL_HEIGHT + 26, f"row {row}", "end") for place, row in enumerate(rows)]
    bottom = len(rows) * _CELL_HEIGHT + 14
    inside += [
        _text(_LABEL + (place + 0.5) * width, bottom, f"column {column}", "middle")
        for place, column in enumerate(columns)
    ]
    known = [cell.value for cell in cells if cell.value is not None]
    scale = (min(known), max(known)) if known else (0.0, 0.0)
    for cell in cells:
        left = _LABEL + columns.index(cell.column) * width
        inside.append(_cell(cell, left, rows.index(cell.row) * _CELL_HEIGHT, width, scale))
    return _svg("map", title, bottom + 6, inside)


def _strength(value: float | None, scale: tuple[float, float]) -> float:
    """Opacity of a value between the smallest and the largest; all alike where these hardly differ."""
    low, high = scale
    if value is None:
        return 0.0
    return 0.9 if high - low <= _ALIKE * high else 0.25 + 0.65 * (value - low) / (high - low)


def _cell(cell: Cell, left: float, top: int, width: float, scale: tuple[float, float]) -> str:
    opacity = _strength(cell.value, scale)
    box = (
        f'<rect x="{left + 0.15:.3f}%" y="{top + 1}" width="{width - 0.3:.3f}%" height="{_CELL_HEIGHT - 2}" '
        f'fill="{COLOURS["vector"]}" fill-opacity="{opacity:.3f}" stroke="{INK}" stroke-opacity="0.4">'
        f"<title>{escape(cell.title)}</title></rect>"
    )
    return box + _text(left + width / 2, top + 27, cell.text, "middle", colour="currentColor")


def timeline(lanes: Sequence[Lane], span: tuple[int, int], title: str) -> str:
    """Lanes over cycles from ``span[0]`` to ``span[1]``; the stronger the colour, the more of a stretch is active."""
    height = len(lanes) * (_LANE + 3)
    inside = [part for place, lane in enumerate(lanes) for part in _lane(place * (_LANE + 3), lane, span)]
    inside += _axis(span, height)
    return _svg("timeline", title, height + 20, inside)


def _lane(top: int, lane: Lane, span: tuple[int, int]) -> Iterator[str]:
    yield _text(_NAME - 0.6, top + 13, plain(lane.label, 18), anchor="end")
    levels = np.ceil(covered(lane.start, lane.end, span, _BINS) * _LEVELS).astype(np.int64)
    edges = np.flatnonzero(np.concatenate([[True], levels[1:] != levels[:-1], [True]]))
    scale = (100 - _NAME) / _BINS
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        level = int(levels[first])
        if level:
            yield (
                f'<rect x="{_NAME + first * scale:.2f}%" y="{top}" width="{(last - first) * scale:.2f}%" '
                f'height="{_LANE}" fill="{lane.colour}" fill-opacity="{level / _LEVELS:g}"/>'
            )


_NAME = 14.0


def _axis(span: tuple[int, int], top: int) -> Iterator[str]:
    for part in range(5):
        x = _NAME + (100 - _NAME) * part / 4
        anchor = {0: "start", 4: "end"}.get(part, "middle")
        unit = " cycles" if part == 0 else ""
        yield _text(x, top + 14, f"{span[0] + (span[1] - span[0]) * part // 4:,}{unit}", anchor)


def covered(start: Ints, end: Ints, span: tuple[int, int], bins: int) -> NDArray[np.float64]:
    """Share of each of the equal parts of ``span`` that disjoint, sorted intervals cover; shape (bins,)."""
    edges = np.linspace(span[0], span[1], bins + 1)
    if not len(start) or span[1] <= span[0]:
        return np.zeros(bins)
    times = np.ravel(np.column_stack([start, end])).astype(np.float64)
    reached = np.ravel(np.column_stack([np.cumsum(end - start) - (end - start), np.cumsum(end - start)]))
    active = np.interp(edges, times, reached)
    share: NDArray[np.float64] = np.clip(np.diff(active) / np.diff(edges), 0.0, 1.0)
    return share


def legend(names: Iterable[tuple[str, str]]) -> str:
    """Colours with their names, as a line of markup."""
    chips = (
        f'<span><svg class="key" width="11" height="11" aria-hidden="true"><rect width="11" height="11" '
        f'fill="{colour}"/></svg> {escape(name)}</span>'
        for name, colour in names
    )
    return f'<div class="legend">{"".join(chips)}</div>'


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.2f}%" y="{y:g}" text-anchor="{anchor}" font-size="12" fill="{colour}">{escape(text)}</text>'


def _svg(kind: str, title: str, height: int, inside: Iterable[str]) -> str:
    content = "\n".join(inside)
    head = f'<svg class="{kind}" role="img" aria-label="{escape(title)}" width="100%" height="{height}">'
    return f"{head}\n{content}\n</svg>"
