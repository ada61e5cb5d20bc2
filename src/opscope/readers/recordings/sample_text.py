"""What macOS's ``sample`` writes: a tree of calls for each thread, with the samples below each call.

::

    Call graph:
        2532 Thread_2663   DispatchQueue_1: com.apple.main-thread  (serial)
        + 2532 start  (in libdyld.dylib) + 1  [0x7fff902a75ad]
        +   2530 main  (in runner) + 522  [0x106776d9a]

Blanks and the signs ``+ ! : |`` before a number are its depth. What is in no call below a line fell into its function.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.kernels.recordings import StackFrame, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.program.kernels.recordings import Recording

FORMAT = "sample"
_BEGIN, _END = "Call graph:", ("Total number in stack", "Sort by top of stack", "Binary Images:")
_LINE = re.compile(r"(?P<lead>[\s+!:|]*)(?P<count>\d{1,12}) (?P<name>\S.*)\Z")
_CALL = re.compile(r"(?P<function>.+?)  \(in (?P<library>[^()]+)\)")
_THREAD = re.compile(r"Thread_\w+")
_LONGEST = 4096
_UNKNOWN = "???"


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
    return tally.recording(FORMAT, "samples")


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
    return StackFrame(None if function == _UNKNOWN else function, found["library"] if found else None)
