"""One model tried as a user would: exported, looked at by preflight, profiled, and what the results hold.

A trial is a process of its own that begins as a copy of this one, in which torch, executorch and transformers are
imported already: importing them takes longer than exporting a small model. It calls what the commands ``opscope
export``, ``preflight`` and ``profile`` call; only the process that ``export`` starts for torch is left out.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from zoo.record import Counted, Export, Failure, Record, Run

if TYPE_CHECKING:
    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.preflight.preflight import Preflight
    from opscope.bundle.manifest import Manifest
    from zoo.catalogue import Entry

    Result = TypeVar("Result", bound=msgspec.Struct)

ROOT = Path(__file__).resolve().parents[1]
_ROUNDS, _RUNS, _WARMUP = 2, 5, 1  # the zoo is about what works, not about how fast it is
_LONGEST = 600
_EXACT, _PORTABLE, _FRAMEWORK = "exact", "portable", "framework"
_PORTABLE_PART = "portable operators"
_RECORD = "record.json"


def warm_up() -> None:
    """Import what every trial needs, by exporting once, but start no threads: they do not survive in a copy."""
    import altair as alt
    import torch
    import transformers
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e import quantize_pt2e

    del alt, transformers, quantize_pt2e
    torch.set_num_threads(1)
    with torch.no_grad():
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)).eval()
        exported = torch.export.export(layers, (torch.randn(1, 4),))
        to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()


def tried(entry: Entry, dtype: str, timeout: float) -> Record:
    """Export, preflight and profile a model in its own process.

    Args:
        entry: of the catalogue.
        dtype: number type to export in.
        timeout: seconds for all of it.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-") as place:
        process = multiprocessing.get_context("fork").Process(target=_served, args=(entry, dtype, Path(place)))
        process.start()
        process.join(timeout)
        late = process.is_alive()
        if late:
            process.kill()
            process.join()
        written = Path(place) / _RECORD
        record = _read(written, Record) if written.exists() else Record(entry.name, dtype, 0.0)
    if record.run is None and record.failure is None:
        ending = f"took more than {timeout:g} seconds" if late else f"the process ended with {process.exitcode}"
        record = msgspec.structs.replace(record, failure=Failure(_next_step(record), ending))
    return msgspec.structs.replace(record, seconds=round(time.monotonic() - started, 1))


def _served(entry: Entry, dtype: str, place: Path) -> None:
    """Try a model in its own process; what libraries print goes to a log."""
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    steps(entry, dtype, place)
    os._exit(0)  # what torch does at exit is not for a copy


def steps(entry: Entry, dtype: str, place: Path) -> Record:
    """Export, preflight and profile a model in this process, writing the record into a directory after every step.

    Args:
        entry: of the catalogue.
        dtype: number type to export in.
        place: an empty directory.
    """
    from opscope.core.errors import OpscopeError

    record = Record(entry.name, dtype, 0.0)
    for step in (_exported, _planned, _profiled):
        try:
            record = step(record, entry, place)
        except OpscopeError as error:
            record = msgspec.structs.replace(record, failure=Failure(_next_step(record), _anywhere(error.problem)))
        (place / _RECORD).write_bytes(msgspec.json.encode(record))
        if record.failure:
            break
    return record


def _next_step(record: Record) -> str:
    return "export" if record.export is None else "preflight" if record.preflight is None else "profile"


