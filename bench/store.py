"""A store of a fleet: time, memory, files and bytes; how soon views and the report answer; what Dask workers add.

Bundles are made from one that a fake target was profiled with for real: 200 operators, 5 rounds, 2 variants. A night is
one bundle of each model on each device: 30 models on 4 devices, 300 on 40 with ``--full``, which needs some gigabytes.
Commands run in processes of their own, as a user would run them. The CPU time is printed next to the time on the clock:
it means something on a machine that others use as well.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import run_opscope
from dask_cluster import Cluster
from many_bundles import Made, Mint
from opscope.api import query_store
from opscope.fleet.store.schema import TABLES
from stored_rows import stored_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPERATORS, _ROUNDS, _RUNS = 200, 5, 10
_ON_WORKERS = 16
_QUESTIONS = {
    "runs": "SELECT device, model, median(speedup), count(*) FROM runs WHERE role = 'accelerated' GROUP BY ALL",
    "latency": "SELECT device, model, variant, median(median_ns) FROM latency WHERE arm = 'untraced' GROUP BY ALL",
    "operators": "SELECT category, kind, name, sum(time_ns) AS t FROM operators GROUP BY ALL ORDER BY t DESC LIMIT 20",
    "modules": "SELECT path, sum(self_ns) AS t FROM modules GROUP BY ALL ORDER BY t DESC LIMIT 20",
    "findings": "SELECT rule, device, count(*) FROM findings GROUP BY ALL ORDER BY ALL",
    "one series": "SELECT category, sum(time_ns) FROM operators WHERE model = 'model-7' GROUP BY ALL",
}


def run(*, full: bool) -> bool:
    """Print the figures; return whether workers store the same rows as this process."""
    print(f"load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)
    with tempfile.TemporaryDirectory(prefix="opscope-bench-") as directory:
        work = Path(directory)
        mint = Mint(work / "shared", _OPERATORS, _ROUNDS, _RUNS)
        measure_night(work, mint, *((300, 40) if full else (30, 4)))
        return compare_workers(work, mint)


def measure_night(work: Path, mint: Mint, models: int, devices: int) -> None:
    """Print what it takes to bring one night of bundles from disk to the report, and to ask the store."""
    count = models * devices
    for number in range(count):
        factor = 1.0 + number % 7 / 10
        made = Made(number, f"model-{number % models}", f"device {number // models}", number / 1e3, factor)
        mint.make(work / "night" / f"{number:06d}", made)
    print(f"{count:,} bundles of {models} models on {devices} devices")
    print(f"{'':<12}{'s':>9}{'ms each':>9}{'cpu s':>9}{'ms each':>9}{'peak MB':>10}{'files':>8}{'MB':>9}{'load':>7}")
    store, fleet = work / "store", work / "fleet"
    at_store = ("--store", store)
    time_command("add", ("store", "add", work / "night", *at_store, "--quiet"), store, count)
    time_command("add again", ("store", "add", work / "night", *at_store, "--quiet"), store, count)
    time_command("report", ("store", "report", *at_store, "--out", fleet, "--quiet"), store)
    time_command("list", ("store", "list", *at_store), store)
    print(f"fleet.html: {(fleet / 'fleet.html').stat().st_size / 1e6:.1f} MB\n")
    print(f"{'question':<12}{'ms, first':>11}{'ms, then':>11}   answer")
    for name, sql in _QUESTIONS.items():
        seconds = []
        for _ in range(3):
            before = time.perf_counter()
            answer = query_store(sql, store)
            seconds.append(time.perf_counter() - before)
        print(f"{name:<12}{seconds[0] * 1e3:>11.0f}{min(seconds) * 1e3:>11.0f}   {len(answer.rows)} rows", flush=True)


def time_command(name: str, words: Sequence[object], store: Path, bundles: int = 1) -> None:
    """Run a command and print what it took in all and for each bundle, and the files and bytes of the store behind."""
    process = run_opscope(*words)
    times = "".join(f"{part:>9.1f}{part / bundles * 1e3:>9.2f}" for part in process[:2])
    sizes = [path.stat().st_size for path in store.rglob("*") if path.is_file()]
    files = f"{process.megabytes:>10.0f}{len(sizes):>8}{sum(sizes) / 1e6:>9.1f}"
    print(f"{name:<12}{times}{files}{os.getloadavg()[0]:>7.1f}", flush=True)


def compare_workers(work: Path, mint: Mint) -> bool:
    """Analyse bundles from their traces here, on one worker and on two; return whether the stores hold the same."""
    for number in range(_ON_WORKERS):
        mint.make(work / "some" / f"{number:02d}", Made(number, hours=number))
    print(f"\n{_ON_WORKERS} bundles analysed{'s':>9}{'same as here':>16}")
    here = add_recomputed(work, "here")
    are_same = []
    for count in (1, 2):
        with Cluster(count) as cluster:
            rows = add_recomputed(work, f"{count} worker{'s' if count > 1 else ''}", "--scheduler", cluster.address)
            are_same.append(rows == here)
            print(f"{'':<31}{are_same[-1]!s:>16}", flush=True)
    return all(are_same)


def add_recomputed(work: Path, name: str, *options: str) -> list[object]:
    """Add the bundles to a store of their own, print the seconds, and return the rows of all its views."""
    store = work / f"store {name}"
    process = run_opscope("store", "add", work / "some", "--store", store, "--recompute", "--quiet", *options)
    print(f"{name:<16}{process.seconds:>15.1f}", flush=True)
    return [stored_rows(store, table) for table in TABLES]
