"""Read the tables that ``benchmark_model`` prints, as text or CSV, alone or in a log such as Android's logcat.

Columns are found by their headings: earlier versions have one more (``[start]``). Times are computed from the
share of the total, which has more digits than the milliseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from opscope.core.errors import TraceFormatError
from opscope.core.units import counted_text
from opscope.readers.pasted_text import decode_text
from opscope.runtimes.litert.benchmark import FORMAT, BenchmarkReport, BenchmarkRow, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from opscope.core.table import EventTable

_STARTS = (
    b"STARTING!",
    b"INFO: STARTING!",
    b"Log parameter values verbosely:",
    b"INFO: Log parameter values verbosely:",
    b"Profiling Info for Benchmark Initialization:",
    b"Operator-wise Profiling Info for Regular Benchmark Runs:",
    b"============================== Run Order ====",
)
_STAMP = r"\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [ \d]+ [VDIWEF] tflite"
_BEFORE = re.compile(
    rf"\A(?:{_STAMP}\w*\s*: "  # logcat
    r"|[VDIWEF]/\w+\s*\(\s*\d+\): "  # logcat -v brief
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+(?:[+-]\d{4})? [\w .-]{1,60}\[\d+:\w+\] "  # iOS
    r"|(?:> ?|    )"  # Markdown
    r"|(?:INFO|WARN(?:ING)?|ERROR): )"
)
"""Prefixes of lines in a log, or in a text that a report was pasted into."""
_MOST_BEFORE = 4
_LOGCAT = re.compile(_STAMP.encode(), re.ASCII)
_TITLE = re.compile(r"(?<!=)=+ (?P<title>[\w ]+) =+\s*\Z")
_GRAPH = re.compile(r"(?:Primary graph \(name: .*\)|Subgraph \(index: (?P<number>\d{1,9}), name: .*\)) profile:")
_TIMINGS = re.compile(r"Timings \(microseconds\): (?P<figures>count=.*)")
_OBSERVED = re.compile(r"(?P<count>\d{1,9}) nodes observed\Z")
"""Last line of a section: the number of operators in its table."""
_NUMBER = r"-?\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?"
_FIGURES = re.compile(rf"\b(?P<name>[a-z]\w*)=(?P<value>{_NUMBER})")
_TIMED = "Inference timings in us: "
_INFERENCE = re.compile(rf"{_TIMED}(?:(?!{_TIMED}).)*Inference \(avg\): (?P<value>{_NUMBER})")
_INIT, _RUN = "Profiling Info for Benchmark Initialization:", "Profiling Info for Regular Benchmark Runs:"
_INNER = "Delegate internal:"
_FIRST_LINE = "STARTING!"
_SEARCHED = 1 << 22
_WHOLE, _ROUNDING = 100.0, 0.01
"""Sum of the shares of a table, and largest rounding error of a share, in per cent."""
_LONGEST_LINE = 1 << 16
_COLUMNS = {
    "node type": "kind",
    "first": "first",
    "start": "start",
    "avg ms": "ms",
    "avg_ms": "ms",
    "%": "share",
    "cdf%": "cdf",
    "mem kb": "memory",
    "times called": "calls",
    "name": "name",
}
_TO_ITS_END = "keep the complete output of benchmark_model; a log may lose lines, a file does not"


class BenchmarkTextReader:
    """Reads the tables of ``benchmark_model``."""

    name: ClassVar[str] = FORMAT
    suffixes: ClassVar[tuple[str, ...]] = ()

    def sniff(self, head: bytes) -> bool:
        """Return whether a file begins like the tool's output, or like a log of Android with it."""
        start = head.lstrip()
        return start.startswith(_STARTS) or _LOGCAT.match(start) is not None

    def confirms(self, start: bytes) -> bool:
        """Return whether a sniffed file of a directory really is a report, by its first bytes."""
        return self.sniff(start[:64])

    def finds(self, data: bytes | memoryview) -> bool:
        """Return whether a text has a report after other lines, or in UTF-16 as PowerShell writes it."""
        text = decode_text(bytes(data[:_SEARCHED]))
        return any(mark in text for mark in (_RUN, _INIT, "= Run Order ="))

    def read(self, data: bytes, path: Path) -> EventTable:
        """Read the average inference of the last report."""
        reports = _split_reports(list(_strip_lines(decode_text(data))))
        return table_of(_read_report(reports[-1], path)._replace(reports=len(reports)), path)


