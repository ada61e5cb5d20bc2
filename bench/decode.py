"""Reading an ETDump: opscope against ExecuTorch's Inspector and against reading the bytes, in one run on one machine.

Real dumps, made here once: MobileNetV3-Small with 100 inferences; with ``--full`` with 10,000, too, and ViT-Tiny with
1,000. Two whole processes in turn, `opscope analyze FILE --json -` and Inspector with to_dataframe, by wall time and
peak memory; then the decode alone: as opscope reads the file, as repeated blocks, and by the general way. Inspector
takes minutes on the large ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import median_process, median_seconds, run_opscope, run_python
from opscope.experiment.protocol import AS_IT_IS, TRACE, Job
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch import etdump
from opscope.runtimes.executorch.export.process import export_model
from opscope.runtimes.executorch.runners.python import python_here

if TYPE_CHECKING:
    from opscope.core.table import EventTable

_QUICK = (("mobilenet_v3_small", 100),)
_FULL = (*_QUICK, ("vit_tiny", 1_000), ("mobilenet_v3_small", 10_000))
_TARGETS = {("vit_tiny", 1_000): 150.0}
"""How many times faster than Inspector opscope is to be, as whole processes."""
_INSPECTOR = (
    "import sys\nfrom executorch.devtools import Inspector\nInspector(etdump_path=sys.argv[1]).to_dataframe()\n"
)
_RUNS = 5


def run(*, full: bool) -> bool:
    """Make the dumps and print the figures; return whether the target ratios are reached."""
    reached = True
    with tempfile.TemporaryDirectory() as directory:
        for model, inferences in _FULL if full else _QUICK:
            trace = record_trace(model, inferences, Path(directory))
            events, size = read_trace(trace).table.events, trace.stat().st_size
            print(f"{model}, {inferences:,} inferences: {events:,} events, {size / 1e6:.1f} MB", flush=True)
            ratio = compare_processes(trace)
            target = _TARGETS.get((model, inferences), 1.0)
            print(f"  target            {target:8.0f} x  {'reached' if ratio >= target else 'missed'}")
            reached &= ratio >= target
            time_decoding(trace, events)
    return reached


def record_trace(model: str, inferences: int, directory: Path) -> Path:
    """Export a registered model, run it, and return the dump that the runtime wrote."""
    place = directory / f"{model}-{inferences}"
    place.mkdir()
    program, _ = export_model(model, "fp32", place)
    outcome = python_here().execute(Job(str(program), AS_IT_IS, inferences, 0, timeout_seconds=900), place)
    if outcome.failure:
        raise SystemExit(outcome.failure.message)
    return place / TRACE


def compare_processes(trace: Path) -> float:
    """Print what both processes take, opscope before and after Inspector; return the ratio of their times."""
    analyze = ("analyze", trace, "--json", "-")
    runs = [run_opscope(*analyze) for _ in range(3)]
    inspector = run_python("-c", _INSPECTOR, trace)
    ours = median_process(runs + [run_opscope(*analyze) for _ in range(2)])
    ratio = inspector.seconds / ours.seconds
    print(f"  opscope analyze   {ours.seconds:8.2f} s  {ours.megabytes:7.0f} MB")
    print(f"  Inspector         {inspector.seconds:8.2f} s  {inspector.megabytes:7.0f} MB")
    print(f"  ratio             {ratio:8.0f} x  {inspector.megabytes / ours.megabytes:7.1f} x")
    return ratio


def time_decoding(trace: Path, events: int) -> None:
    """Print events a second, from bytes in memory to a checked table, and what reading the bytes alone takes."""
    data = trace.read_bytes()
    ways = {
        "reading the bytes": trace.read_bytes,
        "opscope": lambda: decode(data, trace, etdump.WORTH_BYTES),
        "repeated blocks": lambda: decode(data, trace, 0),
        "general way": lambda: decode(data, trace, len(data)),
    }
    for name, way in ways.items():
        print(f"  {name:<18}{events / median_seconds(way, _RUNS) / 1e6:8.1f} million events/s")


def decode(data: bytes, trace: Path, worth_bytes: int) -> EventTable:
    """Decode a dump, with blocks compared from so many bytes on: 0 for always, more than the file has for never."""
    usual, etdump.WORTH_BYTES = etdump.WORTH_BYTES, worth_bytes
    try:
        return etdump.EtdumpReader().read(data, trace)
    finally:
        etdump.WORTH_BYTES = usual
