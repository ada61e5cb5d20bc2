"""The report of a trace of AI Engine tiles: one document, as a page and in Markdown; its first lines on a terminal."""

from __future__ import annotations

from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from opscope.core.parts import part
from opscope.core.units import counted_text, rate_text, share_text
from opscope.npu.analysis.cycles import EVENTS
from opscope.npu.analysis.tiles_result import all_known
from opscope.npu.reports import pictures as aie_pictures
from opscope.npu.reports.answer import (
    CATEGORY_NAMES,
    STALLED,
    STALLS,
    answer,
    array_sentence,
    busyness,
    by_saving,
    category_cells,
    clock_text,
    iteration_lines,
    range_text,
    share,
    shown_core,
    stalled_share,
    units_text,
    verdict_text,
)
from opscope.npu.reports.pictures import COLOURS, legend
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
    from collections.abc import Iterator, Sequence

    from opscope.npu.analysis.kinds import KindRow
    from opscope.npu.analysis.pace import TileBound
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.npu.analysis.tiles import Examined
    from opscope.npu.analysis.tiles_result import ArrayView, TileRow, TilesAnalysis, TracedCore
    from opscope.reports.document.blocks import Picture, TableBlock


_MOST_REASONS = 20
_FIRST = 3
_SHADES = 5
"""Strongest shade of a map's cell."""


def array_map(rows: Sequence[TileRow]) -> CellMap:
    """Draw the array as it lies, row 0 at the bottom: the share of its peak of each core, or of its cycles in calls.

    The scale is from 0 to 1 for every trace, so that an array that is evenly slow looks slow.
    """
    of_peak, values = busyness(rows)
    shares = {tuple(map(int, row.tile.split(","))): value for row, value in zip(rows, values, strict=True)}
    lines, columns = (sorted({tile[axis] for tile in shares}) for axis in (0, 1))
    return CellMap(
        label="Share of the peak" if of_peak else "Share of cycles in calls",
        down="row",
        across="column",
        columns=[f"column {column}" for column in columns],
        rows=[(f"row {line}", [_map_cell(shares.get((line, column))) for column in columns]) for line in lines[::-1]],
    )


def _map_cell(share: float | None) -> MapCell:
    """Return a cell without text where no core was traced."""
    return MapCell("") if share is None else MapCell(share_text(share), min(round(share * _SHADES), _SHADES))


_MOST_ROWS = 200
NOT_KNOWN = "not known"


def tiles_html(examined: Examined) -> str:
    """The report as one HTML page that needs nothing else."""
    return html_document(tiles_document(examined), styles=("tiles.css",))


def tiles_markdown(examined: Examined) -> str:
    """The report in Markdown."""
    return markdown_document(tiles_document(examined))


def tiles_document(examined: Examined) -> Document:
    """Are the cores busy, what stalls them, how far are they from their peak; and what that rests on."""
    analysis = examined.analysis
    name = PurePath(analysis.trace.path).name
    about = ", ".join(filter(None, (_device_text(analysis.given), units_text(analysis))))
    headline, lines = answer(analysis)
    cut = [Sentence("Incomplete: part of the trace is missing; the rest is shown.", Tone.BAD)]
    return Document(
        title=name,
        heading=f"{name}: {about}",
        answer=headline,
        trust=[*map(Sentence, lines), *([] if analysis.trace.complete else cut)],
        blocks=_first_screen(examined),
        sections=[*(_of_calls(examined) if analysis.working else []), _traced_section(analysis)],
    )


def _first_screen(examined: Examined) -> list[Block]:
    analysis, shown = examined.analysis, _shown_core(examined)
    rows = analysis.working
    messages = by_saving(analysis.findings)
    steps = Section("Recommendations", [Messages(messages, _FIRST) if messages else Sentence("No findings.")])
    if not rows:
        return [steps]
    few = len(rows) <= aie_pictures.FEW
    pale = f"Full colour: within kernel calls; pale: between them.{' One bar per core.' if few else ''}"
    cycles = [
        picture("cycles", lambda: aie_pictures.cycle_bars(rows) if few else aie_pictures.summed_bar(rows)),
        picture("legend", lambda: legend((CATEGORY_NAMES[name], colour) for name, colour in COLOURS.items()), pale),
    ]
    blocks: list[Block] = [Section("Where the cycles go", cycles)]
    if len(rows) > 1:
        cells = part("the map of the array", lambda: array_map(rows), None)
        note = Sentence(f"{cells.label}, by core position on the chip." if cells else "", Tone.DIM)
        blocks.append(Section("The array", [*([cells] if cells else []), note]))
    elif shown:
        blocks.append(Section(f"A few calls of tile {shown.tile.tile}", [_close_picture(shown)]))
    figures = part("the figures of the first screen", lambda: _headline_figures(analysis), list[HeadlineFigure]())
    return [Figures(figures), Beside(blocks, [steps])]