def _split_reports(lines: Sequence[str]) -> list[list[str]]:
    """Return the lines of each report in a text.

    A report begins after the previous one has had its tables of inferences.
    """
    reports: list[list[str]] = [[]]
    has_run = False
    for line in lines:
        bare = line.strip()
        if has_run and (bare == _FIRST_LINE or bare.endswith((_INIT, _RUN))):
            reports.append([])
            has_run = False
        has_run = has_run or bare.endswith(_RUN)
        reports[-1].append(line)
    return reports


class _Section(NamedTuple):
    """The section of the report that a line is in."""

    initialisation: bool = False  # before the first inference
    graph: int = 0  # number of the graph, 0 for the one that is called
    inner: bool = False  # in the section of delegates


class _Listed(NamedTuple):
    """Rows of a section with milliseconds and shares, and the figures of its total.

    The total includes the number of operators as ``observed``, if the section has its last line.
    """

    rows: list[tuple[BenchmarkRow, float]]
    total: dict[str, float]

    def missing(self) -> str:
        """Return a sentence on gaps in the table, judged by its own figures; empty if they agree."""
        observed, shares = self.total.get("observed"), sum(share for _, share in self.rows)
        if observed is not None and observed != len(self.rows):
            return f"a table has {counted_text(len(self.rows), 'operator')}, and its last line counts {observed:.0f}"
        if shares and abs(shares - _WHOLE) > _ROUNDING * (1 + len(self.rows)):
            return f"the shares of a table's operators add up to {shares:.1f} %"
        return ""


def _read_report(lines: Sequence[str], path: Path) -> BenchmarkReport:
    sections: dict[_Section, _Listed] = {}
    at, pattern, inference, calls = _Section(), None, None, dict[str, float]()
    for number, line in enumerate(lines, 1):
        title, moved = _TITLE.search(line), _find_section_start(line, at)
        if moved is not None:
            at, pattern = moved, None
        elif title:
            pattern = "" if title["title"] == "Run Order" else None
        elif pattern == "" and line.strip():
            pattern = _row_pattern(line, f"{path}, line {number}")
        elif total := _read_total(line):
            _section_content(sections, at).total.update(total)
            pattern = None
        elif pattern and line.strip():
            _section_content(sections, at).rows.append(_read_row(pattern, line, f"{path}, line {number}"))
        elif match := _INFERENCE.search(line):
            inference = float(match["value"])
        elif line.lstrip().startswith("count=") and not sections:
            calls = _read_figures(line)
        elif not line.strip():
            pattern = None
    return _join_sections(sections, inference, calls, path)


def _read_total(line: str) -> dict[str, float]:
    """Return the figures of the total that a line after a table states; empty for any other line."""
    if match := _OBSERVED.match(line.strip()):
        return {"observed": float(match["count"])}
    match = _TIMINGS.search(line)
    return _read_figures(match["figures"]) if match else {}


def _strip_lines(text: str) -> Iterator[str]:
    """Yield complete lines without the prefixes of a log; a last line without an end is dropped."""
    for line in text.splitlines(keepends=True):
        bare_line = line[:_LONGEST_LINE].rstrip("\r\n")
        for _ in range(_MOST_BEFORE):
            bare_line = _BEFORE.sub("", bare_line, count=1)
        if line.endswith(("\n", "\r")) or _OBSERVED.match(bare_line.strip()):
            yield bare_line


