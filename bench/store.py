"""A store of a fleet: time, memory, files and bytes; how soon views and the report answer; what Dask workers add.

Bundles are made from one that a fake target was profiled with for real: 200 operators, 5 rounds, 2 variants. A night is
one bundle of each model on each device, 300 models on 40 devices unless told otherwise. Larger stores are filled with
generated rows, through the same writer, so that what they take is the store's part. All that is timed runs in its own
processes, as a user would run it. The CPU time is printed next to the time on the clock: it means something on a
machine that others use as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from dask_cluster import Cluster
from many_bundles import Made, Mint
from opscope.api import query_store
from opscope.fleet.store.log import snapshot
from opscope.fleet.store.place import place_of
from opscope.fleet.store.schema import TABLES
from stored_rows import stored_rows

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
_ONE = "SELECT category, sum(time_ns) FROM operators WHERE model = 'model-7' AND device = 'device 3' GROUP BY ALL"


class Cost(NamedTuple):
    """What a command took: seconds on the clock and of the processor, and its peak memory in MiB."""

    seconds: float
    processor: float
    peak: float


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--devices", type=int, default=40)
    parser.add_argument("--nights", type=int, default=30, help="nights of generated rows behind the first")
    parser.add_argument("--operators", type=int, default=20, help="operators of a generated bundle")
    parser.add_argument("--large", type=int, default=1_000_000, help="bundles of the largest store of generated rows")
    parser.add_argument("--in", dest="folder", type=Path, help="directory to work in, which needs some gigabytes")
    parser.add_argument("--parts", default="night,nights,workers", help="any of these")
    asked = parser.parse_args()
    print(f"load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)
    with tempfile.TemporaryDirectory(prefix="opscope-bench-", dir=asked.folder) as directory:
        work = Path(directory)
        mint = Mint(work / "shared", _OPERATORS, _ROUNDS, _RUNS)
        if "night" in asked.parts.split(","):
            _night(work, mint, asked.models, asked.devices)
        if "nights" in asked.parts.split(","):
            _nights(work, asked)
        if "workers" in asked.parts.split(","):
            _workers(work, [mint.make(work / f"some/{n:02d}", Made(n, hours=n)) for n in range(_ON_WORKERS)])
    print(f"load when it ended: {os.getloadavg()[0]:.1f}")


def _night(work: Path, mint: Mint, models: int, devices: int) -> None:
    """One night of bundles, from disk to report."""
    bundles = [
        Made(number, f"model-{number % models}", f"device {number // models}", number / 1e3, 1.0 + number % 7 / 10)
        for number in range(models * devices)
    ]
    start = time.perf_counter()
    for made in bundles:
        mint.make(work / "night" / f"{made.number:06d}", made)
    print(
        f"{len(bundles)} bundles of {models} models on {devices} devices, made in {time.perf_counter() - start:.0f} s"
    )
    store = work / "store"
    _tell_head()
    _tell("add", _cost("store", "add", work / "night", "--store", store, "--quiet"), len(bundles), store)
    _tell("add again", _cost("store", "add", work / "night", "--store", store, "--quiet"), len(bundles), store)
    _tell("report", _cost("store", "report", "--store", store, "--out", work / "fleet", "--quiet"), 1, store)
    page = (work / "fleet" / "fleet.html").stat().st_size
    print(f"fleet.html: {page / 1e6:.1f} MB")
    _tell("compact", _cost("store", "compact", "--store", store, "--quiet"), 1, store)
    _tell("verify", _cost("store", "verify", "--store", store, "--quiet"), 1, store)
    _ask(store)
    shutil.rmtree(work / "night")


def _nights(work: Path, asked: argparse.Namespace) -> None:
    """Nights of generated rows: whether adding stays flat, and how a large store answers."""
    store, night = work / "generated", asked.models * asked.devices
    print(f"\ngenerated rows, {asked.operators} operators a variant, {night} bundles a night")
    _tell_head()
    for number in range(asked.nights):
        cost = _generated(store, number * night, night, asked)
        if number in {0, 4, 9, 14, 19, 24, asked.nights - 1}:
            _tell(f"night {number + 1}", cost, night, store)
        if number == 8:  # noqa: PLR2004 - the first night with more than 100,000 bundles of 12,000 a night
            _ask(store)
    there = asked.nights * night
    if asked.large > there:
        _tell("the rest", _generated(store, there, asked.large - there, asked), asked.large - there, store)
        _ask(store)


def _generated(store: Path, first: int, count: int, asked: argparse.Namespace) -> Cost:
    words = [sys.executable, str(Path(__file__).with_name("store_rows.py")), str(store)]
    return _cost_of([*words, *map(str, (first, count, asked.models, asked.devices, asked.operators))])


def _tell_head() -> None:
    times = f"{'s':>9}{'ms each':>9}{'cpu s':>9}{'ms each':>9}"
    print(f"{'':<12}{times}{'peak MiB':>10}{'files':>8}{'count':>8}{'MB':>9}{'load':>7}")


def _tell(name: str, cost: Cost, bundles: int, store: Path) -> None:
    """A line: time for each bundle; files that are there, those that count, their bytes; the load at its end."""
    counting = snapshot(place_of(store)).files
    each = [f"{part:>9.1f}{part / bundles * 1e3:>9.2f}" for part in cost[:2]]
    there = sum(1 for path in store.rglob("*") if path.is_file())
    size = sum(file.size for file in counting) / 1e6
    files = f"{cost.peak:>10.0f}{there:>8}{len(counting):>8}{size:>9.1f}"
    print(f"{name:<12}{each[0]}{each[1]}{files}{os.getloadavg()[0]:>7.1f}", flush=True)


def _ask(store: Path) -> None:
    print(f"\n{'view':<12}{'rows':>13}{'ms, count':>11}{'ms, first':>11}{'ms, then':>11}{'cpu ms':>9}   answer")
    for name in TABLES:
        count = f"SELECT count(*) FROM {name}"  # noqa: S608 - a name of ours
        rows = query_store(count, store).rows[0][0]
        counted = min(_seconds(query_store, count, store) for _ in range(_ASKED))
        _tell_answer(name, QUESTIONS[name], store, f"{rows:>13,}{counted * 1e3:>11.0f}")
    _tell_answer("one series", _ONE, store, " " * 24)
    _tell_head()
    for name, words in (("list", ()), ("list, JSON", ("--json", "-"))):
        _tell(name, _cost("store", "list", "--store", store, *words), 1, store)
    _tell("report", _cost("store", "report", "--store", store, "--out", store.with_name("fleet"), "--quiet"), 1, store)


def _tell_answer(name: str, sql: str, store: Path, before: str) -> None:
    began = time.process_time()
    times = [_seconds(query_store, sql, store) for _ in range(_ASKED)]
    processor = (time.process_time() - began) / _ASKED
    answer = len(query_store(sql, store).rows)
    figures = f"{times[0] * 1e3:>11.0f}{min(times) * 1e3:>11.0f}{processor * 1e3:>9.0f}"
    print(f"{name:<12}{before}{figures}   {answer} rows", flush=True)


def _workers(work: Path, paths: list[Path]) -> None:
    """The same bundles analysed from their traces here, on one worker and on two; the stores must hold the same."""
    folder = paths[0].parent
    print(f"\n{len(paths)} bundles analysed{'s':>9}{'same as here':>16}")
    here = _filled(work, folder, "here", [])
    for count in (1, 2):
        with Cluster(count) as cluster:
            _filled(work, folder, f"{count} worker{'s' if count > 1 else ''}", ["--scheduler", cluster.address], here)


def _filled(work: Path, folder: Path, name: str, options: list[str], same: list[object] | None = None) -> list[object]:
    store = work / f"store {name}"
    seconds = _seconds(_cost, "store", "add", folder, "--store", store, "--recompute", "--quiet", *options)
    held: list[object] = [stored_rows(store, table) for table in TABLES]
    print(f"{name:<16}{seconds:>15.1f}{'' if same is None else str(held == same):>16}", flush=True)
    return held


def _cost(*words: object) -> Cost:
    """What a command of opscope took."""
    return _cost_of([str(_BIN / "opscope"), *map(str, words)])


def _cost_of(words: list[str]) -> Cost:
    script = (
        "import json, resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss]))"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], check=True, stdout=subprocess.PIPE, text=True)
    seconds, processor, peak = json.loads(done.stdout)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, KiB on Linux
    return Cost(seconds, processor, peak * unit / 2**20)


def _seconds(function: object, *arguments: object) -> float:
    start = time.perf_counter()
    function(*arguments)  # type: ignore[operator] # a function of this file
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