def _close_picture(core: TracedCore) -> Picture:
    return picture("close", lambda: aie_pictures.close_timeline(core))


def _of_calls(examined: Examined) -> Iterator[Section]:
    analysis, shown = examined.analysis, _shown_core(examined)
    rows = analysis.working
    if shown:
        yield _timeline_section(examined, shown)
        yield _calls_section(examined, shown)
    yield _rates_section(analysis)
    yield _iterations_section(rows)
    if analysis.array and len(rows) > 1:
        yield _array_section(analysis.array)


def _timeline_section(examined: Examined, shown: TracedCore) -> Section:
    cores, array = [core for core in examined.cores if len(core.pairing.calls)], examined.analysis.array
    shifts = {shift.tile: shift.cycles for shift in array.alignment.shifts} if array else {}
    close = [Section(f"A few calls of tile {shown.tile.tile}", [_close_picture(shown)])] if len(cores) > 1 else []
    timers = f"Cycles of the tiles' own timers, which start with their traces{_alignment_text(examined.analysis)}."
    timed = f"{timers} Darker colours: a larger part of the interval is active."
    blocks = [
        *close,
        picture("whole", lambda: aie_pictures.whole_timeline(cores, shifts), timed),
    ]
    return Section("Timeline", blocks, "when", "Timeline")


def _calls_section(examined: Examined, shown: TracedCore) -> Section:
    rows = examined.analysis.working
    many = [] if len(rows) <= aie_pictures.FEW else [picture("all_cycles", lambda: aie_pictures.cycle_bars(rows))]
    within = _OF_SHARES if len(rows) > 1 else ""
    drawn = picture("durations", lambda: aie_pictures.call_durations(shown))
    blocks = [
        Section(f"Duration of each call of tile {shown.tile.tile}", [drawn]),
        kinds_table(rows),
        Sentence("Cycles from INSTR_EVENT_0 to INSTR_EVENT_1. No call is excluded as an outlier.", Tone.DIM),
        Section("Cycles by what the core did", [*many, cycles_table(rows), Sentence(within, Tone.DIM)]),
    ]
    return Section("Calls", blocks, "calls", "Calls")


_OF_SHARES = "Shares of the window from the first call's start to the last call's end. Untraced events count as other."


def cycles_table(rows: Sequence[TileRow]) -> TableBlock:
    """Tabulate where the cycles went: of one core in calls and between them, of several by category."""
    if len(rows) == 1:
        heads = ("cycles", "in calls", "between calls", "together", "share")
        return words_table(heads, category_cells(rows[0]))
    return table(
        rows[:_MOST_ROWS],
        column("tile", Format.TEXT, lambda row: row.tile),
        column("cycles", Format.COUNT, lambda row: row.window_cycles),
        column("in calls", Format.SHARE, lambda row: row.cycles.in_call.total / row.window_cycles),
        *(
            column(name.removesuffix("_stall"), Format.SHARE, partial(_share_of, name), absent="-")
            for name in CATEGORY_NAMES
        ),
        closing=_more_rows(rows, _MOST_ROWS),
        sortable=True,
    )


def _share_of(name: str, row: TileRow) -> float | None:
    return None if EVENTS.get(name) in row.not_traced else row.cycles.of(name) / row.window_cycles


def kinds_table(rows: Sequence[TileRow]) -> TableBlock:
    """Kinds of calls, with how long they take."""
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


def rates_table(rows: Sequence[TileRow], most: int | None = None) -> TableBlock:
    """Rates against the peak, and what sets the pace."""
    return table(
        rows[:most],
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
        closing=_more_rows(rows, most or len(rows)),
        sortable=True,
    )


