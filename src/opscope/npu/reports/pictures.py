"""What the pictures of a trace of AI Engine tiles show: which stretches, which lanes, which calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import altair as alt
import msgspec
import numpy as np

from opscope.core.units import counted_text, rate_text, share_text
from opscope.npu.analysis.cycles import EVENTS, cover
from opscope.npu.reports.answer import CATEGORY_NAMES, busyness
from opscope.npu.reports.drawing import (
    COLOURS,
    KIND_COLOURS,
    Cell,
    Lane,
    heat_map,
    map_legend,
    timeline,
)
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import INK, Bar, BarSegment, bars
from opscope.reports.pictures.pictures import drawn, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.npu.analysis.roofline import TileRoofline
    from opscope.npu.analysis.tiles_result import TileRow
    from opscope.npu.analysis.traced_core import TracedCore

    Rows: TypeAlias = list[dict[str, Any]]

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
    """Where the cycles of each core went: in calls, then, pale, between them."""
    return bars([Bar(row.tile, _segments(row)) for row in rows[:MOST_BARS]], "Cycles of each core by activity")


def _segments(row: TileRow) -> list[BarSegment]:
    found = []
    for where, split, pale in (
        ("in calls", row.cycles.in_call, False),
        ("between calls", row.cycles.between_calls, True),
    ):
        for name, count in msgspec.structs.asdict(split).items():
            share = count / row.window_cycles
            found.append(BarSegment(f"{CATEGORY_NAMES[name]} {where}", share, COLOURS[name], pale))
    return found


def summed_bar(rows: Sequence[TileRow]) -> str:
    """The same for all cores together, in one bar."""
    window = sum(row.window_cycles for row in rows)
    parts = [[segment.share * row.window_cycles for segment in _segments(row)] for row in rows]
    shares = [sum(column) / window for column in zip(*parts, strict=True)]
    merged = [segment._replace(share=share) for segment, share in zip(_segments(rows[0]), shares, strict=True)]
    return bars([Bar(counted_text(len(rows), "core"), merged)], "Cycles of all cores by activity")


def array_map(rows: Sequence[TileRow]) -> str | None:
    """Utilisation of each core where it lies, or how much of it is in calls; None for a single core."""
    if len(rows) < 2:  # noqa: PLR2004 - one tile is not an array
        return None
    of_peak, values = busyness(rows)
    picture = heat_map(list(map(_cell, rows, values)), "Utilisation of the cores of the array")
    return picture + map_legend("of the peak" if of_peak else "of the cycles in calls")


def _cell(row: TileRow, value: float) -> Cell:
    place = [int(part) for part in row.tile.split(",")]
    inside = row.cycles.in_call.total / row.window_cycles
    rate = "" if row.mac_per_cycle is None else f", {rate_text(row.mac_per_cycle)} MAC per cycle"
    title = f"tile {row.tile}: {share_text(inside)} in calls{rate}"
    return Cell(place[0], place[1], value, f"{value * 100:.0f} %", title)


def whole_timeline(cores: Sequence[TracedCore], shifts: Mapping[str, int]) -> str:
    """Calls of every core over the whole trace; of many cores one lane each."""
    lanes = [
        lane._replace(start=lane.start + by, end=lane.end + by)
        for core in cores[:MOST_BARS]
        for by in (shifts.get(core.tile.tile, 0),)
        for lane in _whole_lanes(core, len(cores))
    ]
    last = max(core.tile.last + shifts.get(core.tile.tile, 0) for core in cores)
    return timeline(lanes, (min(shifts.values(), default=0), last), "Calls over the whole trace")


def _whole_lanes(core: TracedCore, count: int) -> list[Lane]:
    if count <= FEW:
        return _kind_lanes(core, core.tile.tile if count > 1 else "")
    return [Lane(core.tile.tile, kind_colour(0), core.pairing.calls.start, core.pairing.calls.end)]


def close_timeline(core: TracedCore) -> str | None:
    """A few periods in the middle of a core's calls, with all its slots; None without calls."""
    span = close_span(core)
    if span is None:
        return None
    return timeline([*_kind_lanes(core), *_slot_lanes(core)], span, f"A few calls of tile {core.tile.tile}")


