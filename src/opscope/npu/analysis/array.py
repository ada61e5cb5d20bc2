"""Several tiles as one machine: what an iteration takes from the first start to the last end, and who makes it wait."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text, share_text
from opscope.npu.analysis.calls import START
from opscope.npu.analysis.cycles import category_name
from opscope.npu.analysis.findings import tile_finding
from opscope.npu.analysis.tiles_result import (
    AlignAt,
    ArrayView,
    LeftOutCore,
    Moment,
    Slowest,
    SystemIteration,
    TileTimes,
    TimeAlignment,
    TimerOffset,
    all_known,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.npu.analysis.tiles_result import TracedCore

    _Common = tuple[TracedCore, list[Iteration]]  # a core, and those of its iterations that all cores have


_BROADCAST = "BROADCAST"
"""How events begin that reach all tiles at once, but for a few cycles a hop."""
ALIKE = 0.01
"""Tiles whose iterations differ by less are equally fast."""
BEHIND = 0.05
"""How much longer than the others' the iterations of the slowest core must be for it to be worth a look."""
APART = 0.01
"""Share of an iteration by which cores may start at different times and still start together."""
APART_MUCH = 0.1
"""Share from which it is worth doing something about it."""


def align(tiles: Sequence[TileTrace], at: AlignAt = "auto") -> TimeAlignment:
    """Put tiles into one time.

    That one tile starts later than another is real until something proves otherwise: traces are started by one
    broadcast, so their times are a common time already. A broadcast that was traced everywhere, or the timers that the
    raw words hold, place them exactly, unless the traces would then not overlap: such timers were not started together.
    """

    def shifted(
        shifts: Sequence[int], reason: str, by: Moment = "trace_start", event: str | None = None
    ) -> TimeAlignment:
        offsets = tuple(TimerOffset(tile.tile, shift) for tile, shift in zip(tiles, shifts, strict=True))
        return TimeAlignment(event, offsets, reason, by)

    if len(tiles) < 2:  # noqa: PLR2004 - one tile has no others
        return shifted([0] * len(tiles), "a single tile needs no alignment")
    every = f"all {counted_text(len(tiles), 'tile')}"
    firsts = [
        {slot.name: int(slot.spans.start.min()) for slot in reversed(tile.slots) if len(slot.spans.start)}
        for tile in tiles
    ]
    event = _common_event(firsts, at)
    if event is not None:
        earliest = min(first[event] for first in firsts)
        shifts = [earliest - first[event] for first in firsts]
        if event == START:
            reason = f"the first {START} of {every} count as one moment, as requested: later starts are not visible"
            return shifted(shifts, reason, "first_call", event)
        reason = f"{event} is in the traces of {every}, and reaches them within a few cycles per hop"
        return shifted(shifts, reason, "broadcast", event)
    timers = [tile.start_timer for tile in tiles if tile.start_timer is not None]
    why = "the trace has no timers (JSON has none), so a late start is not visible"
    if len(timers) == len(tiles):
        spread = max(timers) - min(timers)
        do_overlap = spread <= min(tile.last for tile in tiles)
        if at == "auto" and do_overlap:
            reason = f"the timers of {every} align them: their traces start {spread:,} cycles apart"
            return shifted([timer - min(timers) for timer in timers], reason, "timer")
        apart = "" if do_overlap else ", more than a trace lasts, so they do not run together"
        why = f"their timers differ by {spread:,} cycles{apart}"
    reason = f"all traces count as started at one moment, since one broadcast starts them; {why}"
    return shifted([0] * len(tiles), reason)


def _common_event(firsts: Sequence[dict[str, int]], at: AlignAt) -> str | None:
    """Return the event whose first occurrence is one moment on all tiles. None without one, and where none is asked."""
    common = set(firsts[0]).intersection(*firsts[1:])
    if at == "auto":
        broadcasts = [name for name in common if name.startswith(_BROADCAST)]
        return min(broadcasts, key=lambda name: (firsts[0][name], name), default=None)
    return START if at == "first-call" and START in common else None


