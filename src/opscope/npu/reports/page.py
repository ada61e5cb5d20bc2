"""The report of a trace of AI Engine tiles: one document, as a page and in Markdown; its first lines on a terminal."""

from __future__ import annotations

from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from opscope.core.parts import part
from opscope.core.units import counted_text, rate_text, share_text
from opscope.npu.analysis.cycles import EVENTS, STALLS
from opscope.npu.analysis.tiles_result import all_known
from opscope.npu.reports import pictures as aie_pictures
from opscope.npu.reports.answer import (
    CATEGORY_NAMES,
    STALLED,
    addresses_table,
    answer,
    array_sentence,
    clock_text,
    iteration_lines,
    range_text,
    shown_core,
    sort_by_saving,
    stalled_share,
    units_text,
    verdict_text,
    window_share,
)
from opscope.reports.document.blocks import (
    Beside,
    Block,
    Bullets,
    CellMap,
    Closing,
    Document,
    Figures,
    Format,
    HeadlineFigure,
    MapCell,
    Messages,
    Section,
    Sentence,
    Tone,
    column,
    facts,
    table,
    words_table,
)
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.template import picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.npu.analysis.kinds import KindRow
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.npu.analysis.tiles import Examined
    from opscope.npu.analysis.tiles_result import ArrayView, TileRow, TilesAnalysis, TracedCore
    from opscope.reports.document.blocks import TableBlock


_MOST_REASONS = 20
_MOST_ROWS = 200
_FIRST = 3
_SHADES = 5
"""Strongest shade of a map's cell."""
NOT_KNOWN = "not known"
_OF_RATES = (
    "Rates cover the calls in the trace, over its window. The period runs from the start of one multiplying call "
    "to the next; predicted is the longest of the call and each port's transfers."
)


def tiles_html(examined: Examined) -> str:
    """Return the report as one HTML page that needs nothing else."""
    return html_document(tiles_document(examined), styles=("tiles.css",))


def tiles_markdown(examined: Examined) -> str:
    """Return the report in Markdown."""
    return markdown_document(tiles_document(examined))


def tiles_document(examined: Examined) -> Document:
    """Say whether the cores are busy, what stalls them, how far they are from their peak, and what that rests on."""
    analysis, core = examined.analysis, _shown_core(examined)
    name = PurePath(analysis.trace.path).name
    about = ", ".join(filter(None, (_device_text(analysis.given), units_text(analysis))))
    headline, lines = answer(analysis)
    trust = [Sentence(line) for line in lines]
    if not analysis.trace.complete:
        trust.append(Sentence("Incomplete: part of the trace is missing; the rest is shown.", Tone.BAD))
    sections = []
    if core:
        sections += [_timeline_section(examined, core), _calls_section(analysis.working, core)]
    if analysis.working:
        sections += [_rates_section(analysis), _iterations_section(analysis.working)]
    if analysis.array and len(analysis.working) > 1:
        sections.append(_array_section(analysis.array))
    return Document(
        title=name,
        heading=f"{name}: {about}",
        answer=headline,
        trust=trust,
        blocks=_first_screen(analysis, core),
        sections=[*sections, _traced_section(analysis)],
    )


def _shown_core(examined: Examined) -> TracedCore | None:
    """Return the core that stands for all. None without calls."""
    if not examined.analysis.working:
        return None
    name = shown_core(examined.analysis).tile
    return next((core for core in examined.cores if len(core.calls) and core.tile.tile == name), None)


def _first_screen(analysis: TilesAnalysis, core: TracedCore | None) -> list[Block]:
    rows, messages = analysis.working, sort_by_saving(analysis.findings)
    steps = Section("Recommendations", [Messages(messages, _FIRST) if messages else Sentence("No findings.")])
    if not rows:
        return [steps]
    are_few = len(rows) <= aie_pictures.FEW
    pale = f"Full colour: within kernel calls; pale: between them.{' One bar per core.' if are_few else ''}"
    cycles = picture("cycles", lambda: (aie_pictures.cycle_bars if are_few else aie_pictures.summed_bar)(rows))
    blocks: list[Block] = [
        Section("Where the cycles go", [cycles, picture("legend", aie_pictures.category_legend, pale)])
    ]
    if len(rows) > 1:
        cells = part("the map of the array", lambda: array_map(rows), None)
        note = Sentence(f"{cells.label}, by core position on the chip." if cells else "", Tone.DIM)
        blocks.append(Section("The array", [*([cells] if cells else []), note]))
    elif core:
        blocks.append(_close_section(core))
    figures = part("the figures of the first screen", lambda: _headline_figures(analysis), list[HeadlineFigure]())
    return [Figures(figures), Beside(blocks, [steps])]


