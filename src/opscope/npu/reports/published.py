"""The files of the published post-processor of AI Engine traces, with its names, fields and order.

``<tile>.json`` for each core, ``details.md``, ``index.json``, ``aggregate_perf.json``. Where its arithmetic holds, on
a clean, complete trace of one kind of kernel whose iterations are apart by lock stalls, the values are the same;
where they differ, docs/reference/aie-published-files.md says why.
"""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.reports.content.text import distinct, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.npu.reports.published_core import CoreCalls, CoreIteration

BOUNDARY_FACTOR = 20.0
"""A lock stall of so many median kernels is a boundary to the published tool; here it is counted, and decides nothing.
"""
_NO_CORES = "No cores to aggregate."
_NO_COMMON = "No common perf iterations across all cores."
_COMMON = "Only iterations present on all cores are considered."
_DETAIL_HEAD = ("Tile", "Iter", "Phase", "Kernels", "Avg cycles", "Min", "Max", "Total span", "GMAC/s")


class PublishedRun(NamedTuple):
    """What the files say about the run as a whole; None where the user did not say."""

    hwid: str | None
    sizes: tuple[int | None, int | None, int | None]
    tile: tuple[int | None, int | None, int | None]
    rows: int | None
    columns: int | None
    warmup: int | None
    iterations: int | None
    clock_ghz: float | None
    input_path: str
    output_dir: str


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


class PublishedCore(msgspec.Struct, frozen=True):
    """``<tile>.json``."""

    pid: int
    tile_name: str
    median_kernel_duration_cycles: float | None
    lock_stall_boundary_count: int
    detected_total_iterations: int
    expected_total_iterations: int | None
    mismatch_note: str | None
    iterations: list[PublishedIteration]
    performance_window: list[int]


class PublishedSystemIteration(msgspec.Struct, frozen=True):
    """An iteration of all cores: the longest span of any of them."""

    iteration_index: int
    runtime_cycles: int
    gmacs_per_second: float | None


class Average(msgspec.Struct, frozen=True):
    """Means over iterations."""

    runtime_cycles: float
    gmacs_per_second: float | None


class Aggregate(msgspec.Struct, frozen=True):
    """``aggregate_perf.json`` of cores that have measured iterations in common."""

    iterations_considered: list[int]
    count: int
    average: Average
    best: PublishedSystemIteration
    worst: PublishedSystemIteration
    per_iteration: list[PublishedSystemIteration]
    note: str


class NoAggregate(msgspec.Struct, frozen=True):
    """``aggregate_perf.json`` without such iterations."""

    note: str


class Index(msgspec.Struct, frozen=True):
    """``index.json``."""

    hwid: str | None
    M: int | None
    K: int | None
    N: int | None
    m: int | None
    k: int | None
    n: int | None
    rows: int | None
    cols: int | None
    input_path: str
    output_dir: str
    warmup: int | None
    iterations: int | None
    clock_GHz: float | None  # noqa: N815 - the published name
    notes: list[str]
    details_md: str | None


def published_files(cores: Sequence[CoreCalls], run: PublishedRun, notes: Sequence[str] = ()) -> dict[str, bytes]:
    """Name and content of each file.

    Args:
        cores: in order of their pid.
        run: what the user said.
        notes: what else ``index.json`` is to say.
    """
    reports = [published_core(core, run) for core in cores]
    names = distinct(f"tile{core.tile}" for core in cores)
    files = {f"{name}.json": _json(report) for name, report in zip(names, reports, strict=True)}
    details = details_markdown(reports, run)
    if details:
        files["details.md"] = details.encode()
    files["index.json"] = _json(_index(reports, run, notes, has_details=bool(details)))
    files["aggregate_perf.json"] = _json(aggregate(reports, run))
    return files


def published_core(core: CoreCalls, run: PublishedRun) -> PublishedCore:
    """The report of one core."""
    durations = (core.end - core.start).tolist()
    middle = median(durations) if durations else None
    expected = None if run.warmup is None or run.iterations is None else run.warmup + run.iterations
    rows = [_iteration(core, index, group, run.clock_ghz) for index, group in enumerate(core.groups)]
    return PublishedCore(
        pid=core.pid,
        tile_name=f"tile{core.tile}",
        median_kernel_duration_cycles=middle,
        lock_stall_boundary_count=_boundaries(core, middle),
        detected_total_iterations=len(rows),
        expected_total_iterations=expected,
        mismatch_note=core.note,
        iterations=rows,
        performance_window=[row.iteration_index for row in rows if row.phase == "perf"],
    )


