"""The files of the published post-processor of AI Engine traces, with its names, fields and order.

``<tile>.json`` for each core, ``details.md``, ``index.json``, ``aggregate_perf.json``. Where its arithmetic holds, on
a clean, complete trace of one kind of kernel whose iterations are apart by lock stalls, the values are the same;
where they differ, docs/design/aie-published-files.md says why. Fields that the published tool does not have are
written where they say something: of a run that it describes rightly, the files are the same.
"""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

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
    from opscope.npu.analysis.tiles_result import TileRow

    Json: TypeAlias = dict[str, Any]

_BOUNDARY_FACTOR = 20.0
"""A lock stall of so many median kernels is a boundary to the published tool; here it is counted, and decides nothing.
"""
_COMMON = "Only iterations present on all cores are considered."
_RATES = ("gmacs_per_second", "gmacs_per_second_traced_cores")
_DETAIL_HEAD = ("Tile", "Iter", "Phase", "Kernels", "Avg cycles", "Min", "Max", "Total span", "GMAC/s")


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

    @property
    def clock_mark(self) -> Json:
        """The field that says of a file that its rates are made from a clock that nobody gave."""
        return {} if self.assumed_clock is UNSET else {"assumed_clock": self.assumed_clock}


def published_files(examined: Examined, run: Index) -> dict[str, bytes]:
    """Return name and content of each file."""
    cores = []
    for core in examined.cores:
        start, end = core.calls.start, _seen_ends(core.tile, core.calls.end)
        middle = median((end - start).tolist()) if len(start) else None
        rows = [_report_iteration(start, end, index, row, run) for index, row in enumerate(core.row.iterations)]
        cores.append(_layout_core(core.tile, run, _mismatch_note(core.row), rows, middle))
    return _write_files(cores, run)


def files_without_calls(tiles: Iterable[TileTrace], run: Index) -> dict[str, bytes]:
    """Return name and content of each file of a trace without events: no core, or cores without iterations."""
    note = "No iterations: the trace holds no events of this core."
    return _write_files([_layout_core(tile, run, note) for tile in tiles if tile.unit is Unit.CORE], run)


def _write_files(cores: Sequence[Json], run: Index) -> dict[str, bytes]:
    names = distinct(core["tile_name"] for core in cores)
    details = _details_markdown(cores, run)
    notes = [core["mismatch_note"] for core in cores if core["mismatch_note"]]
    path = f"{run.output_dir}/details.md" if details else None
    index = msgspec.structs.replace(run, notes=[*notes, *run.notes], details_md=path)
    return {
        **{f"{name}.json": _json_bytes(core) for name, core in zip(names, cores, strict=True)},
        **({"details.md": details.encode()} if details else {}),
        "index.json": _json_bytes(index),
        "aggregate_perf.json": _json_bytes(_aggregate_cores(cores, run)),
    }


def _layout_core(
    tile: TileTrace,
    run: Index,
    note: str | None,
    iterations: Sequence[Json] = (),
    middle: float | None = None,
) -> Json:
    """Lay out ``<tile>.json``; ``middle`` is the median duration of its calls."""
    stalls, boundaries = tile.slot("LOCK_STALL"), 0
    if middle and stalls is not None:
        is_long = stalls.spans.end - stalls.spans.start >= _BOUNDARY_FACTOR * middle
        boundaries = len(np.unique(stalls.spans.end[is_long]))
    return {
        "pid": tile.pid,
        "tile_name": f"tile{tile.tile}",
        "median_kernel_duration_cycles": middle,
        "lock_stall_boundary_count": boundaries,
        "detected_total_iterations": len(iterations),
        "expected_total_iterations": (
            None if run.warmup is None or run.iterations is None else run.warmup + run.iterations
        ),
        "mismatch_note": note,
        "iterations": iterations,
        "performance_window": [row["iteration_index"] for row in iterations if row["phase"] == "perf"],
        **run.clock_mark,
    }


def _report_iteration(start: Ints, end: Ints, index: int, row: Iteration, run: Index) -> Json:
    """Report an iteration; its rate is null without a clock, or where its work is not known."""
    durations = (end - start)[row.first_call : row.last_call + 1]
    # an iteration that lost calls may begin before the first call that is whole, and end after the last
    last = max(int(end[row.last_call]), row.end + 1 if row.lost_calls else 0)
    return {
        "num_kernels": len(durations),
        "avg_duration_cycles": int(durations.sum()) / len(durations),
        "min_duration_cycles": int(durations.min()),
        "max_duration_cycles": int(durations.max()),
        "total_span_cycles": last - row.start,
        "first_start": row.start,
        "last_end": last,
        "gmacs_per_second": _gmacs_per_second(row.macs, run, last - row.start),
        "iteration_index": index,
        "phase": "perf" if row.phase == "measured" else row.phase,
    }


def _seen_ends(tile: TileTrace, begins: Ints) -> Ints:
    """Return the cycles in which the INSTR_EVENT_1 that begin then are over, where the published tool ends a call."""
    spans = [slot.spans for slot in tile.slots if slot.name == END and len(slot.spans.start)]
    if not spans or not len(begins):
        return begins
    start, end = (np.concatenate([getattr(slot_spans, edge) for slot_spans in spans]) for edge in ("start", "end"))
    order = np.argsort(start, kind="stable")
    positions = np.minimum(np.searchsorted(start[order], begins), len(order) - 1)
    ends: Ints = np.where(start[order][positions] == begins, end[order][positions], begins + 1)
    return ends


