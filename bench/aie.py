"""Reading AI Engine traces: opscope against json.load with a Python pass over the events, in one run on one machine.

The JSON is made here, 20 MB of it, 200 MB with ``--full``: 32 cores with eight slots each, laid out and timed as
mlir-aie writes a real GEMM: calls between two instruction events, vector and memory stall spans in them, lock stalls
between them, port transfers all along, jitter from a fixed seed. Each way reads it as a whole process, in turn, by wall
time and peak memory, and beside them what a process takes that only loads the file's bytes, or the program. Then raw
words: the same content encoded as event-time commands, decoded in this process. Processor time tells what a busy
machine hides.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aie_traces import Span, Tile, json_text, words_text
from bench.processes import Process, median_process, median_seconds, run_python
from opscope.npu.readers.words import read_words

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS, COLUMNS = 4, 8
SLOTS = (
    "PORT_RUNNING_0",
    "PORT_RUNNING_1",
    "PORT_RUNNING_2",
    "INSTR_EVENT_0",
    "INSTR_EVENT_1",
    "MEMORY_STALL",
    "LOCK_STALL",
    "INSTR_VECTOR",
)
_RUNS = 5
_EVENTS_A_CALL = 74
_BYTES_AN_EVENT = 84
_PLAIN = """
import json, sys
with open(sys.argv[1]) as file:
    data = json.load(file)
tiles = {}
for event in data:
    tile = tiles.setdefault(event.get("pid"), {"name": None, "spans": {}, "open": {}})
    if event.get("ph") == "M":
        if event.get("name") == "process_name":
            tile["name"] = event.get("args", {}).get("name")
    elif event.get("ph") == "B":
        tile["open"][event["tid"]] = int(event["ts"])
    elif event.get("ph") == "E" and event["tid"] in tile["open"]:
        start = tile["open"].pop(event["tid"])
        tile["spans"].setdefault(event["name"], []).append((start, int(event["ts"])))
print(sum(len(spans) for tile in tiles.values() for spans in tile["spans"].values()))
"""
_LOAD = """
import sys
with open(sys.argv[1], "rb", buffering=0) as file:
    while file.read(1 << 20):
        pass
"""
_START = "import opscope.npu.readers.files"
_OURS = """
import sys
from pathlib import Path
from opscope.npu.readers.files import read_tiles
tiles = read_tiles(Path(sys.argv[1]))[0].tiles
print(sum(len(slot.spans.start) - int(slot.spans.open.sum()) for tile in tiles for slot in tile.slots))
"""
_PASS, _OPSCOPE = "json.load and a pass", "opscope"
_WAYS = {_PASS: _PLAIN, _OPSCOPE: _OURS, "only loading bytes": _LOAD, "only importing opscope": _START}
_JSON, _WORDS = "trace.json", "words.txt"


def run(*, full: bool) -> bool:
    """Make the files, in a process of their own so that this one stays small, and print the figures."""
    megabytes = 200 if full else 20
    with tempfile.TemporaryDirectory() as directory:
        run_python("-m", "bench.aie", megabytes, directory)
        path, words = Path(directory, _JSON), Path(directory, _WORDS)
        print(f"JSON of {ROWS * COLUMNS} cores, {path.stat().st_size / 1e6:.0f} MB", flush=True)
        compare_json_readers(path)
        print(f"raw words of the same array, {words.stat().st_size / 1e6:.1f} MB as text", flush=True)
        decode_words(words.read_bytes())
    return True


def compare_json_readers(path: Path) -> None:
    """Print all ways of reading one file as whole processes, and the ratios of the two that are compared."""
    processes: dict[str, list[Process]] = {name: [] for name in _WAYS}
    for turn in range(_RUNS):
        for name, program in _WAYS.items():
            if name != _PASS or turn < 3:  # noqa: PLR2004 - the slow way three times
                processes[name].append(run_python("-c", program, path))
    if len({process.output for name in (_PASS, _OPSCOPE) for process in processes[name]}) != 1:
        raise SystemExit("the two ways do not find the same number of spans")
    medians = {name: median_process(runs) for name, runs in processes.items()}
    print(f"  {'':<22}{'wall':>8}    {'processor':>9}    {'memory':>8}")
    for name, median in medians.items():
        print(f"  {name:<22}{median.seconds:8.2f} s  {median.cpu_seconds:9.2f} s  {median.megabytes:8.0f} MB")
    ratios = [medians[_PASS][figure] / medians[_OPSCOPE][figure] for figure in range(3)]
    print(f"  {'ratio':<22}{ratios[0]:8.1f} x  {ratios[1]:9.1f} x  {ratios[2]:8.1f} x")


def decode_words(text: bytes) -> None:
    """Print events a second of decoding raw words."""
    binary = b"".join(int(line, 16).to_bytes(4, "little") for line in text.split())
    for name, data in (("text", text), ("binary", binary)):
        events = read_words(data, Path(name)).events
        way = partial(read_words, data, Path(name))
        seconds, cpu = median_seconds(way, _RUNS), median_seconds(way, _RUNS, time.process_time)
        print(f"  {name:<22}{events / seconds / 1e6:5.1f} million events/s, {events / cpu / 1e6:.1f} of processor time")


def write_traces(directory: Path, megabytes: int) -> None:
    """Write the trace of a 4 x 8 array in JSON, about as large as asked for, and as raw words."""
    rng = random.Random(1)  # noqa: S311 - jitter, not secrets
    calls = megabytes * 1_000_000 // (ROWS * COLUMNS * _EVENTS_A_CALL * _BYTES_AN_EVENT)
    tiles = [
        Tile("core", row + 2, column, SLOTS, tuple(gemm_core(rng, calls)))
        for column in range(COLUMNS)
        for row in range(ROWS)
    ]
    with (directory / _JSON).open("wb") as file:
        file.writelines(json_text(tiles))
    (directory / _WORDS).write_bytes(words_text(tiles))


def gemm_core(rng: random.Random, calls: int) -> Iterator[Span]:
    """Yield the spans of one core of a GEMM: calls of 1,400 cycles, bound by an input stream of 2,048 cycles a call."""
    now = rng.randrange(3000, 9000)
    yield Span(6, 1, now)
    for _ in range(calls):
        yield Span(0, now - 700, now + 324 + rng.randrange(3))
        yield Span(1, now - 600, now + 1448)
        yield Span(3, now, now + 1)
        at = now + rng.randrange(14, 24)
        for _ in range(24):
            width = rng.choice((8, 8, 16, 24, 40))
            yield Span(7, at, at + width)
            at += width
            if rng.random() < 0.3:  # noqa: PLR2004 - about as often as in the captures
                yield Span(5, at, at + rng.choice((1, 1, 2)))
            at += rng.randrange(2, 30)
        end = max(at + 10, now + 1380)
        yield Span(4, end, end + 1)
        yield Span(2, end + 4, end + 132)
        yield Span(6, end + 20, now + 2046)
        now += 2049


if __name__ == "__main__":
    write_traces(Path(sys.argv[2]), int(sys.argv[1]))
