"""Recordings of sampling profilers, whichever wrote them: perf, simpleperf, xctrace, sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.input_files import file_bytes
from opscope.core.system.memory import limited
from opscope.readers.compressed import inflated
from opscope.readers.recordings.perf_script import is_perf_script, parse_perf_script
from opscope.readers.recordings.sample_text import is_sample, parse_sample
from opscope.readers.recordings.simpleperf import is_report, is_report_sample, parse_report, parse_report_sample
from opscope.readers.recordings.xctrace import is_xctrace, parse_xctrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from opscope.program.kernels.recordings import Recording

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
    b"SIMPLEPERF": "leave --protobuf out: simpleperf report-sample -i FILE -o FILE.txt",
}


def is_recording(head: bytes) -> bool:
    """Whether a file that starts with these bytes (up to 65,536 count) is a recording, readable or not."""
    text = head[:_HEAD].decode("utf-8", "replace")
    return head.startswith(tuple(_BINARY)) or is_xctrace(text) or any(sniff(text) for sniff, _ in _TEXTS)


def read_recording(path: Path) -> Recording:
    """All samples of a recording.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is of no known form, damaged, holds no sample, or is not a regular file.
        MemoryLimitError: reading it takes more memory than it may.
    """
    with limited(path):
        found = _parse(bytes(inflated(file_bytes(path), path)), path)
    if not found.functions:
        hint = "record for longer, with a higher frequency, or of the process that runs the model"
        raise EmptyTraceError("the recording holds no samples", where=path, hint=hint)
    return found


def _parse(data: bytes, path: Path) -> Recording:
    hint = next((hint for magic, hint in _BINARY.items() if data.startswith(magic)), None)
    if hint:
        raise TraceFormatError("this is what the profiler records into", where=path, hint=hint)
    head = data[:_HEAD].decode("utf-8", "replace")
    if is_xctrace(head):
        return parse_xctrace(data, path)
    parse = next((parse for sniff, parse in _TEXTS if sniff(head)), None)
    if parse is None:
        hint = "known: text of perf script, simpleperf report and report-sample, sample, and XML of xctrace export"
        raise TraceFormatError("not a recording of a profiler", where=path, hint=hint)
    return parse(data.decode("utf-8", "replace").splitlines())