def _mismatch_note(row: TileRow) -> str | None:
    number, expected = len(row.iterations), row.expected_iterations
    partial = sum(not iteration.complete for iteration in row.iterations)
    if not row.iterations:
        return f"No iterations: {row.iterations_reason}."
    notes = []
    if expected is not None and number != expected:
        notes.append(f"Detected {counted_text(number, 'iteration')} but expected {expected}.")
    if partial:
        notes.append(f"{partial} of {number} iterations lack calls and are not measured.")
    return f"{' '.join(notes)} Found by: {row.iterations_reason}." if notes else None


def _aggregate_cores(cores: Sequence[Json], run: Index) -> Json:
    """Return the system's runtime in each measured iteration that all cores have; only a note where there is none."""
    if not cores:
        return {"note": "No cores to aggregate."}
    common = sorted(set.intersection(*(set(core["performance_window"]) for core in cores)))
    if not common:
        return {"note": "No common perf iterations across all cores."}
    reason = _no_rate(cores, run)
    rows = [_system_iteration([core["iterations"][index] for core in cores], index, run, reason) for index in common]
    if reason is None and any(_RATES[0] not in row for row in rows):
        reason = "the work per iteration is unknown for some cores"
    means = {
        name: sum(row[name] for row in rows) / len(rows)
        for name in ("runtime_cycles", *_RATES)
        if all(name in row for row in rows)
    }
    return {
        "iterations_considered": common,
        "count": len(common),
        "average": means,
        "best": min(rows, key=lambda row: row["runtime_cycles"]),
        "worst": max(rows, key=lambda row: row["runtime_cycles"]),
        "per_iteration": rows,
        "note": _COMMON if reason is None else f"{_COMMON} gmacs_per_second is omitted: {reason}.",
        **run.clock_mark,
    }


def _system_iteration(rows: Sequence[Json], index: int, run: Index, no_rate: str | None) -> Json:
    """Return the iteration of this index on all cores, which lasts as long as the longest.

    The whole product has a rate only where all cores were traced, else what these did in the time. A rate that is not
    known is left out, since the published tool's scripts read what is there by ``float()``.
    """
    runtime = max(row["total_span_cycles"] for row in rows)
    system: Json = {"iteration_index": index, "runtime_cycles": runtime}
    if runtime <= 0 or any(row["gmacs_per_second"] is None for row in rows):
        return system
    if no_rate is not None:
        return system | {_RATES[1]: sum(row["gmacs_per_second"] * row["total_span_cycles"] for row in rows) / runtime}
    macs = None if run.M is None or run.K is None or run.N is None else run.M * run.K * run.N
    return system | {_RATES[0]: _gmacs_per_second(macs, run, runtime)}


def _no_rate(cores: Sequence[Json], run: Index) -> str | None:
    if run.clock_GHz is None:
        return "the clock is unknown; give --clock-mhz, or the device with --hwid or --arch"
    if run.M is None or run.K is None or run.N is None:
        return "--M, --K and --N do not give the product sizes"
    if run.rows is None or run.cols is None:
        return "--row and --col do not give the cores that share the product"
    if len(cores) != run.rows * run.cols:
        return f"{len(cores)} of {run.rows * run.cols} cores were traced"
    return None


def _gmacs_per_second(macs: int | None, run: Index, cycles: int) -> float | None:
    return None if macs is None or run.clock_GHz is None or cycles <= 0 else macs * run.clock_GHz / cycles


def _details_markdown(cores: Sequence[Json], run: Index) -> str:
    """Return ``details.md``; empty without iterations, as no such file is written then."""
    rows = "".join(_detail_row(core["tile_name"], row) for core in cores for row in core["iterations"])
    if not rows:
        return ""
    sizes = f"M={run.M or '?'} K={run.K or '?'} N={run.N or '?'}"
    # The line is a block of HTML, in which Markdown's escapes do not count.
    name = escape(plain(run.hwid or ""))
    rule = "|".join("-" * (len(head) + 2) for head in _DETAIL_HEAD)
    clock = ""
    if run.assumed_clock is not UNSET:
        assumed = run.assumed_clock
        span = f"{assumed.low_mhz:g} to {assumed.high_mhz:g} MHz"
        clock = f"\nGMAC/s at an assumed clock of {assumed.mhz:g} MHz ({span}): {assumed.source}.\n"
    return (
        f"<details><summary><strong>[{name}] {sizes}</strong></summary>\n\n"
        f"| {' | '.join(_DETAIL_HEAD)} |\n|{rule}|\n{rows}{clock}\n</details>\n"
    )


def _detail_row(tile: str, row: Json) -> str:
    rate = row["gmacs_per_second"]
    cells = (
        tile,
        row["iteration_index"],
        row["phase"],
        row["num_kernels"],
        f"{row['avg_duration_cycles']:.3f}",
        row["min_duration_cycles"],
        row["max_duration_cycles"],
        row["total_span_cycles"],
        "" if rate is None else f"{rate:.3f}",
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def _json_bytes(value: msgspec.Struct | Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
