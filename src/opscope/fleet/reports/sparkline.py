"""A series of values in the height of a line: as SVG for a page, as blocks for a terminal. Words are next to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
