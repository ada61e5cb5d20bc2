"""ETDump, the trace format of ExecuTorch: a FlatBuffer with identifier ``ED00``.

Decoded column by column. What the file does not hold is not invented: the method's name, threads and device are
absent, and the start times of a delegate's operators are marked synthetic where they are laid end to end.

Source of the layout: ``devtools/etdump/etdump_schema_flatcc.fbs`` of ExecuTorch 1.5.1; the facts about events, order
and quantisation are measured, see docs/design/etdump.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import polars as pl

from opscope.errors import EmptyTraceError, InvariantError, TraceFormatError
from opscope.read.flatbuffer import FlatBuffer, Tables
from opscope.table import Clock, EventTable, Scope, TraceWarning
from opscope.table.nesting import parents_from_levels
from opscope.table.schema import SCOPES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from polars._typing import PolarsDataType

    from opscope.read.flatbuffer import Ints
    from opscope.table.events import Values

    Mask: TypeAlias = npt.NDArray[np.bool_]

IDENTIFIER = b"ED00"
_PREFIX = 4
_HEADER = 8
_MICROSECOND = 1_000
_PRIME = 0x9E3779B97F4A7C15
_TEXT = pl.Categorical()
# An event of these names encloses others. Lower levels are further out; everything else is a leaf.
_FRAMEWORK = {
    "Method::execute": (Scope.EXECUTE, 0),
    "Program::load_method": (Scope.LOAD, 0),
    "Method::init": (Scope.INIT, 1),
    "DELEGATE_CALL": (Scope.DELEGATE_CALL, 1),
    "OPERATOR_CALL": (Scope.OPERATOR_CALL, 1),
    "MOVE_CALL": (Scope.CONTROL, 1),
    "JF_CALL": (Scope.CONTROL, 1),
    "FREE_CALL": (Scope.CONTROL, 1),
}
_LEAF_LEVEL = 2
PORTABLE = "portable"
UNNAMED_DELEGATE = "delegate"
_XNNPACK_NAME = re.compile(r"^(Invalid (Unary|Binary) Op|[A-Za-z0-9 ]+ \([A-Z0-9, _]+\)( [A-Za-z0-9 ]+)?) #\d+\Z")


class EtdumpReader:
    """Reads ETDump files, with or without size prefix."""

    name: ClassVar[str] = "etdump"

    def sniff(self, head: bytes) -> bool:
        """Whether a file starts like an ETDump."""
        return _origin(head) is not None

    def read(self, data: bytes, path: Path) -> EventTable:
        """All events of a file.

        Raises:
            EmptyTraceError: the file holds no event.
            TraceFormatError: the file is truncated, damaged or no ETDump.
        """
        if not data:
            raise EmptyTraceError("the file has no bytes", where=path, hint=_NO_TRACER)
        origin = _origin(data[: _PREFIX + _HEADER])
        if origin is None:
            raise TraceFormatError(
                "not an ETDump: the identifier ED00 is missing",
                where=path,
                offset=_HEADER,
                hint="give a file written by write_etdump_result_to_file or executor_runner --etdump_path",
            )
        buffer = FlatBuffer(data, str(path), origin)
        _check_size_prefix(buffer)
        try:
            return _table(buffer)
        except InvariantError as error:
            raise TraceFormatError(error.problem, where=path, hint=_DAMAGED) from error


_DAMAGED = "the file is damaged, or its events come from clocks that do not agree"
_NO_TRACER = (
    "the runtime was built without event tracing: use executorch 1.5 or newer, "
    "or build the runner with EXECUTORCH_ENABLE_EVENT_TRACER=ON"
)


def _origin(head: bytes) -> int | None:
    """Position of the root offset: 4 behind a size prefix, 0 without; None when it is no ETDump."""
    if head[_HEADER : _HEADER + _PREFIX] == IDENTIFIER:
        return _PREFIX
    return 0 if head[_PREFIX:_HEADER] == IDENTIFIER else None


def _check_size_prefix(buffer: FlatBuffer) -> None:
    if buffer.origin:
        stated = int(buffer.u32(np.zeros(1, np.int64))[0]) + _PREFIX
        if stated > buffer.size:
            raise buffer.error(f"truncated: {stated:,} bytes were written, {buffer.size:,} are here", buffer.size)


def _table(buffer: FlatBuffer) -> EventTable:
    blocks = Tables(buffer, buffer.root().children(1)[0])
    at, owner = blocks.children(3)
    events = Tables(buffer, at)
    profile = events.reference(0)
    rows = np.flatnonzero(profile > 0)
    if not len(rows):
        raise EmptyTraceError("the trace holds no events", where=buffer.where, hint=_NO_TRACER)
    other = len(at) - len(rows)
    return _event_table(Tables(buffer, profile[rows]), owner[rows], _other_events(other))


def _other_events(count: int) -> list[TraceWarning]:
    if not count:
        return []
    message = f"{count:,} allocation or debug events are not shown"
    return [TraceWarning("events_skipped", message, "they carry no time; latency and split are not affected")]


def _event_table(profile: Tables, run: Ints, warnings: list[TraceWarning]) -> EventTable:
    name_code, names = profile.strings(0)
    id_code, ids = profile.strings(4)
    delegate_id = profile.int32(3, -1)
    is_delegate = (name_code < 0) | (id_code >= 0) | (delegate_id >= 0)
    scope, level = _roles(name_code, names, is_delegate)
    parent = parents_from_levels(level, run)
    chain = profile.int32(1)
    framework = level < _LEAF_LEVEL
    start, duration = _times(profile)
    quantised = _quantised(duration, is_delegate)
    name = _names(name_code, names, id_code, ids, delegate_id)
    columns: dict[str, Values] = {
        "run": run,
        "scope": scope,
        "name": name,
        "backend": _backends(name, is_delegate, framework),
        "chain": chain,
        "instruction": np.where(chain < 0, -1, profile.int32(2, -1)),
        "delegate_id": delegate_id,
        "start": start,
        "duration": duration,
        "resolution": np.where(quantised, _MICROSECOND, 1),
        "synthetic_start": quantised,  # a delegate that reports durations only lays them end to end
        "parent": parent,
    }
    loads = int((scope == Scope.LOAD.value).sum())
    if loads > 1:
        signature = _signatures(run, columns["instruction"], name.to_physical().to_numpy())
        columns["method"] = _take([f"method {number}" for number in range(int(signature.max()) + 1)], signature, _TEXT)
    found = [*warnings, *_quantisation_warning(quantised, run), *_several_methods(loads)]
    table = EventTable.build(columns, Clock.NS, found)
    return table.with_warnings(*_unfinished(table.frame))


def _roles(name_code: Ints, names: list[str], is_delegate: Mask) -> tuple[pl.Series, Ints]:
    """Scope and nesting level of every event."""
    known = [_FRAMEWORK.get(name, (Scope.KERNEL, _LEAF_LEVEL)) for name in names]
    known.append((Scope.DELEGATE_OP, _LEAF_LEVEL))
    role = np.where(is_delegate, len(names), name_code)
    levels = np.array([level for _, level in known], np.int64)
    return _take([scope.value for scope, _ in known], role, SCOPES), levels[role]


def _times(profile: Tables) -> tuple[Ints, Ints]:
    start, end = profile.uint64(6), profile.uint64(7)
    limit = np.uint64(np.iinfo(np.int64).max)
    if len(start) and max(int(start.max()), int(end.max())) > int(limit):
        raise profile.buffer.error("a time is larger than 2^63")
    return start.astype(np.int64), end.astype(np.int64) - start.astype(np.int64)


def _names(name_code: Ints, names: list[str], id_code: Ints, ids: list[str], delegate_id: Ints) -> pl.Series:
    """The name where there is one, else the delegate's text identifier, else its number."""
    numbered = np.unique(delegate_id[(name_code < 0) & (id_code < 0)])
    texts = [*names, *ids, *(f"delegate operator {number}" for number in numbered.tolist())]
    code = np.where(id_code >= 0, len(names) + id_code, name_code)
    unnamed = code < 0
    code[unnamed] = len(names) + len(ids) + np.searchsorted(numbered, delegate_id[unnamed])
    return _take(texts, code, _TEXT)


