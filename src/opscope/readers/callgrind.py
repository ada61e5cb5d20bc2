"""Profiles that Callgrind writes with ``--dump-instr=yes``: how often each instruction ran.

Source of the format: Valgrind's manual, "Callgrind Format Specification". Addresses are those of the ELF file; one that
begins with a sign follows the one before it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import TraceFormatError
from opscope.core.input_files import file_bytes

if TYPE_CHECKING:
    from pathlib import Path

_OBJECT = re.compile(rb"(c?)ob=\((\d+)\)(?: (.+))?")
_COST = re.compile(rb"(0x[0-9a-f]+|[+-]\d+|\*) \S+ (\d+)")
_TOTAL = re.compile(rb"(?:summary|totals): (\d+)")


class Executed(NamedTuple):
    """An instruction."""

    file: str  # that it is in; `???` where there is none
    address: int  # within the file


def read_callgrind(path: Path, names: dict[int, str]) -> Counter[Executed]:
    """How often each instruction ran in a part of a process.

    Args:
        path: of the part.
        names: of files by their numbers, which stand in the first part that has them; filled here.

    Raises:
        TraceFormatError: what it states as its sum is another one.
    """
    found: Counter[Executed] = Counter()
    file, address, skips, total = "???", 0, False, None
    for line in file_bytes(path).splitlines():
        if cost := _COST.match(line):
            if not skips:
                address = _address(cost[1], address)
                found[Executed(file, address)] += int(cost[2])
            skips = False
        elif named := _OBJECT.match(line):
            number = int(named[2])
            if named[3]:
                names[number] = named[3].decode("utf-8", "replace")
            if not named[1]:  # else it is that of a function that is called
                file = names.get(number, "???")
        elif line.startswith(b"calls="):
            # The next line is what the call cost, which stands with the function that was called. Its address is not
            # what those that follow count from.
            skips = True
        elif total is None and (summed := _TOTAL.match(line)):
            total = int(summed[1])
    if total is not None and total != found.total():
        raise TraceFormatError(f"{found.total()} instructions are listed, but they add up to {total}", where=path)
    return found


def _address(text: bytes, last: int) -> int:
    if text == b"*":
        return last
    return int(text, 16) if text.startswith(b"0x") else last + int(text)