def close_span(core: TracedCore) -> tuple[int, int] | None:
    """The stretch that the close view shows: some calls in the middle, with what is before the first."""
    calls = core.pairing.calls
    if not len(calls):
        return None
    first = max(0, len(calls) // 2 - _PERIODS // 2)
    last = min(len(calls) - 1, first + _PERIODS - 1)
    before = int(calls.end[first - 1]) if first else int(calls.start[first])
    return before, int(calls.end[last]) + max(1, (int(calls.end[last]) - before) // 40)


def _kind_lanes(core: TracedCore, prefix: str = "") -> list[Lane]:
    calls, labels = core.pairing.calls, core.kinds.labels
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
    """Colour of the kind of this place."""
    return KIND_COLOURS[number % len(KIND_COLOURS)]


def _slot_lanes(core: TracedCore) -> list[Lane]:
    """What is active besides calls; marks of calls are not drawn again."""
    labels, found = {port.name: port.label for port in core.ports}, []
    for slot in core.tile.slots:
        if len(slot.spans.start) and not slot.name.startswith("INSTR_EVENT_"):
            active = cover(slot.spans.start, slot.spans.end)
            found.append(
                Lane(labels.get(slot.name, slot.name), _EVENT_COLOURS.get(slot.name, _PLAIN), active.start, active.end)
            )
    return found


def call_durations(core: TracedCore) -> str | None:
    """Duration of each call in order of time; None without calls. Of very many, stretches with their range."""
    calls = core.pairing.calls
    if not len(calls):
        return None
    rows = [row for number in range(len(core.kinds.kinds)) for row in _points(core, number)]
    names = [kind.kind for kind in core.kinds.kinds]
    scale = alt.Scale(domain=names, range=[kind_colour(number) for number in range(len(names))])
    colour = alt.Color("kind:N", scale=scale, title=None, legend=alt.Legend(orient="top"))
    x = alt.X("call:Q", title="call", axis=alt.Axis(tickMinStep=1))
    y = alt.Y("cycles:Q", title="cycles", scale=alt.Scale(zero=True))
    dots = alt.Chart(rows_of(rows)).mark_circle(size=22, opacity=0.8).encode(x=x, y=y, color=colour)
    ranges = alt.Chart(rows_of(rows)).mark_rule().encode(x=x, y="low:Q", y2="high:Q", color=colour)
    return drawn(alt.layer(ranges, dots).properties(width=_WIDTH, height=_HEIGHT))


def _points(core: TracedCore, number: int) -> Rows:
    name = plain(core.kinds.kinds[number].kind, 30)
    where = np.flatnonzero(core.kinds.labels == number)
    durations = core.pairing.calls.durations[where]
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


def roofline_of(rows: Sequence[TileRow]) -> str | None:
    """Cores under the peak and what their streams feed, on logarithmic scales; None where that is not known."""
    points = [point for row in rows for point in _achieved(row)]
    shown = next((row.roofline for row in rows if row.roofline and row.roofline.ceilings), None)
    if not points or shown is None:
        return None
    lines, names = _ceilings(shown, [point["intensity"] for point in points])
    log = alt.Scale(type="log", nice=False, padding=18)
    x = alt.X("intensity:Q", scale=log, title="MAC per stream byte")
    y = alt.Y("rate:Q", scale=log, title="MAC per cycle")
    scale = alt.Scale(domain=list(_ACHIEVED), range=[COLOURS["vector"], COLOURS["lock_stall"]])
    colour = alt.Color(
        "what:N", scale=scale, title=None, legend=alt.Legend(orient="top", labelLimit=300, columnPadding=30)
    )
    drawn_lines = alt.Chart(rows_of(lines)).mark_line(color=INK).encode(x=x, y=y, detail="line:N")
    marks = alt.Chart(rows_of(names)).encode(x=x, y=y)
    labels = marks.mark_text(align="left", dx=7, dy=12, color=INK, fontSize=11).encode(text="name:N")
    ticks = marks.mark_point(shape="diamond", size=40, color=INK)
    dots = alt.Chart(rows_of(points)).mark_circle(size=70, opacity=0.8).encode(x=x, y=y, color=colour)
    return drawn(alt.layer(drawn_lines, ticks, labels, dots).properties(width=_WIDTH, height=240))


_ACHIEVED = ("in the median period", "in the whole window")


def _achieved(row: TileRow) -> Rows:
    """What a core reached, above the stream that allows least."""
    roofline = row.roofline
    if roofline is None:
        return []
    lowest = next((ceiling for ceiling in roofline.ceilings if ceiling.mac_per_byte), None)
    if lowest is None:
        return []
    values = zip(_ACHIEVED, (roofline.steady, roofline.window), strict=True)
    return [{"intensity": lowest.mac_per_byte, "rate": value, "what": what} for what, value in values if value]


def _ceilings(roofline: TileRoofline, around: Sequence[float]) -> tuple[Rows, Rows]:
    """The peak and the rise of one stream as lines; the place of each operand's stream on it."""
    streams = [(c.name, c.mac_per_byte, c.mac_per_cycle) for c in roofline.ceilings if c.mac_per_byte]
    peak = next((c.mac_per_cycle for c in roofline.ceilings if not c.mac_per_byte), None)
    speed = streams[0][2] / streams[0][1]
    places = [place for _, place, _ in streams] + list(around)
    left, right = min(places) / 2, max(places) * 2
    top = right * speed if peak is None else peak
    corner = min(right, top / speed)
    lines: Rows = [{"line": "stream", "intensity": at, "rate": at * speed} for at in (left, corner)]
    if peak is not None:
        lines += [{"line": "peak", "intensity": at, "rate": peak} for at in (corner, max(right, corner * 1.5))]
    names: Rows = [{"name": name, "intensity": place, "rate": rate} for name, place, rate in streams]
    return lines, names
