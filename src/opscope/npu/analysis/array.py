"""Several tiles as one machine: what an iteration takes from the first start to the last end, and who makes it wait."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text, share_text
from opscope.npu.analysis.calls import START
from opscope.npu.analysis.cycles import category_name, split_by
from opscope.npu.analysis.damage import where_text
from opscope.npu.analysis.findings import tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.npu.analysis.traced_core import TracedCore

    _Common = tuple[TracedCore, list[Iteration]]  # a core, and those of its iterations that all cores have


AlignAt = Literal["auto", "trace-start", "first-call"]
"""What counts as one moment: whatever proves a common time, the starts of all traces, or the first calls."""
Moment = Literal["broadcast", "timer", "trace_start", "first_call"]
_BROADCAST = "BROADCAST"
"""How events begin that reach all tiles at once, but for a few cycles a hop."""


class TimerOffset(msgspec.Struct, frozen=True):
    """What is added to the times of a tile.

    Attributes:
        tile: as ``ROW,COL``.
        cycles: added. By timers, 0 for the tile whose trace started first, else above 0; by an event, 0 for the tile
            where it came first in its trace, else below 0.
    """

    tile: str
    cycles: int


class TimeAlignment(msgspec.Struct, frozen=True):
    """The common time of several tiles.

    Attributes:
        event: whose first occurrence counts as one moment; null when there is none.
        shifts: of the tiles, in their order.
        reason: why this, and what it assumes.
        by: ``broadcast``: an event that reached all tiles at once; ``timer``: the timers that the raw words hold;
            ``trace_start``: all traces count as started at one moment; ``first_call``: the first calls do.
        start_spread_cycles: from the first start of a trace to the last, by the tiles' timers; null without timers.
    """

    event: str | None
    shifts: tuple[TimerOffset, ...]
    reason: str
    by: Moment = "trace_start"
    start_spread_cycles: int | None = None


def align(tiles: Sequence[TileTrace], at: AlignAt = "auto") -> TimeAlignment:
    """Put tiles into one time.

    That one tile starts later than another is real until something proves otherwise: traces are started by one
    broadcast, so their times are a common time already. A broadcast that was traced everywhere, or the timers that the
    raw words hold, place them exactly.
    """
    timers = [tile.start_timer for tile in tiles if tile.start_timer is not None]
    spread = max(timers) - min(timers) if timers and len(timers) == len(tiles) else None
    if len(tiles) < 2:  # noqa: PLR2004 - one tile has no others
        alignment = _by_start(tiles, spread)
    elif at == "auto":
        alignment = _by_broadcast(tiles) or _by_timer(tiles, spread) or _by_start(tiles, spread)
    elif at == "first-call":
        alignment = _by_first_call(tiles) or _by_start(tiles, spread)
    else:
        alignment = _by_start(tiles, spread)
    return msgspec.structs.replace(alignment, start_spread_cycles=spread)


def _by_broadcast(tiles: Sequence[TileTrace]) -> TimeAlignment | None:
    firsts = [_first_cycles(tile) for tile in tiles]
    common = set(firsts[0]).intersection(*firsts[1:]) if firsts else set()
    at_once = [name for name in common if name.startswith(_BROADCAST)]
    if not at_once:
        return None
    event = min(at_once, key=lambda name: (firsts[0][name], name))
    reason = f"{event} is in the traces of {_all_tiles_text(tiles)}, and reaches them within a few cycles per hop"
    return _at_event(tiles, firsts, event, reason, "broadcast")


def _by_first_call(tiles: Sequence[TileTrace]) -> TimeAlignment | None:
    firsts = [_first_cycles(tile) for tile in tiles]
    if not firsts or any(START not in own for own in firsts):
        return None
    reason = (
        f"the first {START} of {_all_tiles_text(tiles)} count as one moment, as requested: later starts are not visible"
    )
    return _at_event(tiles, firsts, START, reason, "first_call")


def _at_event(
    tiles: Sequence[TileTrace], firsts: Sequence[dict[str, int]], event: str, reason: str, by: Moment
) -> TimeAlignment:
    earliest = min(own[event] for own in firsts)
    shifts = tuple(TimerOffset(tile.tile, earliest - own[event]) for tile, own in zip(tiles, firsts, strict=True))
    return TimeAlignment(event, shifts, reason, by)


def _by_timer(tiles: Sequence[TileTrace], spread: int | None) -> TimeAlignment | None:
    """Align by the timers. None if the traces would then not overlap, as the timers were not started together."""
    if spread is None or _are_unrelated(tiles, spread):
        return None
    first = min(tile.start_timer or 0 for tile in tiles)
    shifts = tuple(TimerOffset(tile.tile, (tile.start_timer or 0) - first) for tile in tiles)
    reason = f"the timers of {_all_tiles_text(tiles)} align them: their traces start {spread:,} cycles apart"
    return TimeAlignment(None, shifts, reason, "timer")


def _are_unrelated(tiles: Sequence[TileTrace], spread: int) -> bool:
    return spread > min(tile.last for tile in tiles)


def _by_start(tiles: Sequence[TileTrace], spread: int | None) -> TimeAlignment:
    assumed = "all traces count as started at one moment, since one broadcast starts them"
    why = "the trace has no timers (JSON has none), so a late start is not visible"
    if spread is not None:
        why = f"their timers differ by {spread:,} cycles"
        if _are_unrelated(tiles, spread):
            why += ", more than a trace lasts, so they do not run together"
    shifts = tuple(TimerOffset(tile.tile, 0) for tile in tiles)
    return TimeAlignment(None, shifts, f"{assumed}; {why}" if len(tiles) > 1 else "a single tile needs no alignment")


def _all_tiles_text(tiles: Sequence[TileTrace]) -> str:
    return f"{'all ' if len(tiles) > 1 else ''}{counted_text(len(tiles), 'tile')}"


def _first_cycles(tile: TileTrace) -> dict[str, int]:
    used = [slot for slot in tile.slots if len(slot.spans.start)]
    return {slot.name: int(slot.spans.start.min()) for slot in reversed(used)}


ALIKE = 0.01
"""Tiles whose iterations differ by less are equally fast."""
_WORDS = {"vector": "vector work", "other": "other work"}


class Slowest(msgspec.Struct, frozen=True):
    """The tile whose iterations take longest, against the median of the others.

    Attributes:
        tile: as ``ROW,COL``.
        median_cycles: of its iterations.
        others_cycles: median over the other tiles of the same.
        excess_cycles: the difference.
        category: of cycles that grew most, as in the account of cycles.
        category_cycles: by which it grew an iteration, mean against the median of the other tiles.
        why: the same in words.
    """

    tile: str
    median_cycles: float
    others_cycles: float
    excess_cycles: float
    category: str
    category_cycles: float
    why: str


def slowest(each: Sequence[_Common]) -> Slowest | None:
    """The slowest tile; None with fewer than two, and when it is no slower than the others."""
    seen = {core.tile.tile: (core, own) for core, own in each}
    if len(seen) < 2:  # noqa: PLR2004 - one tile has no others
        return None
    spent = {tile: float(median(one.cycles for one in own)) for tile, (_, own) in seen.items()}
    name = max(spent, key=lambda tile: spent[tile])
    others = [tile for tile in seen if tile != name]
    usual = median(spent[tile] for tile in others)
    if spent[name] <= usual * (1 + ALIKE):
        return None
    cycles = {tile: _mean_cycles_by_category(core, own) for tile, (core, own) in seen.items()}
    growth = {key: own - median(cycles[tile][key] for tile in others) for key, own in cycles[name].items()}
    category = max(growth, key=lambda key: growth[key])
    excess = spent[name] - usual
    calls = {tile: sum(one.calls for one in own) / len(own) for tile, (_, own) in seen.items()}
    why = _slowness_text(category, growth[category], excess, calls[name] - median(calls[tile] for tile in others))
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


class SystemIteration(msgspec.Struct, frozen=True, kw_only=True):
    """An iteration of all tiles together, in their common time.

    Attributes:
        number: of the iteration.
        start: first start of all tiles.
        end: last end of all tiles.
        runtime_cycles: between these.
        longest_cycles: of any single tile.
        start_skew_cycles: from the first start to the last.
        first_tile: that starts first.
        last_tile: that ends last.
        balance: mean cycles of the tiles as a share of the longest; 1 when all take the same.
        mac_per_cycle: of all tiles together, in the runtime; null without sizes, or when a tile has no rate.
        starts_last: tile that starts last.
    """

    number: int
    start: int
    end: int
    runtime_cycles: int
    longest_cycles: int
    start_skew_cycles: int
    first_tile: str
    last_tile: str
    balance: float
    mac_per_cycle: float | None
    starts_last: str = ""


class TileTimes(msgspec.Struct, frozen=True):
    """A tile in the common iterations.

    Attributes:
        tile: as ``ROW,COL``.
        median_cycles: of its iterations.
        min_cycles: shortest of them.
        max_cycles: longest of them.
        ends_last: in how many of them it was the last to end.
    """

    tile: str
    median_cycles: float
    min_cycles: int
    max_cycles: int
    ends_last: int


class LeftOutCore(msgspec.Struct, frozen=True):
    """A core that is not compared with the others.

    Attributes:
        tile: as ``ROW,COL``.
        reason: why.
    """

    tile: str
    reason: str


class ArrayView(msgspec.Struct, frozen=True, kw_only=True):
    """All cores of a trace together; one that lost packets only in the heat map, since its times are not sure.

    Attributes:
        alignment: common time of the cores that are compared.
        iterations: those measured and complete on all cores that are compared.
        median_runtime_cycles: of these; null without any.
        balance: mean over the tiles of their median cycles, as a share of the largest; null likewise.
        tiles: each in the common iterations; empty likewise.
        slowest: tile with the largest median, and why; null likewise, with a single tile, and when all are alike.
        heat_map: figures by row and column.
        reason: which iterations these are, or why there are none.
        findings: what does not fit.
        median_start_skew_cycles: of the iterations, from the first start of a core to the last; null without any.
        window_cycles: from the first call's start on any core to the last call's end, in the common time; null without
            cores that are compared.
        mac_per_cycle: of all these cores together in that window; null when one has no rate.
        utilisation: the same as a fraction of their peaks together; null likewise.
        in_call: share of the cycles of all these cores in that window that is within calls; null without cores.
        left_out: cores that are not compared.
    """

    alignment: TimeAlignment
    iterations: tuple[SystemIteration, ...]
    median_runtime_cycles: float | None
    balance: float | None
    tiles: tuple[TileTimes, ...]
    slowest: Slowest | None
    heat_map: HeatMap
    reason: str
    findings: tuple[Message, ...] = ()
    median_start_skew_cycles: float | None = None
    window_cycles: int | None = None
    mac_per_cycle: float | None = None
    utilisation: float | None = None
    in_call: float | None = None
    left_out: tuple[LeftOutCore, ...] = ()


def array_view(cores: Sequence[TracedCore], said: RunSpecification, at: AlignAt = "auto") -> ArrayView:
    """View all cores together."""
    left_out = tuple(_left_out(core) for core in cores if not _has_sure_times(core)) if len(cores) > 1 else ()
    sure = list(filter(_has_sure_times, cores)) if left_out else list(cores)
    alignment = align([core.tile for core in sure], at)
    numbers, reason = _common_iterations(sure) if len(sure) > 1 or not left_out else ([], _nothing_to_compare(sure))
    common = set(numbers)
    each = [(core, [one for one in core.iterations.iterations if one.number in common]) for core in sure if common]
    shifts = [shift.cycles for shift in alignment.shifts]
    system = tuple(_system_iteration(place, number, each, shifts, said) for place, number in enumerate(numbers))
    last = Counter(one.last_tile for one in system)
    times = tuple(_tile_times(core.tile.tile, own, last[core.tile.tile]) for core, own in each)
    window = _common_window(sure, shifts) if len(sure) > 1 or not left_out else None
    rate, used = _rate_of_all_cores(sure, window)
    return ArrayView(
        alignment=alignment,
        iterations=system,
        median_runtime_cycles=median(one.runtime_cycles for one in system) if system else None,
        balance=_balance_of([own.median_cycles for own in times]) if times else None,
        tiles=times,
        slowest=slowest(each),
        heat_map=heat_map(cores, {own.tile: own.median_cycles for own in times}),
        reason=reason,
        findings=(
            *_report_core_count(cores, said),
            *_report_start_skew(system, alignment),
            *_report_left_out_cores(left_out),
        ),
        median_start_skew_cycles=median(one.start_skew_cycles for one in system) if system else None,
        window_cycles=window,
        mac_per_cycle=rate,
        utilisation=used,
        in_call=sum(core.cycles.in_call.total for core in sure) / (window * len(sure)) if window else None,
        left_out=left_out,
    )


def _has_sure_times(core: TracedCore) -> bool:
    return all(packets.times_kept for packets in core.lost)


def _left_out(core: TracedCore) -> LeftOutCore:
    unsure = [packets for packets in core.lost if not packets.times_kept]
    more = f" and in {counted_text(len(unsure) - 1, 'more place')}" if len(unsure) > 1 else ""
    return LeftOutCore(core.tile.tile, f"its packets were lost or damaged {where_text(unsure[0])}{more}")


def _nothing_to_compare(sure: Sequence[TracedCore]) -> str:
    left = f"only the times of tile {sure[0].tile.tile} are reliable" if sure else "none are reliable"
    return f"packets of the other cores were lost, so their times are unreliable; {left}"


def _report_left_out_cores(left_out: Sequence[LeftOutCore]) -> list[Message]:
    return [
        tile_finding(
            "core_left_out",
            Severity.MEDIUM,
            title=f"tile {core.tile} is excluded from the figures of all cores",
            evidence=f"{core.reason}: its later times are unreliable",
            where=f"tile {core.tile}",
            step="capture again without dropping packets",
        )
        for core in left_out
    ]


def _common_window(cores: Sequence[TracedCore], shifts: Sequence[int]) -> int | None:
    """Return the cycles from the first start of a call to the last end on all cores. None without calls."""
    spans = [
        (int(core.pairing.calls.start[0]) + shift, int(core.pairing.calls.end[-1]) + shift)
        for core, shift in zip(cores, shifts, strict=True)
        if len(core.pairing.calls)
    ]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else None


def _rate_of_all_cores(cores: Sequence[TracedCore], window: int | None) -> tuple[float | None, float | None]:
    """Multiply-accumulates a cycle of all cores in a window, and as a fraction of their peaks."""
    macs = [core.rate.macs for core in cores if core.rate.macs is not None]
    if not window or len(macs) < len(cores):
        return None, None
    peaks = [core.rate.peak_mac_per_cycle for core in cores if core.rate.peak_mac_per_cycle]
    found = sum(macs) / window
    return found, found / sum(peaks) if len(peaks) == len(cores) else None


def _common_iterations(cores: Sequence[TracedCore]) -> tuple[list[int], str]:
    if not cores:
        return [], "there is no core"
    each = [{own.number for own in core.iterations.iterations if own.phase == "measured"} for core in cores]
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
    if said.tiling is not None and runtime and all(core.rate.mac_per_cycle is not None for core, _ in rows):
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


_WIDEST = 64
_MOST_PLACES = _WIDEST * _WIDEST
Grid = tuple[tuple[float | None, ...], ...]


class HeatMap(msgspec.Struct, frozen=True):
    """Figures by row and column of the array.

    Attributes:
        rows: from the lowest traced to the highest; only those traced where these are further apart than any array.
        columns: likewise.
        figures: for each figure its values, row by row in the order of ``rows``; null where no core was traced, or
            where the figure is not known. ``iteration_cycles``: median of the common iterations; ``calls``: seen;
            ``in_call``, ``vector``, ``memory_stall``, ``lock_stall``: shares of the tile's window;
            ``mac_per_cycle`` and ``utilisation`` in it.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    figures: dict[str, Grid]


