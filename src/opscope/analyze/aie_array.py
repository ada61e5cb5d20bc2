"""Several tiles as one machine: what an iteration takes from the first start to the last end, and who makes it wait."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analyze.aie_alignment import Alignment, align
from opscope.analyze.aie_findings import TileFinding
from opscope.analyze.aie_heat import HeatMap, heat_map
from opscope.analyze.aie_slowest import Slowest, slowest
from opscope.analyze.findings import Severity
from opscope.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analyze.aie_calls import Calls
    from opscope.analyze.aie_cycles import CycleAccount
    from opscope.analyze.aie_given import Given
    from opscope.analyze.aie_iterations import Iterations
    from opscope.analyze.aie_rates import Rate
    from opscope.analyze.aie_work import Work
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

_MEASURED = "measured"


class Core(NamedTuple):
    """A core and what is known of it."""

    tile: TileTrace
    calls: Calls
    work: Work
    account: CycleAccount
    iterations: Iterations
    rate: Rate


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

    alignment: Alignment
    iterations: tuple[SystemIteration, ...]
    median_runtime_cycles: float | None
    balance: float | None
    tiles: tuple[TileTimes, ...]
    slowest: Slowest | None
    heat_map: HeatMap
    reason: str
    findings: tuple[TileFinding, ...] = ()


def array_view(cores: Sequence[Core], said: Given) -> ArrayView:
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
        findings=tuple(_findings(cores, said)),
    )


class _Own(NamedTuple):
    """The common iterations on one core, in its own time; arrays of shape (iterations,)."""

    core: Core
    start: Ints
    end: Ints
    multiplying: Ints

    @classmethod
    def of(cls, core: Core, numbers: Sequence[int]) -> _Own:
        """Those of these numbers."""
        known = {own.number: own for own in core.iterations.iterations}
        chosen = [known[number] for number in numbers]
        before = np.concatenate([[0], np.cumsum(core.work.multiplies)])
        calls = [int(before[own.last_call + 1] - before[own.first_call]) for own in chosen]
        start, end = np.array([own.start for own in chosen]), np.array([own.end for own in chosen])
        return cls(core, start, end, np.array(calls))


def _numbers(core: Core) -> set[int]:
    return {own.number for own in core.iterations.iterations if own.complete and own.phase == _MEASURED}


def _common(cores: Sequence[Core]) -> tuple[list[int], str]:
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


def _system(place: int, number: int, each: Sequence[_Own], shifts: Sequence[int], said: Given) -> SystemIteration:
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


def _system_rate(place: int, each: Sequence[_Own], said: Given, runtime: int) -> float | None:
    if said.tiling is None or not runtime or any(own.core.rate.mac_per_cycle is None for own in each):
        return None
    calls = sum(int(own.multiplying[place]) for own in each)
    return calls * said.tiling.macs_per_call / runtime


def _times(own: _Own, ends_last: int) -> TileTimes:
    spans = own.end - own.start
    return TileTimes(own.core.tile.tile, float(np.median(spans)), int(spans.min()), int(spans.max()), ends_last)


def _findings(cores: Sequence[Core], said: Given) -> list[TileFinding]:
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
    return [TileFinding("cores_do_not_match", severity, title, evidence, "array", step)]
