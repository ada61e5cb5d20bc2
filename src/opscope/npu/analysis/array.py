"""Several tiles as one machine: what an iteration takes from the first start to the last end, and who makes it wait."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text, share_text
from opscope.npu.analysis.calls import START
from opscope.npu.analysis.cycles import category_name, split_by
from opscope.npu.analysis.damage import where_text
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
    from collections.abc import Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.damage import LostPackets
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.npu.analysis.tiles_result import TracedCore

    _Common = tuple[TracedCore, list[Iteration]]  # a core, and those of its iterations that all cores have


_BROADCAST = "BROADCAST"
"""How events begin that reach all tiles at once, but for a few cycles a hop."""


def align(tiles: Sequence[TileTrace], at: AlignAt = "auto") -> TimeAlignment:
    """Put tiles into one time.

    That one tile starts later than another is real until something proves otherwise: traces are started by one
    broadcast, so their times are a common time already. A broadcast that was traced everywhere, or the timers that the
    raw words hold, place them exactly, unless the traces would then not overlap: such timers were not started together.
    """
    if len(tiles) < 2:  # noqa: PLR2004 - one tile has no others
        return _shift_tiles(tiles, [0] * len(tiles), "a single tile needs no alignment", "trace_start")
    every, firsts = f"all {counted_text(len(tiles), 'tile')}", [_first_cycles(tile) for tile in tiles]
    event = _common_event(firsts, at)
    if event is not None:
        earliest = min(first[event] for first in firsts)
        reason = f"{event} is in the traces of {every}, and reaches them within a few cycles per hop"
        if event == START:
            reason = f"the first {START} of {every} count as one moment, as requested: later starts are not visible"
        by: Moment = "first_call" if event == START else "broadcast"
        return _shift_tiles(tiles, [earliest - first[event] for first in firsts], reason, by, event)
    timers = [tile.start_timer for tile in tiles if tile.start_timer is not None]
    why = "the trace has no timers (JSON has none), so a late start is not visible"
    if len(timers) == len(tiles):
        spread = max(timers) - min(timers)
        do_overlap = spread <= min(tile.last for tile in tiles)
        if at == "auto" and do_overlap:
            reason = f"the timers of {every} align them: their traces start {spread:,} cycles apart"
            return _shift_tiles(tiles, [timer - min(timers) for timer in timers], reason, "timer")
        apart = "" if do_overlap else ", more than a trace lasts, so they do not run together"
        why = f"their timers differ by {spread:,} cycles{apart}"
    reason = f"all traces count as started at one moment, since one broadcast starts them; {why}"
    return _shift_tiles(tiles, [0] * len(tiles), reason, "trace_start")


def _shift_tiles(
    tiles: Sequence[TileTrace], shifts: Sequence[int], reason: str, by: Moment, event: str | None = None
) -> TimeAlignment:
    offsets = tuple(TimerOffset(tile.tile, shift) for tile, shift in zip(tiles, shifts, strict=True))
    return TimeAlignment(event, offsets, reason, by)


def _first_cycles(tile: TileTrace) -> dict[str, int]:
    used = [slot for slot in tile.slots if len(slot.spans.start)]
    return {slot.name: int(slot.spans.start.min()) for slot in reversed(used)}


def _common_event(firsts: Sequence[dict[str, int]], at: AlignAt) -> str | None:
    """Return the event whose first occurrence is one moment on all tiles. None without one, and where none is asked."""
    common = set(firsts[0]).intersection(*firsts[1:])
    if at == "auto":
        broadcasts = [name for name in common if name.startswith(_BROADCAST)]
        return min(broadcasts, key=lambda name: (firsts[0][name], name), default=None)
    return START if at == "first-call" and START in common else None


ALIKE = 0.01
"""Tiles whose iterations differ by less are equally fast."""
_WORDS = {"vector": "vector work", "other": "other work"}


def find_slowest(each: Sequence[_Common]) -> Slowest | None:
    """Return the slowest tile. None with fewer than two, and when it is no slower than the others."""
    seen = {core.tile.tile: (core, own) for core, own in each}
    spent = {tile: float(median(one.cycles for one in own)) for tile, (_, own) in seen.items()}
    name = max(spent, key=lambda tile: spent[tile], default="")
    others = [tile for tile in seen if tile != name]
    usual = median(spent[tile] for tile in others) if others else 0.0
    if not others or spent[name] <= usual * (1 + ALIKE):
        return None
    cycles = {tile: _mean_cycles_by_category(core, own) for tile, (core, own) in seen.items()}
    growth = {key: own - median(cycles[tile][key] for tile in others) for key, own in cycles[name].items()}
    category, excess = max(growth, key=lambda key: growth[key]), spent[name] - usual
    calls = {tile: sum(one.calls for one in own) / len(own) for tile, (_, own) in seen.items()}
    more_calls = calls[name] - median(calls[tile] for tile in others)
    why = _slowness_text(category, growth[category], excess, more_calls)
    return Slowest(name, spent[name], usual, excess, category, growth[category], why)


def _mean_cycles_by_category(core: TracedCore, iterations: Sequence[Iteration]) -> dict[str, float]:
    split = split_by(core.known, np.array([one.start for one in iterations]), np.array([one.end for one in iterations]))
    return {category: float(cycles.mean()) for category, cycles in split.items()}


def _slowness_text(category: str, growth: float, excess: float, calls: float) -> str:
    more = f"{growth:,.0f} more cycles per iteration in {_WORDS.get(category, category_name(category))}"
    share = f", {share_text(min(1.0, growth / excess))} of the difference" if excess > 0 else ""
    work = f"; it makes {calls:g} more calls per iteration" if calls > 0 else ""
    waits = "; it waits for data or buffers: check what feeds or drains it" if category in _WAITING else ""
    return f"{more}{share}{work}{waits}"


_WAITING = frozenset({"stream_stall", "cascade_stall", "lock_stall"})


def array_view(cores: Sequence[TracedCore], said: RunSpecification, at: AlignAt = "auto") -> ArrayView:
    """View all cores together, but for those with unreliable times where there are others."""
    left_out = [core for core in cores if len(cores) > 1 and _find_unsure_losses(core)]
    sure = [core for core in cores if core not in left_out]
    alignment = align([core.tile for core in sure], at)
    shifts = [shift.cycles for shift in alignment.shifts]
    numbers, reason, window = list[int](), "", None
    if left_out and len(sure) < 2:  # noqa: PLR2004 - one core has no others
        left = f"only the times of tile {sure[0].tile.tile} are reliable" if sure else "none are reliable"
        reason = f"packets of the other cores were lost, so their times are unreliable; {left}"
    else:
        numbers, reason = _common_iterations(sure)
        window = _common_window(sure, shifts)
    each = [(core, [one for one in core.row.iterations if one.number in numbers]) for core in sure if numbers]
    system = tuple(_system_iteration(place, number, each, shifts, said) for place, number in enumerate(numbers))
    last = Counter(one.last_tile for one in system)
    times = tuple(_tile_times(core.tile.tile, own, last[core.tile.tile]) for core, own in each)
    macs, peaks = (
        all_known(getattr(core.row, name) for core in sure) if window else [] for name in ("macs", "peak_mac_per_cycle")
    )
    return ArrayView(
        alignment=alignment,
        iterations=system,
        median_runtime_cycles=median(one.runtime_cycles for one in system) if system else None,
        balance=_balance_of([own.median_cycles for own in times]) if times else None,
        tiles=times,
        slowest=find_slowest(each),
        reason=reason,
        findings=(
            *_report_core_count(cores, said),
            *_report_start_skew(system, alignment),
            *map(_report_left_out, left_out),
        ),
        median_start_skew_cycles=median(one.start_skew_cycles for one in system) if system else None,
        window_cycles=window,
        mac_per_cycle=sum(macs) / window if window and macs else None,
        utilisation=sum(macs) / window / sum(peaks) if window and macs and peaks else None,
        in_call=sum(core.row.cycles.in_call.total for core in sure) / (window * len(sure)) if window else None,
        left_out=tuple(LeftOutCore(core.tile.tile, _damage_text(core)) for core in left_out),
    )


def _find_unsure_losses(core: TracedCore) -> list[LostPackets]:
    return [packets for packets in core.row.lost_packets if not packets.times_kept]


def _damage_text(core: TracedCore) -> str:
    unsure = _find_unsure_losses(core)
    more = f" and in {counted_text(len(unsure) - 1, 'more place')}" if len(unsure) > 1 else ""
    return f"its packets were lost or damaged {where_text(unsure[0])}{more}"


def _report_left_out(core: TracedCore) -> Message:
    return tile_finding(
        "core_left_out",
        Severity.MEDIUM,
        title=f"tile {core.tile.tile} is excluded from the figures of all cores",
        evidence=f"{_damage_text(core)}: its later times are unreliable",
        where=f"tile {core.tile.tile}",
        step="capture again without dropping packets",
    )


def _common_window(cores: Sequence[TracedCore], shifts: Sequence[int]) -> int | None:
    """Return the cycles from the first start of a call to the last end on all cores. None without calls."""
    shifted = [(core.pairing.calls, shift) for core, shift in zip(cores, shifts, strict=True) if core.row.window_cycles]
    if not shifted:
        return None
    first = min(int(calls.start[0]) + shift for calls, shift in shifted)
    return max(int(calls.end[-1]) + shift for calls, shift in shifted) - first


def _common_iterations(cores: Sequence[TracedCore]) -> tuple[list[int], str]:
    if not cores:
        return [], "there is no core"
    each = [{own.number for own in core.row.iterations if own.phase == "measured"} for core in cores]
    common = sorted(set.intersection(*each))
    if not common:
        empty = [core.tile.tile for core, own in zip(cores, each, strict=True) if not own]
        lacking = f"tiles {' and '.join(empty[:3])} have none" if empty else "they have different ones"
        return [], f"no measured iteration is complete on all cores: {lacking}"
    left_out = len(set.union(*each)) - len(common)
    aside = f"; {left_out} are not on all of them and are excluded" if left_out else ""
    return common, f"{counted_text(len(common), 'iteration')} measured and complete on all cores{aside}"


def _system_iteration(
    place: int, number: int, each: Sequence[_Common], shifts: Sequence[int], said: RunSpecification
) -> SystemIteration:
    rows = [(core, iterations[place]) for core, iterations in each]
    starts = [one.start + shift for (_, one), shift in zip(rows, shifts, strict=True)]
    ends = [one.end + shift for (_, one), shift in zip(rows, shifts, strict=True)]
    runtime, rate = max(ends) - min(starts), None
    if said.tiling is not None and runtime and all(core.row.mac_per_cycle is not None for core, _ in rows):
        calls = sum(
            one.lost_calls + int(core.work.multiplies[one.first_call : one.last_call + 1].sum()) for core, one in rows
        )
        rate = calls * said.tiling.macs_per_call / runtime
    tiles, spans = [core.tile.tile for core, _ in rows], [one.cycles for _, one in rows]
    return SystemIteration(
        number=number,
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


def _tile_times(tile: str, iterations: Sequence[Iteration], ends_last: int) -> TileTimes:
    spans = [one.cycles for one in iterations]
    return TileTimes(tile, float(median(spans)), min(spans), max(spans), ends_last)


def _report_core_count(cores: Sequence[TracedCore], said: RunSpecification) -> list[Message]:
    if said.tiling is None or len(cores) == said.tiling.cores:
        return []
    wanted = f"{said.tiling.rows} x {said.tiling.columns}"
    many = len(cores) > said.tiling.cores
    severity = Severity.MEDIUM if many else Severity.INFO
    return [
        tile_finding(
            "cores_do_not_match",
            severity,
            title=f"the trace has {'more' if many else 'fewer'} cores than were given",
            evidence=f"{counted_text(len(cores), 'core')} traced, {wanted} given",
            where="array",
            step="check row and col"
            if many
            else "trace the others too to see the whole array; rates cover traced cores only",
        )
    ]


APART = 0.01
"""Share of an iteration by which cores may start at different times and still start together."""
APART_MUCH = 0.1
"""Share from which it is worth doing something about it."""


def _report_start_skew(system: Sequence[SystemIteration], alignment: TimeAlignment) -> list[Message]:
    skew = median(one.start_skew_cycles for one in system) if system else 0
    runtime = median(one.runtime_cycles for one in system) if system else 0
    if not runtime or skew <= APART * runtime:
        return []
    first, late = system[0], Counter(one.starts_last for one in system).most_common(1)[0][0]
    severity = Severity.MEDIUM if skew >= APART_MUCH * runtime else Severity.INFO
    saved = sum(one.start_skew_cycles for one in system)
    return [
        tile_finding(
            "cores_start_apart",
            severity,
            title=f"the cores start an iteration {skew:,.0f} cycles apart: {share_text(skew / runtime)} of its runtime",
            evidence=f"tile {first.first_tile} starts first, tile {late} last; {alignment.reason}",
            where="array",
            step="find out what delays the late core; --align first-call shows them as if they started together",
        ).about(saving_cycles=saved)
    ]
