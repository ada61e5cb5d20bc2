"""Several tiles as one machine: what an iteration takes from the first start to the last end, and who makes it wait."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text, share_text
from opscope.npu.analysis.calls import START
from opscope.npu.analysis.cycles import split_spans
from opscope.npu.analysis.findings import TileFinding, published, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.cycles import CycleAccount
    from opscope.npu.analysis.iterations import Iterations
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.npu.analysis.rates import MacRate
    from opscope.npu.analysis.specification import RunSpecification


_AT_ONCE = ("BROADCAST", "USER_EVENT")
"""How events begin that reach all tiles at once, but for a few cycles a hop."""


class TimerOffset(msgspec.Struct, frozen=True):
    """What is added to the times of a tile.

    Attributes:
        tile: as ``ROW,COL``.
        cycles: added; 0 for the tile whose common event came first by its own timer, else below 0.
    """

    tile: str
    cycles: int


class TimeAlignment(msgspec.Struct, frozen=True):
    """The common time of several tiles.

    Attributes:
        event: whose first occurrence counts as one moment; null when there is none, and times stay as they are.
        shifts: of the tiles, in their order.
        reason: why this event, and what that assumes.
    """

    event: str | None
    shifts: tuple[TimerOffset, ...]
    reason: str


def align(tiles: Sequence[TileTrace]) -> TimeAlignment:
    """Align tiles on the first occurrence of an event that all of them have.

    An event that reaches all tiles at once is best: a broadcast or a user event. Without one it is the start of the
    first call; that some tile really started later is then lost.

    Args:
        tiles: in any order.
    """
    firsts = [_firsts(tile) for tile in tiles]
    event = _anchor(firsts)
    if event is None:
        shifts = tuple(TimerOffset(tile.tile, 0) for tile in tiles)
        return TimeAlignment(None, shifts, "no broadcast, user event or call is in the traces of all tiles")
    earliest = min(own[event] for own in firsts)
    shifts = tuple(TimerOffset(tile.tile, earliest - own[event]) for tile, own in zip(tiles, firsts, strict=True))
    return TimeAlignment(event, shifts, _reason(event, len(tiles)))


def _firsts(tile: TileTrace) -> dict[str, int]:
    """First cycle of each event that occurs."""
    used = [slot for slot in tile.slots if len(slot.spans.start)]
    return {slot.name: int(slot.spans.start.min()) for slot in reversed(used)}


def _anchor(firsts: Sequence[dict[str, int]]) -> str | None:
    """The event that comes first among those that reach all at once; else the first call; None without either."""
    common = set(firsts[0]).intersection(*firsts[1:]) if firsts else set()
    at_once = [name for name in common if name.startswith(_AT_ONCE)]
    fallback = START if START in common else None
    return min(at_once, key=lambda name: (firsts[0][name], name), default=fallback)


def _reason(event: str, tiles: int) -> str:
    seen = f"{event} is in the traces of {'all ' if tiles > 1 else ''}{counted_text(tiles, 'tile')}"
    if event == START:
        return (
            f"{seen}: the first calls count as simultaneous, since no event was traced that reaches all tiles at once"
        )
    return f"{seen}, and reaches them at once but for a few cycles a hop"


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


class _Means(NamedTuple):
    """Means over the iterations of a tile.

    Attributes:
        median: of its cycles.
        calls: in one.
        cycles: by category.
    """

    median: float
    calls: float
    cycles: dict[str, float]


Seen = tuple["TileTrace", "CallSpans", "Ints", "Ints"]
"""A tile, its calls, and starts and ends of the iterations that are compared, in the tile's own time."""


def slowest(tiles: Mapping[str, Seen]) -> Slowest | None:
    """The slowest tile; None with fewer than two, and when it is no slower than the others.

    Args:
        tiles: by name.
    """
    if len(tiles) < 2:  # noqa: PLR2004 - one tile has no others
        return None
    means = {name: _means(*seen) for name, seen in tiles.items()}
    name = max(means, key=lambda own: means[own].median)
    own, others = means[name], [other for key, other in means.items() if key != name]
    usual = median(other.median for other in others)
    if own.median <= usual * (1 + ALIKE):
        return None
    growth = {key: own.cycles[key] - median(other.cycles[key] for other in others) for key in own.cycles}
    category = max(growth, key=lambda key: growth[key])
    excess = own.median - usual
    calls = own.calls - median(other.calls for other in others)
    why = _why(category, growth[category], excess, calls)
    return Slowest(name, own.median, usual, excess, category, growth[category], why)