def array_map(rows: Sequence[TileRow]) -> CellMap:
    """Draw the array as it lies, row 0 at the bottom: the share of its peak of each core, or of its cycles in calls.

    The scale is from 0 to 1 for every trace, so that an array that is evenly slow looks slow. A cell is empty where no
    core was traced.
    """
    values, label = all_known(row.utilisation for row in rows), "Share of the peak"
    if not values:
        values, label = [row.cycles.in_call.total / row.window_cycles for row in rows], "Share of cycles in calls"
    cells = {
        (row.row, row.column): MapCell(share_text(value), min(round(value * _SHADES), _SHADES))
        for row, value in zip(rows, values, strict=True)
    }
    lines, columns = (sorted({position[axis] for position in cells}) for axis in (0, 1))
    return CellMap(
        label=label,
        down="row",
        across="column",
        columns=[f"column {column}" for column in columns],
        rows=[(f"row {line}", [cells.get((line, column), MapCell("")) for column in columns]) for line in lines[::-1]],
    )


def _close_section(core: TracedCore) -> Section:
    return Section(
        f"A few calls of tile {core.tile.tile}", [picture("close", lambda: aie_pictures.close_timeline(core))]
    )


def _timeline_section(examined: Examined, core: TracedCore) -> Section:
    cores, array = [core for core in examined.cores if len(core.calls)], examined.analysis.array
    shifts = {shift.tile: shift.cycles for shift in array.alignment.shifts} if array else {}
    aligned = ""
    if array and len(examined.analysis.working) > 1 and array.alignment.event is not None:
        aligned = f"; the chart of all cores shifts them so that the first {array.alignment.event} is one moment"
    elif array and len(examined.analysis.working) > 1 and array.alignment.by == "timer":
        aligned = "; the chart of all cores shifts them by the tiles' timers"
    timers = f"Cycles of the tiles' own timers, which start with their traces{aligned}."
    timed = f"{timers} Darker colours: a larger part of the interval is active."
    drawn = picture("whole", lambda: aie_pictures.whole_timeline(cores, shifts), timed)
    return Section("Timeline", [*([_close_section(core)] if len(cores) > 1 else []), drawn], "when", "Timeline")


def _calls_section(rows: Sequence[TileRow], core: TracedCore) -> Section:
    many = [] if len(rows) <= aie_pictures.FEW else [picture("all_cycles", lambda: aie_pictures.cycle_bars(rows))]
    shares = "Shares of the window from the first call's start to the last call's end. Untraced events count as other."
    drawn = picture("durations", lambda: aie_pictures.call_durations(core))
    note = Sentence(shares if len(rows) > 1 else "", Tone.DIM)
    blocks = [
        Section(f"Duration of each call of tile {core.tile.tile}", [drawn]),
        kinds_table(rows),
        Sentence("Cycles from INSTR_EVENT_0 to INSTR_EVENT_1. No call is excluded as an outlier.", Tone.DIM),
        Section("Cycles by what the core did", [*many, cycles_table(rows), note]),
    ]
    return Section("Calls", blocks, "calls", "Calls")


def cycles_table(rows: Sequence[TileRow]) -> TableBlock:
    """Tabulate where the cycles went: of one core in calls and between them, of several by category."""
    if len(rows) == 1:
        heads = ("cycles", "in calls", "between calls", "together", "share")
        return words_table(heads, _category_cells(rows[0]))
    return table(
        rows[:_MOST_ROWS],
        column("tile", Format.TEXT, lambda row: row.tile),
        column("cycles", Format.COUNT, lambda row: row.window_cycles),
        column("in calls", Format.SHARE, lambda row: row.cycles.in_call.total / row.window_cycles),
        *(
            column(name.removesuffix("_stall"), Format.SHARE, partial(_share_of, name), absent="-")
            for name in CATEGORY_NAMES
        ),
        closing=[Closing(f"{len(rows) - _MOST_ROWS} more", {})] if len(rows) > _MOST_ROWS else [],
        sortable=True,
    )


