"""The files of the published post-processor of AI Engine traces, with its names, fields and order.

``<tile>.json`` for each core, ``details.md``, ``index.json``, ``aggregate_perf.json``. Where its arithmetic holds, on
a clean, complete trace of one kind of kernel whose iterations are apart by lock stalls, the values are the same;
where they differ, docs/design/aie-published-files.md says why. Fields that the published tool does not have are
written where they say something: of a run that it describes rightly, the files are the same.
"""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from opscope.core.table.tiles import Unit
from opscope.core.units import counted_text
from opscope.npu.analysis.calls import END
from opscope.npu.analysis.specification import AssumedClock, NamedProduct
from opscope.reports.document.text import distinct, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.tiles import Examined
    from opscope.npu.analysis.tiles_result import TileRow, TracedCore

BOUNDARY_FACTOR = 20.0
"""A lock stall of so many median kernels is a boundary to the published tool; here it is counted, and decides nothing.
"""
_NO_EVENTS = "the trace holds no events of this core"
_NO_CORES = "No cores to aggregate."
_NO_COMMON = "No common perf iterations across all cores."
_COMMON = "Only iterations present on all cores are considered."
_LEFT_OUT = "gmacs_per_second is omitted"
_DETAIL_HEAD = ("Tile", "Iter", "Phase", "Kernels", "Avg cycles", "Min", "Max", "Total span", "GMAC/s")


class PublishedIteration(msgspec.Struct, frozen=True):
    """An iteration in ``<tile>.json``; rates are null without a clock, or where its work is not known."""

    num_kernels: int
    avg_duration_cycles: float
    min_duration_cycles: int
    max_duration_cycles: int
    total_span_cycles: int
    first_start: int
    last_end: int
    gmacs_per_second: float | None
    iteration_index: int
    phase: str


class PublishedCore(msgspec.Struct, frozen=True, kw_only=True):
    """``<tile>.json``; ``assumed_clock`` stands in it when its rates are made from one."""

    pid: int
    tile_name: str
    median_kernel_duration_cycles: float | None = None
    lock_stall_boundary_count: int = 0
    detected_total_iterations: int = 0
    expected_total_iterations: int | None
    mismatch_note: str | None
    iterations: list[PublishedIteration] = []
    performance_window: list[int] = []
    assumed_clock: AssumedClock | UnsetType = UNSET


class PublishedSystemIteration(msgspec.Struct, frozen=True):
    """An iteration of all cores: the longest span of any of them.

    A rate that is not known is left out, since the published tool's scripts read what is there by ``float()``.
    """

    iteration_index: int | UnsetType  # from 0; left out of means over iterations
    runtime_cycles: float  # the longest span
    gmacs_per_second: float | UnsetType = UNSET  # of the whole product in that time
    # of the work of the cores in the trace; where the one above is not known
    gmacs_per_second_traced_cores: float | UnsetType = UNSET


class Aggregate(msgspec.Struct, frozen=True):
    """``aggregate_perf.json`` of cores with measured iterations in common; ``note`` says why a rate is left out."""

    iterations_considered: list[int]
    count: int
    average: PublishedSystemIteration
    best: PublishedSystemIteration
    worst: PublishedSystemIteration
    per_iteration: list[PublishedSystemIteration]
    note: str
    assumed_clock: AssumedClock | UnsetType = UNSET


class Index(NamedProduct, frozen=True, kw_only=True):
    """``index.json``: what the user said about the run as a whole, null where nothing; notes; which files there are."""

    rows: int | None
    cols: int | None
    input_path: str
    output_dir: str
    warmup: int | None
    iterations: int | None
    clock_GHz: float | None  # noqa: N815 - the published name
    notes: list[str]
    details_md: str | None
    assumed_clock: AssumedClock | UnsetType = UNSET


def published_files(examined: Examined, run: Index) -> dict[str, bytes]:
    """Name and content of each file."""
    reports = [published_core(core, run) for core in examined.cores]
    names = distinct(report.tile_name for report in reports)
    files = {f"{name}.json": _json_bytes(report) for name, report in zip(names, reports, strict=True)}
    details = details_markdown(reports, run)
    if details:
        files["details.md"] = details.encode()
    own = [report.mismatch_note for report in reports if report.mismatch_note]
    at = f"{run.output_dir}/details.md" if details else None
    files["index.json"] = _json_bytes(msgspec.structs.replace(run, notes=[*own, *run.notes], details_md=at))
    files["aggregate_perf.json"] = _json_bytes(aggregate(reports, run))
    return files


