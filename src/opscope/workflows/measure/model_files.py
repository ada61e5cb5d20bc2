"""The model of a bundle: what was named, exported where it has to be, its files and what a manifest says of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.bundle import MODEL, is_bundle
from opscope.bundle.manifest import Model
from opscope.core.errors import ExportError, NotFoundError, TraceFormatError, UsageError
from opscope.core.files import sha256_of, storage_errors, write_atomically
from opscope.core.system.stages import enter
from opscope.measurements.export_record import RECORD, record_of_export, recorded_tokens
from opscope.measurements.programs import KINDS, kind_of_program
from opscope.runtimes.executorch.bundled import is_bundled
from opscope.runtimes.executorch.etrecord.slim import slim_etrecord
from opscope.runtimes.executorch.export.choices import Choice
from opscope.runtimes.executorch.export.process import EXPORT_LOG
from opscope.runtimes.executorch.export.sources import source_of
from opscope.runtimes.executorch.pte import read_executable, read_program
from opscope.workflows.export.exporting import checked_export, with_kept_log
from opscope.workflows.measure.program_data import DATA_SUFFIX, program_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.planned import Experiment
    from opscope.measurements.programs import ProgramKind

RECORD_SUFFIX = ".etrecord"
_PROGRAMS = {".pte", ".bpte", *(kind.suffix for kind in KINDS)}
_SHOWN = 5
_SLIM = "slim"


def program_source(model: str, models: Path | None = None) -> Path | None:
    """The program that was named, that of a directory that was named, or None for a model to export.

    Args:
        model: as on the command line. A name that is known stands before a directory of the same name.
        models: the user's directory of models.

    Raises:
        NotFoundError: it is neither, or the directory holds no program.
        TraceFormatError: the .pte is damaged.
        UsageError: the directory holds several programs, or is a bundle; or the runtime of a program cannot run it.
    """
    path = Path(model)
    kind = kind_of_program(path)
    if kind is not None:
        kind.check(path)
        return path
    if path.is_file() and is_bundled(path):
        return path
    if path.suffix == ".pte" or (path.is_file() and path.suffix != ".py"):
        read_program(path)
        return path
    try:
        source_of(model, models)
    except NotFoundError:
        if not path.is_dir():
            raise
        return _program_in(path)
    return None


def _program_in(directory: Path) -> Path:
    if is_bundle(directory):
        hint = "opscope report rewrites its reports; name its program, in the directory model, to measure it again"
        raise UsageError("it is a bundle, not a model", where=directory, hint=hint)
    with storage_errors(directory):
        found = sorted(file for file in directory.iterdir() if file.suffix in _PROGRAMS)
    if not found:
        hint = "opscope export MODEL --out DIRECTORY writes one; or name a model: `opscope models` lists them"
        raise NotFoundError("no program (.pte, .tflite or .onnx) in the directory", where=directory, hint=hint)
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:_SHOWN])
        raise UsageError(f"{len(found)} programs in the directory: {names}", where=directory, hint="name one of them")
    return program_source(str(found[0])) or found[0]


def exported_files(experiment: Experiment, work: Path, out: Path) -> list[Path]:
    """The program, its ETRecord, the record and the log of the export, in a directory that is thrown away.

    Raises:
        ExportError: the export failed; its log is kept beside the bundle that was not written.
    """
    stage = f"exporting {experiment.model}"
    try:
        enter(stage)
        choice = Choice(experiment.dtype)
        record = checked_export(
            experiment.model, choice, work, experiment.models, None, heard=lambda step: enter(stage, step)
        )
    except ExportError as error:
        raise with_kept_log(error, work, out) from error
    etrecord = [record.etrecord.name] if record.etrecord else []
    return [work / name for name in (record.program.name, *etrecord, RECORD, EXPORT_LOG)]


def given_files(source: Path, data: Path | None = None) -> list[Path]:
    """The program that was named, the records beside it when there are any, and its weights when they are apart.

    Args:
        source: the .pte.
        data: the .ptd that was named; None: it is found beside the program.

    Raises:
        OpscopeError: the weights are missing, or not those of the program.
    """
    kind = kind_of_program(source)
    if kind is not None:
        return [source, *kind.beside(source)]
    # Exporters write the one or the other.
    beside = (source.with_suffix(RECORD_SUFFIX), source.with_name(f"{source.name}{RECORD_SUFFIX}"))
    etrecord = next((file for file in beside if file.is_file()), None)
    found = [source, etrecord] if etrecord else [source]
    weights = program_data(source, data)
    found += [weights] if weights else []
    return [*found, source.with_name(RECORD)] if record_of_export(source) else found


def described_model(model: str, source: Path | None, files: list[Path], home: str = MODEL) -> Model:
    """What a manifest says about a model.

    Args:
        model: as it was named.
        source: the .pte that was named; None for a model that was exported.
        files: as the bundle keeps them, the program first.
        home: directory of the bundle that they lie in.
    """
    kind = kind_of_program(files[0])
    if kind is not None:
        return _model_of(kind, model, files, home)
    program, record = files[0], record_of_export(files[0])
    executable = read_executable(program)
    plan = executable.outline()
    payloads = {delegate.data for own in executable.plans for delegate in own.delegates if delegate.data}
    weights = next((file for file in files if file.suffix == DATA_SUFFIX), None)
    records = [file for file in files if file.suffix == RECORD_SUFFIX]
    return Model(
        name=record.name if source is None and record else Path(program).stem,
        source=model,
        dtype=record.dtype if record else None,
        program=f"{home}/{program.name}",
        etrecord=f"{home}/{records[0].name}" if records else None,
        etrecord_sha256=sha256_of(records[0]) if records else None,
        sha256=sha256_of(program),
        size=program.stat().st_size,
        methods=[method.name for method in plan.methods],
        backends=plan.backends(),
        planned_bytes=sum(sum(own.planned_buffers) for own in executable.plans),
        delegate_bytes=sum(data.size for data in payloads),
        tokens=recorded_tokens(program),
        data=f"{home}/{weights.name}" if weights else None,
        data_sha256=sha256_of(weights) if weights else None,
        data_size=weights.stat().st_size if weights else None,
    )


def _model_of(kind: ProgramKind, model: str, files: Sequence[Path], home: str) -> Model:
    """What a manifest says about a program of another runtime; who runs which part of it is known when it runs."""
    program, *weights = files
    return Model(
        name=program.stem,
        source=model,
        dtype=None,
        program=f"{home}/{program.name}",
        etrecord=None,
        sha256=sha256_of(program),
        size=program.stat().st_size,
        methods=[one.name for one in kind.signatures(program)],
        backends=[],
        data=f"{home}/{weights[0].name}" if weights else None,
        data_sha256=sha256_of(weights[0]) if weights else None,
        data_size=weights[0].stat().st_size if weights else None,
    )


def bundled_files(files: Sequence[Path], work: Path) -> list[Path]:
    """The files to copy into a bundle, in the same order.

    Args:
        files: of the model.
        work: a directory for files that differ from those given; it must last until they are copied.

    Raises:
        StorageError: the record cannot be read, or a file cannot be written.
    """
    return [_slim(file, work / _SLIM) if file.suffix == RECORD_SUFFIX else file for file in files]


def _slim(record: Path, directory: Path) -> Path:
    """A record without weights; one that cannot be read as it is, since analyses then say what is wrong with it."""
    try:
        content = slim_etrecord(record)
    except TraceFormatError:
        return record
    target = directory / record.name
    write_atomically(target, content)
    return target
