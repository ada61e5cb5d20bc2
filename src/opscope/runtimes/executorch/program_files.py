"""Read the files of a program: itself, the records of its export, its weights.

And choose which methods a process calls.

Weights in a separate file (.ptd): which data it holds, by their keys; and which a program looks for in one.

Source of the layout: ``extension/flat_tensor/serialize/flat_tensor.fbs`` of ExecuTorch 1.5.1, and
``flat_tensor_header.h`` beside it. The data themselves are never read.

Bundled programs (.bpte): a program together with inputs for its methods. Their expected outputs are not read.

Source of the layout: ``devtools/bundled_program/schema/bundled_program_schema.fbs`` of ExecuTorch 1.5.1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import MismatchError, NotFoundError, OpscopeError, RunError, TraceFormatError, UsageError
from opscope.core.files import sha256_of
from opscope.core.writing import write_atomically
from opscope.experiment.tensors import from_bytes
from opscope.program.structure.dtypes import program_type
from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import PlannedTensor
from opscope.readers.compressed import mapped_file
from opscope.readers.flatbuffer import (
    BOOL,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    FlatBuffer,
    grouped,
    nested,
    numbers,
    texts,
    union,
    vectors,
)
from opscope.runtimes.executorch import FORWARD
from opscope.runtimes.executorch.etrecord import slim_etrecord
from opscope.runtimes.executorch.language import cache_places
from opscope.runtimes.executorch.pte import BUNDLED_HINT, program_bytes, read_executable
from opscope.runtimes.executorch.xnnpack import BACKEND, read_xnn_graphs
from opscope.runtimes.exports import EXPORT_LOG, RECORD, record_of_export, recorded_phases
from opscope.runtimes.language import asked_calls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.analysis.preflight.exported import ExportRecord
    from opscope.bundle.manifest import Model
    from opscope.experiment.inputs import InputValue
    from opscope.experiment.tensors import Array
    from opscope.program.phases import Phase
    from opscope.program.structure.plan import MethodPlan, Value
    from opscope.readers.flatbuffer import Tables


RECORD_SUFFIX = ".etrecord"
DATA_SUFFIX = ".ptd"
_SHOWN = 3
_HOW = "name it with --data FILE.ptd; the exporter wrote it next to the program"
_IDENTIFIER, _MAGIC = b"FT", b"FH01"
_MAGIC_AT, _HEADER_AT, _HEADER_END = 8, 12, 48
_NAMED_DATA, _KEY = 2, 0
_HINT = "the file is truncated, corrupted, or not a .ptd: copy it again from the source"
LOOP_CALLS = 16
"""Number of calls of the method that makes one token, after one call of each other method."""


def program_data(program: Path, data_file: Path | None) -> Path | None:
    """Return the .ptd that a program needs; None for a program that holds all its weights itself.

    ``data_file`` is the one that a user named. Raises UsageError, MismatchError or NotFoundError if none fits.
    """
    needed = external_keys(program)
    if data_file is not None:
        available = data_keys(data_file)
        if not needed and set(read_executable(program).backends()) <= {BACKEND}:
            problem = f"{program.name} contains all its weights"
            raise UsageError(problem, where="--data", hint="leave it out")
        missing = [key for key in needed if key not in available]
        if missing:
            problem = f"it has no {_list_keys(missing)}, which {program.name} looks for"
            raise MismatchError(problem, where=data_file, hint="name the .ptd from the same export")
        return data_file
    return _find_beside(program, needed) if needed else None


def _find_beside(program: Path, needed: Sequence[str]) -> Path:
    fitting = [path for path in sorted(program.parent.glob(f"*{DATA_SUFFIX}")) if _has_keys(path, needed)]
    paths = [path for path in fitting if path.stem == program.stem]
    if len(paths or fitting) == 1:
        return (paths or fitting)[0]
    if fitting:
        names = ", ".join(path.name for path in fitting)
        raise UsageError(f"several files have the weights of {program.name}: {names}", where="--data", hint=_HOW)
    problem = f"its weights are in another file, but no .ptd next to it has {_list_keys(needed)}"
    raise NotFoundError(problem, where=program, hint=_HOW)


def _has_keys(path: Path, needed: Sequence[str]) -> bool:
    """Return whether a file has all data of these keys; a damaged one has not."""
    try:
        return data_keys(path).issuperset(needed)
    except OpscopeError:
        return False


def _list_keys(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def program_files(source: Path, data: Path | None = None) -> list[Path]:
    """Return a program, the records beside it if there are any, and the file of its weights if they are separate."""
    # Exporters write the one or the other.
    beside = (source.with_suffix(RECORD_SUFFIX), source.with_name(f"{source.name}{RECORD_SUFFIX}"))
    etrecord = next((file for file in beside if file.is_file()), None)
    paths = [source, etrecord] if etrecord else [source]
    weights = program_data(source, data)
    paths += [weights] if weights else []
    if record_of_export(source):
        paths += [file for file in (source.with_name(RECORD), source.with_name(EXPORT_LOG)) if file.is_file()]
    return paths


def with_facts(model: Model, source: Path | None, files: Sequence[Path], home: str) -> Model:
    """Add to the description of a model what its plan and the records beside it state."""
    program, record = files[0], record_of_export(files[0])
    executable = read_executable(program)
    payloads = {delegate.data for plan in executable.plans for delegate in plan.delegates if delegate.data}
    etrecord = next((file for file in files if file.suffix == RECORD_SUFFIX), None)
    return msgspec.structs.replace(
        model,
        name=record.name if source is None and record else program.stem,
        dtype=record.dtype if record else None,
        etrecord=f"{home}/{etrecord.name}" if etrecord else None,
        etrecord_sha256=sha256_of(etrecord) if etrecord else None,
        backends=executable.backends(),
        planned_bytes=sum(sum(plan.planned_buffers) for plan in executable.plans),
        delegate_bytes=sum(data.size for data in payloads),
        phases=phases_of(program),
    )


def phases_of(program: Path) -> dict[str, Phase]:
    """Return the recorded phases of methods, with the cache sizes that the program allocates for them."""
    recorded = recorded_phases(program)
    cache_sizes = {plan.name: cache_places(plan) for plan in read_executable(program).plans} if recorded else {}
    return {name: msgspec.structs.replace(phase, cache=cache_sizes.get(name)) for name, phase in recorded.items()}


def kept_files(files: Sequence[Path], work: Path) -> list[Path]:
    """Return the files to copy into a bundle, in the same order; records are replaced by copies without weights."""
    return [_write_slim(file, work) if file.suffix == RECORD_SUFFIX else file for file in files]


def _write_slim(record: Path, directory: Path) -> Path:
    """Write a record without weights and return its path.

    An unreadable one is kept, since analyses report its damage.
    """
    try:
        content = slim_etrecord(record)
    except TraceFormatError:
        return record
    target = directory / record.name
    write_atomically(target, content)
    return target


def data_keys(path: Path) -> frozenset[str]:
    """Return the keys of the data in a .ptd. Raises TraceFormatError if it is damaged."""
    content = mapped_file(path)
    if bytes(content[4:6]) != _IDENTIFIER or len(content) < _HEADER_END:
        raise TraceFormatError("not a .ptd: the identifier FT is missing", where=path, hint=_HINT)
    if bytes(content[_MAGIC_AT:_HEADER_AT]) != _MAGIC:
        raise TraceFormatError("its extended header is missing", where=path, hint=_HINT)
    _, start, size, base, data = struct.unpack_from("<IQQQQ", content, _HEADER_AT)
    written_size = max(start + size, base + data)
    if written_size > len(content):
        problem = f"truncated: {written_size:,} bytes were written, {len(content):,} are here"
        raise TraceFormatError(problem, where=path, hint=_HINT)
    root = FlatBuffer(content[: start + size], str(path)).root()
    return frozenset(texts(nested(root, _NAMED_DATA)[0], _KEY))


def external_keys(program: Path) -> list[str]:
    """Return the keys of the data that a program looks for in another file, each once; empty if it holds all itself.

    Keys of delegates other than XNNPACK's are unknown.
    """
    executable = read_executable(program)
    values = [value for plan in executable.plans for value in plan.values]
    names = [value.name for value in values if isinstance(value, PlannedTensor) and value.external]
    # A program may be kept without the payloads of its delegates.
    if all(delegate.data for plan in executable.plans for delegate in plan.delegates):
        names += [
            data.key
            for delegate_graph in read_xnn_graphs(program)
            for data in delegate_graph.graph.constants
            if data.key
        ]
    return [name for name in dict.fromkeys(names) if name not in executable.named_data]


def planned_calls(program: Path, texts: Sequence[str]) -> list[str]:
    """Return the methods that a process calls repeatedly; empty for a program with one method.

    Without ``texts``, every method that runs anything and takes only tensors is called once, in the order of the
    export if its record is beside the program; a method that makes a single token is called ``LOOP_CALLS`` times,
    as a generation loop does.
    """
    plans = read_executable(program).running
    if texts:
        return asked_calls(texts, [plan.name for plan in plans])
    names = [
        plan.name for plan in plans if all(isinstance(plan.values[number], PlannedTensor) for number in plan.inputs)
    ]
    if len(names) < 2:  # noqa: PLR2004 - one method needs no order
        return []
    record = record_of_export(program)
    return [name for method in _in_export_order(names, record) for name in [method] * _calls_of_method(method, record)]


def _in_export_order(names: Sequence[str], record: ExportRecord | None) -> list[str]:
    """Return names in the order of the export, else of the program."""
    recorded = [method_export.method.name for method_export in record.methods] if record else []
    return [name for name in recorded if name in names] + [name for name in names if name not in recorded]


def _calls_of_method(method: str, record: ExportRecord | None) -> int:
    tokens = (
        {method_export.method.name: method_export.method.tokens for method_export in record.methods} if record else {}
    )
    return LOOP_CALLS if tokens.get(method) == 1 else 1


def inputs_of(program: Path, calls: Sequence[str]) -> dict[str, list[tuple[str, Value]]]:
    """Return the inputs of the methods that a process calls, in the order of first calls.

    A .pte has no names for them.
    """
    plans = {plan.name: plan for plan in read_executable(program).plans}
    method_names = dict.fromkeys(calls) or (list(plans) if len(plans) == 1 else [FORWARD])
    method_plans = [plans[name] for name in method_names if name in plans]
    for plan in method_plans:
        _check_numbers(plan)
    return {plan.name: [("", plan.values[number]) for number in plan.inputs] for plan in method_plans}


def _check_numbers(plan: MethodPlan) -> None:
    """Raise UsageError for numbers that may change: the exporter writes None for them, which crashes the runtime."""
    read = {number for chain in plan.chains for step in chain.steps for number in step.arguments}
    for position, number in enumerate(plan.inputs):
        if plan.values[number] is None and number in read:
            problem = f"input {position} of {plan.name} is a variable number without an exported type"
            hint = "no runtime can set it: export the program with a fixed number or a tensor"
            raise UsageError(problem, hint=hint)


_SUITES = 1
_METHOD, _CASES = 0, 1
_INPUTS = 0
_TYPE, _SIZES, _DATA, _ORDER = 0, 1, 2, 3
_TENSOR, _INT, _BOOL, _DOUBLE = 1, 2, 3, 4


def read_bundled(path: Path) -> tuple[bytes, dict[str, tuple[InputValue, ...]]]:
    """Return the .pte in a bundled program, and the inputs of each method's first test case, by method name."""
    data = mapped_file(path)
    root = FlatBuffer(data, str(path)).root()
    program = bytes(program_bytes(path))
    suites = nested(root, _SUITES)[0]
    cases, suite_of = nested(suites, _CASES)
    values, case_of = nested(cases, _INPUTS)
    by_case = grouped(_read_values(values, path), case_of, len(cases))
    by_suite = grouped(by_case, suite_of, len(suites))
    inputs = {
        name: test_cases[0] for name, test_cases in zip(texts(suites, _METHOD), by_suite, strict=True) if test_cases
    }
    return program, inputs


