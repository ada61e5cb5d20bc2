"""Recordings of sampling profilers, whichever wrote them: perf, simpleperf, xctrace, sample.

macOS's ``sample`` writes a tree of calls for each thread, with the samples below each call.

::

    Call graph:
        2532 Thread_2663   DispatchQueue_1: com.apple.main-thread  (serial)
        + 2532 start  (in libdyld.dylib) + 1  [0x7fff902a75ad]
        +   2530 main  (in runner) + 522  [0x106776d9a]

Blanks and the signs ``+ ! : |`` before a number are its depth. What is in no call below a line fell into its function.

Android's simpleperf prints ``report-sample``, sample by sample, and ``report``, a table. Source of both: the simpleperf
of AOSP, ``cmd_report_sample.cpp`` (fields of a sample, two blanks an indent) and ``cmd_report.cpp`` (columns as asked
for with ``--sort``, aligned under their names, or separated with ``--csv``).

``xctrace export`` writes a table of samples: ``time-profile`` of the Time Profiler, or ``cpu-profile``. Rows hold a
thread, a weight and a backtrace, innermost frame first. A value that occurs again is written as a reference (``ref``)
to the element that had it first (``id``). Symbols are exported from Xcode 14.3 on; older versions write addresses only,
which are counted as functions without a name. Document types are refused: no export has one, and entities could be made
to grow without end.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, NamedTuple
from xml.parsers import expat

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.system.memory import file_bytes, limited
from opscope.program.kernels.recordings import StackFrame, Tally
from opscope.readers.compressed import inflated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from opscope.program.kernels.recordings import Recording


_XCTRACE_FORMAT = "xctrace"
_ROOT = "<trace-query-result"
_WEIGHTS = {"weight": "ns", "cycle-weight": "events"}
_RUNNING = "Running"
_DEEPEST = 256


def is_xctrace(text: str) -> bool:
    """Whether a text that starts like this is an export of xctrace."""
    return text.lstrip().startswith("<?xml") and _ROOT in text


class _Element:
    """An element with what stands in it."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[_Element] = []
        self.text = ""


class _Rows:
    """Adds up rows while a document is parsed; only elements that can be referred to are kept."""

    def __init__(self, path: Path) -> None:
        self.tally, self.units, self.rows = Tally(), set[str](), 0
        self._path = path
        self._open: list[_Element] = []
        self._known: dict[str, _Element] = {}

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        element = _Element(tag, attributes)
        if self._open and self._open[-1].tag not in {"node", "trace-query-result"}:
            self._open[-1].children.append(element)
        if len(self._open) == _DEEPEST:
            raise TraceFormatError("elements are nested too deeply for an xctrace export", where=self._path)
        self._open.append(element)
        if "id" in attributes:
            self._known[attributes["id"]] = element

    def end(self, _: str) -> None:
        element = self._open.pop()
        if element.tag == "row":
            self._row(element)

    def characters(self, text: str) -> None:
        if self._open:
            self._open[-1].text += text

    def refuse(self, *_: object) -> None:
        raise TraceFormatError("the file has a document type, which xctrace exports never have", where=self._path)

    def _row(self, row: _Element) -> None:
        cells = {child.tag: self._resolved(child) for child in row.children}
        weight = next((name for name in _WEIGHTS if name in cells), None)
        trace = cells.get("tagged-backtrace") or cells.get("backtrace")
        state = cells.get("thread-state")
        if weight is None or trace is None or (state is not None and _shown(state) != _RUNNING):
            return
        self.rows += 1
        self.units.add(_WEIGHTS[weight])
        amount = cells[weight].text.strip()
        thread = cells.get("thread")
        self.tally.add(
            weight, _shown(thread) if thread else "", self._stack(trace), float(amount) if amount.isdecimal() else 1.0
        )

    def _resolved(self, element: _Element) -> _Element:
        return self._known.get(element.attributes.get("ref", ""), element)

    def _stack(self, trace: _Element) -> list[StackFrame]:
        inner = [self._resolved(child) for child in trace.children]
        nested = [child for child in inner if child.tag == "backtrace"]
        if nested:
            inner = [self._resolved(child) for child in nested[0].children]
        return [self._frame(child) for child in inner if child.tag == "frame"]

    def _frame(self, frame: _Element) -> StackFrame:
        binaries = [self._resolved(child) for child in frame.children if child.tag == "binary"]
        name = frame.attributes.get("name", "")
        known = bool(name) and not name.startswith("0x") and name != "<deduplicated_symbol>"
        return StackFrame(name if known else None, binaries[0].attributes.get("name") if binaries else None)