def _find_section_start(line: str, at: _Section) -> _Section | None:
    """Return the section that a line begins; None for a line within one."""
    plain = line.strip()
    if plain.endswith(_INIT):
        return _Section(initialisation=True)
    if plain.endswith(_RUN):
        return _Section()
    if plain == _INNER:
        return at._replace(inner=True, graph=0)
    graph = _GRAPH.match(plain)
    return at._replace(inner=False, graph=int(graph["number"] or 0)) if graph else None


def _section_content(sections: dict[_Section, _Listed], at: _Section) -> _Listed:
    return sections.setdefault(at, _Listed([], {}))


def _row_pattern(heading: str, where: str) -> str:
    """Return the pattern of a row, built from the heading of its table."""
    commas = "[" not in heading
    names = heading.split(",") if commas else re.findall(r"\[([^\]]+)\]", heading)
    columns = [_COLUMNS.get(name.strip().lower()) for name in names]
    has_all_columns = {"kind", "ms", "share", "calls", "name"} <= set(columns) and len(set(columns)) == len(columns)
    if None in columns or not has_all_columns or columns[-1] != "name":
        raise TraceFormatError("a table has columns unknown to benchmark_model", where=where, hint="it was edited")
    between = r",\s*" if commas else r"\s+"
    # A kind ends behind a word, where no comma ends it: tried at each blank, a line of blanks takes time by its square.
    parts = {"kind": "(?P<kind>.*?)" if commas else r"(?P<kind>.*?)(?<!\s)", "name": "(?P<name>.*)"}
    percent = {"share", "cdf"}
    texts = [parts.get(str(column), f"(?P<{column}>{_NUMBER}){'%' if column in percent else ''}") for column in columns]
    return rf"{between.join(texts)}\Z"


def _read_row(pattern: str, line: str, where: str) -> tuple[BenchmarkRow, float]:
    """Read a row, its time from its milliseconds, and its share of the total in per cent."""
    match = re.match(pattern, line.lstrip())
    if match is None:
        raise TraceFormatError("a table row does not match its header", where=where, hint="it was truncated or edited")
    calls = max(1, int(float(match["calls"])))
    ns = round(float(match["ms"]) * 1e6) * calls
    # A comma in a name would end a column: in CSV a tab stands for it.
    name = match["name"].replace("\t", ",")
    return BenchmarkRow(match["kind"].strip(), name, ns, calls), float(match["share"])


def _read_figures(text: str) -> dict[str, float]:
    return {match["name"]: float(match["value"]) for match in _FIGURES.finditer(text)}


def _join_sections(
    sections: Mapping[_Section, _Listed], inference: float | None, calls: Mapping[str, float], path: Path
) -> BenchmarkReport:
    """Build the report of all sections. Raises TraceFormatError if a table is truncated."""
    run = {at: listed for at, listed in sections.items() if not at.initialisation}
    if problem := next(filter(None, map(_Listed.missing, run.values())), ""):
        raise TraceFormatError(f"the report is truncated: {problem}", where=path, hint=_TO_ITS_END)
    main = run.get(_Section(), _Listed([], {}))
    figure_names: Sequence[tuple[str, str]] = (("min", "shortest"), ("max", "longest"), ("std", "standard deviation"))
    texts = [f"{word} {calls[name] / 1e3:.3f} ms" for name, word in figure_names if name in calls]
    return BenchmarkReport(
        rows=_with_precise_times(main),
        inner=[row for at, listed in run.items() if at.inner for row in _with_precise_times(listed)],
        runs=int(main.total.get("count", 0)),
        inference_ns=None if inference is None else round(inference * 1e3),
        spread=", ".join(texts),
        further_graphs=sum(at.graph > 0 for at in run),
        cut=any("observed" not in listed.total for listed in run.values()),
    )


def _with_precise_times(listed: _Listed) -> list[BenchmarkRow]:
    """Return rows whose times are computed from their shares, if the total is known."""
    total = listed.total.get("avg")
    if total is None:
        return [row for row, _ in listed.rows]
    return [row._replace(ns=round(share * total * 10)) for row, share in listed.rows]