def _share_of(name: str, row: TileRow) -> float | None:
    return None if EVENTS.get(name) in row.not_traced else row.cycles.of(name) / row.window_cycles


def _category_cells(row: TileRow) -> list[tuple[str, str, str, str, str]]:
    """Return rows of cells: category, in calls, between calls, together, share; what was not traced says so."""
    in_call, between = row.cycles.in_call, row.cycles.between_calls
    counts = [
        *((words, getattr(in_call, name), getattr(between, name)) for name, words in CATEGORY_NAMES.items()),
        ("window", in_call.total, between.total),
    ]
    untraced = {words for name, words in CATEGORY_NAMES.items() if EVENTS.get(name) in row.not_traced}
    return [
        (words, "not traced", "", "", "")
        if words in untraced
        else (words, f"{a:,}", f"{b:,}", f"{a + b:,}", share_text((a + b) / row.window_cycles))
        for words, a, b in counts
    ]


def kinds_table(rows: Sequence[TileRow]) -> TableBlock:
    """Tabulate kinds of calls, with how long they take."""
    figures = ("median_cycles", "p10_cycles", "p90_cycles", "min_cycles", "max_cycles")
    return table(
        [(row, kind) for row in rows for kind in row.kinds],
        column("tile", Format.TEXT, lambda pair: pair[0].tile),
        column("kind", Format.NAME, lambda pair: pair[1].kind),
        column("calls", Format.COUNT, lambda pair: pair[1].n),
        column("vector", Format.COUNT, lambda pair: pair[1].vector_cycles),
        column("first", Format.COUNT, lambda pair: pair[1].first_cycles, wide=True),
        *(column(name.removesuffix("_cycles"), Format.COUNT, partial(_cycles_of, name)) for name in figures),
        column("distinguished by", Format.TEXT, lambda pair: pair[1].evidence, wide=True),
        sortable=True,
    )


def _cycles_of(name: str, pair: tuple[TileRow, KindRow]) -> float:
    return float(getattr(pair[1], name))


def _rates_section(analysis: TilesAnalysis) -> Section:
    rows, core = analysis.working, shown_core(analysis)
    rates = table(
        rows,
        column("tile", Format.TEXT, lambda row: row.tile),
        column("MAC/cycle", Format.RATE, lambda row: row.mac_per_cycle, absent=NOT_KNOWN),
        column("of peak", Format.SHARE, lambda row: row.utilisation, absent=NOT_KNOWN),
        column("in calls", Format.RATE, lambda row: row.in_call_mac_per_cycle, absent=NOT_KNOWN),
        column("GMAC/s", Format.TEXT, lambda row: range_text(row.gmac_per_s) or NOT_KNOWN, wide=True),
        column("period", Format.COUNT, lambda row: row.bound.measured_period_cycles if row.bound else None),
        column("predicted", Format.COUNT, lambda row: row.bound.predicted_period_cycles if row.bound else None),
        column("residual", Format.COUNT, lambda row: row.bound.residual_cycles if row.bound else None, wide=True),
        column("call", Format.COUNT, lambda row: row.bound.call_cycles if row.bound else None, wide=True),
        column("bound by", Format.TEXT, lambda row: verdict_text(row.bound) if row.bound else NOT_KNOWN),
        column("coverage", Format.SHARE, lambda row: row.coverage, absent=NOT_KNOWN, wide=True),
        sortable=True,
    )
    without = [row for row in rows if row.rate_reason]
    more = f" and {len(without) - 1} more" if len(without) > 1 else ""
    unbound = [f"tile {row.tile}: {row.bound_reason}" for row in rows if row.bound is None and row.bound_reason]
    blocks: list[Block] = [
        rates,
        Bullets(unbound[:_MOST_REASONS]),
        Sentence(f"No rate of tile {without[0].tile}{more}: {without[0].rate_reason}." if without else "", Tone.DIM),
        Sentence(_OF_RATES, Tone.DIM),
    ]
    if core.bound and core.bound.ports:
        ports = table(
            core.bound.ports,
            column("port", Format.NAME, lambda port: port.name),
            column("carries", Format.NAME, lambda port: port.label if port.operands else NOT_KNOWN),
            column("bytes per transfer", Format.COUNT, lambda port: port.buffer_bytes),
            column("cycles per transfer", Format.COUNT, lambda port: port.transfer_cycles),
            column("transfers", Format.COUNT, lambda port: port.transfers),
            column("cycles per call", Format.COUNT, lambda port: port.cycles_per_call),
            column("busy cycles", Format.COUNT, lambda port: port.busy_cycles),
            column("source", Format.TEXT, lambda port: port.reason),
            sortable=True,
        )
        blocks.append(Section(f"Streams of tile {core.tile}", [ports]))
    return Section("Rates and bottleneck", blocks, "rates", "Rates")


