"""Number types and backends to export for, and the record and the log that an export leaves beside its program."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.preflight.exported import ExportedFile, ExportRecord
from opscope.core.errors import TraceFormatError, UsageError, did_you_mean
from opscope.core.files import sha256_of
from opscope.core.json import from_json
from opscope.core.system.memory import file_bytes
from opscope.program.phases import Phase, phase_of

if TYPE_CHECKING:
    from pathlib import Path


RECORD, EXPORT_LOG = "export.json", "export.log"
XNNPACK, PORTABLE = "xnnpack", "portable"
BACKENDS = (XNNPACK, PORTABLE)
FP32, FP16, INT8, DYNAMIC_INT8, INT4_WEIGHTS = "fp32", "fp16", "int8", "dynamic-int8", "8da4w"
DTYPES = (FP32, FP16, INT8, DYNAMIC_INT8, INT4_WEIGHTS)
QUANTISED = (INT8, DYNAMIC_INT8, INT4_WEIGHTS)
DYNAMIC = (DYNAMIC_INT8, INT4_WEIGHTS)
"""Number types whose activations are quantised at run time."""


def record_of_export(program: Path) -> ExportRecord | None:
    """Return the record of the export that wrote a program, read from the directory of the program.

    None if there is no record, or if its hash is that of another file.
    """
    file = program.with_name(RECORD)
    if not file.is_file():
        return None
    record = read_record(file)
    return record if record.program.sha256 == sha256_of(program) else None


def read_record(file: Path) -> ExportRecord:
    """Read the record of an export. Raises TraceFormatError if it is none."""
    try:
        return from_json(file_bytes(file), ExportRecord)
    except msgspec.MsgspecError as error:
        raise TraceFormatError(f"not an export record: {error}", where=file, hint="export again") from error


def recorded_phases(program: Path) -> dict[str, Phase]:
    """Return the phase of a language model that each method computes, by method name, from the record beside a program.

    Empty if there is no record, or if the program is no language model.
    """
    record = record_of_export(program)
    rows = [method.method for method in record.methods] if record else []
    return {method.name: phase for method in rows if method.tokens and (phase := phase_of(method.name, method.tokens))}


def exported_file(path: Path) -> ExportedFile:
    """Describe a file by its name, hash and size, as an export record does."""
    return ExportedFile(path.name, sha256_of(path), path.stat().st_size)


class Choice(NamedTuple):
    """The number type and the backend that a model is exported for."""

    # one of `DTYPES`; int8 is static, dynamic-int8 quantises activations at run time, and 8da4w has 4-bit weights
    # besides
    dtype: str
    backend: str = XNNPACK  # one of `BACKENDS`

    def stem(self, name: str) -> str:
        """Return the name of the exported files without their suffixes."""
        return f"{name}_{self.backend}_{self.dtype}"


def check_choice(choice: Choice) -> None:
    """Raise UsageError if a choice cannot be exported, before anything heavy is loaded."""
    check_dtype(choice.dtype)
    if choice.backend not in BACKENDS:
        raise UsageError(
            f"unknown backend {choice.backend!r}", where="--backend", hint=did_you_mean(choice.backend, BACKENDS)
        )
    if choice.backend == PORTABLE and choice.dtype in QUANTISED:
        hint = f"use --backend {XNNPACK} for {choice.dtype}, or --dtype {FP32} with the portable kernels"
        problem = f"the portable backend has no quantiser and computes floats: cannot use {choice.dtype}"
        raise UsageError(problem, where="--dtype", hint=hint)


def check_dtype(dtype: str) -> None:
    """Raise UsageError if a number type cannot be exported."""
    if dtype not in DTYPES:
        raise UsageError(f"unknown number type {dtype!r}", where="--dtype", hint=did_you_mean(dtype, DTYPES))
