"""The model of a bundle: what was named, exported where it has to be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.bundle import is_bundle
from opscope.core.errors import ExportError, NotFoundError, UsageError
from opscope.core.files import storage_errors
from opscope.core.system.stages import enter
from opscope.core.units import counted_text
from opscope.runtimes.exports import EXPORT_LOG, RECORD, Choice
from opscope.runtimes.registry import EXPORTER, RUNTIMES, runtime_of
from opscope.workflows.exporting import with_kept_log

if TYPE_CHECKING:
    from opscope.experiment.planned import Experiment

_SHOWN = 5


def program_source(model: str, runtime: str | None = None, models: Path | None = None) -> Path | None:
    """The program that was named, that of a directory that was named, or None for a model to export.

    ``runtime`` is that which was asked for, by its name.
    """
    try:
        return runtime_of(model, runtime).program(model, models)
    except NotFoundError:
        if not Path(model).is_dir():
            raise
        return _program_in(Path(model), runtime)


def _program_in(directory: Path, runtime: str | None) -> Path:
    if is_bundle(directory):
        hint = "opscope report rewrites its reports; to measure again, name its program in model/"
        raise UsageError("a bundle, not a model", where=directory, hint=hint)
    known = {suffix for one in RUNTIMES for suffix in one.suffixes}
    with storage_errors(directory):
        found = sorted(file for file in directory.iterdir() if file.suffix in known)
    if not found:
        hint = "write one with opscope export MODEL --out DIRECTORY, or name a model: `opscope models` lists them"
        *most, last = (one.suffix for one in RUNTIMES)
        raise NotFoundError(f"no program ({', '.join(most)} or {last}) in the directory", where=directory, hint=hint)
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:_SHOWN])
        raise UsageError(
            f"{counted_text(len(found), 'program')} in the directory: {names}", where=directory, hint="name one of them"
        )
    return program_source(str(found[0]), runtime) or found[0]


def exported_files(experiment: Experiment, work: Path, out: Path) -> list[Path]:
    """The program, its ETRecord, the record and the log of the export, in a directory that is thrown away."""
    stage = f"exporting {experiment.model}"
    try:
        enter(stage)
        choice = Choice(experiment.dtype)
        record = EXPORTER.export(
            experiment.model, choice, work, experiment.models, None, lambda step: enter(stage, step)
        )
    except ExportError as error:
        raise with_kept_log(error, work, out) from error
    etrecord = [record.etrecord.name] if record.etrecord else []
    return [work / name for name in (record.program.name, *etrecord, RECORD, EXPORT_LOG)]
