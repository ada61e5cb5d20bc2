"""Models in: a PyTorch model becomes a program that was run, compared and described before it counts as done."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import BundleError, ExportError, OverwriteError, UsageError
from opscope.core.files import blocks_of, sha256_of, storage_errors
from opscope.core.outputs import write_outputs
from opscope.runtimes.exports import EXPORT_LOG, RECORD, Choice, read_record
from opscope.runtimes.registry import EXPORTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.analysis.preflight.exported import ExportRecord
    from opscope.core.system.stages import StepProgress

DEFAULT_OUT = Path("opscope-out")


class ExportDone(NamedTuple):
    """A finished export: its directory, and the record that stands in it."""

    path: Path
    record: ExportRecord


def _ignore_step(step: str) -> None:
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
    heard: StepProgress = _ignore_step,
) -> ExportDone:
    """Export a model into a directory that appears when everything in it was checked.

    The directory holds ``MODEL_BACKEND_DTYPE.pte``, the ``.etrecord`` beside it, ``graph.json``, ``export.json`` and
    the log. When the export fails nothing is left but the log, beside the directory.

    Args:
        model: a registered name, one of the user's own, ``MODULE:CALLABLE``, ``FILE.py[:CALLABLE]``,
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
    path = Path(out) if out is not None else DEFAULT_OUT / EXPORTER.export_stem(model, choice, own)
    _check_tolerance(tolerance)
    if path.suffix == EXPORTER.suffix and not path.is_dir():
        hint = (
            f"name a directory, such as {path.with_suffix('')}: the program's name comes from model, backend and type"
        )
        raise UsageError("an export has several files", where="--out", hint=hint)
    _check_place(path, overwrite=overwrite)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    with scratch:
        staging = Path(scratch.name) / path.name
        staging.mkdir()
        record = _run_keeping_log(path, staging, lambda: EXPORTER.export(model, choice, staging, own, tolerance, heard))
        if slim_record:
            record = EXPORTER.slim_export(record, staging)
        _check_place(path, overwrite=overwrite)
        with storage_errors(path):
            if path.is_dir():
                path.rename(Path(scratch.name) / "replaced")
            staging.rename(path)
    return ExportDone(path, record)


def _check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None and not 0 < tolerance < float("inf"):
        hint = "for example --tolerance 0.05: five percent of the largest output"
        raise UsageError(f"{tolerance} is not a tolerance", where="--tolerance", hint=hint)


def _check_place(path: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken."""
    if path.exists() and not path.is_dir():
        raise BundleError("the output path is a file", where=path, hint="choose another --out")
    if not path.is_dir() or not any(path.iterdir()):
        return
    if not (path / RECORD).is_file():
        raise BundleError("the output directory is not empty", where=path, hint="choose another --out")
    if not overwrite:
        hint = "choose another --out, or replace it with --overwrite"
        raise BundleError("the output directory already holds an export", where=path, hint=hint)
    record = read_record(path / RECORD)
    ours = {file.name: file.sha256 for file in (record.program, record.etrecord, record.graph) if file}
    for file in sorted(path.iterdir()):
        if file.name not in {RECORD, EXPORT_LOG} and ours.get(file.name) != _hash_regular_file(file):
            problem = f"{file.name} was changed after the export, or does not belong to it"
            raise OverwriteError(problem, where=path, hint="move it away, or choose another --out")


def _hash_regular_file(file: Path) -> str | None:
    return sha256_of(file) if file.is_file() and not file.is_symlink() else None


def _run_keeping_log(path: Path, staging: Path, make: Callable[[], ExportRecord]) -> ExportRecord:
    """Return what ``make`` returns; if it fails, keep the log beside the directory that does not appear."""
    try:
        return make()
    except ExportError as error:
        if not (staging / EXPORT_LOG).exists():
            raise
        raise with_kept_log(error, staging, path) from error


def with_kept_log(error: ExportError, work: Path, out: Path) -> ExportError:
    """Return the error with the export's log, which is kept beside what was not written."""
    for number in itertools.count(1):
        log_path = out.with_name(f"{out.name}-export{'' if number == 1 else f'-{number}'}.log")
        with contextlib.suppress(OverwriteError):
            write_outputs({log_path: blocks_of(work / EXPORT_LOG)})
            return ExportError(error.problem, where=log_path, hint=error.hint)
    raise AssertionError("unreachable: names are unlimited")


def write_model(name: str, models: str | Path | None = None) -> Path:
    """Write a file to begin with into the user's directory of models, and name it.

    Args:
        name: of the model and of the file.
        models: the directory; None: ``OPSCOPE_MODELS``, else ``opscope-models``.

    Raises:
        OpscopeError: the name is none of a model, or a file is there already.
    """
    return EXPORTER.write_model(None if models is None else Path(models), name)