def _iterations_section(rows: Sequence[TileRow]) -> Section:
    reasons = part("the sentences on iterations", lambda: iteration_lines(rows), list[str]())
    listed = table(
        [(row, iteration) for row in rows for iteration in row.iterations[:_MOST_ROWS]],
        column("tile", Format.TEXT, lambda pair: pair[0].tile),
        column("iteration", Format.COUNT, lambda pair: pair[1].number),
        column("phase", Format.TEXT, lambda pair: pair[1].phase),
        column("complete", Format.TEXT, lambda pair: "yes" if pair[1].complete else "no"),
        column("calls", Format.COUNT, lambda pair: pair[1].calls),
        column("from cycle", Format.COUNT, lambda pair: pair[1].start),
        column("cycles", Format.COUNT, lambda pair: pair[1].cycles),
        column("MAC per cycle", Format.RATE, lambda pair: pair[1].mac_per_cycle, absent=NOT_KNOWN),
        sortable=True,
    )
    return Section("Iterations", [listed, Bullets(reasons)], "iterations", "Iterations")


def _array_section(array: ArrayView) -> Section:
    tiles = table(
        array.tiles,
        column("tile", Format.TEXT, lambda tile: tile.tile),
        column("median cycles of an iteration", Format.COUNT, lambda tile: tile.median_cycles),
        column("min", Format.COUNT, lambda tile: tile.min_cycles),
        column("max", Format.COUNT, lambda tile: tile.max_cycles),
        column("ends last in", Format.COUNT, lambda tile: tile.ends_last),
        sortable=True,
    )
    iterations = table(
        array.iterations[:_MOST_ROWS],
        column("iteration", Format.COUNT, lambda row: row.number),
        column("runtime cycles", Format.COUNT, lambda row: row.runtime_cycles),
        column("longest on one core", Format.COUNT, lambda row: row.longest_cycles),
        column("start skew", Format.COUNT, lambda row: row.start_skew_cycles),
        column("first", Format.TEXT, lambda row: row.first_tile),
        column("last", Format.TEXT, lambda row: row.last_tile),
        column("balance", Format.SHARE, lambda row: row.balance),
        column("MAC per cycle, all cores", Format.RATE, lambda row: row.mac_per_cycle, absent=NOT_KNOWN),
        sortable=True,
    )
    sentence, alignment, reason = (
        f"{text[:1].upper()}{text[1:]}." for text in (array_sentence(array), array.alignment.reason, array.reason)
    )
    blocks = [Sentence(sentence), tiles, iterations, Sentence(f"{alignment} {reason}", Tone.DIM)]
    return Section("All cores together", blocks, "array", "Array")


