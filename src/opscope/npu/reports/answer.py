"""What a trace of AI Engine tiles answers, are the cores busy, what stalls them, how far are they from peak."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import PART_FAILED, Severity
from opscope.core.grouping import grouped
from opscope.core.units import counted_text, rate_text, share_text
from opscope.npu.analysis.array import APART
from opscope.npu.analysis.cycles import EVENTS
from opscope.npu.analysis.pace import NOTHING_TRACED
from opscope.npu.analysis.tiles_result import all_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.findings.message import Message
    from opscope.npu.analysis.pace import TileBound
    from opscope.npu.analysis.rates import GmacRange
    from opscope.npu.analysis.tiles_result import ArrayView, TileRow, TilesAnalysis

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
STALLED = 0.2
"""Share of the cycles in calls from which their stalls count as waiting, and are said."""
_BUSY, _IDLE = 0.8, 0.4
_NO_CALLS = {"calls_not_traced", "calls_none", "trace_mode", "call_without_cycles"}
_SMALL = 0.005


def answer(analysis: TilesAnalysis) -> tuple[str, list[str]]:
    """The first lines of every report: the headline, and what limits and explains it.

    What the cores wait for, what sets the pace of their calls, how several work together, and how much of the run the
    trace holds; none of it without calls.
    """
    rows = analysis.working
    if not rows:
        return headline(analysis), []
    together = [f"together: {array_sentence(analysis.array)}"] if analysis.array and len(rows) > 1 else []
    return headline(analysis), [stalls_text(rows), pace_text(analysis), *together, seen_text(analysis)]


def share(rows: Sequence[TileRow], *names: str) -> float:
    """Part of the windows of these tiles that these categories take."""
    return sum(row.cycles.of(name) for row in rows for name in names) / sum(row.window_cycles for row in rows)


def busyness(rows: Sequence[TileRow]) -> tuple[bool, list[float]]:
    """Share of its peak of each core where that is known for all, else of its cycles in calls; and whether it is."""
    of_peak = [row.utilisation for row in rows if row.utilisation is not None]
    if len(of_peak) == len(rows):
        return True, of_peak
    return False, [row.cycles.in_call.total / row.window_cycles for row in rows]


def stalled_share(rows: Sequence[TileRow]) -> float:
    """Part of the cycles in calls in which the cores wait."""
    stalled = sum(getattr(row.cycles.in_call, name) for row in rows for name in STALLS)
    return float(stalled) / max(sum(row.cycles.in_call.total for row in rows), 1)


def headline(analysis: TilesAnalysis) -> str:
    """Say which cores only wait, whether the others are busy, and how far they are from the peak."""
    rows, waiting = analysis.working, [row for row in analysis.tiles if row.only_waits]
    idle = _only_wait_text(waiting, sum(row.unit == "core" for row in analysis.tiles)) if waiting else ""
    if not rows:
        return idle or _no_answer(analysis)
    if idle:
        silent = any(row.unit == "core" and not row.window_cycles and not row.only_waits for row in analysis.tiles)
        others = f"the {len(rows)} with calls" if silent else f"the other{'' if len(rows) == 1 else f' {len(rows)}'}"
        return f"{idle}; {others} {_busy_text(analysis)}"
    return (
        f"The core {_busy_text(analysis)}"
        if len(rows) == 1
        else f"The {counted_text(len(rows), 'core')} {_busy_text(analysis)}"
    )


def _only_wait_text(rows: Sequence[TileRow], cores: int) -> str:
    """Cores that do nothing else, with what the first of them waits for."""
    wait = rows[0].only_waits
    if wait is None:
        return ""
    traced = "all of its events" if wait.share is None else f"{share_text(wait.share)} of its trace"
    calls = {"none": "no call", "begun": "its call does not end", "not traced": "calls not traced"}[wait.calls]
    said = f"{CATEGORY_NAMES[wait.stall]} in {traced}, {calls}"
    if cores == 1:
        return f"The core only waits: {said}"
    tiles = f"tile {rows[0].tile}{'' if len(rows) == 1 else f' and {len(rows) - 1} more'}"
    return f"{len(rows)} of {counted_text(cores, 'core')} only wait{'s' if len(rows) == 1 else ''} ({tiles}): {said}"


def _busy_text(analysis: TilesAnalysis) -> str:
    inside, waits = analysis.in_call_share, stalled_share(analysis.working)
    waits = waits if waits >= STALLED else 0.0
    work, low = inside * (1 - waits), "idle" if inside < _IDLE else "waiting"
    word = "busy" if work >= _BUSY else f"{low} most of the time" if work < _IDLE else "busy part of the time"
    of_these = f"; {share_text(waits)} of these are stalls" if waits else ""
    verb = "is" if len(analysis.working) == 1 else "are"
    return f"{verb} {word}: {share_text(inside)} of the cycles are in kernel calls{of_these}{_rate_suffix(analysis)}"


def _rate_suffix(analysis: TilesAnalysis) -> str:
    rows, rate, used = analysis.working, analysis.mac_per_cycle, analysis.utilisation
    if rate is None:
        return ""
    said = f"; {rate_text(rate)} MAC per cycle{'' if len(rows) == 1 else ' and core'}"
    return said if used is None else f"{said}, {share_text(used)} of the peak"


def stalls_text(rows: Sequence[TileRow]) -> str:
    """Say what cores wait for, the largest first, and what was not traced."""
    shares = [(share(rows, name), name) for name in STALLS]
    texts = [
        f"{CATEGORY_NAMES[name]} {share_text(part)}" for part, name in sorted(shares, reverse=True) if part > _SMALL
    ]
    found = f"stalled: {', '.join(texts)}" if texts else "stalled: hardly at all in the traced events"
    missing = sorted({name for row in rows for name in row.not_traced})
    unseen = f" (not traced: {', '.join(missing)})" if missing else ""
    vector = f"vector instructions {share_text(share(rows, 'vector'))}, " if "INSTR_VECTOR" not in missing else ""
    return f"{found}; {vector}other {share_text(share(rows, 'other'))}{unseen}"


def pace_text(analysis: TilesAnalysis) -> str:
    """Say what sets the pace of the calls of the slowest core."""
    rows = analysis.working
    row = shown_core(analysis)
    late = analysis.array.slowest if analysis.array else None
    of = "" if len(rows) == 1 else f" of tile {row.tile}{', the slowest' if late else ''}"
    bound = row.bound
    if bound is None:
        return f"period{of}: unknown, {row.bound_reason}"
    verdict = verdict_text(bound) if bound.by == NOTHING_TRACED else by_text(bound.by)
    return (
        f"period{of}: {verdict}; a call every {bound.measured_period_cycles:,.0f} cycles, "
        f"{bound.predicted_period_cycles:,.0f} predicted; the call itself takes {bound.call_cycles:,.0f}"
    )


def verdict_text(bound: TileBound) -> str:
    """A verdict in a cell of a table; without an explanation how many periods there are."""
    return f"{bound.by}, n = {bound.period.n}" if bound.by == NOTHING_TRACED else bound.by


def by_text(by: str) -> str:
    """A verdict on the bound in words."""
    return {"call": "bound by the kernel call itself", "not explained": "not explained by the traced events"}.get(
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
    """Say how long an iteration takes on all cores, how even they are, and which is slowest."""
    if array.median_runtime_cycles is None:
        return f"no runtime for all cores: {array.reason}"
    text = f"{_left_out_text(array)}{_runtime_text(array, array.median_runtime_cycles)}{_array_rate(array)}"
    if array.slowest is None:
        return f"{text}; none is slower than the others"
    late = array.slowest
    return f"{text}; tile {late.tile} is slowest, {late.excess_cycles:,.0f} cycles behind the others: {late.why}"


def _left_out_text(array: ArrayView) -> str:
    if not array.left_out:
        return ""
    tiles = [core.tile for core in array.left_out]
    more = f" and {len(tiles) - 3} more" if len(tiles) > 3 else ""  # noqa: PLR2004 - as many as fit a line
    return f"without tile {', '.join(tiles[:3])}{more} (unreliable times), "


def _runtime_text(array: ArrayView, cycles: float) -> str:
    """An iteration from the first start to the last end; where the cores start far apart, each by itself as well."""
    skew, even = array.median_start_skew_cycles or 0.0, share_text(array.balance or 0.0)
    if skew <= APART * cycles:
        supposed = " if their traces started together" if array.alignment.by == "trace_start" else ""
        return f"an iteration takes {cycles:,.0f} cycles on all cores{supposed}, balanced to {even}"
    alone = median(one.longest_cycles for one in array.iterations)
    return (
        f"an iteration takes {cycles:,.0f} cycles from the first start to the last end, because the cores start up to "
        f"{skew:,.0f} cycles apart; a single core takes at most {alone:,.0f}, balanced to {even}"
    )


def _array_rate(array: ArrayView) -> str:
    if array.mac_per_cycle is None or array.window_cycles is None:
        return ""
    said = f"; {rate_text(array.mac_per_cycle)} MAC per cycle together in {array.window_cycles:,} cycles"
    return said if array.utilisation is None else f"{said}, {share_text(array.utilisation)} of their peak"


def seen_text(analysis: TilesAnalysis) -> str:
    """Say how much of the run the trace holds, and of which cores it has no calls."""
    rows = analysis.working
    calls = counted_text(sum(row.calls.paired for row in rows), "call", ",")
    dropped = sum(row.calls.dropped for row in rows)
    odd = f", {counted_text(dropped, 'event')} outside calls" if dropped else ""
    known = all_known(row.coverage for row in rows)
    covered = f"; {share_text(min(known))} of the calls of the whole run" if known else ""
    silent = [row for row in analysis.tiles if row.unit == "core" and not row.window_cycles and not row.only_waits]
    if silent:
        covered += f"; no calls of {counted_text(len(silent), 'more core')} ({_no_calls_text(analysis, silent)})"
    window = sum(row.window_cycles for row in rows) // len(rows)
    return f"seen: {calls}{odd} in {window:,} cycles{_iterations_text(rows)}{covered}"


def _iterations_text(rows: Sequence[TileRow]) -> str:
    counts = sorted({sum(one.phase == "measured" for one in row.iterations) for row in rows})
    if not counts[-1]:
        return ""
    number = counted_text(counts[0], "iteration") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} iterations"
    return f"; {number} measured{_typical_cycles_text(rows)}"


def iteration_lines(rows: Sequence[TileRow]) -> list[str]:
    """Say how many iterations were found, how long they take and why these; of like tiles once."""
    groups = grouped(rows, lambda row: (len(row.iterations), row.expected_iterations, row.iterations_reason))
    lines = []
    for (count, expected, reason), tile_rows in groups.items():
        more = f" and {len(tile_rows) - 1} more" if len(tile_rows) > 1 else ""
        of = "" if expected is None else f" of {expected} expected"
        number = f"{counted_text(count, 'iteration')}{of}{_typical_cycles_text(tile_rows)}"
        lines.append(f"tile {tile_rows[0].tile}{more}: {number}: {reason}")
    return lines


def _typical_cycles_text(rows: Sequence[TileRow]) -> str:
    """Median cycles of the measured iterations, of several tiles from least to most; empty without any."""
    measured = [[one.cycles for one in row.iterations if one.phase == "measured"] for row in rows]
    medians = [median(own) for own in measured if own]
    if not medians:
        return ""
    low, high = (f"{end:,.0f}" for end in (min(medians), max(medians)))
    return f", {low} cycles" if low == high else f", {low} to {high} cycles"


def range_text(gmac_range: GmacRange | None) -> str:
    """Say a rate in GMAC/s with the clock that it supposes; empty if it is not known."""
    if gmac_range is None:
        return ""
    low, high = rate_text(gmac_range.low), rate_text(gmac_range.high)
    span = low if gmac_range.low == gmac_range.high else f"{low} to {high}"
    if gmac_range.assumed is None:
        return f"{span} GMAC/s {clock_text(gmac_range)}"
    clocks = f"{gmac_range.low_mhz:g} to {gmac_range.high_mhz:g} MHz"
    rate = rate_text(gmac_range.assumed)
    return f"{rate} GMAC/s at an assumed {gmac_range.assumed_mhz:g} MHz; {span} at {clocks}"


def clock_text(gmac_range: GmacRange) -> str:
    """The clock of a rate, or the range of it; an assumed one says so."""
    if gmac_range.low_mhz == gmac_range.high_mhz:
        return f"at {gmac_range.low_mhz:g} MHz"
    span = f"{gmac_range.low_mhz:g} to {gmac_range.high_mhz:g} MHz"
    return f"at {span}" if gmac_range.assumed_mhz is None else f"at an assumed {gmac_range.assumed_mhz:g} MHz ({span})"


_INPUT = {
    *("trace_mode", "calls_not_traced", "calls_none", "packets_lost", "above_peak", "impossible_tiles"),
    *("time_may_be_lost", "core_left_out", "core_only_waits", PART_FAILED),
}
"""Rules that say what a trace cannot tell, or that a core does nothing: they come before all others."""


def by_saving(findings: Sequence[Message]) -> list[Message]:
    """Findings as :func:`told` joins them: first what limits the trace, then by the cycles that they could save."""

    def rank(message: Message) -> tuple[bool, float]:
        is_input = message.rule in _INPUT or (message.place == "file" and message.severity is not Severity.INFO)
        return not is_input, -(message.saving_cycles or 0.0)

    return sorted(told(findings), key=rank)


def told(findings: Sequence[Message]) -> list[Message]:
    """Findings as reports show them: those of one rule and subject once for all tiles, in the order of the first."""
    whole = {"file", "options", "all tiles"}
    groups = grouped(
        findings, lambda message: (message.rule, message.subject, message.title if message.place in whole else "")
    )
    return [messages[0].about(place=_place_of_all(messages)) for messages in groups.values()]


def category_cells(row: TileRow) -> list[tuple[str, str, str, str, str]]:
    """Rows of a table of cycles: category, in calls, between calls, together, share; what was not traced says so."""
    inside, between = msgspec.structs.asdict(row.cycles.in_call), msgspec.structs.asdict(row.cycles.between_calls)
    cells = [
        (words, "not traced", "", "", "")
        if EVENTS.get(name) in row.not_traced
        else (words, *_cycle_cells(inside[name], between[name], row.window_cycles))
        for name, words in CATEGORY_NAMES.items()
    ]
    sums = row.cycles.in_call.total, row.cycles.between_calls.total
    return [*cells, ("window", *_cycle_cells(*sums, row.window_cycles))]


def _cycle_cells(inside: int, between: int, window: int) -> tuple[str, str, str, str]:
    return f"{inside:,}", f"{between:,}", f"{inside + between:,}", share_text((inside + between) / window)


def units_text(analysis: TilesAnalysis) -> str:
    """Count the trace units of each kind, and say where a single one is."""
    units = [row.unit for row in analysis.tiles]
    names = {"core": "core", "mem": "memory module", "memtile": "memory tile", "shim": "interface tile"}
    counts = ", ".join(counted_text(units.count(unit), name) for unit, name in names.items() if unit in units)
    if len({row.tile for row in analysis.tiles}) > 1:
        return f"{counts}; tiles are named ROW,COLUMN"
    row = next(iter(analysis.tiles), None)
    return counts if row is None or row.column is None else f"{counts} (column {row.column}, row {row.row})"


def _place_of_all(messages: Sequence[Message]) -> str:
    places = [one.place or "" for one in messages]
    first = places[0]
    if len(messages) == 1:
        return first
    tiles = {place.partition(",")[0] + place.partition(",")[2].partition(",")[0] for place in places}
    more = counted_text(len(messages) - 1, "more place" if len(tiles) < len(messages) else "more tile")
    return f"{first}, and {more}"


def _no_answer(analysis: TilesAnalysis) -> str:
    cores = [row for row in analysis.tiles if row.unit == "core"]
    if not cores:
        return "No core was traced: unknown whether the cores are busy"
    return f"Unknown whether the cores are busy: {_no_calls_text(analysis, cores)}"


def _no_calls_text(analysis: TilesAnalysis, cores: Sequence[TileRow]) -> str:
    reason = why_no_calls(analysis, cores)
    return reason.title if reason and not analysis.bugs else "; ".join(analysis.bugs[:1])


def why_no_calls(analysis: TilesAnalysis, cores: Sequence[TileRow]) -> Message | None:
    """Return the first finding that says why these cores have no known calls. None if a bug is the reason."""
    places = {f"tile {row.tile}" for row in cores}
    found = (message for message in analysis.findings if message.rule in _NO_CALLS)
    return next((message for message in found if (message.place or "").partition(", ")[0] in places), None)
