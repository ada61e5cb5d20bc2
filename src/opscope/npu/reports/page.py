"""The report of a trace of AI Engine tiles in HTML and Markdown: templates filled with what was found."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opscope.core import units
from opscope.core.parts import explained, part
from opscope.core.units import share_text
from opscope.npu.analysis.activity import EVENTS
from opscope.npu.analysis.tiles_result import all_known
from opscope.npu.reports import pictures as aie_pictures
from opscope.npu.reports.answer import (
    CATEGORY_NAMES,
    STALLED,
    STALLS,
    answer,
    array_sentence,
    category_cells,
    clock_text,
    iteration_lines,
    measured_text,
    range_text,
    share,
    shown_core,
    stalled_share,
    told,
    units_text,
    verdict_text,
)
from opscope.npu.reports.drawing import COLOURS, legend
from opscope.reports.document.html import policy, template_text
from opscope.reports.document.template import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import jinja2

    from opscope.core.parts import PartFailure
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.npu.analysis.tiles import Examined
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis
    from opscope.npu.analysis.traced_core import TracedCore


MOST = 20
"""Stretches of a table."""


class CallSequence(NamedTuple):
    """Successive calls."""

    first: int  # number of the first call, from 1
    last: int  # of the last one
    start: int  # first cycle of the first call
    end: int  # of the last call
    kinds: str  # how many of each kind, in words
    median_cycles: float  # of the calls' durations
    longest_cycles: int  # of them
    in_calls: float  # part of the cycles from start to end that is within calls


def call_sequences(core: TracedCore) -> list[CallSequence]:
    """The calls of a core in at most twenty stretches of about as many calls each."""
    calls = core.pairing.calls
    parts = np.array_split(np.arange(len(calls)), min(len(calls), MOST)) if len(calls) else []
    return [_stretch(core, int(part[0]), int(part[-1])) for part in parts]


def _stretch(core: TracedCore, first: int, last: int) -> CallSequence:
    calls, part = core.pairing.calls, slice(first, last + 1)
    durations, counts = calls.durations[part], np.bincount(core.kinds.labels[part], minlength=len(core.kinds.kinds))
    named = zip(counts.tolist(), core.kinds.kinds, strict=True)
    start, end = int(calls.start[first]), int(calls.end[last])
    return CallSequence(
        first=first + 1,
        last=last + 1,
        start=start,
        end=end,
        kinds=", ".join(f"{count} x {kind.kind}" for count, kind in named if count),
        median_cycles=float(np.median(durations)),
        longest_cycles=int(durations.max()),
        in_calls=int(durations.sum()) / (end - start) if end > start else 1.0,
    )


def array_rows(rows: Sequence[TileRow]) -> tuple[list[int], list[tuple[int, list[str]]]]:
    """The heat map as a table: columns, and for each row, the highest first, the share of each core.

    It is the share of the peak where that is known for all, else that of cycles in calls; empty without a core.
    """
    places = {tuple(int(part) for part in row.tile.split(",")): row for row in rows}
    known = all(row.utilisation is not None for row in rows)
    columns = sorted({place[1] for place in places})
    lines = sorted({place[0] for place in places}, reverse=True)
    return columns, [(line, [_share(places.get((line, column)), known) for column in columns]) for line in lines]


def _share(row: TileRow | None, of_peak: bool) -> str:
    if row is None:
        return ""
    inside = row.cycles.in_call.total / row.window_cycles
    return share_text(row.utilisation if of_peak and row.utilisation is not None else inside)


_MOST_ROWS = 200
NOT_KNOWN = "not known"


class Figure(NamedTuple):
    """A figure of the first screen."""

    label: str
    value: str
    note: str


def tiles_html(examined: Examined) -> str:
    """The report as one HTML page that needs nothing else."""
    template = _environment().get_template("tiles.html.j2")
    return whole_page(template, {**_values(examined), "pictures": _pictures(examined)})


def whole_page(template: jinja2.Template, values: dict[str, Any]) -> str:
    """A page with its style, its script, and the policy that allows these two alone."""
    style = template_text("report.css") + template_text("tiles.css")
    script = template_text("report.js")
    return template.render(**values, style=style, script=script, policy=policy(style, script))


def tiles_markdown(examined: Examined) -> str:
    """The report in Markdown."""
    shown = _shown(examined)
    no_map: tuple[list[int], list[tuple[int, list[str]]]] = [], []
    more = {
        "stretches": part("the calls in order of time", lambda: call_sequences(shown), list[CallSequence]())
        if shown
        else [],
        "array_rows": part("the map of the array", lambda: array_rows(examined.analysis.working), no_map),
    }
    return _environment().get_template("tiles.md.j2").render(**_values(examined), **more)


def _sequences(core: TracedCore | None) -> list[CallSequence]:
    return call_sequences(core) if core else []


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return environment(
        {
            "whole": lambda value: "" if value is None else f"{value:,.0f}",
            "share": lambda value: NOT_KNOWN if value is None else units.share_text(value),
            "rate": lambda value: NOT_KNOWN if value is None else units.rate_text(value),
            "ratio": units.ratio_text,
            "measured": measured_text,
            "signed": lambda value: f"{value * 100:+.2f} %",
            "verdict": verdict_text,
            "gmac": lambda row: range_text(row.gmac_per_s) or NOT_KNOWN,
            "cells": category_cells,
            "capitalize_first": lambda text: text[:1].upper() + text[1:],
        }
    )


def _values(examined: Examined) -> dict[str, Any]:
    analysis = examined.analysis
    rows = analysis.working
    return {
        "name": PurePath(analysis.trace.path).name,
        "about": ", ".join(filter(None, (_device(analysis.given), units_text(analysis)))),
        "answer": answer(analysis),
        "tiles": part("the figures of the first screen", lambda: _figures(analysis), list[Figure]()) if rows else [],
        "rows": rows,
        "units": analysis.tiles,
        "shown": shown_core(analysis) if rows else None,
        "hidden": max(0, len(rows) - aie_pictures.MOST_BARS),
        "told": told(analysis.findings),
        "trace": analysis.trace,
        "given": _given(analysis.given),
        "categories": CATEGORY_NAMES,
        "events": EVENTS,
        "any_iterations": any(row.iterations for row in rows),
        "iteration_reasons": part("the sentences on iterations", lambda: iteration_lines(rows), list[str]()),
        "array": analysis.array,
        "prediction": analysis.prediction,
        "array_sentence": array_sentence(analysis.array) if analysis.array else "",
        "aligned": _aligned(analysis),
        "few": len(rows) <= aie_pictures.FEW,
        "map_note": _map_note(rows),
        "most": _MOST_ROWS,
    }


def _pictures(examined: Examined) -> dict[str, str]:
    rows, shown = examined.analysis.working, _shown(examined)
    cores = [core for core in examined.cores if core.pairing.paired]
    if shown is None:
        return {}
    few = len(rows) <= aie_pictures.FEW
    drawn: dict[str, Callable[[], str | None]] = {
        "cycles": lambda: aie_pictures.cycle_bars(rows) if few else aie_pictures.summed_bar(rows),
        "all_cycles": lambda: None if few else aie_pictures.cycle_bars(rows),
        "legend": lambda: legend((CATEGORY_NAMES[category], colour) for category, colour in COLOURS.items()),
        "map": lambda: aie_pictures.array_map(rows),
        "close": lambda: aie_pictures.close_timeline(shown),
        "whole": lambda: aie_pictures.whole_timeline(cores, _shifts(examined)),
        "durations": lambda: aie_pictures.call_durations(shown),
        "roofline": lambda: aie_pictures.roofline_of(rows),
    }
    return {key: explained(f"the picture {key}", draw, _not_drawn) or "" for key, draw in drawn.items()}


def _not_drawn(failure: PartFailure) -> str:
    return f"<p>{escape(failure.sentence)}</p>"


def _shown(examined: Examined) -> TracedCore | None:
    """The core that stands for all; None without calls."""
    if not examined.analysis.working:
        return None
    name = shown_core(examined.analysis).tile
    return next((core for core in examined.cores if core.pairing.paired and core.tile.tile == name), None)


def _shifts(examined: Examined) -> dict[str, int]:
    array = examined.analysis.array
    return {shift.tile: shift.cycles for shift in array.alignment.shifts} if array else {}


def _aligned(analysis: TilesAnalysis) -> str:
    """What the times of a picture of all cores count from."""
    if analysis.array is None or len(analysis.working) == 1:
        return ""
    alignment = analysis.array.alignment
    if alignment.event is not None:
        return f"; in the picture of all cores they are shifted so that the first {alignment.event} is one moment"
    return "; in the picture of all cores they are shifted by the tiles' timers" if alignment.by == "timer" else ""


def _figures(analysis: TilesAnalysis) -> list[Figure]:
    """Busy, stalled, achieved, paced, seen."""
    rows = analysis.working
    of_all = "of the cycles" if len(rows) == 1 else f"of the cycles of {len(rows)} cores"
    stalled = f"; {share_text(stalled_share(rows))} of these stalled" if stalled_share(rows) >= STALLED else ""
    worst = max(STALLS, key=lambda name: share(rows, name))
    figures = [
        Figure("in kernel calls", units.share_text(analysis.in_call_share), f"{of_all}{stalled}"),
        Figure("vector instructions", *_traced(rows, "vector")),
        Figure(CATEGORY_NAMES[worst], units.share_text(share(rows, worst)), "the largest stall that was traced"),
    ]
    row = shown_core(analysis)
    mean = analysis.mac_per_cycle
    if mean is not None:
        peak = f"of {row.peak_mac_per_cycle} at peak" if row.peak_mac_per_cycle else "peak not known"
        figures.append(Figure("MAC per cycle", units.rate_text(mean), f"{peak}, per core"))
    figures += _in_seconds(analysis)
    if row.bound:
        period, call = row.bound.measured_period_cycles, row.bound.call_cycles
        figures.append(Figure("period of calls", f"{period:,.0f}", f"cycles; the call takes {call:,.0f}"))
    covered = all_known(one.coverage for one in rows)
    if covered:
        figures.append(Figure("coverage", units.share_text(min(covered)), "of the run's calls"))
    return figures


def _in_seconds(analysis: TilesAnalysis) -> list[Figure]:
    """The rate in seconds, of a core, where a clock was given or is assumed."""
    found = analysis.gmac_per_s
    if found is None or (found.low != found.high and found.assumed is None):
        return []
    value = found.low if found.assumed is None else found.assumed
    return [Figure("GMAC/s", units.rate_text(value), f"a core, {clock_text(found)}")]


def _traced(rows: Sequence[TileRow], category: str) -> tuple[str, str]:
    if any(EVENTS[category] in row.not_traced for row in rows):
        return NOT_KNOWN, f"{EVENTS[category]} was not traced"
    return units.share_text(share(rows, category)), "of the cycles"


def _device(given: RunSpecification) -> str:
    if given.device is None:
        return ""
    return f"{given.device.name} ({given.device.architecture}){f', {given.dtype}' if given.dtype else ''}"


def _given(given: RunSpecification) -> list[tuple[str, str]]:
    """What the user said, in words."""
    tiling = given.tiling
    found = []
    if tiling is not None:
        whole = "not given" if tiling.macs is None else f"M {tiling.M}, K {tiling.K}, N {tiling.N}"
        found.append(("matrix product", whole))
        found.append(("one call", f"m {tiling.m}, k {tiling.k}, n {tiling.n}: {tiling.macs_per_call:,} MAC"))
        found.append(("cores that compute", f"{tiling.rows} x {tiling.columns}"))
    found.append(("architecture", _device(given) or "not given"))
    found.append(("clock", _clock(given)))
    return found


def _clock(given: RunSpecification) -> str:
    assumed = given.assumed_clock
    if given.clock_mhz:
        return f"{given.clock_mhz:g} MHz"
    if assumed is None:
        return "not given"
    span = f"{assumed.low_mhz:g} to {assumed.high_mhz:g} MHz"
    return f"not given; assumed {assumed.mhz:g} MHz of {span}: {assumed.source}"


def _map_note(rows: Sequence[TileRow]) -> str:
    return "Share of the peak" if all(row.utilisation is not None for row in rows) else "Share of cycles in calls"