def _traced_section(analysis: TilesAnalysis) -> Section:
    trace, tiles = analysis.trace, analysis.tiles
    slots = table(
        [(row, slot) for row in tiles for slot in row.slots],
        column("tile", Format.TEXT, lambda pair: pair[0].tile),
        column("unit", Format.TEXT, lambda pair: pair[0].unit),
        column("slot", Format.COUNT, lambda pair: pair[1].slot),
        column("event", Format.NAME, lambda pair: pair[1].event),
        column("times", Format.COUNT, lambda pair: pair[1].spans),
        column("cycles", Format.COUNT, lambda pair: pair[1].cycles),
        column(
            "of the trace",
            Format.SHARE,
            lambda pair: pair[1].cycles / pair[0].last_cycle if pair[0].last_cycle else None,
        ),
        sortable=True,
    )
    steps = table(
        [(row, step) for row in tiles for step in row.advice.steps],
        column("tile", Format.TEXT, lambda pair: pair[0].tile),
        column("unit", Format.TEXT, lambda pair: pair[0].unit),
        column("drop", Format.TEXT, lambda pair: ", ".join(pair[1].events)),
        column("the same buffer reaches", Format.RATIO, lambda pair: pair[1].reach),
        column("new coverage", Format.SHARE, lambda pair: pair[1].coverage, absent=NOT_KNOWN),
    )
    how = "Estimated from the commands per event; the buffer keeps the oldest."
    extent = "whole" if trace.complete else "cut off"
    file = f"{trace.path} ({trace.format}), {counted_text(trace.events, 'event', ',')}, {extent}, sha256 {trace.sha256}"
    addresses = addresses_table(tiles)
    blocks: list[Block] = [slots, *([addresses] if addresses.rows else [])]
    if steps.rows:
        blocks.append(Section("Events to drop from the trace", [steps, Sentence(how, Tone.DIM)]))
    return Section(
        "What was traced", [*blocks, facts([("file", file), *_given_facts(analysis.given)])], "trace", "Trace"
    )


def _headline_figures(analysis: TilesAnalysis) -> list[HeadlineFigure]:
    rows, row, gmac_range = analysis.working, shown_core(analysis), analysis.gmac_per_s
    of_all = "of the cycles" if len(rows) == 1 else f"of the cycles of {counted_text(len(rows), 'core')}"
    stalled = f"; {share_text(stalled_share(rows))} of these stalled" if stalled_share(rows) >= STALLED else ""
    worst = max(STALLS, key=lambda name: window_share(rows, name))
    vector = share_text(window_share(rows, "vector")), "of the cycles"
    if any(EVENTS["vector"] in core.not_traced for core in rows):
        vector = NOT_KNOWN, f"{EVENTS['vector']} was not traced"
    figures = [
        HeadlineFigure("in kernel calls", share_text(analysis.in_call_share), f"{of_all}{stalled}"),
        HeadlineFigure("vector instructions", *vector),
        HeadlineFigure(CATEGORY_NAMES[worst], share_text(window_share(rows, worst)), "the largest traced stall"),
    ]
    if analysis.mac_per_cycle is not None:
        peak = f"of {row.peak_mac_per_cycle} at peak" if row.peak_mac_per_cycle else "peak unknown"
        figures.append(HeadlineFigure("MAC per cycle", rate_text(analysis.mac_per_cycle), f"{peak}, per core"))
    if gmac_range is not None and (gmac_range.low == gmac_range.high or gmac_range.assumed is not None):
        value = gmac_range.low if gmac_range.assumed is None else gmac_range.assumed
        figures.append(HeadlineFigure("GMAC/s", rate_text(value), f"a core, {clock_text(gmac_range)}"))
    if row.bound:
        period, call = row.bound.measured_period_cycles, row.bound.call_cycles
        figures.append(HeadlineFigure("period of calls", f"{period:,.0f}", f"cycles; the call takes {call:,.0f}"))
    covered = all_known(core.coverage for core in rows)
    if covered:
        figures.append(HeadlineFigure("coverage", share_text(min(covered)), "of the run's calls"))
    return figures


def _device_text(run: RunSpecification) -> str:
    if run.device is None:
        return ""
    return f"{run.device.name} ({run.device.architecture}){f', {run.dtype}' if run.dtype else ''}"


def _given_facts(specification: RunSpecification) -> list[tuple[str, str]]:
    tiling, assumed, known, clock = specification.tiling, specification.assumed_clock, [], "not given"
    if tiling is not None:
        sizes = "not given" if tiling.macs is None else f"M {tiling.M}, K {tiling.K}, N {tiling.N}"
        known = [
            ("matrix product", sizes),
            ("one call", f"m {tiling.m}, k {tiling.k}, n {tiling.n}: {tiling.macs_per_call:,} MAC"),
            ("compute cores", f"{tiling.rows} x {tiling.columns}"),
        ]
    if specification.clock_mhz:
        clock = f"{specification.clock_mhz:g} MHz"
    elif assumed is not None:
        span = f"{assumed.low_mhz:g} to {assumed.high_mhz:g} MHz"
        clock = f"not given; assumed {assumed.mhz:g} MHz of {span}: {assumed.source}"
    return [*known, ("architecture", _device_text(specification) or "not given"), ("clock", clock)]