def _more_rows(rows: Sequence[TileRow], most: int) -> list[Closing]:
    return [Closing(f"{len(rows) - most} more", {})] if len(rows) > most else []


def _rates_section(analysis: TilesAnalysis) -> Section:
    rows, shown = analysis.working, shown_core(analysis)
    without = [row for row in rows if row.rate_reason]
    more = f" and {len(without) - 1} more" if len(without) > 1 else ""
    unbound = [f"tile {row.tile}: {row.bound_reason}" for row in rows if row.bound is None and row.bound_reason]
    blocks: list[Block] = [
        rates_table(rows),
        Bullets(unbound[:_MOST_REASONS]),
        Sentence(f"No rate of tile {without[0].tile}{more}: {without[0].rate_reason}." if without else "", Tone.DIM),
        Sentence(_OF_RATES, Tone.DIM),
    ]
    if shown.bound and shown.bound.ports:
        blocks.append(Section(f"Streams of tile {shown.tile}", [_ports_table(shown.bound)]))
    return Section("Rates and bottleneck", blocks, "rates", "Rates")


_OF_RATES = (
    "Rates cover the calls in the trace, over its window. The period runs from the start of one multiplying call "
    "to the next; predicted is the longest of the call and each port's transfers."
)


def _ports_table(bound: TileBound) -> TableBlock:
    return table(
        bound.ports,
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


def _iterations_section(rows: Sequence[TileRow]) -> Section:
    reasons = part("the sentences on iterations", lambda: iteration_lines(rows), list[str]())
    listed = table(
        [(row, one) for row in rows for one in row.iterations[:_MOST_ROWS]],
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
        column("tile", Format.TEXT, lambda one: one.tile),
        column("median cycles of an iteration", Format.COUNT, lambda one: one.median_cycles),
        column("min", Format.COUNT, lambda one: one.min_cycles),
        column("max", Format.COUNT, lambda one: one.max_cycles),
        column("ends last in", Format.COUNT, lambda one: one.ends_last),
        sortable=True,
    )
    each = table(
        array.iterations[:_MOST_ROWS],
        column("iteration", Format.COUNT, lambda one: one.number),
        column("runtime cycles", Format.COUNT, lambda one: one.runtime_cycles),
        column("longest on one core", Format.COUNT, lambda one: one.longest_cycles),
        column("start skew", Format.COUNT, lambda one: one.start_skew_cycles),
        column("first", Format.TEXT, lambda one: one.first_tile),
        column("last", Format.TEXT, lambda one: one.last_tile),
        column("balance", Format.SHARE, lambda one: one.balance),
        column("MAC per cycle, all cores", Format.RATE, lambda one: one.mac_per_cycle, absent=NOT_KNOWN),
        sortable=True,
    )
    why = f"{_capitalise_first(array.alignment.reason)}. {_capitalise_first(array.reason)}."
    blocks = [Sentence(f"{_capitalise_first(array_sentence(array))}."), tiles, each, Sentence(why, Tone.DIM)]
    return Section("All cores together", blocks, "array", "Array")


def _capitalise_first(text: str) -> str:
    return text[:1].upper() + text[1:]


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
    whole = "whole" if trace.complete else "cut off"
    file = f"{trace.path} ({trace.format}), {counted_text(trace.events, 'event', ',')}, {whole}, sha256 {trace.sha256}"
    addresses = addresses_table(tiles)
    blocks: list[Block] = [slots, *([addresses] if addresses.rows else [])]
    if steps.rows:
        blocks.append(Section("Events to drop from the trace", [steps, Sentence(how, Tone.DIM)]))
    return Section(
        "What was traced", [*blocks, facts([("file", file), *_given_facts(analysis.given)])], "trace", "Trace"
    )


def addresses_table(rows: Sequence[TileRow]) -> TableBlock:
    """Program addresses of events, of the units that recorded these."""
    return table(
        [(row, slot, address) for row in rows for slot in row.slots for address in slot.addresses],
        column("tile", Format.TEXT, lambda triple: triple[0].tile),
        column("event", Format.NAME, lambda triple: triple[1].event),
        column("address", Format.TEXT, lambda triple: f"{triple[2].address:#x}"),
        column("times", Format.COUNT, lambda triple: triple[2].times),
        sortable=True,
    )


def _shown_core(examined: Examined) -> TracedCore | None:
    """The core that stands for all; None without calls."""
    if not examined.analysis.working:
        return None
    name = shown_core(examined.analysis).tile
    return next((core for core in examined.cores if len(core.pairing.calls) and core.tile.tile == name), None)


def _alignment_text(analysis: TilesAnalysis) -> str:
    if analysis.array is None or len(analysis.working) == 1:
        return ""
    alignment = analysis.array.alignment
    if alignment.event is not None:
        return f"; the chart of all cores shifts them so that the first {alignment.event} is one moment"
    return "; the chart of all cores shifts them by the tiles' timers" if alignment.by == "timer" else ""


def _headline_figures(analysis: TilesAnalysis) -> list[HeadlineFigure]:
    rows = analysis.working
    of_all = "of the cycles" if len(rows) == 1 else f"of the cycles of {counted_text(len(rows), 'core')}"
    stalled = f"; {share_text(stalled_share(rows))} of these stalled" if stalled_share(rows) >= STALLED else ""
    worst = max(STALLS, key=lambda name: share(rows, name))
    figures = [
        HeadlineFigure("in kernel calls", share_text(analysis.in_call_share), f"{of_all}{stalled}"),
        HeadlineFigure("vector instructions", *_traced_share(rows, "vector")),
        HeadlineFigure(CATEGORY_NAMES[worst], share_text(share(rows, worst)), "the largest traced stall"),
    ]
    row = shown_core(analysis)
    mean = analysis.mac_per_cycle
    if mean is not None:
        peak = f"of {row.peak_mac_per_cycle} at peak" if row.peak_mac_per_cycle else "peak unknown"
        figures.append(HeadlineFigure("MAC per cycle", rate_text(mean), f"{peak}, per core"))
    figures += _in_seconds(analysis)
    if row.bound:
        period, call = row.bound.measured_period_cycles, row.bound.call_cycles
        figures.append(HeadlineFigure("period of calls", f"{period:,.0f}", f"cycles; the call takes {call:,.0f}"))
    covered = all_known(one.coverage for one in rows)
    if covered:
        figures.append(HeadlineFigure("coverage", share_text(min(covered)), "of the run's calls"))
    return figures


def _in_seconds(analysis: TilesAnalysis) -> list[HeadlineFigure]:
    """The rate in seconds, of a core, where a clock was given or is assumed."""
    gmac_range = analysis.gmac_per_s
    if gmac_range is None or (gmac_range.low != gmac_range.high and gmac_range.assumed is None):
        return []
    value = gmac_range.low if gmac_range.assumed is None else gmac_range.assumed
    return [HeadlineFigure("GMAC/s", rate_text(value), f"a core, {clock_text(gmac_range)}")]


def _traced_share(rows: Sequence[TileRow], category: str) -> tuple[str, str]:
    if any(EVENTS[category] in row.not_traced for row in rows):
        return NOT_KNOWN, f"{EVENTS[category]} was not traced"
    return share_text(share(rows, category)), "of the cycles"


def _device_text(given: RunSpecification) -> str:
    if given.device is None:
        return ""
    return f"{given.device.name} ({given.device.architecture}){f', {given.dtype}' if given.dtype else ''}"


def _given_facts(given: RunSpecification) -> list[tuple[str, str]]:
    tiling = given.tiling
    found = []
    if tiling is not None:
        whole = "not given" if tiling.macs is None else f"M {tiling.M}, K {tiling.K}, N {tiling.N}"
        found.append(("matrix product", whole))
        found.append(("one call", f"m {tiling.m}, k {tiling.k}, n {tiling.n}: {tiling.macs_per_call:,} MAC"))
        found.append(("compute cores", f"{tiling.rows} x {tiling.columns}"))
    found.append(("architecture", _device_text(given) or "not given"))
    found.append(("clock", _clock_fact(given)))
    return found


def _clock_fact(given: RunSpecification) -> str:
    assumed = given.assumed_clock
    if given.clock_mhz:
        return f"{given.clock_mhz:g} MHz"
    if assumed is None:
        return "not given"
    span = f"{assumed.low_mhz:g} to {assumed.high_mhz:g} MHz"
    return f"not given; assumed {assumed.mhz:g} MHz of {span}: {assumed.source}"
