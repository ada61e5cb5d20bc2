"""The record and the log that an export leaves beside its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.preflight.exported import ExportedFile, ExportRecord
from opscope.core.errors import TraceFormatError
from opscope.core.files import sha256_of
from opscope.core.input_files import file_bytes
from opscope.core.json import from_json

if TYPE_CHECKING:
    from pathlib import Path

RECORD, EXPORT_LOG = "export.json", "export.log"


def record_of_export(program: Path) -> ExportRecord | None:
    """The record of the export that a program is of; None when there is none beside it, or it is of another file."""
    file = program.with_name(RECORD)
    if not file.is_file():
        return None
    record = read_record(file)
    return record if record.program.sha256 == sha256_of(program) else None


def read_record(file: Path) -> ExportRecord:
    """The record of an export."""
    try:
        return from_json(file_bytes(file), ExportRecord)
    except msgspec.MsgspecError as error:
        raise TraceFormatError(f"not the record of an export: {error}", where=file, hint="export again") from error


def recorded_tokens(program: Path) -> dict[str, int]:
    """Tokens of a call by method, as the record beside a program says; empty without one."""
    record = record_of_export(program)
    rows = [one.method for one in record.methods] if record else []
    return {method.name: method.tokens for method in rows if method.tokens is not None}


def exported_file(path: Path) -> ExportedFile:
    """A file as a record states it."""
    return ExportedFile(path.name, sha256_of(path), path.stat().st_size)
