"""Run directories of the Arm profiling kit, written with small files that agree with each other.

The traces are those of ``traces.py``; the timelines are made from the same events in the kit's way: all runs of an
event stand together, times are floating-point numbers of microseconds, percentages are shares of the sum of all rows.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from traces import Node, etdump, parse

BASELINE = """
    Program::load_method 900000
      Method::init 700000
    Method::execute 4000000
      DELEGATE_CALL @0 3600000
        Convolution (NHWC, F32) IGEMM #1 3000000
        Clamp (NC) #1 500000
      OPERATOR_CALL @1 300000
        native_call_add.out 280000
"""
CANDIDATE = BASELINE.replace("4000000", "2000000").replace("3600000", "1600000").replace("3000000", "1000000")
TIMELINE = "model_id name type delegate_backend start_us end_us duration_ms pct_total node_id run_index block".split()
DESCRIBED = "name duration_ms run_index timestamp_ms parent_id op_type backend".split()
STATS = "model_id name type delegate_backend count total_ms avg_ms pct_total".split()
KERNELS = "model_id kernel_name category count dtype xnn_op variant ukernel_shape arch_chain has_sme has_sme2".split()
FINISHED = "Model executed successfully 3 time(s) in 12.500000 ms.\n"
KERNEL_LOG = (
    "Note (XNNPACK): Using gemm microkernel 'xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2'. (init, src/gemm.c:12)\n"
)
MODEL = "out_toy/artifacts/toy_fp32.pte"
Row = dict[str, Any]


def events(text: str, runs: int = 3) -> list[Row]:
    """One row for each event of each run, times in ns; in the kit's order."""
    rows: list[Row] = []
    clock = 1_000_000
    for root in parse(text):
        block, repeats = ("Execute", runs) if root.name == "Method::execute" else ("Default", 1)
        for run in range(repeats):
            _walk(rows, root, clock, None, (block, run))
            clock += root.duration + 1_000
    nodes = {key: number for number, key in enumerate(dict.fromkeys((r["block"], r["place"]) for r in rows))}
    for row in rows:
        row["node_id"] = nodes[row["block"], row["place"]]
    return sorted(rows, key=lambda row: (row["node_id"], row["run"]))


def _walk(rows: list[Row], node: Node, start: int, parent: Node | None, where: tuple[str, int]) -> None:
    at = start
    for child in node.children:
        _walk(rows, child, at, node, where)
        at += child.duration
    place = sum(1 for row in rows if (row["block"], row["run"]) == where)
    delegated = parent is not None and parent.name == "DELEGATE_CALL"
    row = {"name": node.name, "start": start, "duration": node.duration, "delegated": delegated, "place": place}
    rows.append(row | {"block": where[0], "run": where[1]})


def timeline(text: str, runs: int = 3) -> str:
    """The timeline of all runs as the kit writes it."""
    rows = events(text, runs)
    totals = {run: sum(row["duration"] for row in rows if row["run"] == run) for run in range(runs)}
    return table(TIMELINE, ([_cell(row, column, totals) for column in TIMELINE] for row in rows))


def _cell(row: Row, column: str, totals: dict[int, int]) -> object:
    duration_ms = row["duration"] / 1e6
    start_us = row["start"] / 1000.0
    return {
        "model_id": "toy",
        "name": row["name"],
        "type": row["name"].partition(" #")[0],
        "delegate_backend": "delegated" if row["delegated"] else "portable",
        "start_us": start_us,
        "end_us": start_us + duration_ms * 1000.0,
        "duration_ms": duration_ms,
        "pct_total": row["duration"] / totals[row["run"]] * 100.0,
        "node_id": row["node_id"],
        "run_index": row["run"],
        "block": row["block"],
    }[column]


def described_timeline(text: str, runs: int = 3) -> str:
    """The timeline as the kit's documents describe it: milliseconds from the start of each run."""
    rows = events(text, runs)
    first: dict[tuple[str, int], int] = {}
    for row in rows:
        key = row["block"], row["run"]
        first[key] = min(first.get(key, row["start"]), row["start"])
    return table(
        DESCRIBED,
        (
            [
                row["name"],
                row["duration"] / 1e6,
                row["run"],
                (row["start"] - first[row["block"], row["run"]]) / 1e6,
                "",
                row["name"].partition(" #")[0],
                "XNNPACK" if row["delegated"] else "portable",
            ]
            for row in rows
        ),
    )


