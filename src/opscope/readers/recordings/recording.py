"""Recordings of sampling profilers, whichever wrote them: perf, simpleperf, xctrace, sample."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.input_files import file_bytes
from opscope.core.system.memory import limited
from opscope.program.kernels.recordings import StackFrame, Tally
from opscope.readers.compressed import inflated
from opscope.readers.recordings.sample_text import is_sample, parse_sample
from opscope.readers.recordings.simpleperf import is_report, is_report_sample, parse_report, parse_report_sample
from opscope.readers.recordings.xctrace import is_xctrace, parse_xctrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from opscope.program.kernels.recordings import Recording


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
