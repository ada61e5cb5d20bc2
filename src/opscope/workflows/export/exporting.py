"""Models in: a PyTorch model becomes a program that was run, compared and described before it counts as done."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.preflight.exported import (
    ExportedFile,
    ExportRecord,
    MethodExport,
    agreement_with_eager,
    agreement_with_graph,
    delegation,
)
from opscope.core.errors import BundleError, ExportError, OpscopeError, OverwriteError, UsageError
from opscope.core.files import blocks_of, sha256_of, storage_errors, write_atomically
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.core.version import __version__
from opscope.machine.clock import SystemClock
from opscope.runtimes.executorch.etrecord.slim import slim_etrecord
from opscope.runtimes.executorch.export.choices import FP16, QUANTISED, Choice
from opscope.runtimes.executorch.export.process import EXPORT_LOG, export_into
from opscope.runtimes.executorch.export.protocol import CHECKS, outputs_file
from opscope.runtimes.executorch.export.sources import source_of
from opscope.runtimes.export_record import RECORD, read_record
from opscope.runtimes.registry import EXPORTER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.compare.outputs import Array, OutputAgreement
    from opscope.analysis.preflight.preflight import MethodPreflight, Preflight
    from opscope.runtimes.executorch.export.lower import StepProgress
    from opscope.runtimes.executorch.export.process import Exported

GRAPH = "graph.json"
LAYER_NORM = "aten::native_layer_norm.out"
DEFAULT_OUT = Path("opscope-out")


class ExportDone(NamedTuple):
    """A finished export: its directory, and the record that stands in it."""

    path: Path
    record: ExportRecord


def _deaf(step: str) -> None:
    """Steps that nobody watches."""


def export(  # noqa: PLR0913 - the one call a notebook makes; all but the first are by name
    model: str,
    *,
    dtype: str = "fp32",
    backend: str = "xnnpack",
    out: str | Path | None = None,
    models: str | Path | None = None,
    tolerance: float | None = None,
    overwrite: bool = False,
    slim_record: bool = False,
    heard: StepProgress = _deaf,
) -> ExportDone:
    """Export a model into a directory that appears when everything in it was checked.

    The directory holds ``MODEL_BACKEND_DTYPE.pte``, the ``.etrecord`` beside it, ``graph.json``, ``export.json`` and
    the log. When the export fails nothing is left but the log, beside the directory.

    Args:
        model: a registered name, one of the user's own, ``MODULE:CALLABLE``, ``FILE.py:CALLABLE``,
            ``transformers:CONFIGCLASS`` or ``executorch:NAME``.
        dtype: ``fp32``, ``fp16``, ``int8``, ``dynamic-int8`` or ``8da4w``.
        backend: ``xnnpack`` or ``portable``.
        out: the directory, new or empty; None: ``opscope-out/MODEL_BACKEND_DTYPE``.
        models: the user's directory of models; None: ``OPSCOPE_MODELS``, else ``opscope-models``.
        tolerance: largest error against PyTorch relative to the largest output; None: the number type's.
        overwrite: replace an export that is in the directory.
        slim_record: leave the weights out of the ``.etrecord``; opscope reads none of them.
        heard: hears of the steps.

    Raises:
        NotFoundError: there is no such model, or a file that it needs is missing.
        UsageError: a choice makes no sense, or what the user wrote is not a model.
        MissingDependencyError: a package is missing.
        ExportError: a step failed, or the program computes something else than the model.
        BundleError: the directory is not free.
        StorageError: the disk is full or not writable.
    """
    own = None if models is None else Path(models)
    choice = Choice(dtype, backend)
    path = Path(out) if out is not None else DEFAULT_OUT / choice.stem(source_of(model, own).name)
    _check_tolerance(tolerance)
    _check_place(path, overwrite=overwrite)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    with scratch:
        staging = Path(scratch.name) / path.name
        staging.mkdir()
        record = _kept_log(path, staging, lambda: checked_export(model, choice, staging, own, tolerance, heard))
        if slim_record:
            record = _with_slim_record(record, staging)
        _check_place(path, overwrite=overwrite)
        with storage_errors(path):
            if path.is_dir():
                path.rename(Path(scratch.name) / "replaced")
            staging.rename(path)
    return ExportDone(path, record)


def checked_export(
    model: str,
    choice: Choice,
    directory: Path,
    models: Path | None,
    tolerance: float | None,
    heard: StepProgress = _deaf,
) -> ExportRecord:
    """Export a model into an existing directory, check what came of it, and write the record.

    Raises:
        OpscopeError: as :func:`export` says; what was written stays in the directory.
    """
    done = export_into(model, choice, directory, models=models, heard=heard)
    heard("checking what was written")
    return checked(done, model, choice, tolerance)


def checked(done: Exported, model: str, choice: Choice, tolerance: float | None = None) -> ExportRecord:
    """Check what an export wrote, and write the record beside it.

    Args:
        done: with the files and the outputs to compare.
        model: as it was named.
        choice: number type and backend.
        tolerance: as in :func:`export`.

    Raises:
        ExportError: a file does not read back, or the program computes something else than the model.
    """
    directory = done.program.parent
    found, problem = _examined(done)
    methods = [
        _method(number, done, {m.name: m for m in found.methods}, choice, tolerance, directory)
        for number in range(len(done.done.methods))
    ]
    record = ExportRecord(
        opscope=__version__,
        created=SystemClock().now().isoformat(timespec="seconds"),
        source=model,
        name=done.name,
        dtype=choice.dtype,
        backend=choice.backend,
        program=_file(done.program),
        etrecord=_file(done.etrecord) if done.etrecord else None,
        graph=_file(directory / GRAPH),
        methods=methods,
        versions=done.done.versions,
        partition_rules=found.partition_rules,
        etrecord_problem=problem,
    )
    _check_agreement(record, directory / EXPORT_LOG)
    shutil.rmtree(directory / CHECKS, ignore_errors=True)
    write_atomically(directory / RECORD, to_json(record))
    return record


def _with_slim_record(record: ExportRecord, directory: Path) -> ExportRecord:
    """What an export is once the weights are left out of its .etrecord; one that cannot be read stays as it is."""
    if record.etrecord is None or record.etrecord_problem:
        return record
    etrecord = directory / record.etrecord.name
    write_atomically(etrecord, slim_etrecord(etrecord))
    slim = msgspec.structs.replace(record, etrecord=_file(etrecord))
    write_atomically(directory / RECORD, to_json(slim))
    return slim


def _examined(done: Exported) -> tuple[Preflight, str | None]:
    """What the program tells, read back with its record, and why the record cannot be used.

    Raises:
        ExportError: the program cannot be read back.
    """
    from opscope.analysis.preflight.preflight import preflight

    try:
        model, _, problem = EXPORTER.usable_model(done.program, done.etrecord)
        found = preflight(model, done.program.name, sha256_of(done.program))
    except OpscopeError as error:
        text = f"what was written does not read back: {error.problem}"
        hint = "this is a bug in opscope or in ExecuTorch's exporter; please report it with the log"
        raise ExportError(text, where=error.where, hint=hint) from error
    return found, done.done.etrecord_problem or (problem.problem if problem else None)


def _method(
    number: int,
    done: Exported,
    found: dict[str, MethodPreflight],
    choice: Choice,
    tolerance: float | None,
    directory: Path,
) -> MethodExport:
    method = done.done.methods[number]
    eager, computed = (_outputs(directory, kind, number) for kind in ("eager", "program"))
    graph: OutputAgreement | None = None
    if choice.dtype in QUANTISED:
        graph = agreement_with_graph(_outputs(directory, "graph", number), computed, choice.dtype)
    agreement = agreement_with_eager(eager, computed, (choice.dtype, method.inputs), tolerance)
    return MethodExport(method, delegation(found[method.name]), agreement, graph)


def _outputs(directory: Path, kind: str, number: int) -> Sequence[Array]:
    from opscope.readers.outputs import read_outputs

    return read_outputs(directory / CHECKS / outputs_file(kind, number)) or []


def _check_agreement(record: ExportRecord, log: Path) -> None:
    """Refuse a program that computes something else.

    Raises:
        ExportError: naming the method, the error and the tolerance.
    """
    for one in record.methods:
        if one.agrees:
            continue
        other = "the model in PyTorch" if not one.eager.agree else "the quantised graph in PyTorch"
        problem = one.eager.problem if not one.eager.agree else one.graph.problem if one.graph else None
        said = f"{record.source} ({one.method.name}) does not agree with {other}: {problem}"
        raise ExportError(said, where=log, hint=f"{_advice(record, one)}; --tolerance accepts a larger error")


def _advice(record: ExportRecord, method: MethodExport) -> str:
    """What to try when outputs disagree."""
    if record.dtype in QUANTISED:
        return "calibrate with real inputs, or keep sensitive submodules in fp32: Quantisation(calibration=, skip=)"
    stayed = {group.operator for group in method.delegation.portable}
    if record.dtype == FP16 and LAYER_NORM in stayed:
        return (
            "layer norms of 256 numbers or more are wrong in half precision in executorch 1.5.1: wrap them with "
            "opscope.runtimes.executorch.export.patterns.NormInFp32"
        )
    return "try --dtype fp32; if that fails too, compare parts of the model"


def _check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None and not 0 < tolerance < float("inf"):
        hint = "for example --tolerance 0.05: five percent of the largest output"
        raise UsageError(f"{tolerance} is not a tolerance", where="--tolerance", hint=hint)


def _check_place(path: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken.

    Raises:
        BundleError: there is a file, or something in the directory that may not be replaced.
    """
    if path.exists() and not path.is_dir():
        raise BundleError("the output path is a file", where=path, hint="choose another --out")
    if not path.is_dir() or not any(path.iterdir()):
        return
    if not (path / RECORD).is_file():
        raise BundleError("the output directory is not empty", where=path, hint="choose another --out")
    if not overwrite:
        hint = "choose another --out, or replace it with --overwrite"
        raise BundleError("the output directory already holds an export", where=path, hint=hint)
    _check_export(path)


