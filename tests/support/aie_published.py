"""Runs of AI Engine cores as the published post-processor supposes them, and its arithmetic on such runs, done plainly.

A clean run: every iteration has the same calls of one kind, and a long lock stall stands between two iterations.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from aie_traces import Span, Tile

NAMES = ("INSTR_EVENT_0", "INSTR_EVENT_1", "LOCK_STALL", "INSTR_VECTOR", "NONE", "NONE", "NONE", "NONE")
LONG = 20
GHZ = 1.25


class Clean(NamedTuple):
    """A core of a clean run.

    Attributes:
        iterations: how many.
        calls: in each.
        first: cycles of the first call of each iteration; each further one takes a cycle more.
        rest: cycles of lock stall between two iterations.
        row: of the tile.
        column: of the tile.
    """

    iterations: int = 4
    calls: int = 6
    first: int = 100
    rest: int = 9000
    row: int = 2
    column: int = 0

    def times(self) -> list[list[tuple[int, int]]]:
        """Start and end of each call, by iteration; an end is the cycle after that of INSTR_EVENT_1."""
        found, now = [], 50
        for iteration in range(self.iterations):
            own = []
            for call in range(self.calls):
                length = self.first + iteration + call
                own.append((now, now + length))
                now += length + 30
            found.append(own)
            now += self.rest
        return found

    def tile(self) -> Tile:
        """The trace unit."""
        times = self.times()
        spans = [span for own in times for start, end in own for span in self._call(start, end)]
        waits = [Span(2, before[-1][1] + 5, after[0][0] - 5) for before, after in pairwise(times)]
        return Tile("core", self.row, self.column, NAMES, sorted([*spans, *waits], key=lambda span: span.start))

    def _call(self, start: int, end: int) -> list[Span]:
        return [Span(0, start, start + 1), Span(3, start + 4, start + 84), Span(1, end - 1, end)]


class Flags(NamedTuple):
    """What the published tool is told."""

    M: int
    K: int
    N: int
    rows: int
    columns: int
    warmup: int
    iterations: int


def expected_core(pid: int, core: Clean, flags: Flags) -> dict[str, Any]:
    """What ``<tile>.json`` of a clean run holds."""
    calls = [call for own in core.times() for call in own]
    typical = median(end - start for start, end in calls)
    waits = [span for span in core.tile().spans if span.slot == 2]
    boundaries = sorted({w.end for w in waits if w.end is not None and w.end - w.start >= LONG * typical})
    groups: dict[int, list[tuple[int, int]]] = {}
    for start, end in calls:
        groups.setdefault(sum(boundary < start for boundary in boundaries), []).append((start, end))
    return {
        "pid": pid,
        "tile_name": f"tile{core.row},{core.column}",
        "median_kernel_duration_cycles": typical,
        "lock_stall_boundary_count": len(boundaries),
        "detected_total_iterations": len(groups),
        "expected_total_iterations": flags.warmup + flags.iterations,
        "mismatch_note": None,
        "iterations": [expected_iteration(number, own, flags) for number, own in groups.items()],
        "performance_window": list(range(len(groups)))[flags.warmup : flags.warmup + flags.iterations],
    }


def expected_iteration(number: int, calls: list[tuple[int, int]], flags: Flags) -> dict[str, Any]:
    """One of its iterations: statistics of the durations, and the core's part of the product over the span."""
    durations = [end - start for start, end in calls]
    span = calls[-1][1] - calls[0][0]
    done = number - flags.warmup
    return {
        "num_kernels": len(calls),
        "avg_duration_cycles": sum(durations) / len(durations),
        "min_duration_cycles": min(durations),
        "max_duration_cycles": max(durations),
        "total_span_cycles": span,
        "first_start": calls[0][0],
        "last_end": calls[-1][1],
        "gmacs_per_second": flags.M * flags.K * flags.N / (flags.rows * flags.columns) * GHZ / span,
        "iteration_index": number,
        "phase": "warmup" if done < 0 else "perf" if done < flags.iterations else "extra",
    }


def expected_aggregate(cores: list[dict[str, Any]], flags: Flags) -> dict[str, Any]:
    """What ``aggregate_perf.json`` of clean runs holds: the longest span of all cores in each measured iteration."""
    common = sorted(set.intersection(*(set(core["performance_window"]) for core in cores)))
    rows = []
    for number in common:
        cycles = max(core["iterations"][number]["total_span_cycles"] for core in cores)
        rate = flags.M * flags.K * flags.N * GHZ / cycles
        rows.append({"iteration_index": number, "runtime_cycles": cycles, "gmacs_per_second": rate})
    return {
        "iterations_considered": common,
        "count": len(common),
        "average": {
            "runtime_cycles": sum(row["runtime_cycles"] for row in rows) / len(rows),
            "gmacs_per_second": sum(row["gmacs_per_second"] for row in rows) / len(rows),
        },
        "best": max(rows, key=lambda row: row["gmacs_per_second"]),
        "worst": min(rows, key=lambda row: row["gmacs_per_second"]),
        "per_iteration": rows,
        "note": "Only iterations present on all cores are considered.",
    }


def expected_details(hwid: str, cores: list[dict[str, Any]], flags: Flags) -> str:
    """What ``details.md`` of clean runs holds."""
    lines = [
        f"<details><summary><strong>[{hwid}] M={flags.M} K={flags.K} N={flags.N}</strong></summary>",
        "",
        "| Tile | Iter | Phase | Kernels | Avg cycles | Min | Max | Total span | GMAC/s |",
        "|------|------|-------|---------|------------|-----|-----|------------|--------|",
    ]
    for core in cores:
        for row in core["iterations"]:
            cells = (
                core["tile_name"],
                row["iteration_index"],
                row["phase"],
                row["num_kernels"],
                f"{row['avg_duration_cycles']:.3f}",
                row["min_duration_cycles"],
                row["max_duration_cycles"],
                row["total_span_cycles"],
                f"{row['gmacs_per_second']:.3f}",
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", "</details>", ""])


def stream_plot_rate(aggregate: dict[str, Any]) -> float | None:
    """What Stream's plot of one core against one column takes from ``aggregate_perf.json``.

    The best iteration's rate, 0 where it has none; without a best one the largest of all iterations. No null is taken.
    Source: read_aggregate_perf_gmacs in scripts/analysis/plot_single_core_vs_single_col.py of KULeuven-MICAS/stream,
    where it is caught, and the bar is missing.
    """
    best = aggregate.get("best")
    if best is not None:
        return float(best.get("gmacs_per_second", 0.0))
    rates = [float(row.get("gmacs_per_second", 0.0)) for row in aggregate.get("per_iteration", [])]
    return max(rates, default=None)


def stream_runtimes(cores: list[dict[str, Any]]) -> dict[int, int]:
    """What Stream's aggregate takes from the files of the cores: the longest span of each iteration that all measured.

    Source: compute_and_write_aggregate in scripts/analysis/postprocess_aie_trace.py, likewise.
    """
    measured = [set(core["performance_window"]) & set(range(len(core["iterations"]))) for core in cores]
    return {
        index: max(int(core["iterations"][index]["total_span_cycles"]) for core in cores)
        for index in sorted(set.intersection(*measured))
    }
