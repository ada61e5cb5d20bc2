"""XNNPACK's log: which microkernels a process registered.

The lines are those of a library that was built with log level 4 or higher::

    Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_ukernel_...'. (init_f32_gemm_config, src/configs/gemm.c:97)

Older versions end behind the kernel. On Android the lines come through logcat, whose tag takes the place of
``Note (XNNPACK)``; the formats brief, tag, process, time and threadtime are read. All other lines are passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opscope.core.input_files import file_bytes
from opscope.program.kernels.names import KernelEntry, KernelLog, parse_kernel

if TYPE_CHECKING:
    from pathlib import Path

_TIME = r"(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+"
_LOGCAT = "|".join(
    (
        rf"(?:{_TIME} +)?[VDIWEF]/XNNPACK *(?:\( *\d+\))?: ",  # brief, tag, time
        rf"{_TIME} +\d+ +\d+ [VDIWEF] XNNPACK *: ",  # threadtime
        r"[VDIWEF]\( *\d+\) ",  # process
    )
)
_BEGIN = re.compile(rf"^(?:{_LOGCAT})?(?:Note \(XNNPACK\): )?Using (?=\w)")
_KERNEL = re.compile(r"(?P<category>\w[\w -]{0,63}?) microkernel '(?P<kernel>[^']+)'(?P<rest>.*)\Z")
_REST = re.compile(r"\.?(?: \((?P<function>[^,()]*), (?P<source>[^()]*:\d+)\))?(?: +\(XNNPACK\))?\s*\Z")
_NOTICE = re.compile(r"\w[\w -]{0,63}? micro")


def is_kernel_log(head: bytes) -> bool:
    """Whether a file that starts with these bytes names kernels of XNNPACK."""
    return bool(parse_kernel_log(head).entries)


def read_kernel_log(path: Path) -> KernelLog:
    """The kernels that the process of a log registered; none is not an error, but says nothing about what ran."""
    return parse_kernel_log(file_bytes(path))


def parse_kernel_log(data: bytes) -> KernelLog:
    """The kernels in the bytes of a log; lines may end with LF or CRLF, bytes that are no UTF-8 are replaced."""
    entries, incomplete = [], []
    lines = data.decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        begin = _BEGIN.match(line)
        if not begin:
            continue
        text = line[begin.end() :].removesuffix("\r")
        entry = _entry(text, number)
        if entry:
            entries.append(entry)
        elif _NOTICE.match(text) or number == len(lines):
            incomplete.append(number)
    return KernelLog(tuple(entries), tuple(incomplete))


def _entry(text: str, number: int) -> KernelEntry | None:
    found = _KERNEL.match(text)
    rest = _REST.match(found["rest"]) if found else None
    if not found or not rest:
        return None
    return KernelEntry(parse_kernel(found["kernel"]), found["category"], number, rest["function"], rest["source"])