def _means(tile: TileTrace, calls: CallSpans, starts: Ints, ends: Ints) -> _Means:
    split = split_spans(tile, starts, ends)
    cycles = {key: float(values.mean()) for key, values in split._asdict().items()}
    inside = np.searchsorted(calls.start, ends) - np.searchsorted(calls.start, starts)
    return _Means(float(np.median(ends - starts)), float(inside.mean()), cycles)


def _why(category: str, growth: float, excess: float, calls: float) -> str:
    more = f"{growth:,.0f} more cycles an iteration in {_WORDS.get(category, category.replace('_', ' '))}"
    share = f", {share_text(min(1.0, growth / excess))} of the difference" if excess > 0 else ""
    work = f"; it makes {calls:g} more calls an iteration" if calls > 0 else ""
    waits = "; it waits for data or buffers, so look at what feeds or empties it" if category in _WAITING else ""
    return f"{more}{share}{work}{waits}"


_WAITING = frozenset({"stream_stall", "cascade_stall", "lock_stall"})


_MEASURED = "measured"


class ArrayCore(NamedTuple):
    """A core and what is known of it."""

    tile: TileTrace
    calls: CallSpans
    work: MacCalls
    account: CycleAccount
    iterations: Iterations
    rate: MacRate


class SystemIteration(msgspec.Struct, frozen=True, kw_only=True):
    """An iteration of all tiles together, in aligned time.

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


class ArrayView(msgspec.Struct, frozen=True, kw_only=True):
    """All cores of a trace together.

    Attributes:
        alignment: common time of the cores.
        iterations: those measured and complete on all cores.
        median_runtime_cycles: of these; null without any.
        balance: mean over the tiles of their median cycles, as a share of the largest; null likewise.
        tiles: each in the common iterations; empty likewise.
        slowest: tile with the largest median, and why; null likewise, with a single tile, and when all are alike.
        heat_map: figures by row and column.
        reason: which iterations these are, or why there are none.
        findings: what does not fit.
    """

    alignment: TimeAlignment
    iterations: tuple[SystemIteration, ...]
    median_runtime_cycles: float | None
    balance: float | None
    tiles: tuple[TileTimes, ...]
    slowest: Slowest | None
    heat_map: HeatMap
    reason: str
    findings: tuple[TileFinding, ...] = ()


def array_view(cores: Sequence[ArrayCore], said: RunSpecification) -> ArrayView:
    """All cores together.

    Args:
        cores: of a trace, in any order.
        said: rows and columns that should be there, where they are known.
    """
    alignment = align([core.tile for core in cores])
    numbers, reason = _common(cores)
    each = [_Own.of(core, numbers) for core in cores] if numbers else []
    shifts = [shift.cycles for shift in alignment.shifts]
    system = tuple(_system(place, number, each, shifts, said) for place, number in enumerate(numbers))
    last = Counter(one.last_tile for one in system)
    times = tuple(_times(own, last[own.core.tile.tile]) for own in each)
    return ArrayView(
        alignment=alignment,
        iterations=system,
        median_runtime_cycles=median(one.runtime_cycles for one in system) if system else None,
        balance=_balance([own.median_cycles for own in times]) if times else None,
        tiles=times,
        slowest=slowest({own.core.tile.tile: (own.core.tile, own.core.calls, own.start, own.end) for own in each}),
        heat_map=heat_map(cores, {own.tile: own.median_cycles for own in times}),
        reason=reason,
        findings=published(_findings(cores, said)),
    )


class _Own(NamedTuple):
    """The common iterations on one core, in its own time; arrays of shape (iterations,)."""

    core: ArrayCore
    start: Ints
    end: Ints
    multiplying: Ints

    @classmethod
    def of(cls, core: ArrayCore, numbers: Sequence[int]) -> _Own:
        """Those of these numbers."""
        known = {own.number: own for own in core.iterations.iterations}
        chosen = [known[number] for number in numbers]
        before = np.concatenate([[0], np.cumsum(core.work.multiplies)])
        calls = [int(before[own.last_call + 1] - before[own.first_call]) for own in chosen]
        start, end = np.array([own.start for own in chosen]), np.array([own.end for own in chosen])
        return cls(core, start, end, np.array(calls))


def _numbers(core: ArrayCore) -> set[int]:
    return {own.number for own in core.iterations.iterations if own.complete and own.phase == _MEASURED}


def _common(cores: Sequence[ArrayCore]) -> tuple[list[int], str]:
    """Iterations measured and complete everywhere, and what is to be said about them."""
    if not cores:
        return [], "there is no core"
    each = [_numbers(core) for core in cores]
    common = sorted(set.intersection(*each))
    if not common:
        empty = [core.tile.tile for core, own in zip(cores, each, strict=True) if not own]
        lacking = f"tiles {' and '.join(empty[:3])} have none" if empty else "they are different ones"
        return [], f"no iteration is measured and complete on all cores: {lacking}"
    left_out = len(set.union(*each)) - len(common)
    aside = f"; {left_out} are not on all of them and left out" if left_out else ""
    return common, f"{counted_text(len(common), 'iteration')} measured and complete on all cores{aside}"


def _system(
    place: int, number: int, each: Sequence[_Own], shifts: Sequence[int], said: RunSpecification
) -> SystemIteration:
    starts = [int(own.start[place]) + shift for own, shift in zip(each, shifts, strict=True)]
    ends = [int(own.end[place]) + shift for own, shift in zip(each, shifts, strict=True)]
    spans = [end - start for start, end in zip(starts, ends, strict=True)]
    runtime = max(ends) - min(starts)
    return SystemIteration(
        number=number,
        start=min(starts),
        end=max(ends),
        runtime_cycles=runtime,
        longest_cycles=max(spans),
        start_skew_cycles=max(starts) - min(starts),
        first_tile=each[starts.index(min(starts))].core.tile.tile,
        last_tile=each[ends.index(max(ends))].core.tile.tile,
        balance=_balance(spans),
        mac_per_cycle=_system_rate(place, each, said, runtime),
    )


def _balance(cycles: Sequence[float]) -> float:
    return sum(cycles) / len(cycles) / max(cycles) if max(cycles) else 1.0


def _system_rate(place: int, each: Sequence[_Own], said: RunSpecification, runtime: int) -> float | None:
    if said.tiling is None or not runtime or any(own.core.rate.mac_per_cycle is None for own in each):
        return None
    calls = sum(int(own.multiplying[place]) for own in each)
    return calls * said.tiling.macs_per_call / runtime


def _times(own: _Own, ends_last: int) -> TileTimes:
    spans = own.end - own.start
    return TileTimes(own.core.tile.tile, float(np.median(spans)), int(spans.min()), int(spans.max()), ends_last)


def _findings(cores: Sequence[ArrayCore], said: RunSpecification) -> list[Message]:
    """That the cores in the trace are not those that were said to compute."""
    if said.tiling is None or len(cores) == said.tiling.cores:
        return []
    wanted = f"{said.tiling.rows} x {said.tiling.columns}"
    many = len(cores) > said.tiling.cores
    title = f"the trace has {'more' if many else 'fewer'} cores than were given"
    step = (
        "check row and col" if many else "trace the others too, to see the whole array; rates here are of those traced"
    )
    evidence = f"{counted_text(len(cores), 'core')} traced, {wanted} given"
    severity = Severity.MEDIUM if many else Severity.INFO
    return [tile_finding("cores_do_not_match", severity, title, evidence, "array", step)]


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


def heat_map(cores: Sequence[ArrayCore], medians: Mapping[str, float]) -> HeatMap:
    """The map of all cores; one that was traced twice counts once, the last time. Without rows where it is no map.

    Args:
        cores: with their figures.
        medians: cycles of the common iterations, by tile; empty without any.
    """
    at = {(core.tile.row, core.tile.column): _figures(core, medians.get(core.tile.tile)) for core in cores}
    rows, columns = (_all(place[axis] for place in at) for axis in (0, 1))
    names = next(iter(at.values()), {})
    if len(rows) * len(columns) > _MOST_PLACES:
        return HeatMap((), (), {})
    figures = {
        name: tuple(tuple(at.get((row, column), {}).get(name) for column in columns) for row in rows) for name in names
    }
    return HeatMap(rows, columns, figures)


def _all(places: Iterable[int]) -> tuple[int, ...]:
    listed = sorted(set(places))
    wide = bool(listed) and listed[-1] - listed[0] >= _WIDEST
    return tuple(listed if wide or not listed else range(listed[0], listed[-1] + 1))


def _figures(core: ArrayCore, iteration: float | None) -> dict[str, float | None]:
    inside, between = core.account.in_call, core.account.between_calls
    window = core.account.window_cycles

    def share(cycles: int) -> float | None:
        return cycles / window if window else None

    return {
        "iteration_cycles": iteration,
        "calls": float(len(core.calls)),
        "in_call": share(inside.total),
        "vector": share(inside.vector + between.vector),
        "memory_stall": share(inside.memory_stall + between.memory_stall),
        "lock_stall": share(inside.lock_stall + between.lock_stall),
        "mac_per_cycle": core.rate.mac_per_cycle,
        "utilisation": core.rate.utilisation,
    }