def view_array(
    cores: Sequence[TracedCore], specification: RunSpecification, at: AlignAt = "auto"
) -> tuple[ArrayView, list[Message]]:
    """View all cores together, and report what does not fit.

    Those with unreliable times are left out where there are others.
    """
    left_out = [core for core in cores if len(cores) > 1 and core.row.unsure_losses]
    sure = [core for core in cores if core not in left_out]
    alignment = align([core.tile for core in sure], at)
    shifts = [shift.cycles for shift in alignment.shifts]
    numbers, window = list[int](), None
    if left_out and len(sure) < 2:  # noqa: PLR2004 - one core has no others
        rest = f"only the times of tile {sure[0].tile.tile} are reliable" if sure else "none are reliable"
        reason = f"packets of the other cores were lost, so their times are unreliable; {rest}"
    else:
        numbers, reason = _common_iterations(sure)
        calls = [(core.calls, shift) for core, shift in zip(sure, shifts, strict=True) if core.row.window_cycles]
        if calls:
            first = min(int(spans.start[0]) + shift for spans, shift in calls)
            window = max(int(spans.end[-1]) + shift for spans, shift in calls) - first
    common = [(core, [row for row in core.row.iterations if row.number in numbers]) for core in sure if numbers]
    system = tuple(_system_iteration(position, common, shifts, specification) for position in range(len(numbers)))
    lasts, times = Counter(row.last_tile for row in system), list[TileTimes]()
    for core, rows in common:
        spans = [row.cycles for row in rows]
        times.append(TileTimes(core.tile.tile, float(median(spans)), min(spans), max(spans), lasts[core.tile.tile]))
    macs, peaks = (
        all_known(getattr(core.row, name) for core in sure) if window else [] for name in ("macs", "peak_mac_per_cycle")
    )
    runtime, skew = (
        median(getattr(row, name) for row in system) if system else None
        for name in ("runtime_cycles", "start_skew_cycles")
    )
    view = ArrayView(
        alignment=alignment,
        iterations=system,
        median_runtime_cycles=runtime,
        balance=_balance_of([tile.median_cycles for tile in times]) if times else None,
        tiles=tuple(times),
        slowest=find_slowest(common),
        reason=reason,
        median_start_skew_cycles=skew,
        window_cycles=window,
        mac_per_cycle=sum(macs) / window if window and macs else None,
        utilisation=sum(macs) / window / sum(peaks) if window and macs and peaks else None,
        in_call=sum(core.row.cycles.in_call.total for core in sure) / (window * len(sure)) if window else None,
        left_out=tuple(LeftOutCore(core.tile.tile, _damage_text(core)) for core in left_out),
    )
    return view, [
        *_report_core_count(cores, specification),
        *_report_start_skew(view),
        *(
            tile_finding(
                "core_left_out",
                Severity.MEDIUM,
                title=f"tile {core.tile} is excluded from the figures of all cores",
                evidence=f"{core.reason}: its later times are unreliable",
                where=f"tile {core.tile}",
                step="capture again without dropping packets",
            )
            for core in view.left_out
        ),
    ]


def _damage_text(core: TracedCore) -> str:
    unsure = core.row.unsure_losses
    more = f" and in {counted_text(len(unsure) - 1, 'more place')}" if len(unsure) > 1 else ""
    return f"its packets were lost or damaged {unsure[0].place}{more}"


def _common_iterations(cores: Sequence[TracedCore]) -> tuple[list[int], str]:
    """Return the numbers of the iterations that are measured on all cores, and which these are in words."""
    if not cores:
        return [], "there is no core"
    numbers_by_core = [{row.number for row in core.row.iterations if row.phase == "measured"} for core in cores]
    common = sorted(set.intersection(*numbers_by_core))
    if not common:
        empty = [core.tile.tile for core, numbers in zip(cores, numbers_by_core, strict=True) if not numbers]
        lacking = f"tiles {' and '.join(empty[:3])} have none" if empty else "they have different ones"
        return [], f"no measured iteration is complete on all cores: {lacking}"
    left_out = len(set.union(*numbers_by_core)) - len(common)
    aside = f"; {left_out} are not on all of them and are excluded" if left_out else ""
    return common, f"{counted_text(len(common), 'iteration')} measured and complete on all cores{aside}"


def _system_iteration(
    position: int, common: Sequence[_Common], shifts: Sequence[int], specification: RunSpecification
) -> SystemIteration:
    rows = [(core, iterations[position]) for core, iterations in common]
    starts = [row.start + shift for (_, row), shift in zip(rows, shifts, strict=True)]
    ends = [row.end + shift for (_, row), shift in zip(rows, shifts, strict=True)]
    runtime, rate = max(ends) - min(starts), None
    if specification.tiling is not None and runtime and all(core.row.mac_per_cycle is not None for core, _ in rows):
        calls = sum(
            row.lost_calls + int(core.kinds.work[row.first_call : row.last_call + 1].sum()) for core, row in rows
        )
        rate = calls * specification.tiling.macs_per_call / runtime
    tiles, spans = [core.tile.tile for core, _ in rows], [row.cycles for _, row in rows]
    return SystemIteration(
        number=rows[0][1].number,
        start=min(starts),
        end=max(ends),
        runtime_cycles=runtime,
        longest_cycles=max(spans),
        start_skew_cycles=max(starts) - min(starts),
        first_tile=tiles[starts.index(min(starts))],
        last_tile=tiles[ends.index(max(ends))],
        balance=_balance_of(spans),
        mac_per_cycle=rate,
        starts_last=tiles[starts.index(max(starts))],
    )