def files_without_calls(tiles: Iterable[TileTrace], run: Index) -> dict[str, bytes]:
    """Name and content of each file of a trace without events: a core without iterations for each that it names."""
    cores = [
        PublishedCore(
            pid=tile.pid,
            tile_name=f"tile{tile.tile}",
            expected_total_iterations=_expected_iterations(run),
            mismatch_note=f"No iterations: {_NO_EVENTS}.",
        )
        for tile in tiles
        if tile.unit is Unit.CORE
    ]
    files = {
        f"{name}.json": _json_bytes(core)
        for name, core in zip(distinct(c.tile_name for c in cores), cores, strict=True)
    }
    return {**files, "index.json": _json_bytes(run), "aggregate_perf.json": _json_bytes(aggregate(cores, run))}


def _expected_iterations(run: Index) -> int | None:
    return None if run.warmup is None or run.iterations is None else run.warmup + run.iterations


def published_core(core: TracedCore, run: Index) -> PublishedCore:
    """The report of one core."""
    start, end = core.pairing.calls.start, _seen_ends(core.tile, core.pairing.calls.end)
    middle = median((end - start).tolist()) if len(start) else None
    rows = [
        _published_iteration(start, end, index, own, run.clock_GHz) for index, own in enumerate(core.row.iterations)
    ]
    return PublishedCore(
        pid=core.tile.pid,
        tile_name=f"tile{core.tile.tile}",
        median_kernel_duration_cycles=middle,
        lock_stall_boundary_count=_boundary_count(core.tile, middle),
        detected_total_iterations=len(rows),
        expected_total_iterations=_expected_iterations(run),
        mismatch_note=_mismatch_note(core.row),
        iterations=rows,
        performance_window=[own.iteration_index for own in rows if own.phase == "perf"],
        assumed_clock=run.assumed_clock,
    )


def _seen_ends(tile: TileTrace, begins: Ints) -> Ints:
    """Cycles in which the INSTR_EVENT_1 that begin then are over: where the published tool lets a call end."""
    spans = [slot.spans for slot in tile.slots if slot.name == END and len(slot.spans.start)]
    if not spans or not len(begins):
        return begins
    start, end = (np.concatenate([getattr(own, edge) for own in spans]) for edge in ("start", "end"))
    order = np.argsort(start, kind="stable")
    place = np.minimum(np.searchsorted(start[order], begins), len(order) - 1)
    found: Ints = np.where(start[order][place] == begins, end[order][place], begins + 1)
    return found


def _mismatch_note(row: TileRow) -> str | None:
    found, expected = len(row.iterations), row.expected_iterations
    partial = sum(not one.complete for one in row.iterations)
    if not row.iterations:
        return f"No iterations: {row.iterations_reason}."
    said = []
    if expected is not None and found != expected:
        said.append(f"Detected {counted_text(found, 'iteration')} but expected {expected}.")
    if partial:
        said.append(f"{partial} of {found} iterations lack calls and are not measured.")
    return f"{' '.join(said)} Found by: {row.iterations_reason}." if said else None


def aggregate(cores: Sequence[PublishedCore], run: Index) -> Aggregate | dict[str, str]:
    """The system's runtime in each measured iteration that all cores have; only a note where there is none."""
    if not cores:
        return {"note": _NO_CORES}
    common = sorted(set.intersection(*(set(core.performance_window) for core in cores)))
    if not common:
        return {"note": _NO_COMMON}
    rows = [_system_iteration(cores, index, run) for index in common]
    reason = _no_rate(cores, run)
    if reason is None and any(row.gmacs_per_second is UNSET for row in rows):
        reason = "the work per iteration is unknown for some cores"
    return Aggregate(
        iterations_considered=common,
        count=len(common),
        average=_average_iteration(rows),
        best=min(rows, key=lambda row: row.runtime_cycles),
        worst=max(rows, key=lambda row: row.runtime_cycles),
        per_iteration=rows,
        note=_COMMON if reason is None else f"{_COMMON} {_LEFT_OUT}: {reason}.",
        assumed_clock=run.assumed_clock,
    )


def _average_iteration(rows: Sequence[PublishedSystemIteration]) -> PublishedSystemIteration:
    names = ("gmacs_per_second", "gmacs_per_second_traced_cores")
    rates = {name: [getattr(row, name) for row in rows] for name in names}
    known = {name: sum(own) / len(own) for name, own in rates.items() if UNSET not in own}
    return PublishedSystemIteration(UNSET, sum(row.runtime_cycles for row in rows) / len(rows), **known)


