"""Turn averages of TensorFlow Lite's and LiteRT's ``benchmark_model``, with ``--enable_op_profiling``, into a table.

Both forms of its report, the tables that it prints and the protocol buffer that it writes, become the same
rows. The table has one inference, whose operators have their average times.

Sources: ``tflite/profiling/profile_summarizer.cc`` and ``profile_summary_formatter.cc`` of LiteRT (commit
f6745779), ``xla/tsl/util/stats_calculator.cc``. An operator of the graph is named by its output tensors and its
number (``[conv/Relu]:3``), one that a delegate reports by its kernel and its number there (``Delegate/Add
(ND):7``). Delegates of earlier versions have their own section, whose operators are part of a row of the graph;
those of later versions stand among the rows of the graph, without a row of the delegate.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table import Clock, EventTable, Scope, TraceWarning
from opscope.core.units import counted_text
from opscope.program.operators.taxonomy import COMPILED_REGION, classify_run
from opscope.readers.lifecycle import PORTABLE, UNNAMED_DELEGATE, XNNPACK
from opscope.runtimes.litert.trace import MICRO, TraceRow, columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = "litert-benchmark"
METHOD = "serving_default"
"""Name of the method: the tool calls the first graph without a name, and converters give it this one."""
_ROOT = "Invoke"
_INNER = "Delegate/"
_NUMBERED = re.compile(r"(?P<name>.*):(?P<number>\d{1,9})\Z", re.DOTALL)
_LONGEST = 1 << 53
_MOST_ROWS = 1 << 20
_PROFILE = "profile the model with opscope, which keeps every inference"


class BenchmarkRow(NamedTuple):
    """An operator of the report."""

    kind: str  # the operator: `CONV_2D`; of a delegate's, the kernel, or `DelegateOpInvoke` in its own section
    name: str  # with its number
    ns: int  # of an inference, on average
    calls: int  # of an inference, on average, cut off

    @property
    def inner(self) -> str | None:
        """Name of the kernel that a delegate reports; None for an operator of the graph."""
        form = _NUMBERED.match(self.name)
        return form["name"].removeprefix(_INNER) if form and self.name.startswith(_INNER) else None

    @property
    def number(self) -> int:
        """Number of the operator in the graph or the delegate; -1 if its name has none."""
        form = _NUMBERED.match(self.name)
        return int(form["number"]) if form else -1


class BenchmarkReport(NamedTuple):
    """Content of a report."""

    rows: list[BenchmarkRow]  # of the graph that is called, in the order of the run
    inner: list[BenchmarkRow]  # of the delegates' own section; empty for later versions
    runs: int = 0  # that were averaged; 0 where it is not told
    inference_ns: int | None = None  # an inference by the stopwatch of the tool; None where it is not told
    spread: str = ""  # what it tells of the inferences' spread, in words; empty for nothing
    further_graphs: int = 0  # further graphs, whose time is in operators of the first
    model: str = ""  # name of the model; empty where it is not told
    cut: bool = False  # whether the end of a table is missing
    reports: int = 1  # that the file has, of which this is the last


def table_of(report: BenchmarkReport, path: Path) -> EventTable:
    """Build the table of a report. Raises EmptyTraceError without operators, TraceFormatError for impossible times."""
    rows = [row for row in report.rows if row.number >= 0]
    if not rows:
        hint = "run benchmark_model with --enable_op_profiling=true, and keep its complete output"
        raise EmptyTraceError("the report has no operators", where=path, hint=hint)
    every = [*rows, *report.inner]
    if len(every) > _MOST_ROWS or any(not 0 <= row.ns < _LONGEST for row in every):
        raise TraceFormatError("the report has an impossible time", where=path, hint="it was truncated or edited")
    laid = _lay_out_rows(rows, [row for row in report.inner if row.inner is not None])
    spent = sum(row.duration for row in laid if row.parent == 0)
    inference_ns = max(report.inference_ns or 0, spent)
    root = TraceRow(0, METHOD, Scope.EXECUTE, _ROOT, None, -1, -1, -1, 0, inference_ns, -1, synthetic=False)
    dropped = len(report.rows) - len(rows)
    return EventTable.build(columns_of([root, *laid]), Clock.NS, _find_problems(report, every, dropped, spent))


def _lay_out_rows(rows: Sequence[BenchmarkRow], inner: Sequence[BenchmarkRow]) -> list[TraceRow]:
    """Lay rows one after another, below the first row of the table."""
    trace_rows: list[TraceRow] = []
    calls = [row for row in rows if _region_backend(row) == XNNPACK]
    calls = calls or [row for row in rows if _region_backend(row)]
    at, part, last = 0, -1, -1
    for row in rows:
        if inner and row in calls:
            if row is calls[0]:
                trace_rows += _merge_delegate_calls(calls, inner, at, len(trace_rows) + 1)
                at += trace_rows[-len(inner) - 1].duration
            continue
        kernel = row.inner
        if kernel is None and (backend := _region_backend(row)):
            chain = _trace_row(Scope.DELEGATE_OP, row.kind, backend, row.number, at, row.ns)
        elif kernel is None:
            chain = _trace_row(Scope.KERNEL, row.kind, PORTABLE, row.number, at, row.ns)
        else:
            part, last = part + (part < 0 or row.number <= last), row.number
            chain = _trace_row(Scope.DELEGATE_OP, kernel, XNNPACK, part, at, row.ns)._replace(delegate_id=row.number)
        trace_rows.append(chain)
        at += row.ns
    return trace_rows


def _merge_delegate_calls(
    calls: Sequence[BenchmarkRow], inner: Sequence[BenchmarkRow], start: int, number: int
) -> list[TraceRow]:
    """Merge all delegate calls into one row with their operators.

    The report does not tell which call an operator is in.
    """
    operators_ns = sum(row.ns for row in inner)
    name = calls[0].kind if len(calls) == 1 else f"{counted_text(len(calls), 'call')} of delegates"
    call_ns = max(operators_ns, sum(row.ns for row in calls))
    rows, at = [_trace_row(Scope.DELEGATE_CALL, name, XNNPACK, 0, start, call_ns)], start
    for row in inner:
        trace_row = _trace_row(Scope.DELEGATE_OP, row.inner or row.kind, XNNPACK, 0, at, row.ns)
        rows.append(trace_row._replace(delegate_id=row.number, parent=number))
        at += row.ns
    return rows


_DELEGATE_NAME = re.compile(r"(?:TfLite)?(?P<name>\w*?)_?Delegate\w*\Z", re.IGNORECASE)
_DELEGATES = {
    "xnnpack": XNNPACK,
    "nnapi": "NNAPI",
    "gpu": "GPU",
    "coreml": "Core ML",
    "qnn": "QNN",
    "edgetpu": "Edge TPU",
}
_COMPILED_NODES = {"DISPATCH_OP": "NPU", "edgetpu-custom-op": "Edge TPU", "ethos-u": "Ethos-U"}
"""Names of the accelerators that run the nodes of models compiled ahead of time."""


def _region_backend(row: BenchmarkRow) -> str | None:
    """Return the backend of the part of the graph that a node stands for.

    None for an operator of LiteRT's own kernels.
    """
    if row.inner is not None or classify_run(row.kind, None) != COMPILED_REGION:
        return None
    node = _DELEGATE_NAME.match(row.kind)
    if node is None:
        return _COMPILED_NODES.get(row.kind, UNNAMED_DELEGATE)
    return _DELEGATES.get(node["name"].lower(), node["name"] or UNNAMED_DELEGATE)


def _trace_row(scope: Scope, name: str, backend: str, number: int, start: int, duration: int) -> TraceRow:
    return TraceRow(0, METHOD, scope, name, backend, number, 0, -1, start, duration, 0, synthetic=True)


def _find_problems(
    report: BenchmarkReport, rows: Sequence[BenchmarkRow], dropped: int, spent: int
) -> list[TraceWarning]:
    runs = counted_text(report.runs, "inference") if report.runs else "an unknown number of inferences"
    spread = f"; {report.spread}" if report.spread else ""
    warnings = [
        TraceWarning(
            "averages_only",
            f"the report has averages over {runs}{spread}: spread and percentiles are unknown",
            _PROFILE,
        )
    ]
    if report.inference_ns is None:
        words = "the file lacks inference times: the sum of operator times is used, without gaps"
        warnings.append(TraceWarning("no_stopwatch", words, "keep all output of benchmark_model, not only the tables"))
    if report.reports > 1:
        words = f"the file has {report.reports} reports: these figures are of the last one"
        warnings.append(TraceWarning("several_reports", words, "give each report a file of its own"))
    if report.cut:
        words = (
            "the report is truncated after a table: operators may be missing, and times are rounded to a microsecond"
        )
        warnings.append(TraceWarning("rows_lost", words, "keep the complete output of benchmark_model"))
    if any(map(_region_backend, report.rows)) and not report.inner:
        words = "the report has no delegate operators: it ends before them, or the delegate records none"
        warnings.append(TraceWarning("no_delegate_operators", words, "keep the complete output of benchmark_model"))
    several = sum(row.calls > 1 for row in rows)
    if several:
        words = f"{counted_text(several, 'row')} for several operators of one kind in different parts of the model"
        warnings.append(TraceWarning("merged_rows", words, _PROFILE))
    if report.further_graphs:
        words = (
            f"operators of {counted_text(report.further_graphs, 'further graph')} excluded: callers include their time"
        )
        warnings.append(TraceWarning("other_graphs", words, _PROFILE))
    if dropped:
        words = f"excluded {counted_text(dropped, 'row')} that list no operator"
        warnings.append(TraceWarning("no_operators_rows", words, "see the file for them"))
    warnings.append(
        TraceWarning(
            "quantised_durations",
            f"durations were truncated to whole microseconds before averaging, {spent // MICRO} us in all",
            "use them only for longer operators",
        )
    )
    return warnings
