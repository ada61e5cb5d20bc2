"""What Android's log tells of one process: the runtime's own lines, and how it crashed. Nothing of other programs.

ExecuTorch writes its log there on Android (``runtime/platform/default/android.cpp``, tag ExecuTorch), unless it was
built with the platform layer of POSIX; XNNPACK likewise (tag XNNPACK). Lines have the form of ``logcat -v threadtime``:
date, time, process, thread, priority, tag, message. A crash is told by another process, whose lines begin with the
crashed one's number (``debuggerd``: "pid: 123, tid: 124, name: runner").
"""

from __future__ import annotations

import re

RUNTIME_TAGS = ("ExecuTorch", "XNNPACK")
_LINE = re.compile(r"^\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +(?P<pid>\d+) +\d+ [A-Z] (?P<tag>[^:]*?) *: (?P<text>.*)$")


def runtime_lines(text: str, pid: int) -> list[str]:
    """Lines that the runtime logged in one process, as they are.

    Args:
        text: of logcat.
        pid: number of the process.
    """
    found = ((line, _LINE.match(line)) for line in text.splitlines())
    return [line for line, m in found if m and int(m["pid"]) == pid and m["tag"] in RUNTIME_TAGS]


def lines_about(text: str, pid: int) -> list[str]:
    """All lines of one process, and of those that tell how it crashed.

    Args:
        text: of logcat.
        pid: number of the process.
    """
    lines = [(line, match) for line in text.splitlines() if (match := _LINE.match(line))]
    tellers = {int(match["pid"]) for _, match in lines if match["text"].startswith(f"pid: {pid}, tid: ")}
    return [line for line, match in lines if int(match["pid"]) in {pid, *tellers}]
