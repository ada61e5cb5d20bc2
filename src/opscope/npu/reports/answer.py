"""What a trace of AI Engine tiles answers, are the cores busy, what stalls them, how far are they from peak."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.grouping import grouped
from opscope.core.units import counted_text, rate_text, share_text
from opscope.npu.analysis.activity import EVENTS
from opscope.npu.analysis.findings import message_of
from opscope.npu.analysis.tiles_result import all_known, mean_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.findings.message import Message
    from opscope.npu.analysis.array import ArrayView
    from opscope.npu.analysis.findings import TileFinding
    from opscope.npu.analysis.rates import GmacRange
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis

CATEGORY_NAMES = {
    "vector": "vector instructions",
    "memory_stall": "memory stall",
    "stream_stall": "stream stall",
    "cascade_stall": "cascade stall",
    "lock_stall": "lock stall",
    "other": "other",
}
"""Categories of cycles in words, in the order in which they are shown."""
STALLS = ("lock_stall", "memory_stall", "stream_stall", "cascade_stall")
_BUSY, _IDLE = 0.8, 0.4
_SMALL = 0.005


class TilesSummary(NamedTuple):
    """The first lines of every report.

    Attributes:
        headline: busy or not, and how far from the peak, in one sentence.
        stalls: what the cores wait for.
        pace: what sets the pace of the calls.
        together: how the cores work together; empty for one core.
        seen: how much of the run the trace holds.
    """

    headline: str
    stalls: str
    pace: str
    together: str
    seen: str

    @property
    def lines(self) -> list[str]:
        """All but the headline, without the empty ones."""
        return [line for line in (self.stalls, self.pace, self.together, self.seen) if line]


def answer(analysis: TilesAnalysis) -> TilesSummary:
    """The answers for all cores of a trace together."""
    rows = analysis.working
    if not rows:
        return TilesSummary(_no_answer(analysis), "", "", "", "")
    together = f"together: {array_sentence(analysis.array)}" if analysis.array and len(rows) > 1 else ""
    return TilesSummary(headline(rows), stalls_text(rows), pace_text(analysis), together, seen_text(rows))


def share(rows: Sequence[TileRow], *names: str) -> float:
    """Part of the windows of these tiles that these categories take."""
    return sum(row.cycles.of(name) for row in rows for name in names) / sum(row.window_cycles for row in rows)


def in_call_share(rows: Sequence[TileRow]) -> float:
    """Part of the windows that is within calls."""
    return sum(row.cycles.in_call.total for row in rows) / sum(row.window_cycles for row in rows)


def headline(rows: Sequence[TileRow]) -> str:
    """Are they busy, and how far from the peak."""
    inside = in_call_share(rows)
    word = "busy" if inside >= _BUSY else "idle most of the time" if inside < _IDLE else "busy part of the time"
    cores = "The core is" if len(rows) == 1 else f"The {len(rows)} cores are"
    return f"{cores} {word}: {share_text(inside)} of the cycles are in kernel calls{_achieved(rows)}"


def _achieved(rows: Sequence[TileRow]) -> str:
    rate, used = mean_known(row.mac_per_cycle for row in rows), mean_known(row.utilisation for row in rows)
    if rate is None:
        return ""
    said = f"; {rate_text(rate)} MAC a cycle{'' if len(rows) == 1 else ' a core'}"
    return said if used is None else f"{said}, {share_text(used)} of the peak"


def stalls_text(rows: Sequence[TileRow]) -> str:
    """What they wait for, the largest first; what was not traced is said."""
    shares = [(share(rows, name), name) for name in STALLS]
    told = [
        f"{CATEGORY_NAMES[name]} {share_text(part)}" for part, name in sorted(shares, reverse=True) if part > _SMALL
    ]
    found = f"stalled: {', '.join(told)}" if told else "stalled: hardly at all in the events that were traced"
    missing = sorted({name for row in rows for name in row.not_traced})
    unseen = f" (not traced: {', '.join(missing)})" if missing else ""
    vector = f"vector instructions {share_text(share(rows, 'vector'))}, " if "INSTR_VECTOR" not in missing else ""
    return f"{found}; {vector}other {share_text(share(rows, 'other'))}{unseen}"


def pace_text(analysis: TilesAnalysis) -> str:
    """What sets the pace of the calls, of the slowest core."""
    rows = analysis.working
    row = shown_core(analysis)
    late = analysis.array.slowest if analysis.array else None
    of = "" if len(rows) == 1 else f" of tile {row.tile}{', the slowest' if late else ''}"
    found = row.bound
    if found is None:
        return f"pace{of}: not known, {row.bound_reason}"
    return (
        f"pace{of}: {by_text(found.by)}; a call every {found.measured_period_cycles:,.0f} cycles, "
        f"{found.predicted_period_cycles:,.0f} predicted, the call itself takes {found.call_cycles:,.0f}"
    )


def by_text(by: str) -> str:
    """A verdict on the bound in words."""
    return {"call": "bound by the kernel call itself", "not explained": "not explained by what was traced"}.get(
        by, f"bound by the {by}" if by.endswith("stream") else f"bound by {by}"
    )


def shown_core(analysis: TilesAnalysis) -> TileRow:
    """The core that stands for all: the slowest, else that of the longest period; there is one with calls."""
    rows = analysis.working
    late = analysis.array.slowest if analysis.array else None
    named = [row for row in rows if late and row.tile == late.tile]
    return max(
        named or rows, key=lambda row: (row.bound.measured_period_cycles if row.bound else 0.0, row.window_cycles)
    )


def array_sentence(array: ArrayView) -> str:
    """What an iteration takes on all cores, how even they are, and who is slowest."""
    if array.median_runtime_cycles is None:
        return f"no runtime of the whole, {array.reason}"
    text = f"an iteration takes {array.median_runtime_cycles:,.0f} cycles on all cores"
    if array.balance is not None:
        text += f", which are even to {share_text(array.balance)}"
    if array.slowest is None:
        return f"{text}; none is slower than the others"
    late = array.slowest
    return f"{text}; tile {late.tile} is slowest, {late.excess_cycles:,.0f} cycles behind the others: {late.why}"


def seen_text(rows: Sequence[TileRow]) -> str:
    """How much of the run the trace holds."""
    calls = f"{sum(row.calls.paired for row in rows):,} calls"
    dropped = sum(row.calls.dropped for row in rows)
    odd = f", {counted_text(dropped, 'event')} of no call" if dropped else ""
    known = all_known(row.coverage for row in rows)
    covered = f"; {share_text(min(known))} of the calls of the whole run" if known else ""
    return f"seen: {calls}{odd} in {sum(row.window_cycles for row in rows) // len(rows):,} cycles{covered}"


def iteration_lines(rows: Sequence[TileRow]) -> list[str]:
    """How many iterations were found, of how many, how long they take, and why these; of like tiles once."""
    groups = grouped(rows, lambda row: (len(row.iterations), row.expected_iterations, row.iterations_reason))
    return [_iteration_line(*key, own) for key, own in groups.items()]


def _iteration_line(found: int, expected: int | None, reason: str, rows: Sequence[TileRow]) -> str:
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    of = "" if expected is None else f" of {expected} expected"
    return f"tile {rows[0].tile}{more}: {counted_text(found, 'iteration')}{of}{_typical(rows)}: {reason}"


def _typical(rows: Sequence[TileRow]) -> str:
    """Median cycles of the measured iterations, of several tiles from least to most; empty without any."""
    measured = [[one.cycles for one in row.iterations if one.phase == "measured"] for row in rows]
    medians = [median(own) for own in measured if own]
    if not medians:
        return ""
    low, high = (f"{end:,.0f}" for end in (min(medians), max(medians)))
    return f", {low} cycles" if low == high else f", {low} to {high} cycles"


def range_text(found: GmacRange | None) -> str:
    """A rate in GMAC/s with the clock that it supposes; empty where it is not known."""
    if found is None:
        return ""
    if found.low == found.high:
        return f"{rate_text(found.low)} GMAC/s at {found.low_mhz:g} MHz"
    return f"{rate_text(found.low)} to {rate_text(found.high)} GMAC/s at {found.low_mhz:g} to {found.high_mhz:g} MHz"


def told(findings: Sequence[TileFinding]) -> list[Message]:
    """Findings as reports show them: the same of several tiles once, in the order of the first."""
    whole = {"file", "options", "all tiles"}
    groups = grouped(findings, lambda found: (found.rule, found.title if found.place in whole else ""))
    return [message_of(own[0])._replace(place=_places(own)) for own in groups.values()]


def category_cells(row: TileRow) -> list[tuple[str, str, str, str, str]]:
    """Rows of a table of cycles: category, in calls, between calls, together, share; what was not traced says so."""
    inside, between = msgspec.structs.asdict(row.cycles.in_call), msgspec.structs.asdict(row.cycles.between_calls)
    cells = [
        (words, "not traced", "", "", "")
        if EVENTS.get(name) in row.not_traced
        else (words, *_counts(inside[name], between[name], row.window_cycles))
        for name, words in CATEGORY_NAMES.items()
    ]
    sums = row.cycles.in_call.total, row.cycles.between_calls.total
    return [*cells, ("window", *_counts(*sums, row.window_cycles))]


def _counts(inside: int, between: int, window: int) -> tuple[str, str, str, str]:
    return f"{inside:,}", f"{between:,}", f"{inside + between:,}", share_text((inside + between) / window)


def units_text(analysis: TilesAnalysis) -> str:
    """How many trace units of each kind."""
    units = [row.unit for row in analysis.tiles]
    names = {"core": "core", "mem": "memory module", "memtile": "memory tile", "shim": "interface tile"}
    return ", ".join(counted_text(units.count(unit), name) for unit, name in names.items() if unit in units)


def _places(found: Sequence[TileFinding]) -> str:
    first = found[0].place
    if len(found) == 1:
        return first
    tiles = {own.place.partition(",")[0] + own.place.partition(",")[2].partition(",")[0] for own in found}
    more = counted_text(len(found) - 1, "more place") if len(tiles) < len(found) else f"{len(found) - 1} more tiles"
    return f"{first}, and {more}"


def _no_answer(analysis: TilesAnalysis) -> str:
    cores = [row for row in analysis.tiles if row.unit == "core"]
    if not cores:
        return "No core was traced: whether the cores are busy is not known"
    return "No kernel call in the trace: whether the cores are busy is not known"