def _read_values(table: Tables, path: Path) -> list[InputValue]:
    values: list[InputValue] = [None] * len(table)
    for number, rows, tables in union(table, 0):
        typed_values = _read_typed_values(number, tables, path)
        for row, value in zip(rows, typed_values, strict=True):
            values[row] = value
    return values


def _read_typed_values(number: int, tables: Tables, path: Path) -> list[InputValue]:
    """Read values of one type; None for values of a type that this version does not know."""
    if number == _TENSOR:
        return [*_read_tensors(tables, path)]
    if number == _INT:
        return [*numbers(tables, 0, INT64)]
    if number == _BOOL:
        return [*numbers(tables, 0, BOOL)]
    return [*numbers(tables, 0, FLOAT64)] if number == _DOUBLE else [None] * len(tables)


def _read_tensors(tables: Tables, path: Path) -> list[Array]:
    firsts, counts = tables.vector(_DATA, 1)
    columns = (
        map(program_type, numbers(tables, _TYPE, UINT8)),
        vectors(tables, _SIZES, INT32),
        vectors(tables, _ORDER, UINT8),
        firsts.tolist(),
        counts.tolist(),
    )
    data = mapped_file(path)
    try:
        return [
            from_bytes(bytes(data[first : first + count]), Tensor(list(sizes), dtype.name), order or range(len(sizes)))
            for dtype, sizes, order, first, count in zip(*columns, strict=True)
        ]
    except (RunError, ValueError, IndexError) as error:
        raise TraceFormatError(f"a tensor of its inputs is damaged: {error}", where=path, hint=BUNDLED_HINT) from error