def heat_map(cores: Sequence[TracedCore], medians: Mapping[str, float]) -> HeatMap:
    """The map of all cores; of one that was traced twice, the last. Without rows where it is not a map."""
    at = {(core.tile.row, core.tile.column): _core_figures(core, medians.get(core.tile.tile)) for core in cores}
    rows, columns = (_all_places(place[axis] for place in at) for axis in (0, 1))
    names = next(iter(at.values()), {})
    if len(rows) * len(columns) > _MOST_PLACES:
        return HeatMap((), (), {})
    figures = {
        name: tuple(tuple(at.get((row, column), {}).get(name) for column in columns) for row in rows) for name in names
    }
    return HeatMap(rows, columns, figures)


def _all_places(places: Iterable[int]) -> tuple[int, ...]:
    listed = sorted(set(places))
    wide = bool(listed) and listed[-1] - listed[0] >= _WIDEST
    return tuple(listed if wide or not listed else range(listed[0], listed[-1] + 1))


def _core_figures(core: TracedCore, iteration: float | None) -> dict[str, float | None]:
    cycles, window = core.cycles, core.cycles.window

    def share(spent: int) -> float | None:
        return spent / window if window else None

    return {
        "iteration_cycles": iteration,
        "calls": float(len(core.pairing.calls)),
        "in_call": share(cycles.in_call.total),
        "vector": share(cycles.of("vector")),
        "memory_stall": share(cycles.of("memory_stall")),
        "lock_stall": share(cycles.of("lock_stall")),
        "mac_per_cycle": core.rate.mac_per_cycle,
        "utilisation": core.rate.utilisation,
    }