def _shown(element: _Element) -> str:
    return element.attributes.get("fmt") or element.text.strip()


def parse_xctrace(data: bytes, path: Path) -> Recording:
    """All samples of running threads in an export; ``path`` is for messages."""
    rows = _Rows(path)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = rows.start, rows.end
    parser.CharacterDataHandler = rows.characters
    parser.StartDoctypeDeclHandler = rows.refuse
    try:
        parser.Parse(data, True)  # noqa: FBT003 - the interface of expat
    except expat.ExpatError as error:
        raise TraceFormatError(f"the XML is damaged: {error}", where=path, offset=parser.ErrorByteIndex) from None
    if len(rows.units) > 1:
        hint = "export one table: xctrace export --xpath '/trace-toc/run[1]/data/table[@schema=\"time-profile\"]'"
        raise TraceFormatError("the file mixes tables of different units", where=path, hint=hint)
    return rows.tally.recording(_XCTRACE_FORMAT, next(iter(rows.units), "ns"))


SAMPLES_FORMAT, REPORT_FORMAT = "simpleperf report-sample", "simpleperf report"
_FIELD = re.compile(r"(?P<indent> *)(?P<name>[a-z_]+): ?(?P<value>.*)\Z")
_SHARE = re.compile(r"\d{1,3}(?:\.\d+)?%\Z")
_EVENT = re.compile(r"Event: (?P<event>\S+)")
_NO_NAME = ("", "unknown")
_HEADINGS = ("Overhead", "Children", "Self")


def is_report_sample(text: str) -> bool:
    """Whether a text that starts like this is the output of ``simpleperf report-sample``."""
    return next((line for line in text.splitlines() if line.strip()), "") == "sample:" and "\n  event_type: " in text


def is_report(text: str) -> bool:
    """Whether a text that starts like this is the output of ``simpleperf report``."""
    heads = [line for line in text.splitlines() if line.startswith(_HEADINGS)]
    return bool(heads) and "Symbol" in heads[0] and "\nArch: " in f"\n{text}"


