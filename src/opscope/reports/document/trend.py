"""Values in order in the height of a line: as blocks of eight heights, or as a picture for pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60
_STEP, _HEIGHT, _MARGIN = 2, 12, 2
_FEWEST = 2


def trend_text(values: Sequence[float]) -> str:
    """The values as blocks, from the lowest to the highest; nothing for a single value."""
    return "".join(_BLOCKS[min(7, int(8 * height))] for height in _heights(values, flat=3 / 8))


def trend_svg(values: Sequence[float]) -> str:
    """The values as a line from their lowest to their highest, with a dot at the newest; nothing for a single value."""
    heights = [round(_HEIGHT * (1 - height)) for height in _heights(values, flat=1 / 2)]
    if not heights:
        return ""
    places = [(_MARGIN + _STEP * number, _MARGIN + height) for number, height in enumerate(heights)]
    line = " ".join(f"{x},{y}" for x, y in places)
    (x, y), height = places[-1], _HEIGHT + 2 * _MARGIN
    return (
        f'<svg class="spark" viewBox="0 0 {x + _MARGIN} {height}" width="{x + _MARGIN}" height="{height}" '
        f'aria-hidden="true"><polyline points="{line}"/><circle cx="{x}" cy="{y}" r="2"/></svg>'
    )


def _heights(values: Sequence[float], flat: float) -> list[float]:
    """From 0 to 1, or ``flat`` where all are equal; many values are binned by medians."""
    if len(values) < _FEWEST:
        return []
    size = -(-len(values) // _WIDEST)
    bins = [sorted(values[at : at + size]) for at in range(0, len(values), size)]
    binned = [one[len(one) // 2] for one in bins]
    low, span = min(binned), max(binned) - min(binned)
    return [(value - low) / span if span > 0 else flat for value in binned]