def _no_rate(cores: Sequence[PublishedCore], run: Index) -> str | None:
    if run.clock_GHz is None:
        return "the clock is unknown; give --clock-mhz, or the device with --hwid or --arch"
    if run.M is None or run.K is None or run.N is None:
        return "--M, --K and --N do not give the product sizes"
    if run.rows is None or run.cols is None:
        return "--row and --col do not give the cores that share the product"
    if len(cores) != run.rows * run.cols:
        return f"{len(cores)} of {run.rows * run.cols} cores were traced"
    return None


def details_markdown(cores: Sequence[PublishedCore], run: Index) -> str:
    """``details.md``; empty without iterations, as no such file is written then."""
    rows = [_detail_row(core, row) for core in cores for row in core.iterations]
    if not rows:
        return ""
    sizes = f"M={run.M or '?'} K={run.K or '?'} N={run.N or '?'}"
    # The line is a block of HTML, in which Markdown's escapes do not count.
    name = escape(plain(run.hwid or ""))
    head = f"<details><summary><strong>[{name}] {sizes}</strong></summary>\n\n"
    rule = "|".join("-" * (len(name) + 2) for name in _DETAIL_HEAD)
    table = f"| {' | '.join(_DETAIL_HEAD)} |\n|{rule}|\n{''.join(rows)}"
    return f"{head}{table}{_clock_line(run.assumed_clock)}\n</details>\n"


def _clock_line(assumed: AssumedClock | UnsetType) -> str:
    if assumed is UNSET:
        return ""
    clock = f"{assumed.mhz:g} MHz ({assumed.low_mhz:g} to {assumed.high_mhz:g} MHz)"
    return f"\nGMAC/s at an assumed clock of {clock}: {assumed.source}.\n"


def _published_iteration(start: Ints, end: Ints, index: int, row: Iteration, clock: float | None) -> PublishedIteration:
    part = slice(row.first_call, row.last_call + 1)
    durations = end[part] - start[part]
    # an iteration that lost calls may begin before the first call that is whole, and end after the last
    first, last = row.start, max(int(end[row.last_call]), row.end + 1 if row.lost_calls else 0)
    return PublishedIteration(
        num_kernels=len(durations),
        avg_duration_cycles=int(durations.sum()) / len(durations),
        min_duration_cycles=int(durations.min()),
        max_duration_cycles=int(durations.max()),
        total_span_cycles=last - first,
        first_start=first,
        last_end=last,
        gmacs_per_second=_gmacs_per_second(row.macs, clock, last - first),
        iteration_index=index,
        phase={"measured": "perf"}.get(row.phase, row.phase),
    )


def _boundary_count(tile: TileTrace, middle: float | None) -> int:
    stalls = tile.slot("LOCK_STALL")
    if not middle or stalls is None:
        return 0
    long = stalls.spans.end - stalls.spans.start >= BOUNDARY_FACTOR * middle
    return len(np.unique(stalls.spans.end[long]))


def _system_iteration(cores: Sequence[PublishedCore], index: int, run: Index) -> PublishedSystemIteration:
    """The iteration of this index on all cores; the whole product has a rate only where all cores were traced."""
    rows = [core.iterations[index] for core in cores]
    runtime = max(row.total_span_cycles for row in rows)
    done = [row.gmacs_per_second * row.total_span_cycles for row in rows if row.gmacs_per_second is not None]
    if len(done) < len(rows) or runtime <= 0:
        return PublishedSystemIteration(index, runtime)
    if _no_rate(cores, run) is not None:
        return PublishedSystemIteration(index, runtime, gmacs_per_second_traced_cores=sum(done) / runtime)
    product = None if run.M is None or run.K is None or run.N is None else run.M * run.K * run.N
    return PublishedSystemIteration(index, runtime, _gmacs_per_second(product, run.clock_GHz, runtime) or UNSET)


def _gmacs_per_second(macs: int | None, clock: float | None, cycles: int) -> float | None:
    return None if macs is None or clock is None or cycles <= 0 else macs * clock / cycles


def _detail_row(core: PublishedCore, row: PublishedIteration) -> str:
    rate = "" if row.gmacs_per_second is None else f"{row.gmacs_per_second:.3f}"
    cells = (
        core.tile_name,
        row.iteration_index,
        row.phase,
        row.num_kernels,
        f"{row.avg_duration_cycles:.3f}",
        row.min_duration_cycles,
        row.max_duration_cycles,
        row.total_span_cycles,
        rate,
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def _json_bytes(value: msgspec.Struct | dict[str, str]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
