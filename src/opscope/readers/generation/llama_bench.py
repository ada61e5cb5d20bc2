"""What ``llama-bench -o json``, ``jsonl`` and ``csv`` of llama.cpp write: every test with its repetitions.

Source of fields and units: ``tools/llama-bench/llama-bench.cpp`` of llama.cpp (commit 0104b151). A test reads
``n_prompt`` tokens, makes ``n_gen`` or does both, behind ``n_depth`` tokens; ``samples_ns`` has a duration for each
repetition, in nanoseconds, of all tokens of the test together. CSV has only their mean, ``avg_ns``. A run that warms up
comes before each test and is not kept; loading, tokens and sampling are outside of the stopwatch.
"""

from __future__ import annotations

import csv
import io
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.core.table import TraceWarning
from opscope.core.table.events import CallWork
from opscope.core.units import counted_text, size_text
from opscope.program.phases import Phase, PhaseKind, phase_name
from opscope.readers.generation.report import MOST_TOKENS, PhaseCall, PhaseReport, averages, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.core.table import EventTable

_TOOL = "llama-bench"
_FIRST = "build_commit"
_MODEL = ("model_filename", "model_type", "model_size", "model_n_params")
_TIMES = ("test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts")
_RESULTS = frozenset((*_TIMES, "n_prompt", "n_gen", "n_depth"))
_BUILD = frozenset((_FIRST, "build_number"))
_FOR_AN_INTERVAL = 6
"""Repetitions, for 95 % of a median: with five, its order statistics hold it in 94 %."""
_DAMAGED = "the file was truncated or edited: write it again with llama-bench -o json"


class LlamaBenchTest(msgspec.Struct, frozen=True):
    """A test, as far as it is understood."""

    model_filename: str
    n_prompt: int
    n_gen: int
    avg_ns: int
    n_depth: int = 0
    stddev_ns: int = 0
    model_type: str = ""
    model_size: int = 0
    model_n_params: int = 0
    backends: str = ""
    samples_ns: list[int] = []


class LlamaBenchReader:
    """Reads the three of them."""

    name: ClassVar[str] = _TOOL
    suffixes: ClassVar[tuple[str, ...]] = ()

    def sniff(self, head: bytes) -> bool:
        """Whether a file starts with the first field of a test."""
        start = b"".join(bytes(head).removeprefix(b"\xef\xbb\xbf").split())
        quoted = b'"' + _FIRST.encode() + b'":'
        return start.startswith((b"[{" + quoted, b"{" + quoted, _FIRST.encode() + b",build_number,"))

    def read(self, data: bytes, path: Path) -> EventTable:
        """Every repetition as a call, named by its phase and by settings that the tests of the file differ in."""
        rows = _rows(bytes(data).removeprefix(b"\xef\xbb\xbf"), path)
        tests = [_typed(row, number, path) for number, row in enumerate(rows, 1)]
        differing = _differing(rows)
        calls = [
            call for row, test in zip(rows, tests, strict=True) for call in _calls(test, _settings(row, differing), row)
        ]
        lines = b"\n" if data.lstrip().startswith(b"[") else bytes(data)
        return table_of(PhaseReport(_TOOL, calls, limits=_limits(tests, differing), lines=lines), path)


def _rows(data: bytes, path: Path) -> list[dict[str, Any]]:
    """Tests by field, with values as the form has them: CSV has texts alone."""
    try:
        if data.lstrip().startswith(b"["):
            return from_json(data, list[dict[str, Any]])
        if data.lstrip().startswith(b"{"):
            return [from_json(line, dict[str, Any]) for line in data.splitlines() if line.strip()]
        return _table(data.decode("utf-8"), path)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, csv.Error) as error:
        raise TraceFormatError(f"not a report of llama-bench: {error}", where=path, hint=_DAMAGED) from error


def _table(text: str, path: Path) -> list[dict[str, Any]]:
    rows = list(csv.reader(io.StringIO(text), strict=True))
    head, *tests = rows or [[]]
    for number, row in enumerate(tests, 2):
        if len(row) != len(head):
            problem = f"it has {counted_text(len(row), 'value')} for {counted_text(len(head), 'column')}"
            raise TraceFormatError(problem, where=f"{path}, line {number}", hint=_DAMAGED)
    return [dict(zip(head, row, strict=True)) for row in tests]


