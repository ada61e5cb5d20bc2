"""Pictures of AI Engine tiles as SVG: where the cycles go, the array, and what happened when.

Places are in per cent, so a picture is as wide as its page. Colours are those of the stalls in every picture.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.reports.pictures.bars import INK, beside, lettering, svg

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
_BINS = 1000
_LEVELS = 4
_LANE = 18
_CELL_HEIGHT = 46
_FAINTEST, _STRONGEST = 0.06, 0.9
_FEWEST_COLUMNS = 4
_SHORT = 9


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


def heat_map(cells: Sequence[Cell], title: str) -> str:
    """The array as it lies on the chip: row 0 at the bottom, columns from left to right; the stronger the nearer to 1.

    The scale is the same for every trace, so that an array that is evenly slow looks slow.
    """
    rows = sorted({cell.row for cell in cells}, reverse=True)
    columns = list(range(min(cell.column for cell in cells), max(cell.column for cell in cells) + 1))
    width = 100 / max(len(columns), _FEWEST_COLUMNS)
    bottom = len(rows) * _CELL_HEIGHT + 14
    inside = [lettering((place + 0.5) * width, bottom, str(column), "middle") for place, column in enumerate(columns)]
    for cell in cells:
        left = columns.index(cell.column) * width
        inside.append(_cell(cell, left, rows.index(cell.row) * _CELL_HEIGHT, width))
    names = [*(f"row {row}" for row in rows), "column"]
    return beside("map", names, svg("map", title, bottom + 6, inside))


def map_legend(full: str) -> str:
    """The colours of a heat map from 0 to 100 %, as a line of markup."""
    steps = [0.0, 0.25, 0.5, 0.75, 1.0]
    names = [*(f"{step * 100:.0f} %" for step in steps[:-1]), f"100 % {full}"]
    opacities = (f' fill-opacity="{_strength(step):.3f}"' for step in steps)
    return _chips((name, COLOURS["vector"], opacity) for name, opacity in zip(names, opacities, strict=True))


def _strength(value: float | None) -> float:
    """Opacity of a value from 0 to 1."""
    return 0.0 if value is None else _FAINTEST + (_STRONGEST - _FAINTEST) * min(max(value, 0.0), 1.0)


def _cell(cell: Cell, left: float, top: int, width: float) -> str:
    box = (
        f'<rect x="{left + 0.15:.3f}%" y="{top + 1}" width="{width - 0.3:.3f}%" height="{_CELL_HEIGHT - 2}" '
        f'fill="{COLOURS["vector"]}" fill-opacity="{_strength(cell.value):.3f}" stroke="{INK}" stroke-opacity="0.4">'
        f"<title>{escape(cell.title)}</title></rect>"
    )
    return box + lettering(left + width / 2, top + 27, cell.text, "middle", colour="currentColor")


def timeline(lanes: Sequence[Lane], span: tuple[int, int], title: str) -> str:
    """Lanes over cycles from ``span[0]`` to ``span[1]``; the stronger the colour, the more of a stretch is active."""
    height = len(lanes) * (_LANE + 3)
    inside = [part for place, lane in enumerate(lanes) for part in _lane(place * (_LANE + 3), lane, span)]
    inside += _axis(span, height)
    names = [*(lane.label for lane in lanes), "cycle"]
    return beside("timeline", names, svg("timeline", title, height + 20, inside))


def _lane(top: int, lane: Lane, span: tuple[int, int]) -> Iterator[str]:
    levels = np.ceil(covered(lane.start, lane.end, span, _BINS) * _LEVELS).astype(np.int64)
    edges = np.flatnonzero(np.concatenate([[True], levels[1:] != levels[:-1], [True]]))
    scale = 100 / _BINS
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        level = int(levels[first])
        if level:
            yield (
                f'<rect x="{first * scale:.2f}%" y="{top}" width="{(last - first) * scale:.2f}%" '
                f'height="{_LANE}" fill="{lane.colour}" fill-opacity="{level / _LEVELS:g}"/>'
            )


def _axis(span: tuple[int, int], top: int) -> Iterator[str]:
    """Five cycles under the lanes; a narrow screen shows three of them, or both ends where they are long."""
    for part in range(5):
        text = f"{span[0] + (span[1] - span[0]) * part // 4:,}"
        anchor = {0: "start", 4: "end"}.get(part, "middle")
        minor = part % 2 == 1 or (part == 2 and len(text) > _SHORT)  # noqa: PLR2004 - the one in the middle
        yield lettering(25.0 * part, top + 14, text, anchor, minor=minor)


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
    return _chips((name, colour, "") for name, colour in names)


def _chips(names: Iterable[tuple[str, str, str]]) -> str:
    """Names with their colours, and what is to be said of these."""
    chips = (
        f'<span><svg class="key" width="11" height="11" aria-hidden="true"><rect width="11" height="11" '
        f'fill="{colour}"{opacity}/></svg> {escape(name)}</span>'
        for name, colour, opacity in names
    )
    return f'<div class="legend">{"".join(chips)}</div>'
