"""What ``perf script`` prints, and ``report_sample.py`` of simpleperf, which prints the same.

One sample is a header, then its stack, innermost function first, then an empty line. Without stacks the function stands
in the header's line. Fields are those of perf-script(1); those that may be absent are::

    comm [pid/]tid [cpu] time: period event: [ip function+offset (library)]
        ip function+offset (library)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opscope.program.kernels.recordings import StackFrame, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

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
