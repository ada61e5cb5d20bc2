"""Read performance counters as OpenVINO's own tools report them: files and log of ``benchmark_app``, execution graphs.

Each report has, for every node, its type, its kernel, whether it ran, and its time: the average over all calls
since the model was compiled, including the first, in whole microseconds. A node that took less is reported as
not run, as is one that was joined to another.

Sources: ``openvino/tools/benchmark/utils/statistics_report.py`` and ``utils.py`` of OpenVINO 2026.4.1,
``samples/cpp/benchmark_app/statistics_report.cpp``; the execution graph is
``CompiledModel.get_runtime_model()`` serialised, with ``-exec_graph_path``. Files of OpenVINO 2026.4.1 were
read.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from xml.parsers import expat

import msgspec
import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.json import from_json
from opscope.core.table import Clock, EventTable, Scope, TraceWarning
from opscope.core.table.events import NamedKernel, SideEvents
from opscope.core.table.segment import coded_from
from opscope.core.units import counted_text, time_text
from opscope.readers.pasted_text import decode_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT = "openvino-counters"
_METHOD, _ROOT = "main", "InferRequest.infer"
_RAN, _STORED = "EXECUTED", "Const"
_CSV_HEADS = (b"layerName;execStatus;", b"layerName,execStatus,")
_JSON_HEAD = re.compile(rb'\{\s*"report_type":')
_FIELDS = 6
_TIME = re.compile(r"[0-9]{1,9}\.[0-9]{1,3}")
_LOG_MARK, _NODE_MARK = "Performance counts", "layerType:"
_LOG_BLOCK = re.compile(rf"{_LOG_MARK}(?: sorted)? for (?P<number>\d+)-th infer request")
# Blanks are bounded: lines of nothing else must not take long.
_LOG_ROW = re.compile(
    r"(?:Status\.)?(?P<status>NOT_RUN|EXECUTED|OPTIMIZED_OUT)\s{1,99}layerType:\s{0,99}(?P<type>\S+)\s{1,99}"
    r"execType:\s{0,99}(?P<kernel>\S*)\s{1,99}realTime \(ms\):\s{0,99}(?P<time>\d{1,12}\.\d{1,9})\s{1,99}"
    r"cpuTime \(ms\):"
)
_LOG_TOTAL = re.compile(r"Total time:\s+(?P<time>\d{1,12}\.\d{1,9}) milliseconds")
_LOG_DEVICE = re.compile(r"Execution Devices:\s*\['(?P<device>[A-Z]+)")
_LOG_LATENCY = re.compile(r"(?P<name>Median|Average):\s+(?P<time>\d{1,12}\.\d{1,9}) (?P<unit>us|ms)\b")
_XML_MARK = b'execTimeMcs="'
_SEARCHED = 1 << 22
_LONGEST_LINE = 1 << 12
_MOST_NODES, _LONGEST_US = 1 << 20, 1 << 40
_ROUNDING_US = 10
"""Largest difference in microseconds between a total and the sum of its nodes, since sorted reports round the total."""
_PROFILE = "profile the model with opscope, which keeps every inference"
_DAMAGED = "it was truncated or edited: run benchmark_app again"


class NodeCounter(NamedTuple):
    """Counter of a node."""

    name: str  # in the graph that ran; cut off behind 17 letters in a log
    type: str  # of operator
    kernel: str  # that ran it
    ran: bool
    time_us: int  # on average


class CounterReport(NamedTuple):
    """Content of a report."""

    nodes: list[NodeCounter]  # of the first infer request, in the order of the file
    total_us: int | None  # of all of them; None where the file has none, or ends before
    requests: int = 1  # infer requests in the file
    latencies: str = ""  # by the stopwatch of the tool, in words; empty where the file has none
    device: str = "CPU"  # that ran it


class OpenVinoCountersReader:
    """Reads reports of OpenVINO's performance counters: CSV, JSON, the log of ``-pc`` and execution graphs."""

    name: ClassVar[str] = FORMAT

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts as a report in CSV or JSON does."""
        return head.removeprefix(b"\xef\xbb\xbf").startswith(_CSV_HEADS) or bool(_JSON_HEAD.match(head))

    def finds(self, data: bytes | memoryview) -> bool:
        """Return whether a file has counters behind other lines, or is an execution graph with times."""
        start = bytes(data[:_SEARCHED])
        text = decode_text(start)
        return _XML_MARK in start or (_LOG_MARK in text and _NODE_MARK in text) or text.startswith("layerName;exec")

    def read(self, data: bytes, path: Path) -> EventTable:
        """Read the average inference, as a table with one run.

        Raises:
            EmptyTraceError: no node has a time.
            TraceFormatError: the report is damaged.
        """
        report = _read_report(data, path)
        if not any(node.time_us for node in report.nodes):
            hint = "run benchmark_app with -pc, or compile the model with PERF_COUNT=YES and run it"
            raise EmptyTraceError("no node has a time", where=path, hint=hint)
        if len(report.nodes) > _MOST_NODES or any(not 0 <= node.time_us <= _LONGEST_US for node in report.nodes):
            raise TraceFormatError("the report has an impossible time", where=path, hint=_DAMAGED)
        return _table_of(report)


def _read_report(data: bytes, path: Path) -> CounterReport:
    if _JSON_HEAD.match(data):
        return _read_json(data, path)
    if _XML_MARK in data[:_SEARCHED]:
        return _read_graph(data, path)
    text = decode_text(data)
    return _read_csv(text, path) if text.startswith("layerName") else _read_log(text)


def _to_microseconds(milliseconds: str) -> int:
    return round(float(milliseconds) * 1_000)


def _has_run(status: str) -> bool:
    return status.rpartition(".")[2] == _RAN


def _read_csv(text: str, path: Path) -> CounterReport:
    """Read the report of ``-report_type``, whose names may hold its separator, or of ``-pcsort``, which are quoted."""
    separated = text.startswith("layerName;")
    lines = text.splitlines()
    try:
        rows = [_split_line(line) for line in lines] if separated else list(csv.reader(lines))
    except csv.Error as error:
        raise TraceFormatError(f"not CSV: {error}", where=path, hint=_DAMAGED) from error
    blocks: list[list[NodeCounter]] = []
    totals: list[int] = []
    for number, row in enumerate(rows, 1):
        if row[:1] == ["layerName"]:
            blocks.append([])
        elif row and (total := _LOG_TOTAL.match(row[0])):
            totals.append(_to_microseconds(total["time"]))
        elif len(row) >= _FIELDS and blocks:
            if not _TIME.fullmatch(row[4]):
                raise TraceFormatError(f"line {number} has no time", where=path, hint=_DAMAGED)
            time_us = _to_microseconds(row[4])
            if row[0] == "Total" and not row[1]:
                totals.append(time_us)
            else:
                blocks[-1].append(NodeCounter(row[0], row[2], row[3], _has_run(row[1]), time_us))
    if not blocks:
        raise TraceFormatError("its first line is not the heading of counters", where=path, hint=_DAMAGED)
    return CounterReport(blocks[0], totals[0] if totals else None, len(blocks))


def _split_line(line: str) -> list[str]:
    """Return the fields of a line, whose first one may hold the separator."""
    return line.removesuffix(";").rsplit(";", _FIELDS - 1)


class _JsonNode(msgspec.Struct):
    name: str
    node_type: str
    status: str
    real_time: str
    exec_type: str


class _JsonBlock(msgspec.Struct):
    nodes: list[_JsonNode]
    total_real_time: str


class _JsonReport(msgspec.Struct):
    report_type: str
    avg_performance: _JsonBlock | None = None
    detailed_performance: list[_JsonBlock] = []


def _read_json(data: bytes, path: Path) -> CounterReport:
    try:
        report = from_json(bytes(data), _JsonReport)
        blocks = [report.avg_performance] if report.avg_performance else report.detailed_performance
        nodes = [
            NodeCounter(row.name, row.node_type, row.exec_type, _has_run(row.status), _to_microseconds(row.real_time))
            for row in (blocks[0].nodes if blocks else ())
        ]
        return CounterReport(nodes, _to_microseconds(blocks[0].total_real_time) if blocks else None, len(blocks))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as error:
        raise TraceFormatError(f"not a report of counters: {error}", where=path, hint=_DAMAGED) from error


def _read_log(text: str) -> CounterReport:
    requests, device, total = 0, "CPU", None
    nodes: list[NodeCounter] = []
    latencies: dict[str, str] = {}
    for line in (line[:_LONGEST_LINE] for line in text.splitlines()):
        row = _LOG_ROW.search(line) if _NODE_MARK in line else None
        if _LOG_BLOCK.search(line):
            requests += 1
        elif row and requests <= 1:
            time_us = _to_microseconds(row["time"])
            name = line[: row.start()].strip()
            nodes.append(NodeCounter(name, row["type"], row["kernel"], _has_run(row["status"]), time_us))
        elif (found_total := _LOG_TOTAL.search(line)) and total is None:
            total = _to_microseconds(found_total["time"])
        elif found_device := _LOG_DEVICE.search(line):
            device = found_device["device"]
        elif found_latency := _LOG_LATENCY.search(line):
            scale = 1e3 if found_latency["unit"] == "us" else 1e6
            latencies.setdefault(found_latency["name"].lower(), time_text(float(found_latency["time"]) * scale))
    words = ", ".join(f"{name} {text}" for name, text in latencies.items())
    return CounterReport(nodes, total, max(requests, 1), words, device)


class _GraphLayers:
    """The layers and edges of an execution graph, in the order in which expat reports them."""

    def __init__(self) -> None:
        self._layer: dict[str, str] = {}
        self.rows: list[tuple[int, str, NodeCounter]] = []  # place in the run, id in the file, counter
        self.sources: dict[str, list[str]] = {}  # ids of the layers that each reads

    def start_element(self, tag: str, attributes: dict[str, str]) -> None:
        """Store a layer, its run from its ``data``, or an edge."""
        if tag == "layer":
            self._layer = attributes
        elif tag == "edge":
            self.sources.setdefault(attributes.get("to-layer", ""), []).append(attributes.get("from-layer", ""))
        elif tag == "data" and "execTimeMcs" in attributes:
            time_us = _parse_number(attributes["execTimeMcs"])
            kind, kernel = self._layer.get("type", ""), attributes.get("primitiveType", "")
            node = NodeCounter(self._layer.get("name", ""), kind, kernel, time_us is not None, time_us or 0)
            self.rows.append((_parse_number(attributes.get("execOrder", "")) or 0, self._layer.get("id", ""), node))


def _parse_number(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= len(str(_LONGEST_US)) else None


def _read_graph(data: bytes, path: Path) -> CounterReport:
    """Read an execution graph; nodes that read constants alone ran when the model was compiled, and have no time."""
    layers = _GraphLayers()
    parser = expat.ParserCreate()
    parser.StartElementHandler = layers.start_element
    parser.StartDoctypeDeclHandler = _refuse_document_type
    try:
        parser.Parse(bytes(data), True)  # noqa: FBT003 - the interface of expat
    except expat.ExpatError as error:
        raise TraceFormatError(f"the XML is damaged: {error}", where=path, hint=_DAMAGED) from None
    nodes, stored = list[NodeCounter](), set[str]()
    for _, number, node in sorted(layers.rows, key=lambda row: row[0]):
        sources = layers.sources.get(number, [])
        is_stored = node.type == _STORED or (bool(sources) and stored.issuperset(sources))
        if is_stored:
            stored.add(number)
        nodes.append(node._replace(ran=False, time_us=0) if is_stored else node)
    return CounterReport(nodes, sum(node.time_us for node in nodes))


def _refuse_document_type(*_: Any) -> None:  # noqa: ANN401 - the interface of expat
    raise TraceFormatError("it has a document type, which no execution graph has", hint=_DAMAGED)


def _table_of(report: CounterReport) -> EventTable:
    """Build a table with the nodes that took time, one after another; time outside of nodes is not reported."""
    nodes = [node for node in report.nodes if node.time_us]
    durations = [1_000 * node.time_us for node in nodes]
    starts = [sum(durations[:number]) for number in range(len(nodes))]
    names = [f"{node.type}: {node.name}" for node in nodes]
    count = len(nodes)
    table = EventTable.build(
        {
            "run": np.zeros(count + 1, np.int64),
            "scope": coded_from([Scope.EXECUTE.value, *[Scope.KERNEL.value] * count]),
            "name": coded_from([_ROOT, *names]),
            "backend": coded_from([None, *[f"OpenVINO {report.device}"] * count]),
            "method": coded_from([_METHOD] * (count + 1)),
            "chain": np.array([-1, *[0] * count]),
            "instruction": np.arange(-1, count),
            "start": np.array([0, *starts]),
            "duration": np.array([sum(durations), *durations]),
            "resolution": np.array([1, *[1_000] * count]),
            "parent": np.array([-1, *[0] * count]),
            "synthetic_start": np.arange(count + 1) > 0,
        },
        Clock.NS,
        list(_list_warnings(report, sum(durations))),
    )
    kernels = (NamedKernel(name, node.kernel) for name, node in zip(names, nodes, strict=True) if node.kernel)
    return table.with_side(SideEvents(kernels=tuple(kernels)))


def _list_warnings(report: CounterReport, whole_ns: int) -> Iterator[TraceWarning]:
    reported_us = sum(node.time_us for node in report.nodes)
    if report.total_us is None or abs(report.total_us - reported_us) > _ROUNDING_US:
        total = "no total" if report.total_us is None else f"a total of {time_text(report.total_us * 1e3)}"
        words = f"the report has {total}, and its nodes add up to {time_text(whole_ns)}: rows are missing"
        yield TraceWarning("rows_lost", words, "keep the complete output of benchmark_app")
    if report.requests > 1:
        words = f"the report has {counted_text(report.requests, 'infer request')}: these figures are of the first"
        yield TraceWarning("several_reports", words, "run benchmark_app with -nireq 1")
    words = "the counters are averages over all calls, the first included: spread and percentiles are unknown"
    yield TraceWarning("averages_only", words, _PROFILE)
    latencies = f"; benchmark_app's latency: {report.latencies}" if report.latencies else ""
    words = f"the latency is the sum of the nodes, without what lies between them{latencies}"
    yield TraceWarning("no_stopwatch", words, _PROFILE)
    silent = sum(not node.ran for node in report.nodes)
    if silent:
        words = (
            f"{silent} of {counted_text(len(report.nodes), 'node')} did not run: joined to others, constant, or <1 µs"
        )
        yield TraceWarning("nodes_not_run", words, "the file names them")
    words = "durations are truncated to whole microseconds"
    yield TraceWarning("quantised_durations", words, "use them only for longer nodes")
