"""The files of a program: itself, the records of its export, weights in a file of their own; and what they tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import MismatchError, NotFoundError, OpscopeError, TraceFormatError, UsageError
from opscope.core.files import sha256_of, write_atomically
from opscope.runtimes.executorch.etrecord.slim import slim_etrecord
from opscope.runtimes.executorch.ptd import data_keys, external_keys
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.xnnpack.payload import BACKEND
from opscope.runtimes.export_record import RECORD, record_of_export, recorded_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.bundle.manifest import Model

RECORD_SUFFIX = ".etrecord"
DATA_SUFFIX = ".ptd"
_SHOWN = 3
_SLIM = "slim"
_HOW = "name it with --data FILE.ptd; the exporter wrote it beside the program"


def program_data(program: Path, named: Path | None) -> Path | None:
    """The .ptd that a program needs; None for one that holds all its weights itself."""
    needed = external_keys(program)
    if named is not None:
        _check(program, named, needed)
        return named
    return _beside(program, needed) if needed else None


def _check(program: Path, named: Path, needed: Sequence[str]) -> None:
    found = data_keys(named)
    if not needed and set(read_executable(program).outline().backends()) <= {BACKEND}:
        problem = f"{program.name} holds all its weights itself"
        raise UsageError(problem, where="--data", hint="leave it out")
    missing = [key for key in needed if key not in found]
    if missing:
        problem = f"it has no {_listed(missing)}, which {program.name} looks for"
        raise MismatchError(problem, where=named, hint="name the .ptd that the same export wrote")


def _beside(program: Path, needed: Sequence[str]) -> Path:
    fitting = [path for path in sorted(program.parent.glob(f"*{DATA_SUFFIX}")) if _fits(path, needed)]
    own = [path for path in fitting if path.stem == program.stem]
    if len(own or fitting) == 1:
        return (own or fitting)[0]
    if fitting:
        names = ", ".join(path.name for path in fitting)
        raise UsageError(f"several files hold the weights of {program.name}: {names}", where="--data", hint=_HOW)
    problem = f"its weights are in another file, and no .ptd beside it has {_listed(needed)}"
    raise NotFoundError(problem, where=program, hint=_HOW)


def _fits(path: Path, needed: Sequence[str]) -> bool:
    """Whether a file has all that is needed; one that is damaged has not."""
    try:
        return data_keys(path).issuperset(needed)
    except OpscopeError:
        return False


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def program_files(source: Path, data: Path | None = None) -> list[Path]:
    """The program that was named, the records beside it when there are any, and its weights when they are apart."""
    # Exporters write the one or the other.
    beside = (source.with_suffix(RECORD_SUFFIX), source.with_name(f"{source.name}{RECORD_SUFFIX}"))
    etrecord = next((file for file in beside if file.is_file()), None)
    found = [source, etrecord] if etrecord else [source]
    weights = program_data(source, data)
    found += [weights] if weights else []
    return [*found, source.with_name(RECORD)] if record_of_export(source) else found


def with_facts(told: Model, source: Path | None, files: Sequence[Path], home: str) -> Model:
    """What a manifest says about a model, with what its plan and the records beside it tell."""
    program, record = files[0], record_of_export(files[0])
    executable = read_executable(program)
    payloads = {delegate.data for own in executable.plans for delegate in own.delegates if delegate.data}
    etrecord = next((file for file in files if file.suffix == RECORD_SUFFIX), None)
    return msgspec.structs.replace(
        told,
        name=record.name if source is None and record else program.stem,
        dtype=record.dtype if record else None,
        etrecord=f"{home}/{etrecord.name}" if etrecord else None,
        etrecord_sha256=sha256_of(etrecord) if etrecord else None,
        backends=executable.outline().backends(),
        planned_bytes=sum(sum(own.planned_buffers) for own in executable.plans),
        delegate_bytes=sum(data.size for data in payloads),
        tokens=recorded_tokens(program),
    )


def kept_files(files: Sequence[Path], work: Path) -> list[Path]:
    """The files to copy into a bundle, in the same order."""
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