def _exported(record: Record, entry: Entry, place: Path) -> Record:
    from opscope.runtimes.executorch.export.checked import checked
    from opscope.runtimes.executorch.export.child import serve
    from opscope.runtimes.executorch.export.process import Exported
    from opscope.runtimes.executorch.export.protocol import ExportRequest
    from opscope.runtimes.exports import Choice
    from opscope.runtimes.registry import EXPORTER

    choice, directory = Choice(record.dtype), place / "exported"
    directory.mkdir()
    done = serve(
        ExportRequest(entry.source, entry.name, None, choice.dtype, choice.backend, str(directory)), lambda _, __: None
    )
    program = directory / f"{choice.stem(entry.name)}.pte"
    etrecord = None if done.etrecord_problem else program.with_suffix(".etrecord")
    found = checked(EXPORTER, Exported(program, etrecord, entry.name, done), entry.source, choice)
    delegations = [method.delegation for method in found.methods]
    worst = max((method.eager for method in found.methods), key=lambda eager: eager.max_rel_error or 0.0)
    export = Export(
        program_bytes=found.program.size,
        error=worst.max_rel_error or 0.0,
        tolerance=worst.tolerance,
        operators=Counted(
            sum(each.calls for each in delegations),
            sum(each.operators for each in delegations),
            sum(each.portable_operators for each in delegations),
        ),
        macs=sum(each.macs for each in delegations),
        delegated_macs=sum(each.delegated_macs for each in delegations),
    )
    return msgspec.structs.replace(record, export=export)


def _planned(record: Record, _entry: Entry, place: Path) -> Record:
    partitions = [method.partition for method in _preflight(place).methods]
    counted = Counted(
        sum(each.calls for each in partitions),
        sum(each.delegated_operators for each in partitions),
        sum(each.portable_operators for each in partitions),
    )
    return msgspec.structs.replace(record, preflight=counted)


def _preflight(place: Path) -> Preflight:
    from opscope.api import preflight

    return preflight(_program(place))


def _profiled(record: Record, _entry: Entry, place: Path) -> Record:
    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.api import Settings, profile
    from opscope.bundle.manifest import Manifest

    bundle = place / "bundle"
    profile(_program(place), settings=Settings(rounds=_ROUNDS, runs=_RUNS, warmup=_WARMUP, ceilings=False), out=bundle)
    compared = bundle / "comparison.json"
    comparison = _read(compared, Comparison) if compared.exists() else None
    analysis, manifest = _read(bundle / "analysis.json", Analysis), _read(bundle / "manifest.json", Manifest)
    return msgspec.structs.replace(record, run=_run(analysis, _preflight(place), manifest, comparison))


def _run(analysis: Analysis, preflight: Preflight, manifest: Manifest, comparison: Comparison | None) -> Run:
    shares = {each.backend: each.share for each in analysis.backends}
    peaks = [each.measurement.peak_rss_bytes for each in manifest.repetitions if each.measurement]
    return Run(
        measured=Counted(
            len(analysis.delegates),
            sum(each.operators for each in analysis.coverage),
            sum(each.backend == _PORTABLE for each in analysis.operators),
        ),
        exact_operators=sum(each.operators for each in analysis.coverage if each.attribution == _EXACT),
        delegate_ns=sum(each.time_ns or 0.0 for each in analysis.coverage),
        exact_ns=sum(each.time_ns or 0.0 for each in analysis.coverage if each.attribution == _EXACT),
        split=sum(shares.values()) + sum(row.share for row in analysis.outside),
        framework=shares.get(_FRAMEWORK, 0.0),
        portable=shares.get(_PORTABLE, 0.0),
        forecast=_forecast(preflight),
        agree=None if comparison is None or comparison.outputs is None else comparison.outputs.agree,
        peak_bytes=max((peak for peak in peaks if peak), default=0),
        problems=sorted({each.problem for each in analysis.delegates if each.problem}),
    )


def _forecast(preflight: Preflight) -> float | None:
    """The share of portable operators that is predicted for a program of one method."""
    if len(preflight.methods) != 1 or preflight.methods[0].forecast is None:
        return None
    return sum(part.share_accelerated for part in preflight.methods[0].forecast.parts if part.part == _PORTABLE_PART)


def _program(place: Path) -> Path:
    return next((place / "exported").glob("*.pte"))


def _anywhere(problem: str) -> str:
    """An error's sentence without where things are on this machine."""
    text = re.sub(r"[^\s:`']*/(?:site-packages|zoo-\w+)/", "", problem)
    return text.replace(f"{ROOT}/", "")[:_LONGEST]


def _read(path: Path, kind: type[Result]) -> Result:
    return msgspec.json.decode(path.read_bytes(), type=kind)
