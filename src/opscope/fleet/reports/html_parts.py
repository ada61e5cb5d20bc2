"""Parts of pages on a fleet: a series in the height of a line, as SVG or blocks with words next to it; long lists.

Of a long list some rows are shown at once and more are folded, up to a bound that is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60
_STEP, _HEIGHT, _MARGIN = 2, 12, 2
_FEWEST = 2


def sparkline(values: Sequence[float]) -> str:
    """The values as a line from their lowest to their highest, with a dot at the newest; nothing for a single value."""
    if len(values) < _FEWEST:
        return ""
    binned = _binned(values)
    low, span = min(binned), max(binned) - min(binned)
    heights = [round(_HEIGHT * (1 - (value - low) / span)) if span > 0 else _HEIGHT // 2 for value in binned]
    places = [(_MARGIN + _STEP * number, _MARGIN + height) for number, height in enumerate(heights)]
    line = " ".join(f"{x},{y}" for x, y in places)
    width, height = places[-1][0] + _MARGIN, _HEIGHT + 2 * _MARGIN
    x, y = places[-1]
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f'<polyline points="{line}"/><circle cx="{x}" cy="{y}" r="2"/></svg>'
    )


def blocks(values: Sequence[float]) -> str:
    """The values as blocks of eight heights; long series are binned by medians."""
    binned = _binned(values)
    low, high = min(binned), max(binned)
    if high <= low:
        return _BLOCKS[3] * len(binned)
    return "".join(_BLOCKS[min(7, int(8 * (value - low) / (high - low)))] for value in binned)


def _binned(values: Sequence[float]) -> list[float]:
    size = -(-len(values) // _WIDEST)
    return [sorted(values[i : i + size])[len(values[i : i + size]) // 2] for i in range(0, len(values), size)]


class Listed(NamedTuple):
    """The rows of a list that are shown at once, those that are folded, and how many the page leaves out."""

    first: Sequence[Any]
    folded: Sequence[Any]
    left_out: int

    @property
    def total(self) -> int:
        """All of them."""
        return len(self.first) + len(self.folded) + self.left_out


def listed(rows: Sequence[Any], shown: int, most: int) -> Listed:
    """The rows, as far as there is room."""
    return Listed(rows[:shown], rows[shown:most], max(0, len(rows) - most))
