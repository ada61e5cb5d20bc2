"""Answers of a trace of AI Engine tiles: are the cores busy, what stalls them, how far are they from peak.

The first screen is made of it, for a terminal and a notebook; reports begin with it.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from opscope.analysis.findings.message import PART_FAILED, Severity
from opscope.core.grouping import grouped
from opscope.core.parts import part
from opscope.core.units import counted_text, rate_text, share_text
from opscope.npu.analysis.array import APART
from opscope.npu.analysis.cycles import STALLS
from opscope.npu.analysis.pace import NOTHING_TRACED
from opscope.npu.analysis.tiles_result import all_known
from opscope.reports.document.blocks import Block, Document, Format, Sentence, Tone, column, table
from opscope.reports.document.messages import finding_parts, in_short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.findings.message import Message
    from opscope.npu.analysis.pace import TileBound
    from opscope.npu.analysis.rates import GmacRange
    from opscope.npu.analysis.tiles_result import ArrayView, TileRow, TilesAnalysis
    from opscope.reports.document.blocks import TableBlock

CATEGORY_NAMES = {
    "vector": "vector instructions",
    "memory_stall": "memory stall",
    "stream_stall": "stream stall",
    "cascade_stall": "cascade stall",
    "lock_stall": "lock stall",
    "other": "other",
}
"""Categories of cycles in words, in the order in which they are shown."""
STALLED = 0.2
"""Share of the cycles in calls from which their stalls count as waiting, and are said."""
_BUSY, _IDLE = 0.8, 0.4
_SMALL = 0.005
_MOST_FINDINGS = 3
_NO_CALLS = {"calls_not_traced", "calls_none", "trace_mode", "call_without_cycles"}
_INPUT = {
    *("trace_mode", "calls_not_traced", "calls_none", "packets_lost", "above_peak", "impossible_tiles"),
    *("time_may_be_lost", "core_left_out", "core_only_waits", PART_FAILED),
}
"""Rules that say what a trace cannot tell, or that a core does nothing: they come before all others."""


def tiles_screen(analysis: TilesAnalysis) -> Document:
    """Return the answer, one next step, and the findings that could save most, for a terminal or a notebook."""
    headline, lines = answer(analysis)
    messages = sort_by_saving(analysis.findings)
    listed = [message for message in messages if message.saving_cycles or message.severity is not Severity.INFO]
    listed = listed[:_MOST_FINDINGS]
    steps = (message.next_step for message in listed or messages)
    step = next((step for step in steps if step and not step.startswith("nothing to do")), "")
    blocks: list[Block] = []
    seconds = part("the rate in seconds", lambda: range_text(analysis.gmac_per_s), "")
    if seconds:
        blocks.append(Sentence(f"rate: {'' if len(analysis.working) == 1 else 'a core: '}{seconds}"))
    if step:
        blocks.append(Sentence(f"next: {in_short(step)}", Tone.STRONG))
    for number, message in enumerate(listed, 1):
        parts = finding_parts(message)
        if parts is not None:
            blocks.append(Sentence(f"{number}. {parts.title} ({parts.place}): {parts.saving or parts.evidence}"))
    addresses = addresses_table(analysis.tiles)
    blocks += [addresses] if addresses.rows else []
    rest = [message.rule for message in messages if message not in listed]
    more = f"; {counted_text(len(rest), 'more finding')}: {', '.join(dict.fromkeys(rest))}" if rest else ""
    tables = "cycles, calls, iterations and streams" if analysis.working else "what was traced"
    blocks.append(Sentence(f"the report has {tables}: --out DIR{more}", Tone.DIM))
    path = analysis.trace.path
    heading = f"{path} ({analysis.trace.format}), {units_text(analysis)}"
    return Document(path, headline, blocks, [], heading, trust=list(map(Sentence, lines)))


def addresses_table(rows: Sequence[TileRow]) -> TableBlock:
    """Tabulate the program addresses of events, of the units that recorded these."""
    return table(
        [(row, slot, address) for row in rows for slot in row.slots for address in slot.addresses],
        column("tile", Format.TEXT, lambda triple: triple[0].tile),
        column("event", Format.NAME, lambda triple: triple[1].event),
        column("address", Format.TEXT, lambda triple: f"{triple[2].address:#x}"),
        column("times", Format.COUNT, lambda triple: triple[2].times),
        sortable=True,
    )


def answer(analysis: TilesAnalysis) -> tuple[str, list[str]]:
    """Return the first lines of every report: the headline, and what limits and explains it.

    What the cores wait for, what sets the pace of their calls, how several work together, and how much of the run the
    trace holds; none of it without calls.
    """
    rows = analysis.working
    if not rows:
        return _headline_text(analysis), []
    together = [f"together: {array_sentence(analysis.array)}"] if analysis.array and len(rows) > 1 else []
    return _headline_text(analysis), [_stalls_text(rows), _pace_text(analysis), *together, _seen_text(analysis)]


def window_share(rows: Sequence[TileRow], name: str) -> float:
    """Return the part of the windows of these tiles that a category takes."""
    return sum(row.cycles.of(name) for row in rows) / sum(row.window_cycles for row in rows)


def stalled_share(rows: Sequence[TileRow]) -> float:
    """Return the part of the cycles in calls in which the cores wait."""
    stalled = sum(getattr(row.cycles.in_call, name) for row in rows for name in STALLS)
    return float(stalled) / max(sum(row.cycles.in_call.total for row in rows), 1)


def _headline_text(analysis: TilesAnalysis) -> str:
    """Say which cores only wait, whether the others are busy, and how far they are from the peak."""
    rows, cores, waiting = analysis.working, analysis.cores, [row for row in analysis.tiles if row.only_waits]
    idle = _only_wait_text(waiting, len(cores)) if waiting else ""
    if rows and idle:
        is_silent = any(not row.window_cycles and not row.only_waits for row in cores)
        other_cores = (
            f"the {len(rows)} with calls" if is_silent else f"the other{'' if len(rows) == 1 else f' {len(rows)}'}"
        )
        return f"{idle}; {other_cores} {_busy_text(analysis)}"
    if rows:
        return f"The {'core' if len(rows) == 1 else counted_text(len(rows), 'core')} {_busy_text(analysis)}"
    if idle or not cores:
        return idle or "No core was traced: unknown whether the cores are busy"
    return f"Unknown whether the cores are busy: {_no_calls_text(analysis, cores)}"


def _only_wait_text(rows: Sequence[TileRow], cores: int) -> str:
    """Name the cores that do nothing else, with what the first of them waits for."""
    wait = rows[0].only_waits
    if wait is None:
        return ""
    traced = "all of its events" if wait.share is None else f"{share_text(wait.share)} of its trace"
    calls = {"none": "no call", "begun": "its call does not end", "not traced": "calls not traced"}[wait.calls]
    text = f"{CATEGORY_NAMES[wait.stall]} in {traced}, {calls}"
    if cores == 1:
        return f"The core only waits: {text}"
    tiles = f"tile {rows[0].tile}{'' if len(rows) == 1 else f' and {len(rows) - 1} more'}"
    return f"{len(rows)} of {counted_text(cores, 'core')} only wait{'s' if len(rows) == 1 else ''} ({tiles}): {text}"


def _busy_text(analysis: TilesAnalysis) -> str:
    rows, in_calls, waits = analysis.working, analysis.in_call_share, stalled_share(analysis.working)
    waits = waits if waits >= STALLED else 0.0
    work, low = in_calls * (1 - waits), "idle" if in_calls < _IDLE else "waiting"
    word = "busy" if work >= _BUSY else f"{low} most of the time" if work < _IDLE else "busy part of the time"
    text = f"{'is' if len(rows) == 1 else 'are'} {word}: {share_text(in_calls)} of the cycles are in kernel calls"
    if waits:
        text += f"; {share_text(waits)} of these are stalls"
    if analysis.mac_per_cycle is not None:
        text += f"; {rate_text(analysis.mac_per_cycle)} MAC per cycle{'' if len(rows) == 1 else ' and core'}"
        text += "" if analysis.utilisation is None else f", {share_text(analysis.utilisation)} of the peak"
    return text


def _stalls_text(rows: Sequence[TileRow]) -> str:
    """Say what cores wait for, the largest first, and what was not traced."""
    shares = sorted(((window_share(rows, name), name) for name in STALLS), reverse=True)
    stalls = ", ".join(f"{CATEGORY_NAMES[name]} {share_text(share)}" for share, name in shares if share > _SMALL)
    missing = sorted({name for row in rows for name in row.not_traced})
    unseen = f" (not traced: {', '.join(missing)})" if missing else ""
    vector = f"vector instructions {share_text(window_share(rows, 'vector'))}, "
    vector = "" if "INSTR_VECTOR" in missing else vector
    other_share = share_text(window_share(rows, "other"))
    return f"stalled: {stalls or 'hardly at all in the traced events'}; {vector}other {other_share}{unseen}"


def _pace_text(analysis: TilesAnalysis) -> str:
    """Say what sets the pace of the calls of the slowest core."""
    row = shown_core(analysis)
    slowest = ", the slowest" if analysis.array and analysis.array.slowest else ""
    of = "" if len(analysis.working) == 1 else f" of tile {row.tile}{slowest}"
    bound = row.bound
    if bound is None:
        return f"period{of}: unknown, {row.bound_reason}"
    verdict = f"bound by the {bound.by}" if bound.by.endswith("stream") else f"bound by {bound.by}"
    if bound.by == NOTHING_TRACED:
        verdict = verdict_text(bound)
    elif bound.by == "call":
        verdict = "bound by the kernel call itself"
    return (
        f"period{of}: {verdict}; a call every {bound.measured_period_cycles:,.0f} cycles, "
        f"{bound.predicted_period_cycles:,.0f} predicted; the call itself takes {bound.call_cycles:,.0f}"
    )


def verdict_text(bound: TileBound) -> str:
    """Return a verdict for a cell of a table; without an explanation with the number of periods."""
    return f"{bound.by}, n = {bound.period.n}" if bound.by == NOTHING_TRACED else bound.by


def shown_core(analysis: TilesAnalysis) -> TileRow:
    """Return the core that stands for all: the slowest, else that of the longest period; there is one with calls."""
    rows = analysis.working
    late = analysis.array.slowest if analysis.array else None
    slowest = [row for row in rows if late and row.tile == late.tile]
    return max(
        slowest or rows, key=lambda row: (row.bound.measured_period_cycles if row.bound else 0.0, row.window_cycles)
    )


def array_sentence(array: ArrayView) -> str:
    """Say how long an iteration takes on all cores, how even they are, and which is slowest.

    Where the cores start far apart, how long each takes by itself as well.
    """
    cycles = array.median_runtime_cycles
    if cycles is None:
        return f"no runtime for all cores: {array.reason}"
    text = ""
    if array.left_out:
        tiles = [core.tile for core in array.left_out]
        more = f" and {len(tiles) - 3} more" if len(tiles) > 3 else ""  # noqa: PLR2004 - as many as fit a line
        text = f"without tile {', '.join(tiles[:3])}{more} (unreliable times), "
    skew, even = array.median_start_skew_cycles or 0.0, f"balanced to {share_text(array.balance or 0.0)}"
    if skew <= APART * cycles:
        supposed = " if their traces started together" if array.alignment.by == "trace_start" else ""
        text += f"an iteration takes {cycles:,.0f} cycles on all cores{supposed}, {even}"
    else:
        longest = median(row.longest_cycles for row in array.iterations)
        text += (
            f"an iteration takes {cycles:,.0f} cycles from the first start to the last end, because the cores start up "
            f"to {skew:,.0f} cycles apart; a single core takes at most {longest:,.0f}, {even}"
        )
    if array.mac_per_cycle is not None and array.window_cycles is not None:
        text += f"; {rate_text(array.mac_per_cycle)} MAC per cycle together in {array.window_cycles:,} cycles"
        text += "" if array.utilisation is None else f", {share_text(array.utilisation)} of their peak"
    late = array.slowest
    if late is None:
        return f"{text}; none is slower than the others"
    return f"{text}; tile {late.tile} is slowest, {late.excess_cycles:,.0f} cycles behind the others: {late.why}"


def _seen_text(analysis: TilesAnalysis) -> str:
    """Say how much of the run the trace holds, and of which cores it has no calls."""
    rows = analysis.working
    dropped = sum(row.calls.dropped for row in rows)
    window = sum(row.window_cycles for row in rows) // len(rows)
    text = f"seen: {counted_text(sum(row.calls.paired for row in rows), 'call', ',')}"
    text += f", {counted_text(dropped, 'event')} outside calls" if dropped else ""
    text += f" in {window:,} cycles"
    counts = sorted({sum(iteration.phase == "measured" for iteration in row.iterations) for row in rows})
    if counts[-1]:
        number = counted_text(counts[0], "iteration") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} iterations"
        text += f"; {number} measured{_typical_cycles_text(rows)}"
    known = all_known(row.coverage for row in rows)
    text += f"; {share_text(min(known))} of the calls of the whole run" if known else ""
    silent = [row for row in analysis.cores if not row.window_cycles and not row.only_waits]
    if silent:
        text += f"; no calls of {counted_text(len(silent), 'more core')} ({_no_calls_text(analysis, silent)})"
    return text


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
    """Return the median cycles of the measured iterations, of several tiles from least to most; empty without any."""
    measured = [[iteration.cycles for iteration in row.iterations if iteration.phase == "measured"] for row in rows]
    medians = [median(cycles) for cycles in measured if cycles]
    if not medians:
        return ""
    low, high = f"{min(medians):,.0f}", f"{max(medians):,.0f}"
    return f", {low} cycles" if low == high else f", {low} to {high} cycles"


def range_text(gmac_range: GmacRange | None) -> str:
    """Return a rate in GMAC/s with the clock that it supposes; empty if it is not known."""
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
    """Return the clock of a rate, or the range of it; an assumed one says so."""
    if gmac_range.low_mhz == gmac_range.high_mhz:
        return f"at {gmac_range.low_mhz:g} MHz"
    span = f"{gmac_range.low_mhz:g} to {gmac_range.high_mhz:g} MHz"
    return f"at {span}" if gmac_range.assumed_mhz is None else f"at an assumed {gmac_range.assumed_mhz:g} MHz ({span})"


def sort_by_saving(findings: Sequence[Message]) -> list[Message]:
    """Sort joined findings: first what limits the trace, then by the cycles that they could save."""

    def rank(message: Message) -> tuple[bool, float]:
        is_input = message.rule in _INPUT or (message.place == "file" and message.severity is not Severity.INFO)
        return not is_input, -(message.saving_cycles or 0.0)

    return sorted(join_findings(findings), key=rank)


def join_findings(findings: Sequence[Message]) -> list[Message]:
    """Join findings of one rule and subject, which reports show once for all tiles, in the order of the first."""
    everywhere = {"file", "options", "all tiles"}
    groups = grouped(
        findings, lambda message: (message.rule, message.subject, message.title if message.place in everywhere else "")
    )
    return [messages[0].about(place=_place_of_all(messages)) for messages in groups.values()]


def _place_of_all(messages: Sequence[Message]) -> str:
    locations = [message.place or "" for message in messages]
    if len(messages) == 1:
        return locations[0]
    tiles = {"".join(text.split(",")[:2]) for text in locations}
    more = counted_text(len(messages) - 1, "more place" if len(tiles) < len(messages) else "more tile")
    return f"{locations[0]}, and {more}"


def units_text(analysis: TilesAnalysis) -> str:
    """Count the trace units of each kind, and say where a single one is."""
    units = [row.unit for row in analysis.tiles]
    names = {"core": "core", "mem": "memory module", "memtile": "memory tile", "shim": "interface tile"}
    counts = ", ".join(counted_text(units.count(unit), name) for unit, name in names.items() if unit in units)
    positions = sorted({(row.column, row.row) for row in analysis.tiles})
    if len(positions) > 1:
        return f"{counts}; tiles are named ROW,COLUMN"
    return "".join((counts, *(f" (column {column}, row {row})" for column, row in positions)))


def _no_calls_text(analysis: TilesAnalysis, cores: Sequence[TileRow]) -> str:
    reason = why_no_calls(analysis, cores)
    return reason.title if reason and not analysis.bugs else "; ".join(analysis.bugs[:1])


def why_no_calls(analysis: TilesAnalysis, cores: Sequence[TileRow]) -> Message | None:
    """Return the first finding that says why these cores have no known calls. None if a bug is the reason."""
    tile_texts = {f"tile {row.tile}" for row in cores}
    reasons = (message for message in analysis.findings if message.rule in _NO_CALLS)
    return next((message for message in reasons if (message.place or "").partition(", ")[0] in tile_texts), None)
