"""The protocol buffer that ``benchmark_model`` writes with ``--op_profiling_output_mode=proto``.

Source of field numbers: ``tflite/profiling/proto/profiling_info.proto`` of LiteRT (commit f6745779).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from opscope.core.errors import TraceFormatError
from opscope.readers.protobuf import BYTES, VARINT, WireMessage, fields, whole
from opscope.runtimes.litert.benchmark import FORMAT, BenchmarkReport, BenchmarkRow, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.core.table import EventTable

_MODEL, _INIT, _RUN = 1, 2, 3
_GRAPHS, _DELEGATES = 1, 2
_GRAPH_INDEX, _GRAPH_ROWS, _DELEGATE_ROWS = 2, 3, 2
_PART_NAME = 1
_KIND, _TIME, _CALLS, _NAME, _ORDER = 1, 2, 4, 5, 6
_AVERAGE, _SUM, _COUNT = 3, 8, 9


class BenchmarkProtoReader:
    """Reads ``BenchmarkProfilingData``."""

    name: ClassVar[str] = f"{FORMAT}-proto"
    suffixes: ClassVar[tuple[str, ...]] = ()

    def sniff(self, head: bytes) -> bool:
        """Whether a file begins as such a message: profiles of a model, of graphs, of operators, one in the other."""
        return _begins(bytes(head))

    def read(self, data: bytes, path: Path) -> EventTable:
        """The average inference."""
        return table_of(_report(whole(memoryview(data), str(path))), path)


def _begins(head: bytes) -> bool:
    """Whether messages lie in each other here as those of a report do, as far as the bytes go.

    The model's name may stand in front; a graph or a delegate begins with its name and its number, either of which may
    be left out; the first operator begins with its kind.
    """
    at = _behind(head, 0, _MODEL)
    profile = _inside(head, at, _INIT) or _inside(head, at, _RUN)
    part = _inside(head, profile, _GRAPHS) or _inside(head, profile, _DELEGATES)
    part = _behind(head, part, _PART_NAME)
    if part < len(head) and head[part] == _GRAPH_INDEX << 3:
        part += 2
    operator = _inside(head, part, _GRAPH_ROWS) or _inside(head, part, _DELEGATE_ROWS)
    kind = _inside(head, operator, _KIND)
    return bool(profile and operator and kind) and head[kind : kind + 1].isalpha()


def _inside(head: bytes, at: int, number: int) -> int:
    """Where the content of a field of bytes begins; 0 where another field stands, or none."""
    if at >= len(head) or head[at] != number << 3 | BYTES:
        return 0
    return _length(head, at + 1)[1]


def _behind(head: bytes, at: int, number: int) -> int:
    """Where the next field begins behind one of bytes; the same place where another field stands."""
    begin = _inside(head, at, number)
    return begin + _length(head, at + 1)[0] if begin else at


def _length(head: bytes, at: int) -> tuple[int, int]:
    """A number of at most four bytes, and where the next byte is; 0 and 0 for none."""
    value = 0
    for place, byte in enumerate(head[at : at + 4]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - its last byte
            return value, at + place + 1
    return 0, 0


class _TimedRow(NamedTuple):
    """A row with what its time is counted from."""

    row: BenchmarkRow
    order: int
    total_us: int
    times: int


def _report(message: WireMessage) -> BenchmarkReport:
    model, graphs, inner = "", dict[int, list[_TimedRow]](), list[_TimedRow]()
    for field in fields(message):
        if field.number == _MODEL:
            model = field.text()
        elif field.number == _RUN:
            _read_profile(field.message(), graphs, inner)
    main = graphs.get(0, [])
    runs = max((row.times // row.row.calls for row in (*main, *inner)), default=0)
    return BenchmarkReport(
        rows=_timed(main, runs),
        inner=_timed(inner, runs),
        runs=runs,
        others=sum(number > 0 for number in graphs),
        model=model,
    )


def _read_profile(message: WireMessage, graphs: dict[int, list[_TimedRow]], inner: list[_TimedRow]) -> None:
    for field in fields(message):
        if field.number == _GRAPHS:
            wire_fields = list(fields(field.message()))
            number = next((one.integer() for one in wire_fields if one.number == _GRAPH_INDEX), 0)
            rows = [_timed_row(one.message()) for one in wire_fields if one.number == _GRAPH_ROWS]
            graphs.setdefault(number, []).extend(rows)
        elif field.number == _DELEGATES:
            wire_fields = [one for one in fields(field.message()) if one.number == _DELEGATE_ROWS]
            inner.extend(_timed_row(one.message()) for one in wire_fields)


def _timed_row(message: WireMessage) -> _TimedRow:
    texts: dict[int, str] = {}
    numbers: dict[int, int] = {}
    times: dict[int, int] = {}
    for field in fields(message):
        if field.number in {_KIND, _NAME}:
            texts[field.number] = field.text()
        elif field.number == _TIME:
            times = {one.number: one.integer() for one in fields(field.message()) if one.wire == VARINT}
        elif field.wire == VARINT:
            numbers[field.number] = field.integer()
        elif field.wire != BYTES:
            raise message.error(f"field {field.number} of an operator is of wire type {field.wire}")
    row = BenchmarkRow(texts.get(_KIND, ""), texts.get(_NAME, ""), 0, max(1, numbers.get(_CALLS, 1)))
    total, count = times.get(_SUM, times.get(_AVERAGE, 0)), times.get(_COUNT, 1)
    if total < 0 or count < 0:
        raise message.error("an operator has an impossible time")
    return _TimedRow(row, numbers.get(_ORDER, 0), total, count)


def _timed(rows: Sequence[_TimedRow], runs: int) -> list[BenchmarkRow]:
    """Rows in the order of the run, with what each takes of an inference."""
    ordered = sorted(rows, key=lambda row: row.order)
    try:
        return [row.row._replace(ns=round(row.total_us * 1000 / max(1, runs))) for row in ordered]
    except OverflowError as error:
        raise TraceFormatError("an operator has an impossible time") from error
