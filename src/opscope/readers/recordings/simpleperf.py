"""What Android's simpleperf prints: ``report-sample``, sample by sample, and ``report``, a table.

Source of both: the simpleperf of AOSP, ``cmd_report_sample.cpp`` (fields of a sample, two blanks an indent) and
``cmd_report.cpp`` (columns as asked for with ``--sort``, aligned under their names, or separated with ``--csv``).
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.kernels.recordings import StackFrame, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opscope.program.kernels.recordings import Recording

SAMPLES_FORMAT, REPORT_FORMAT = "simpleperf report-sample", "simpleperf report"
_FIELD = re.compile(r"(?P<indent> *)(?P<name>[a-z_]+): ?(?P<value>.*)\Z")
_SHARE = re.compile(r"\d{1,3}(?:\.\d+)?%\Z")
_EVENT = re.compile(r"Event: (?P<event>\S+)")
_LONGEST = 4096
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
