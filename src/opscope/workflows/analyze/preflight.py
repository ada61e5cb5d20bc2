"""What a program tells before it runs."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import ExportError, FeatureError, NotFoundError, OpscopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.findings.message import Message
    from opscope.measurements.results import PreflightResult
    from opscope.program.kernels.cpu import Cpu
    from opscope.runtimes.runtime import Runtime

_HEAD = 8
_FIGURES = re.compile(r"\d[\d.,]*")


def preflight(
    path: str | Path, etrecord: str | Path | None = None, *, runtime: str | None = None, cpu: str | None = None
) -> PreflightResult:
    """Say which operators of a program are delegated, which kernels a CPU has for them, and what holds it back.

    Nothing is measured and no device is needed. A delegate without a payload is counted, and its work stays unknown.
    An .onnx is run once, where ONNX Runtime is installed, since only that tells all shapes, and so is all in OpenVINO.

    Args:
        path: the program, a .pte, a .tflite, an .onnx or an OpenVINO .xml.
        etrecord: export record of a .pte, which adds the lines of the model's code to findings; None: without.
        runtime: that is to run it, by its name; None: that of its format.
        cpu: public name of the processor that kernels are chosen for, such as ``apple-m4``; None: this machine's.

    Raises:
        FeatureError: nothing is known of the processor.
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is none of these, truncated, or damaged.
        UsageError: it cannot be run here whatever is asked, as `opscope profile` says.
        RunError: ONNX Runtime does not run it.
    """
    from opscope.measurements.notebook import shown_as
    from opscope.measurements.results import PreflightResult
    from opscope.runtimes.registry import program_of

    place = program_of(Path(path))
    chosen = _choose_runtime(place, runtime)
    chosen.check(place)
    processor = _choose_processor(chosen, place, cpu)
    return shown_as(PreflightResult, chosen.preflight(place, None if etrecord is None else Path(etrecord), processor))


def _choose_processor(runtime: Runtime, program: Path, name: str | None) -> Cpu | None:
    """Return the named processor, or this machine's; None if this machine's does not tell its features."""
    from opscope.machine.named_cpus import cpu_by_name

    if name is not None and runtime.names_kernels:
        problem = f"{runtime.title} names its kernels only on the CPU that runs the model"
        raise UsageError(problem, hint="leave out --cpu, or run it on such a machine")
    try:
        return cpu_by_name(name, runtime.weight_bits(program))
    except FeatureError:
        if name is not None:
            raise
        return None


def preflight_model(model: str, *, runtime: str | None = None, cpu: str | None = None) -> PreflightResult:
    """Say of a program what :func:`preflight` does; a model in Python is exported first, in fp32, which runs its code.

    Raises the errors of :func:`preflight` and of :func:`opscope.workflows.exporting.export`. The log of an export that
    fails is kept in the current directory.
    """
    from opscope.runtimes.exports import Choice
    from opscope.runtimes.registry import EXPORTER
    from opscope.workflows.exporting import with_kept_log

    is_program = Path(model).exists() and Path(model).suffix != ".py"
    if is_program or EXPORTER.program(model, None) is not None:
        return preflight(model, runtime=runtime, cpu=cpu)
    choice = Choice("fp32")
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
        work = Path(directory)
        try:
            record = EXPORTER.export(model, choice, work, None, None, lambda _: None)
        except ExportError as error:
            raise with_kept_log(error, work, Path(EXPORTER.export_stem(model, choice, None))) from error
        program = work / record.program.name
        result = preflight(program, record_beside(program), runtime=runtime, cpu=cpu)
    return msgspec.structs.replace(result, path=f"{model}, exported in {choice.dtype}")


def record_beside(program: Path) -> Path | None:
    """The export record that `opscope export` leaves beside a program; None where there is none."""
    record = program.with_suffix(".etrecord")
    return record if record.is_file() else None


def new_findings(baseline: Path, candidate: Path) -> list[Message]:
    """Findings on a program that another one does not have; none where nothing can be told of one of them."""
    try:
        before, after = ([*_list_findings(program)] for program in (baseline, candidate))
    except OpscopeError:
        return []
    known = {_without_figures(finding) for finding in before}
    return [finding for finding in after if _without_figures(finding) not in known]


def lines_of_layers(program: Path) -> dict[str, str]:
    """Return for each layer of a program the line of the model's code that calls it, as ``file:line``.

    Empty where no record of its export lies beside it, or that tells nothing.
    """
    from opscope.program.origin import own_line
    from opscope.runtimes.registry import read_model

    record = record_beside(program)
    try:
        et_record = read_model(program, record).record if record else None
    except OpscopeError:
        return {}
    lines: dict[str, str] = {}
    for node in (node for graph in et_record.graphs for node in graph.nodes) if et_record else ():
        frame = own_line(node.frames)
        if frame and node.modules:
            lines.setdefault(node.modules[-1].path, f"{frame.file}:{frame.line}")
    return lines


def _without_figures(finding: Message) -> str:
    """Return what a finding is about, without shares, which differ from program to program."""
    return f"{finding.rule}: {_FIGURES.sub('', finding.title)}"


def _list_findings(program: Path) -> Iterator[Message]:
    for method in preflight(program, record_beside(program)).methods:
        yield from method.findings


def _choose_runtime(path: Path, named: str | None = None) -> Runtime:
    """The runtime of a program, which may be named; what is none is refused with a word on what is expected."""
    from opscope.readers.compressed import mapped_file
    from opscope.readers.other_files import not_recognised
    from opscope.runtimes.registry import RUNTIMES, runtime_of

    if path.is_dir():
        hint = "name the program; in a bundle it is in model/"
        raise NotFoundError("a directory, not a program", where=path, hint=hint)
    mapped_file(path)
    if not any(one.holds(path) for one in RUNTIMES):
        known = "a .pte as written by `opscope profile` or ExecuTorch's exporter, a .tflite, .onnx or .xml"
        raise not_recognised(path, hint=f"give {known}; `opscope analyze` reads traces")
    return runtime_of(path, named)
