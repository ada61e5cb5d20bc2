"""A store of 10,000 bundles: time, memory, files and bytes; how soon the views answer; and what Dask workers add.

The bundles are made from one that a fake target was profiled with for real: 200 operators, 5 rounds, 2 variants, of 8
models on 6 devices. Everything that is timed runs in processes of its own, as a user would run it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from dask_cluster import Cluster
from many_bundles import Mint, fleet
from opscope.api import query_store, store_entries
from opscope.fleet.store.schema import TABLES

_OPERATORS, _ROUNDS, _RUNS = 200, 5, 10
_ON_WORKERS = 16
_ASKED = 3
_BIN = Path(sys.executable).parent
QUESTIONS = {
    "runs": "SELECT device, model, median(speedup), count(*) FROM runs WHERE role = 'accelerated' GROUP BY ALL",
    "latency": "SELECT device, model, variant, median(median_ns) FROM latency WHERE arm = 'untraced' GROUP BY ALL",
    "operators": "SELECT category, kind, name, sum(time_ns) AS t FROM operators GROUP BY ALL ORDER BY t DESC LIMIT 20",
    "modules": "SELECT path, sum(self_ns) AS t FROM modules GROUP BY ALL ORDER BY t DESC LIMIT 20",
    "findings": "SELECT rule, device, count(*) FROM findings GROUP BY ALL ORDER BY ALL",
    "kernels": "SELECT operator, kernel, device, sum(time_ns) FROM kernels GROUP BY ALL",
    "tiles": "SELECT device, avg(utilisation) FROM tiles GROUP BY ALL",
}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundles", type=int, default=10_000)
    bundles = parser.parse_args().bundles
    with tempfile.TemporaryDirectory(prefix="opscope-bench-") as directory:
        work = Path(directory)
        paths = _made(work, bundles)
        store = work / "store"
        print(f"\n{'bundles':>10}{'added':>8}{'s':>9}{'ms each':>9}{'peak MiB':>10}{'files':>8}{'MB':>8}")
        there = 0
        for count in _steps(bundles):
            _add(store, paths[count - 1].parent, there, count)
            there = count
        before = _seconds(_run, "store", "compact", "--store", store)
        print(f"compact: {before:.1f} s; then {_size(store)}")
        _ask(store)
        print(f"verify: {_seconds(_run, 'store', 'verify', '--store', store):.1f} s")
        _workers(work, paths[:_ON_WORKERS])


def _made(work: Path, count: int) -> list[Path]:
    start = time.perf_counter()
    mint = Mint(work / "shared", _OPERATORS, _ROUNDS, _RUNS)
    profiled = time.perf_counter() - start
    folder = {made.number: next(step for step in _steps(count) if made.number < step) for made in fleet(count)}
    paths = [mint.make(work / f"until {folder[made.number]}" / f"{made.number:05d}", made) for made in fleet(count)]
    each = sum(file.stat().st_size for file in paths[0].rglob("*") if file.is_file())
    seconds = time.perf_counter() - start
    print(f"{count} bundles of {each / 1e6:.2f} MB in {seconds:.0f} s, {profiled:.1f} of them profiling")
    return paths


def _steps(count: int) -> list[int]:
    """Numbers of bundles at which the store is looked at."""
    return sorted({max(1, count // 10), max(1, count // 3), count})


def _add(store: Path, folder: Path, there: int, count: int) -> None:
    """Add the bundles of a folder, in a process of its own, and print what that took."""
    start = time.perf_counter()
    peak = _peak("store", "add", folder, "--store", store, "--quiet")
    seconds, added = time.perf_counter() - start, count - there
    files, size = _size_of(store)
    row = f"{count:>10}{added:>8}{seconds:>9.1f}{seconds / added * 1e3:>9.1f}{peak:>10.0f}{files:>8}{size / 1e6:>8.1f}"
    print(row, flush=True)


def _ask(store: Path) -> None:
    print(f"\n{'view':<12}{'rows':>12}{'ms, first':>12}{'ms, then':>12}   answer")
    for name in TABLES:
        rows = query_store(f"SELECT count(*) FROM {name}", store).rows[0][0]  # noqa: S608 - a name of ours
        times = [_seconds(query_store, QUESTIONS[name], store) for _ in range(_ASKED)]
        answer = len(query_store(QUESTIONS[name], store).rows)
        print(f"{name:<12}{rows:>12,}{times[0] * 1e3:>12.0f}{min(times) * 1e3:>12.0f}   {answer} rows")
    listing = _seconds(store_entries, store)
    print(f"{'list':<12}{len(store_entries(store)):>12,}{listing * 1e3:>12.0f}")


def _workers(work: Path, paths: list[Path]) -> None:
    """The same bundles analysed from their traces here, on one worker and on two; the stores must hold the same."""
    folder = work / "some"
    for path in paths:
        shutil.copytree(path, folder / path.name, copy_function=_link)
    print(f"\n{len(paths)} bundles analysed{'s':>9}{'same as here':>16}")
    here = _filled(work, folder, "here", [])
    for count in (1, 2):
        with Cluster(count) as cluster:
            _filled(work, folder, f"{count} worker{'s' if count > 1 else ''}", ["--scheduler", cluster.address], here)


def _filled(work: Path, folder: Path, name: str, options: list[str], same: list[object] | None = None) -> list[object]:
    store = work / f"store {name}"
    seconds = _seconds(_run, "store", "add", folder, "--store", store, "--recompute", "--quiet", *options)
    held = [query_store(f"SELECT * FROM {table} ORDER BY ALL", store).rows for table in TABLES]  # noqa: S608
    print(f"{name:<16}{seconds:>15.1f}{'' if same is None else str(held == same):>16}", flush=True)
    return held


def _size(store: Path) -> str:
    files, size = _size_of(store)
    return f"{files} files, {size / 1e6:.1f} MB"


def _size_of(store: Path) -> tuple[int, int]:
    files = [file for file in store.rglob("*") if file.is_file()]
    return len(files), sum(file.stat().st_size for file in files)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _run(*words: object) -> None:
    subprocess.run([_BIN / "opscope", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _peak(*words: object) -> float:
    """Peak memory of a command in MiB."""
    script = (
        "import json, resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True)\n"
        "print(json.dumps(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
    )
    command = [sys.executable, "-c", script, str(_BIN / "opscope"), *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, KiB on Linux
    return float(json.loads(done.stdout)) * unit / 2**20


def _seconds(function: object, *arguments: object) -> float:
    start = time.perf_counter()
    function(*arguments)  # type: ignore[operator] # a function of this file
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