def _typed(row: dict[str, Any], number: int, path: Path) -> LlamaBenchTest:
    where = f"{path}, test {number}"
    try:
        test = msgspec.convert(row, LlamaBenchTest, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceFormatError(f"not a test of llama-bench: {error}", where=where, hint=_DAMAGED) from error
    counts = (test.n_prompt, test.n_gen, test.n_depth)
    if any(not 0 <= count <= MOST_TOKENS for count in counts) or not test.n_prompt + test.n_gen:
        raise TraceFormatError("it has an impossible number of tokens", where=where, hint=_DAMAGED)
    if min(test.model_size, test.model_n_params) < 0:
        raise TraceFormatError("it has an impossible size of the model", where=where, hint=_DAMAGED)
    return test


def _differing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Settings in which the tests differ, in the order of the file; the model's name stands for its other fields."""
    fields = dict.fromkeys(field for row in rows for field in row if field not in _RESULTS)
    found = [field for field in fields if len({str(row.get(field)) for row in rows}) > 1]
    return [field for field in found if field not in _MODEL[1:]] if _MODEL[0] in found else found


def _settings(row: dict[str, Any], fields: Sequence[str]) -> str:
    """Settings by name; of paths only the last part, cut where they are long."""
    shown = {_MODEL[0]: PurePath(str(row.get(_MODEL[0]))).name}
    return " ".join(f"{field}={' '.join(str(shown.get(field, row.get(field))).split())[:60]}" for field in fields)


def _calls(test: LlamaBenchTest, settings: str, row: dict[str, Any]) -> list[PhaseCall]:
    method = f"{_named(test)} {settings}".strip()
    same = _settings(row, [field for field in row if field not in _RESULTS and field not in _BUILD])
    work = CallWork(test.model_size or None, same)
    return [PhaseCall(method, ns, work) for ns in test.samples_ns or [test.avg_ns]]


def _named(test: LlamaBenchTest) -> str:
    """The name of the phase; that of a test of both phases, whose time is not told apart, is of none."""
    if test.n_prompt and test.n_gen:
        behind = f"_at_{test.n_depth}" if test.n_depth else ""
        return f"prompt_{test.n_prompt}_and_{test.n_gen}{behind}"
    if test.n_prompt:
        return phase_name(Phase(PhaseKind.PREFILL, test.n_prompt, test.n_depth))
    return phase_name(Phase(PhaseKind.DECODE, test.n_gen, test.n_depth))


def _limits(tests: Sequence[LlamaBenchTest], differing: Sequence[str]) -> list[TraceWarning]:
    again = "profile with opscope, where each repetition is a process"
    warnings = []
    if any(not test.samples_ns for test in tests):
        warnings.append(averages("CSV of llama-bench", "repetitions of an unknown number"))
    else:
        words = (
            "all repetitions ran in one process: how processes differ is unknown; "
            f"intervals are of repetitions, and need {_FOR_AN_INTERVAL}"
        )
        warnings.append(
            TraceWarning("one_process", words, f"run llama-bench -r {_FOR_AN_INTERVAL} or more; or {again}")
        )
    if differing:
        words = f"the tests differ in {', '.join(differing)}: each has its own row, and figures of all calls mix them"
        warnings.append(TraceWarning("several_settings", words, "read the rows, or give a file for each setting"))
    if any(test.n_prompt and test.n_gen for test in tests):
        words = (
            "tests of prompt and generation together (-pg) do not tell the two apart: they have no tokens per second"
        )
        warnings.append(TraceWarning("mixed_phases", words, "use -p and -n"))
    words = "not in the file: loading, template and tokenization, sampling, warm-up runs, when calls began, which clock"
    return [*warnings, TraceWarning("not_timed", f"{words}; {_model(tests)}", "time them apart")]


def _model(tests: Sequence[LlamaBenchTest]) -> str:
    """What it says of the models, in words."""
    known = dict.fromkeys((test.model_type, test.model_size, test.model_n_params) for test in tests)
    said = "; ".join(
        f"{kind or 'a model'} of {size_text(size)} and {count / 1e9:.2f} billion parameters"
        for kind, size, count in known
    )
    return f"in it: {said}"