def aggregate(cores: Sequence[PublishedCore], run: PublishedRun) -> Aggregate | NoAggregate:
    """The system's runtime in each measured iteration that all cores have."""
    if not cores:
        return NoAggregate(_NO_CORES)
    common = sorted(set.intersection(*(set(core.performance_window) for core in cores)))
    if not common:
        return NoAggregate(_NO_COMMON)
    rows = [_system(cores, index, run) for index in common]
    cycles = [row.runtime_cycles for row in rows]
    rates = [row.gmacs_per_second for row in rows if row.gmacs_per_second is not None]
    return Aggregate(
        iterations_considered=common,
        count=len(common),
        average=Average(sum(cycles) / len(cycles), sum(rates) / len(rates) if len(rates) == len(rows) else None),
        best=min(rows, key=lambda row: row.runtime_cycles),
        worst=max(rows, key=lambda row: row.runtime_cycles),
        per_iteration=rows,
        note=_COMMON,
    )


def details_markdown(cores: Sequence[PublishedCore], run: PublishedRun) -> str:
    """``details.md``; empty without iterations, as no such file is written then."""
    rows = [_detail(core, row) for core in cores for row in core.iterations]
    if not rows:
        return ""
    sizes = " ".join(f"{name}={value or '?'}" for name, value in zip("MKN", run.sizes, strict=True))
    # The line is a block of HTML, in which Markdown's escapes do not count.
    name = escape(plain(run.hwid or ""))
    head = f"<details><summary><strong>[{name}] {sizes}</strong></summary>\n\n"
    rule = "|".join("-" * (len(name) + 2) for name in _DETAIL_HEAD)
    return f"{head}| {' | '.join(_DETAIL_HEAD)} |\n|{rule}|\n{''.join(rows)}\n</details>\n"


def _iteration(core: CoreCalls, index: int, group: CoreIteration, clock: float | None) -> PublishedIteration:
    part = slice(group.first, group.last + 1)
    durations = core.end[part] - core.start[part]
    first, last = int(core.start[group.first]), int(core.end[group.last])
    return PublishedIteration(
        num_kernels=len(durations),
        avg_duration_cycles=int(durations.sum()) / len(durations),
        min_duration_cycles=int(durations.min()),
        max_duration_cycles=int(durations.max()),
        total_span_cycles=last - first,
        first_start=first,
        last_end=last,
        gmacs_per_second=_rate(group.macs, clock, last - first),
        iteration_index=index,
        phase={"measured": "perf"}.get(group.phase, group.phase),
    )


def _boundaries(core: CoreCalls, middle: float | None) -> int:
    if not middle:
        return 0
    long = core.stall_end - core.stall_start >= BOUNDARY_FACTOR * middle
    return len(np.unique(core.stall_end[long]))


def _system(cores: Sequence[PublishedCore], index: int, run: PublishedRun) -> PublishedSystemIteration:
    """The iteration of this index on all cores; its rate is that of the whole product, so all cores must be there."""
    rows = [core.iterations[index] for core in cores]
    runtime = max(row.total_span_cycles for row in rows)
    whole = run.rows is not None and run.columns is not None and len(cores) == run.rows * run.columns
    known = whole and all(row.gmacs_per_second is not None for row in rows)
    return PublishedSystemIteration(index, runtime, _rate(_product(run), run.clock_ghz, runtime) if known else None)


def _product(run: PublishedRun) -> int | None:
    height, depth, width = run.sizes
    return None if height is None or depth is None or width is None else height * depth * width


def _rate(macs: int | None, clock: float | None, cycles: int) -> float | None:
    return None if macs is None or clock is None or cycles <= 0 else macs * clock / cycles


def _detail(core: PublishedCore, row: PublishedIteration) -> str:
    rate = "" if row.gmacs_per_second is None else f"{row.gmacs_per_second:.3f}"
    cells: Iterator[object] = iter(
        (
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
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def _index(cores: Sequence[PublishedCore], run: PublishedRun, notes: Sequence[str], *, has_details: bool) -> Index:
    own = [core.mismatch_note for core in cores if core.mismatch_note]
    return Index(
        run.hwid,
        *run.sizes,
        *run.tile,
        rows=run.rows,
        cols=run.columns,
        input_path=run.input_path,
        output_dir=run.output_dir,
        warmup=run.warmup,
        iterations=run.iterations,
        clock_GHz=run.clock_ghz,
        notes=[*own, *notes],
        details_md=f"{run.output_dir}/details.md" if has_details else None,
    )


def _json(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
