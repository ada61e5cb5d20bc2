"""Reading an ETDump: opscope against ExecuTorch's Inspector and against reading the bytes, in one run on one machine.

Three real dumps, made here once: MobileNetV3-Small with 10,000 and with 100 inferences, ViT-Tiny with 1,000. For each,
two whole processes in turn, `opscope analyze FILE --json -` and Inspector with to_dataframe, by wall time and largest
resident memory; then the decode alone: as opscope reads the file, as repeated blocks and by the general way. Inspector
takes minutes on these. With --crossover only the decode alone, on traces of more lengths: where the two ways take the
same is what ``opscope.runtimes.executorch.etdump.WORTH_BYTES`` says.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from processes import median_seconds, run

from opscope.experiment.protocol import AS_IT_IS, TRACE, Job
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch import etdump
from opscope.runtimes.executorch.export.process import export_model
from opscope.runtimes.executorch.runners.python import python_here

if TYPE_CHECKING:
    from opscope.core.table import EventTable

_FILES = (("mobilenet_v3_small", 100), ("vit_tiny", 1_000), ("mobilenet_v3_small", 10_000))
_TARGETS = {("vit_tiny", 1_000): 150.0}
"""How many times Inspector's time opscope's is to fit in, whole processes."""
_CROSSOVER = (
    *(("toy_cnn", inferences) for inferences in (50, 200, 500, 1_000, 2_000, 10_000)),
    *(("mobilenet_v3_small", inferences) for inferences in (10, 50, 100, 200, 500)),
    *(("vit_tiny", inferences) for inferences in (10, 50, 200)),
)
_INSPECTOR = (
    "import sys\nfrom executorch.devtools import Inspector\nInspector(etdump_path=sys.argv[1]).to_dataframe()\n"
)
_RUNS = 5


def real_trace(model: str, inferences: int, directory: Path) -> Path:
    """A dump of a registered model, written by the runtime."""
    place = directory / f"{model}-{inferences}"
    place.mkdir()
    program, _ = export_model(model, "fp32", place)
    outcome = python_here().execute(Job(str(program), AS_IT_IS, inferences, 0, timeout_seconds=900), place)
    if outcome.failure:
        raise SystemExit(outcome.failure.message)
    return place / TRACE


def whole_processes(trace: Path, target: float | None) -> None:
    """Print both processes on one file, opscope before and after Inspector, and whether a target ratio is reached."""
    ours = [sys.executable, "-m", "opscope", "analyze", str(trace), "--json", "-"]
    runs = [run(ours) for _ in range(3)]
    inspector = run([sys.executable, "-c", _INSPECTOR, str(trace)])
    runs += [run(ours) for _ in range(2)]
    seconds, memory = statistics.median(r.seconds for r in runs), statistics.median(r.kilobytes for r in runs)
    print(f"  opscope analyze   {seconds:8.2f} s  {memory / 1024:7.0f} MB")
    print(f"  Inspector         {inspector.seconds:8.2f} s  {inspector.kilobytes / 1024:7.0f} MB")
    print(f"  ratio             {inspector.seconds / seconds:8.0f} x  {inspector.kilobytes / memory:7.1f} x")
    if target is not None:
        verdict = "reached" if inspector.seconds >= target * seconds else "missed"
        print(f"  target            {target:8.0f} x  {verdict}")


def decoded(data: bytes, trace: Path, worth: int) -> EventTable:
    """The table, with blocks compared from so many bytes on: 0 for always, more than the file has for never."""
    usual, etdump.WORTH_BYTES = etdump.WORTH_BYTES, worth
    try:
        return etdump.EtdumpReader().read(data, trace)
    finally:
        etdump.WORTH_BYTES = usual


def decode_alone(trace: Path) -> None:
    """Print events a second, from bytes in memory to a checked table, and what reading the bytes alone takes."""
    data, events = trace.read_bytes(), read_trace(trace).table.events
    ways = {
        "reading the bytes": trace.read_bytes,
        "opscope": lambda: decoded(data, trace, etdump.WORTH_BYTES),
        "repeated blocks": lambda: decoded(data, trace, 0),
        "general way": lambda: decoded(data, trace, len(data)),
    }
    for name, way in ways.items():
        seconds = median_seconds(way, _RUNS)
        print(f"  {name:<18}{events / seconds / 1e6:8.1f} million events/s")


def main() -> None:
    """Make the files and print the figures."""
    crossover = "--crossover" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        for model, inferences in _CROSSOVER if crossover else _FILES:
            trace = real_trace(model, inferences, Path(directory))
            events, size = read_trace(trace).table.events, trace.stat().st_size
            print(f"{model}, {inferences:,} inferences: {events:,} events, {size / 1e6:.1f} MB", flush=True)
            if not crossover:
                whole_processes(trace, _TARGETS.get((model, inferences)))
            decode_alone(trace)


if __name__ == "__main__":
    main()