class _Sample:
    """A sample while its lines are read."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.stack: list[StackFrame] = []
        self._file: str | None = None

    def take(self, indent: int, name: str, value: str) -> None:
        if name == "file":
            self._file = value
        elif name == "symbol":
            self.stack.append(StackFrame(_named(value), _named(self._file or "")))
            self._file = None
        elif indent == len("  "):
            self.fields[name] = value

    def add_to(self, tally: Tally) -> None:
        fields = self.fields
        thread = f"{fields.get('thread_name', '')}/{fields.get('thread_id', '?')}"
        count = fields.get("event_count", "")
        tally.add(fields.get("event_type", "samples"), thread, self.stack, float(count) if count.isdecimal() else 1.0)


def parse_report_sample(lines: Iterable[str]) -> Recording:
    """All samples of the output of ``simpleperf report-sample``; its other records are passed over."""
    tally, sample = Tally(), None
    for line in lines:
        found = _FIELD.match(line[:_LONGEST].rstrip())
        if found and not found["indent"]:
            if sample:
                sample.add_to(tally)
            sample = _Sample() if found["name"] == "sample" else None
        elif found and sample:
            sample.take(len(found["indent"]), found["name"], found["value"])
    if sample:
        sample.add_to(tally)
    return tally.recording(SAMPLES_FORMAT, "events")


class _Column(NamedTuple):
    name: str
    start: int
    end: int | None


def parse_report(lines: Iterable[str]) -> Recording:
    """All rows of the output of ``simpleperf report``; call graphs below a row are passed over."""
    tally, event = Tally(), "samples"
    columns: Sequence[_Column] | None = None
    names: Sequence[str] | None = None
    for line in (each[:_LONGEST].rstrip() for each in lines):
        named = _EVENT.match(line)
        if named:
            event, columns, names = named["event"], None, None
        elif line.startswith(_HEADINGS):
            names, columns = _head(line)
        elif names is not None:
            _row(tally, event, dict(_cells(line, names, columns)))
    return tally.recording(REPORT_FORMAT, "percent")


def _head(line: str) -> tuple[Sequence[str], Sequence[_Column] | None]:
    if "," in line:
        return _separated(line), None
    starts = [match.start() for match in re.finditer(r"(?:(?<=  )|^)\S", line)]
    ends = [*starts[1:], None]
    columns = [_Column(line[start:end].strip(), start, end) for start, end in zip(starts, ends, strict=True)]
    return [column.name for column in columns], columns


def _cells(line: str, names: Sequence[str], columns: Sequence[_Column] | None) -> Iterator[tuple[str, str]]:
    if columns is None:
        yield from zip(names, _separated(line), strict=False)
        return
    yield from ((column.name, line[column.start : column.end].strip()) for column in columns)


def _separated(line: str) -> list[str]:
    """Cells of a line of CSV; zero bytes, which Python 3.10 refuses there, are replaced."""
    return next(csv.reader([line.replace("\0", "\N{REPLACEMENT CHARACTER}")]), [])


def _row(tally: Tally, event: str, cells: Mapping[str, str]) -> None:
    share = cells.get("Self") or cells.get("Overhead") or ""
    if not _SHARE.match(share) or "Symbol" not in cells:
        return
    stack = [StackFrame(_named(cells["Symbol"]), _named(cells.get("Shared Object", "")))]
    thread = "/".join(part for part in (cells.get("Command"), cells.get("Tid")) if part)
    count = cells.get("Sample") or cells.get("SampleCount") or ""
    tally.add(event, thread, stack, float(share[:-1]), int(count) if count.isdecimal() else None)


def _named(text: str) -> str | None:
    """A name; None where simpleperf found none, for which it writes ``unknown`` or the library with an offset."""
    return None if text in _NO_NAME or text.startswith(("[unknown]", "unknown[")) or "[+" in text else text


_SAMPLE_FORMAT = "sample"
_BEGIN, _END = "Call graph:", ("Total number in stack", "Sort by top of stack", "Binary Images:")
_LINE = re.compile(r"(?P<lead>[\s+!:|]*)(?P<count>\d{1,12}) (?P<name>\S.*)\Z")
_CALL = re.compile(r"(?P<function>.+?)  \(in (?P<library>[^()]+)\)")
_THREAD = re.compile(r"Thread_\w+")
_NOT_NAMED = "???"


class _Call(NamedTuple):
    depth: int
    samples: int
    frame: StackFrame | None


def is_sample(text: str) -> bool:
    """Whether a text that starts like this was written by ``sample``."""
    return "Analysis of sampling " in text and "\nCall graph:" in text


def parse_sample(lines: Iterable[str]) -> Recording:
    """All samples of such a text."""
    tally, thread = Tally(), ""
    stack: list[_Call] = []
    below: list[int] = []
    inside = False
    for line in lines:
        text = line[:_LONGEST].rstrip()
        inside = (inside or text.startswith(_BEGIN)) and not text.startswith(_END)
        found = _LINE.match(text) if inside else None
        if not found:
            continue
        depth, count = len(found["lead"]), int(found["count"])
        _leave(tally, thread, stack, below, depth)
        begins = _THREAD.match(found["name"])
        thread = begins[0] if begins else thread
        if below:
            below[-1] += count
        stack.append(_Call(depth, count, None if begins else _frame(found["name"])))
        below.append(0)
    _leave(tally, thread, stack, below, -1)
    return tally.recording(_SAMPLE_FORMAT, "samples")


def _leave(tally: Tally, thread: str, stack: list[_Call], below: list[int], depth: int) -> None:
    """Close the calls that a line of this depth does not lie in; what none of their calls took is their own."""
    while stack and stack[-1].depth >= depth:
        own = stack[-1].samples - below[-1]
        frames = [call.frame for call in reversed(stack) if call.frame]
        if own > 0 and frames:
            tally.add("samples", thread, frames, float(own), own)
        stack.pop()
        below.pop()


def _frame(name: str) -> StackFrame:
    found = _CALL.match(name)
    function = found["function"] if found else name
    return StackFrame(None if function == _NOT_NAMED else function, found["library"] if found else None)


FORMAT = "perf script"
_HEADER = re.compile(
    r"(?P<comm>\S.{0,63}?)\s+(?:-?\d{1,10}/)?(?P<tid>-?\d{1,10})\s+(?:\[\d{1,5}\]\s+)?(?:\d{1,12}\.\d{1,9}:\s+)"
    r"(?:(?P<period>\d{1,20})\s+)?(?P<event>\S{1,200}):(?:\s+(?P<rest>\S.*))?\s*\Z"
)
_FRAME = re.compile(r"\s*[0-9a-f]{1,16}\s+(?P<function>\S.*?)(?:\+0x[0-9a-f]+)?(?: \((?P<library>[^()]+)\))?\s*\Z")
_TIME = re.compile(r"\s\d{1,12}\.\d{1,9}:")
_LONGEST = 4096
_UNKNOWN = "[unknown]"


def is_perf_script(text: str) -> bool:
    """Whether a text that starts like this is the output of perf script."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return _header(next(lines, "")) is not None