def _check_export(path: Path) -> None:
    """Refuse to replace a directory that holds more than an export, or another one than its record says.

    Raises:
        OverwriteError: naming the file that opscope did not write.
        TraceFormatError: the record is damaged.
    """
    record = read_record(path / RECORD)
    ours = {file.name: file.sha256 for file in (record.program, record.etrecord, record.graph) if file}
    for file in sorted(path.iterdir()):
        if file.name not in {RECORD, EXPORT_LOG} and ours.get(file.name) != _hash(file):
            problem = f"{file.name} is not as the export wrote it, or not of the export"
            raise OverwriteError(problem, where=path, hint="move it away, or choose another --out")


def _hash(file: Path) -> str | None:
    return sha256_of(file) if file.is_file() and not file.is_symlink() else None


def _kept_log(path: Path, staging: Path, make: Callable[[], ExportRecord]) -> ExportRecord:
    """What ``make`` gives; when it fails, the log is kept beside the directory that does not appear."""
    try:
        return make()
    except ExportError as error:
        if not (staging / EXPORT_LOG).exists():
            raise
        raise with_kept_log(error, staging, path) from error


def with_kept_log(error: ExportError, work: Path, out: Path) -> ExportError:
    """The error with the log of the export, which is kept beside what was not written.

    Args:
        error: why the export failed.
        work: directory of the export.
        out: of what was to be written.

    Raises:
        StorageError: the log cannot be kept.
    """
    for number in itertools.count(1):
        kept = out.with_name(f"{out.name}-export{'' if number == 1 else f'-{number}'}.log")
        with contextlib.suppress(OverwriteError):
            write_outputs({kept: blocks_of(work / EXPORT_LOG)})
            return ExportError(error.problem, where=kept, hint=error.hint)
    raise AssertionError("unreachable: names are not limited")


def _file(path: Path) -> ExportedFile:
    return ExportedFile(path.name, sha256_of(path), path.stat().st_size)