def _backends(name: pl.Series, is_delegate: Mask, framework: Mask) -> pl.Series:
    """Portable for the runtime's own kernels; a delegate is XNNPACK where every name has XNNPACK's form."""
    distinct = name.filter(pl.Series(is_delegate)).unique().cast(pl.String).to_list()
    delegate = "XNNPACK" if all(_XNNPACK_NAME.match(text) for text in distinct) else UNNAMED_DELEGATE
    code = np.where(framework, 2, np.where(is_delegate, 0, 1))
    return _take([delegate, PORTABLE, None], code, _TEXT)


def _take(texts: list[str | None] | list[str], code: Ints, dtype: PolarsDataType) -> pl.Series:
    """A column of coded text: entry ``code[i]`` of ``texts`` in row i."""
    return pl.Series(texts, dtype=dtype)[code]


def _quantised(duration: Ints, is_delegate: Mask) -> Mask:
    """Delegate events, when all their durations are whole microseconds: then they were truncated to them."""
    whole = is_delegate.any() and not (duration[is_delegate] % _MICROSECOND).any()
    return is_delegate & whole


def _quantisation_warning(quantised: Mask, run: Ints) -> list[TraceWarning]:
    if not quantised.any():
        return []
    each = int(np.bincount(run[quantised]).max())
    message = (
        f"the delegate cuts its operators' durations off to whole microseconds: up to {each} µs of an inference are "
        "theirs but counted as framework; their start times are not measured"
    )
    return [TraceWarning("quantised_durations", message, "read means over many inferences, not single short operators")]


def _signatures(run: Ints, instruction: Values, name: Values) -> Ints:
    """For each event the number of its block's sequence of instructions and names, in order of first appearance.

    The file does not record which method an inference ran; different methods run different sequences.
    """
    first = np.searchsorted(run, run, side="left")
    place = (np.arange(len(run)) - first + 1).astype(np.uint64)
    mixed = np.asarray(instruction).astype(np.uint64) * np.uint64(_PRIME) + np.asarray(name).astype(np.uint64)
    total = np.zeros(int(run.max()) + 1, np.uint64)
    np.add.at(total, run, (mixed + np.uint64(1)) * place * np.uint64(_PRIME))
    _, appeared, number = np.unique(total, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(appeared))
    sequence: Ints = rank[number][run]
    return sequence


def _several_methods(loads: int) -> list[TraceWarning]:
    if loads < 2:  # noqa: PLR2004 - one method is the usual case
        return []
    message = f"{loads} methods were loaded; their inferences are told apart by what they run, not by name"
    return [TraceWarning("several_methods", message, "the latency mixes them; operators are listed for each")]


def _unfinished(frame: pl.DataFrame) -> list[TraceWarning]:
    expected = pl.col("scope").is_in([Scope.LOAD.value, Scope.INIT.value])
    lost = frame.filter(pl.col("inference").is_null() & ~expected).height
    if not lost:
        return []
    message = f"{lost:,} event{'s' if lost > 1 else ''} outside of any inference: the run ended in the middle of one"
    return [TraceWarning("unfinished_inference", message, "they are kept in the table and counted nowhere")]
