"""What ``xctrace export`` writes of a table of samples: ``time-profile`` of the Time Profiler, or ``cpu-profile``.

Rows hold a thread, a weight and a backtrace, innermost frame first. A value that occurs again is written as a reference
(``ref``) to the element that had it first (``id``). Symbols are exported from Xcode 14.3 on; older versions write
addresses only, which are counted as functions without a name. Document types are refused: no export has one, and
entities could be made to grow without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.parsers import expat

from opscope.core.errors import TraceFormatError
from opscope.program.kernels.recordings import StackFrame, Tally

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.program.kernels.recordings import Recording

FORMAT = "xctrace"
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
    return rows.tally.recording(FORMAT, next(iter(rows.units), "ns"))
