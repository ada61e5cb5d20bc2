"""Pictures of a trace of AI Engine tiles as SVG: where the cycles go, the array, and what happened when.

Places are in per cent, so a picture is as wide as its page. Colours are those of the stalls in every picture.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import msgspec
import numpy as np

from opscope.core.units import counted_text
from opscope.npu.analysis.cycles import EVENTS, cover
from opscope.npu.reports.answer import CATEGORY_NAMES
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import Bar, BarSegment, bars, beside, lettering, svg
from opscope.reports.pictures.pictures import render_chart, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.npu.analysis.tiles_result import TileRow, TracedCore


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
_SHORT = 9


class Lane(NamedTuple):
    """A line of a timeline: its label, its colour, and sorted, disjoint stretches of cycles, the ends not in them."""

    label: str
    colour: str
    start: Ints
    end: Ints


def timeline(lanes: Sequence[Lane], span: tuple[int, int], title: str) -> str:
    """Draw lanes over the cycles of ``span``; the stronger the colour, the more of a stretch is active."""
    height = len(lanes) * (_LANE + 3)
    drawing = [part for row, lane in enumerate(lanes) for part in _draw_lane(row * (_LANE + 3), lane, span)]
    drawing += _draw_axis(span, height)
    names = [*(lane.label for lane in lanes), "cycle"]
    return beside("timeline", names, svg("timeline", title, height + 20, drawing))


def _draw_lane(top: int, lane: Lane, span: tuple[int, int]) -> Iterator[str]:
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


def _draw_axis(span: tuple[int, int], top: int) -> Iterator[str]:
    """Draw five cycles under the lanes; a narrow screen shows three of them, or both ends where they are long."""
    for part in range(5):
        text = f"{span[0] + (span[1] - span[0]) * part // 4:,}"
        anchor = {0: "start", 4: "end"}.get(part, "middle")
        minor = part % 2 == 1 or (part == 2 and len(text) > _SHORT)  # noqa: PLR2004 - the one in the middle
        yield lettering(25.0 * part, top + 14, text, anchor, minor=minor)


def covered(start: Ints, end: Ints, span: tuple[int, int], bins: int) -> NDArray[np.float64]:
    """Return the share of each of the equal parts of ``span`` that disjoint, sorted intervals cover; shape (bins,)."""
    edges = np.linspace(span[0], span[1], bins + 1)
    if not len(start) or span[1] <= span[0]:
        return np.zeros(bins)
    times = np.ravel(np.column_stack([start, end])).astype(np.float64)
    reached = np.ravel(np.column_stack([np.cumsum(end - start) - (end - start), np.cumsum(end - start)]))
    active = np.interp(edges, times, reached)
    share: NDArray[np.float64] = np.clip(np.diff(active) / np.diff(edges), 0.0, 1.0)
    return share


def category_legend() -> str:
    """Return the colours of categories with their names, as a line of markup."""
    chips = (
        f'<span><svg class="key" width="11" height="11" aria-hidden="true"><rect width="11" height="11" '
        f'fill="{colour}"/></svg> {escape(CATEGORY_NAMES[category])}</span>'
        for category, colour in COLOURS.items()
    )
    return f'<div class="legend">{"".join(chips)}</div>'


_WIDTH, _HEIGHT = 860, 190
_MOST_POINTS = 1200
_PERIODS = 4
MOST_BARS = 32
"""Cores that are drawn one by one."""
FEW = 4
"""Cores that stand on the first screen one by one; of more, all together."""
_EVENT_COLOURS = {event: COLOURS[category] for category, event in EVENTS.items()}
_PLAIN = "#7f8fa6"


def cycle_bars(rows: Sequence[TileRow]) -> str:
    """Draw the cycles of each core: in calls, then, pale, between them."""
    return bars([Bar(row.tile, _bar_segments(row)) for row in rows[:MOST_BARS]], "Cycles of each core by activity")


def _bar_segments(row: TileRow) -> list[BarSegment]:
    segments = []
    for where, split, pale in (
        ("in calls", row.cycles.in_call, False),
        ("between calls", row.cycles.between_calls, True),
    ):
        for name, count in msgspec.structs.asdict(split).items():
            share = count / row.window_cycles
            segments.append(BarSegment(f"{CATEGORY_NAMES[name]} {where}", share, COLOURS[name], pale))
    return segments


def summed_bar(rows: Sequence[TileRow]) -> str:
    """Draw the cycles of all cores together in one bar."""
    window = sum(row.window_cycles for row in rows)
    parts = [[segment.share * row.window_cycles for segment in _bar_segments(row)] for row in rows]
    shares = [sum(column) / window for column in zip(*parts, strict=True)]
    merged = [segment._replace(share=share) for segment, share in zip(_bar_segments(rows[0]), shares, strict=True)]
    return bars([Bar(counted_text(len(rows), "core"), merged)], "Cycles of all cores by activity")


def whole_timeline(cores: Sequence[TracedCore], shifts: Mapping[str, int]) -> str:
    """Draw the calls of every core over the whole trace; of many cores one lane each."""
    lanes = []
    for core in cores[:MOST_BARS]:
        tile, calls, shift = core.tile.tile, core.calls, shifts.get(core.tile.tile, 0)
        one_lane = [Lane(tile, KIND_COLOURS[0], calls.start, calls.end)]
        core_lanes = _kind_lanes(core, tile if len(cores) > 1 else "") if len(cores) <= FEW else one_lane
        lanes += [lane._replace(start=lane.start + shift, end=lane.end + shift) for lane in core_lanes]
    last = max(core.tile.last + shifts.get(core.tile.tile, 0) for core in cores)
    return timeline(lanes, (min(shifts.values(), default=0), last), "Calls over the whole trace")


def close_timeline(core: TracedCore) -> str:
    """Draw a few periods in the middle of a core's calls, with all its slots and what is before the first call."""
    calls = core.calls
    first = max(0, len(calls) // 2 - _PERIODS // 2)
    last = int(calls.end[min(len(calls) - 1, first + _PERIODS - 1)])
    before = int(calls.end[first - 1]) if first else int(calls.start[first])
    lanes, labels = _kind_lanes(core), {port.name: port.label for port in core.ports}
    for slot in core.tile.slots:
        if len(slot.spans.start) and not slot.name.startswith("INSTR_EVENT_"):
            active = cover(slot.spans.start, slot.spans.end)
            colour = _EVENT_COLOURS.get(slot.name, _PLAIN)
            lanes.append(Lane(labels.get(slot.name, slot.name), colour, active.start, active.end))
    span = before, last + max(1, (last - before) // 40)
    return timeline(lanes, span, f"A few calls of tile {core.tile.tile}")


def _kind_lanes(core: TracedCore, prefix: str = "") -> list[Lane]:
    calls, labels = core.calls, core.kinds.labels
    return [
        Lane(
            f"{prefix} {kind.kind}".strip(),
            kind_colour(number),
            calls.start[labels == number],
            calls.end[labels == number],
        )
        for number, kind in enumerate(core.kinds.kinds)
    ]


def kind_colour(number: int) -> str:
    """Return the colour of the kind at a position."""
    return KIND_COLOURS[number % len(KIND_COLOURS)]


def call_durations(core: TracedCore) -> str:
    """Draw the duration of each call in order of time; of very many, stretches with their range."""
    names = [plain(kind.kind, 30) for kind in core.kinds.kinds]
    rows = [row for number, name in enumerate(names) for row in _duration_points(core, number, name)]
    scale = alt.Scale(domain=names, range=[kind_colour(number) for number in range(len(names))])
    colour = alt.Color("kind:N", scale=scale, title=None, legend=alt.Legend(orient="top"))
    x = alt.X("call:Q", title="call", axis=alt.Axis(tickMinStep=1))
    y = alt.Y("cycles:Q", title="cycles", scale=alt.Scale(zero=True))
    dots = alt.Chart(rows_of(rows)).mark_circle(size=22, opacity=0.8).encode(x=x, y=y, color=colour)
    ranges = alt.Chart(rows_of(rows)).mark_rule().encode(x=x, y="low:Q", y2="high:Q", color=colour)
    return render_chart(alt.layer(ranges, dots).properties(width=_WIDTH, height=_HEIGHT))


def _duration_points(core: TracedCore, number: int, name: str) -> list[dict[str, Any]]:
    where = np.flatnonzero(core.kinds.labels == number)
    durations = core.calls.durations[where]
    parts = np.array_split(np.arange(len(where)), min(len(where), _MOST_POINTS))
    return [
        {
            "kind": name,
            "call": float(where[part].mean()) + 1,
            "cycles": float(np.median(durations[part])),
            "low": int(durations[part].min()),
            "high": int(durations[part].max()),
        }
        for part in parts
    ]
