"""What a path holds, whatever it is: an analysis of a trace, or a summary of a file that is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import UsageError
from opscope.core.files import head_of, sha256_of
from opscope.measurements.analyses import analysis_of
from opscope.workflows.analyze.sides import program_files, side_of

if TYPE_CHECKING:
    from opscope.analysis.preflight.contents import ProgramSummary
    from opscope.measurements.side import Warmup
    from opscope.workflows.analyze.inspected import Inspected

_HEAD = 1 << 16


def inspect(
    path: str | Path,
    *,
    warmup: Warmup = None,
    program: str | Path | None = None,
    etrecord: str | Path | None = None,
) -> Inspected:
    """The analysis of a trace, bundle or run, or a summary of a .pte, a .tflite, an .etrecord or an XNNPACK log.

    Args:
        path: what to look into, see :func:`opscope.api.analyze` for traces.
        warmup: for traces, likewise.
        program: for traces, likewise.
        etrecord: for traces, likewise.

    Raises:
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or of an unknown format.
    """
    place = Path(path)
    summary = _summary(place, head_of(place, _HEAD)) if place.is_file() else None
    if summary is None:
        return analysis_of(side_of(path, warmup, program_files(program, etrecord)))
    if program or etrecord:
        problem = "a program is given for traces, and this is none"
        raise UsageError(problem, where=place, hint="leave out --program and --etrecord")
    return summary


def _summary(path: Path, head: bytes) -> Inspected | None:
    from opscope.runtimes.executorch.etdump.etdump import EtdumpReader

    if EtdumpReader().sniff(head):
        return None  # the usual case, told before other formats are even imported
    from opscope.analysis.preflight.contents import summarise_kernels, summarise_record
    from opscope.runtimes.executorch.etrecord.etrecord import is_etrecord, read_etrecord
    from opscope.runtimes.executorch.pte import is_program
    from opscope.runtimes.executorch.xnnpack.log import is_kernel_log, read_kernel_log
    from opscope.runtimes.litert.tflite import is_tflite_program

    if is_program(head) or is_tflite_program(head):
        return _program(path, "tflite" if is_tflite_program(head) else "pte")
    if is_etrecord(head):
        return summarise_record(read_etrecord(path), str(path), sha256_of(path))
    if is_kernel_log(head):
        return summarise_kernels(read_kernel_log(path), str(path), sha256_of(path))
    return None


def _program(path: Path, kind: str) -> ProgramSummary:
    from opscope.analysis.preflight.contents import summarise_program
    from opscope.measurements.attribution import read_model

    model = read_model(path)
    found = summarise_program(model.executable, model.graphs, str(path), sha256_of(path))
    return msgspec.structs.replace(found, format=kind)