def _balance_of(cycles: Sequence[float]) -> float:
    return sum(cycles) / len(cycles) / max(cycles) if max(cycles) else 1.0


def find_slowest(common: Sequence[_Common]) -> Slowest | None:
    """Return the slowest tile. None with fewer than two, and when it is no slower than the others."""
    spent = {core.tile.tile: float(median(row.cycles for row in rows)) for core, rows in common}
    tile = max(spent, key=lambda name: spent[name], default="")
    other_tiles = [name for name in spent if name != tile]
    usual = median(spent[name] for name in other_tiles) if other_tiles else 0.0
    if not other_tiles or spent[tile] <= usual * (1 + ALIKE):
        return None
    cycles, calls = {}, {}
    for core, rows in common:
        split = core.active.split(np.array([row.start for row in rows]), np.array([row.end for row in rows]))
        cycles[core.tile.tile] = {category: float(counts.mean()) for category, counts in split.items()}
        calls[core.tile.tile] = sum(row.calls for row in rows) / len(rows)
    growth = {key: count - median(cycles[name][key] for name in other_tiles) for key, count in cycles[tile].items()}
    category, excess = max(growth, key=lambda key: growth[key]), spent[tile] - usual
    cause = {"vector": "vector work", "other": "other work"}.get(category, category_name(category))
    more_calls = calls[tile] - median(calls[name] for name in other_tiles)
    is_waiting = category in {"stream_stall", "cascade_stall", "lock_stall"}
    why = "".join(
        (
            f"{growth[category]:,.0f} more cycles per iteration in {cause}",
            f", {share_text(min(1.0, growth[category] / excess))} of the difference" if excess > 0 else "",
            f"; it makes {more_calls:g} more calls per iteration" if more_calls > 0 else "",
            "; it waits for data or buffers: check what feeds or drains it" if is_waiting else "",
        )
    )
    return Slowest(tile, spent[tile], usual, excess, category, growth[category], why)


def _report_core_count(cores: Sequence[TracedCore], specification: RunSpecification) -> Iterator[Message]:
    tiling = specification.tiling
    if tiling is None or len(cores) == tiling.cores:
        return
    are_more = len(cores) > tiling.cores
    yield tile_finding(
        "cores_do_not_match",
        Severity.MEDIUM if are_more else Severity.INFO,
        title=f"the trace has {'more' if are_more else 'fewer'} cores than were given",
        evidence=f"{counted_text(len(cores), 'core')} traced, {tiling.rows} x {tiling.columns} given",
        where="array",
        step="check row and col"
        if are_more
        else "trace the others too to see the whole array; rates cover traced cores only",
    )


def _report_start_skew(view: ArrayView) -> Iterator[Message]:
    system, skew, runtime = view.iterations, view.median_start_skew_cycles, view.median_runtime_cycles
    if not runtime or not skew or skew <= APART * runtime:
        return
    late = Counter(row.starts_last for row in system).most_common(1)[0][0]
    message = tile_finding(
        "cores_start_apart",
        Severity.MEDIUM if skew >= APART_MUCH * runtime else Severity.INFO,
        title=f"the cores start an iteration {skew:,.0f} cycles apart: {share_text(skew / runtime)} of its runtime",
        evidence=f"tile {system[0].first_tile} starts first, tile {late} last; {view.alignment.reason}",
        where="array",
        step="find out what delays the late core; --align first-call shows them as if they started together",
    )
    yield message.about(saving_cycles=sum(row.start_skew_cycles for row in system))


def report_slowest(view: ArrayView) -> Iterator[Message]:
    """Report a core that the others wait for, and what to do about it."""
    late = view.slowest
    if late is None or late.excess_cycles < BEHIND * late.others_cycles:
        return
    share = late.excess_cycles / late.others_cycles
    message = tile_finding(
        "slowest_tile",
        Severity.MEDIUM,
        title=f"tile {late.tile} takes {share_text(share)} longer per iteration than the others",
        evidence=f"{late.median_cycles:,.0f} cycles against {late.others_cycles:,.0f}: {late.why}",
        where=f"tile {late.tile}",
        step="give it less work, or find out how its data supply differs from its neighbours",
    )
    yield message.about(saving_cycles=late.excess_cycles * len(view.iterations))