def stats(text: str) -> str:
    """Operator statistics as the kit writes them: shares of the sum of all lines."""
    rows = list(events(text, 1))
    total = sum(row["duration"] for row in rows) / 1e6
    lines = []
    for row in rows:
        name, ms = row["name"].partition(" #")[0], row["duration"] / 1e6
        backend = "delegated" if row["delegated"] else "portable"
        lines.append(["toy", name, name, backend, 1, ms, ms, ms / total * 100.0])
    return table(STATS, lines)


def kernels(names: list[str]) -> str:
    """The kit's list of kernels; the columns behind the count are its own parse of the name."""
    return table(KERNELS, ([["toy", name, "gemm", 1, "f32", "gemm", "", "", "", 0, 0] for name in names]))


def table(header: list[str], rows: Any) -> str:
    """A CSV file with the line ends of Python's writer."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def write_experiment(directory: Path, name: str, text: str, *, nested: bool, threads: int = 1, runs: int = 3) -> None:
    """All files of a timing experiment."""
    place = directory / name if nested else directory
    place.mkdir(parents=True, exist_ok=True)
    front = f"toy_fp32_{name}_t{threads}"
    (place / f"{front}.etdump").write_bytes(etdump(text, repeat=runs))
    (place / f"{front}_latency.log").write_text(FINISHED)
    (place / f"{front}_exec_all_runs_timeline.csv").write_text(timeline(text, runs))
    (place / f"{front}_exec_run0_timeline.csv").write_text(timeline(text, 1))
    (place / f"{front}_exec_ops_stats.csv").write_text(stats(text))


def result(name: str, median_ms: float, threads: int = 1) -> Row:
    """An experiment as the manifest lists it."""
    metrics = {"runs": 3, "threads": threads, "latency_ms": [median_ms] * 3, "median_ms": median_ms}
    paths = {"etdump": f"runs/mac/{name}/toy_fp32_{name}_t{threads}.etdump"}
    return {"experiment": name, "metrics": {**metrics, "min_ms": median_ms, "max_ms": median_ms, **paths}}


def write_json(path: Path, value: Any) -> None:
    """A JSON file; nan becomes NaN, as the kit writes it."""
    path.write_text(json.dumps(value, indent=2))


def write_run(directory: Path, *, nested: bool = True, pairs: list[Row] | None = None) -> Path:
    """A run of two experiments, ``alpha`` with 4 ms and ``beta`` with 2 ms; the names say nothing about their roles."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (("alpha", BASELINE), ("beta", CANDIDATE)):
        write_experiment(directory, name, text, nested=nested)
    results = [result("alpha", 4.0), result("beta", 2.0)]
    manifest: Row = {"generated_at": "2025-12-20T00:00:00Z", "model": MODEL, "results": results}
    manifest["executorch"] = {"present": True, "sha": "0123abcd", "dirty": True}
    if pairs is not None:
        manifest["config"] = "configs/toy.json"
        write_json(directory / "toy.json", config(pairs))
    write_json(directory / "manifest.json", manifest)
    write_json(directory / "metrics.json", {"results": results})
    write_json(directory / "analysis_summary.json", {"category_totals_ms": {"Convolution": 4.0, "Other": 2.0}})
    return directory


def config(pairs: list[Row]) -> Row:
    """The configuration of the two experiments."""
    planned = [{"name": name, "mode": "timing", "runs": 3, "warmup": 1, "threads": [1]} for name in ("alpha", "beta")]
    return {"model": MODEL, "experiments": planned, "analysis": {"compare_pairs": pairs}}


def pair(baseline: str, candidate: str, threads: tuple[int, int] = (1, 1)) -> Row:
    """A comparison as a config asks for it."""
    sides = zip(("baseline", "candidate"), (baseline, candidate), threads, strict=True)
    return {which: {"experiment": name, "threads": count} for which, name, count in sides}
