"""Reading an ETDump: opscope against ExecuTorch's Inspector and against reading the bytes, in one run on one machine.

Three real dumps, made here once: MobileNetV3-Small with 10,000 and with 100 inferences, ViT-Tiny with 1,000. For each,
two whole processes in turn, `opscope analyze FILE --json -` and Inspector with to_dataframe, by wall time and largest
resident memory; then the decode alone, of repeated blocks and by the general way. Inspector takes minutes on these.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from processes import median_seconds, run

from opscope.export.process import export_model
from opscope.read import etdump
from opscope.read.flatbuffer import FlatBuffer, Tables
from opscope.read.registry import read_trace
from opscope.run.local import TRACE, LocalTarget
from opscope.run.target import Job
from opscope.table import Clock, EventTable

_FILES = (("mobilenet_v3_small", 100), ("vit_tiny", 1_000), ("mobilenet_v3_small", 10_000))
_INSPECTOR = (
    "import sys\nfrom executorch.devtools import Inspector\nInspector(etdump_path=sys.argv[1]).to_dataframe()\n"
)
_RUNS = 5


def real_trace(model: str, inferences: int, directory: Path) -> Path:
    """A dump of a registered model, written by the runtime."""
    place = directory / f"{model}-{inferences}"
    place.mkdir()
    program, _ = export_model(model, "fp32", place)
    outcome = LocalTarget().execute(Job(str(program), [], 1, inferences, 0, timeout_seconds=900), place)
    if outcome.failure:
        raise SystemExit(outcome.failure.message)
    return place / TRACE


def whole_processes(trace: Path) -> None:
    """Print both processes on one file, opscope before and after Inspector."""
    ours = [sys.executable, "-m", "opscope", "analyze", str(trace), "--json", "-"]
    runs = [run(ours) for _ in range(3)]
    inspector = run([sys.executable, "-c", _INSPECTOR, str(trace)])
    runs += [run(ours) for _ in range(2)]
    seconds, memory = statistics.median(r.seconds for r in runs), statistics.median(r.kilobytes for r in runs)
    print(f"  opscope analyze   {seconds:8.2f} s  {memory / 1024:7.0f} MB")
    print(f"  Inspector         {inspector.seconds:8.2f} s  {inspector.kilobytes / 1024:7.0f} MB")
    print(f"  ratio             {inspector.seconds / seconds:8.0f} x  {inspector.kilobytes / memory:7.1f} x")


def generally(data: bytes) -> EventTable:
    """The table by the general way, without looking for repetition."""
    buffer = FlatBuffer(data, "trace", 4)
    blocks = Tables(buffer, buffer.root().children(1)[0])
    parts = list(etdump._pieces(buffer, blocks, 0, len(blocks)))  # noqa: SLF001 - the way that is measured
    quantised = all(part.whole_microseconds for part in parts)
    return EventTable.of_segments([part.segment("XNNPACK", quantised=quantised) for part in parts], Clock.NS)


def decode_alone(trace: Path) -> None:
    """Print events a second, from bytes in memory to a checked table, and what reading the bytes alone takes."""
    data, events = trace.read_bytes(), read_trace(trace).table.events
    ways = {
        "reading the bytes": trace.read_bytes,
        "repeated blocks": lambda: etdump.EtdumpReader().read(data, trace),
        "general way": lambda: generally(data),
    }
    for name, way in ways.items():
        seconds = median_seconds(way, _RUNS)
        print(f"  {name:<18}{events / seconds / 1e6:8.1f} million events/s")


def main() -> None:
    """Make the files and print the figures."""
    with tempfile.TemporaryDirectory() as directory:
        for model, inferences in _FILES:
            trace = real_trace(model, inferences, Path(directory))
            events, size = read_trace(trace).table.events, trace.stat().st_size
            print(f"{model}, {inferences:,} inferences: {events:,} events, {size / 1e6:.1f} MB", flush=True)
            whole_processes(trace)
            decode_alone(trace)


if __name__ == "__main__":
    main()