def parse_perf_script(lines: Iterable[str]) -> Recording:
    """All samples of such a text; lines of other forms are passed over."""
    tally = Tally()
    header = None
    stack: list[StackFrame] = []
    for line in lines:
        begins = _header(line)
        if begins or not line.strip():
            _add(tally, header, stack)
            header, stack = begins, _frames(begins["rest"] or "") if begins else []
        elif header and not line.startswith("#"):
            stack += _frames(line[:_LONGEST])
    _add(tally, header, stack)
    return tally.recording(FORMAT, "events")


def _header(line: str) -> re.Match[str] | None:
    short = line[:_LONGEST].strip()
    return _HEADER.match(short) if _TIME.search(short) and not short.startswith("#") else None


def _add(tally: Tally, header: re.Match[str] | None, stack: list[StackFrame]) -> None:
    if header is None:
        return
    thread = f"{header['comm'].strip()}/{header['tid']}"
    tally.add(header["event"], thread, stack, float(header["period"] or 1))


def _frames(text: str) -> list[StackFrame]:
    found = _FRAME.match(text)
    if not found:
        return []
    function, library = found["function"], found["library"]
    return [StackFrame(*(None if name == _UNKNOWN else name for name in (function, library)))]


_HEAD = 1 << 16
_TEXTS: tuple[tuple[Callable[[str], bool], Callable[[Iterable[str]], Recording]], ...] = (
    (is_report_sample, parse_report_sample),
    (is_report, parse_report),
    (is_sample, parse_sample),
    (is_perf_script, parse_perf_script),
)
# What these programs record into can only be read by themselves.
_BINARY = {
    b"PERFILE2": "print it as text: perf script -i FILE > FILE.txt, or simpleperf report-sample -i FILE -o FILE.txt",
    b"SIMPLEPERF": "leave out --protobuf: simpleperf report-sample -i FILE -o FILE.txt",
}


def is_recording(head: bytes) -> bool:
    """Whether a file that starts with these bytes (up to 65,536 count) is a recording, readable or not."""
    text = head[:_HEAD].decode("utf-8", "replace")
    return head.startswith(tuple(_BINARY)) or is_xctrace(text) or any(sniff(text) for sniff, _ in _TEXTS)


def read_recording(path: Path) -> Recording:
    """All samples of a recording."""
    with limited(path):
        found = _parse(bytes(inflated(file_bytes(path), path)), path)
    if not found.functions:
        hint = "record longer, at a higher frequency, or the process that runs the model"
        raise EmptyTraceError("the recording holds no samples", where=path, hint=hint)
    return found


def _parse(data: bytes, path: Path) -> Recording:
    hint = next((hint for magic, hint in _BINARY.items() if data.startswith(magic)), None)
    if hint:
        raise TraceFormatError("this is the profiler's raw recording", where=path, hint=hint)
    head = data[:_HEAD].decode("utf-8", "replace")
    if is_xctrace(head):
        return parse_xctrace(data, path)
    parse = next((parse for sniff, parse in _TEXTS if sniff(head)), None)
    if parse is None:
        hint = "known: text of perf script, simpleperf report and report-sample, sample, and XML of xctrace export"
        raise TraceFormatError("not a profiler recording", where=path, hint=hint)
    return parse(data.decode("utf-8", "replace").splitlines())
