"""Two sides of AI Engine traces, and the decision of a gate over them, on a terminal, in Markdown and as JUnit XML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from opscope.analysis.findings.message import note
from opscope.analysis.gate.gate import Outcome
from opscope.core.units import counted_text, rate_text, ratio_text, share_text
from opscope.reports.content.content import verdict_text
from opscope.reports.content.text import markdown, plain
from opscope.reports.formats.junit import Case, junit_document
from opscope.reports.gate import slowdown_text
from opscope.reports.terminal import message_lines, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from opscope.npu.analysis.compare import FigureChange, TilesComparison, TilesSide
    from opscope.npu.analysis.gate import TilesGate

_NAME = 40
_LONG = 600
_HEAD = ("figure", "baseline", "candidate", "change", "95 % interval", "verdict")


def tiles_comparison_summary(comparison: TilesComparison) -> RenderableType:
    """What a person reads after `opscope compare` of traces of tiles."""
    found = comparison.overall
    notes = message_lines(map(note, comparison.notes))
    return Group(
        *(Text(_side(*side)) for side in _sides(comparison, found)),
        Text(comparison_sentence(comparison), style="bold"),
        Text(),
        _table([row for row in _rows(comparison) if row is not found]),
        *notes,
    )


def comparison_sentence(comparison: TilesComparison) -> str:
    """The verdict with its ratio, interval, and what it rests on."""
    found = comparison.overall
    interval = f"[{ratio_text(found.ci95[0])}, {ratio_text(found.ci95[1])}]" if found.ci95 else "no interval"
    words = verdict_text(found.verdict)
    if found.verdict.value == "undecidable":
        words = f"{words}: too few traces"
    elif found.verdict.value == "no_difference" and found.minimum_detectable is not None:
        words = f"{words}; changes below {share_text(found.minimum_detectable)} cannot be seen"
    else:
        words = f"candidate {words}"
    return f"speedup {ratio_text(found.ratio or 1.0)} {interval} by {found.name}: {words}"


def value_text(value: float | None, unit: str) -> str:
    """A figure in its unit."""
    if value is None:
        return "-"
    if unit == "share":
        return share_text(value)
    return f"{value:,.0f}" if unit == "cycles" else rate_text(value)


def _sides(found: TilesComparison | TilesGate, figure: FigureChange) -> tuple[tuple[str, TilesSide, float | None], ...]:
    return ("baseline", found.baseline, figure.baseline), ("candidate", found.candidate, figure.candidate)


def _side(name: str, side: TilesSide, value: float | None) -> str:
    traces = counted_text(side.traces, "trace")
    return f"{name:<10} {value_text(value, 'cycles'):>12} cycles  {plain(side.label, 40)}, {traces}"


def _rows(comparison: TilesComparison) -> list[FigureChange]:
    period = [comparison.period] if comparison.period and comparison.period.name != comparison.overall.name else []
    return [*period, *comparison.kinds, *comparison.stalls, *comparison.rates]


def _cells(row: FigureChange) -> tuple[str, str, str, str, str, str]:
    """Change of shares in points, else as a ratio."""
    values = value_text(row.baseline, row.unit), value_text(row.candidate, row.unit)
    if row.unit == "share":
        change = "-" if row.change is None else f"{_points(row.change)} points"
        interval = "" if row.ci95 is None else f"[{_points(row.ci95[0])}, {_points(row.ci95[1])}]"
    else:
        change = "-" if row.ratio is None else ratio_text(row.ratio)
        interval = "" if row.ci95 is None else f"[{ratio_text(row.ci95[0])}, {ratio_text(row.ci95[1])}]"
    return (row.name, *values, change, interval, verdict_text(row.verdict))


def _points(share: float) -> str:
    return f"{round(share * 100, 1) + 0.0:+.1f}"


def _table(rows: list[FigureChange]) -> Table:
    table = plain_table(*_HEAD, text={"figure", "verdict"})
    for row in rows:
        name, *cells = _cells(row)
        table.add_row(plain(name, _NAME), *cells)
    return table


def tiles_gate_sentence(report: TilesGate) -> str:
    """The verdict in one sentence: outcome, slowdown with its interval, threshold, what it rests on."""
    low, high = report.ci95_slowdown or (0.0, 0.0)
    interval = f"[{slowdown_text(low)}, {slowdown_text(high)}]" if report.ci95_slowdown else "(no interval)"
    excused = " (let through)" if report.let_through and report.outcome is not Outcome.PASSED else ""
    return (
        f"{report.outcome.value}{excused}: slowdown {slowdown_text(report.slowdown)} {interval} by "
        f"{report.figure.name}, threshold {share_text(report.threshold)}"
    )


def tiles_gate_summary(report: TilesGate) -> RenderableType:
    """What a person reads after `opscope check` of traces of tiles."""
    parts: list[RenderableType] = [Text(tiles_gate_sentence(report), style="bold")]
    parts += [Text(_side(*side)) for side in _sides(report, report.figure)]
    parts.append(Text(f"{report.outcome.value}: {report.reason}"))
    if report.advice:
        parts.append(Text(f"next: {report.advice}"))
    if report.slower:
        parts += [Text(), _table(report.slower)]
    return Group(*parts, *message_lines(map(note, _notes(report))))


def tiles_gate_markdown(report: TilesGate) -> str:
    """The decision for a comment on a pull request or the summary of a job."""
    lines = [f"## opscope check: {report.outcome.value}", "", f"**{tiles_gate_sentence(report)}**", ""]
    lines += [f"| side | path | {report.figure.name} | traces |", "| --- | --- | ---: | ---: |"]
    lines += [
        f"| {name} | {markdown(side.path)} | {value_text(value, 'cycles')} | {side.traces} |"
        for name, side, value in _sides(report, report.figure)
    ]
    lines += ["", f"{report.reason[:1].upper()}{report.reason[1:]}.", ""]
    lines += [f"Next: {report.advice}.", ""] if report.advice else []
    if report.slower:
        lines += ["### What became worse", "", f"| {' | '.join(_HEAD)} |", "| --- | ---: | ---: | ---: | ---: | --- |"]
        lines += [f"| {' | '.join(map(markdown, _cells(row)))} |" for row in report.slower]
        lines.append("")
    notes = _notes(report)
    lines += ["### Notes", "", *(f"- {markdown(one, _LONG)}" for one in notes), ""] if notes else []
    return "\n".join(lines)


def tiles_junit(report: TilesGate) -> bytes:
    """The decision as JUnit XML; there is no time, since cycles are none."""
    figure = report.figure
    detail = f"{tiles_gate_sentence(report)}; {report.reason}"
    case = Case(report.candidate.label, figure.name, report.reason, detail, report.outcome, report.let_through)
    properties = {
        "outcome": report.outcome.value,
        "baseline": report.baseline.path,
        "candidate": report.candidate.path,
        "threshold": f"{report.threshold:g}",
        "slowdown": f"{report.slowdown:.6g}",
        "baseline_cycles": f"{figure.baseline or 0:.6g}",
        "candidate_cycles": f"{figure.candidate or 0:.6g}",
    }
    return junit_document([case], properties, [tiles_gate_sentence(report), *_notes(report)])


def _notes(report: TilesGate) -> list[str]:
    return [f"not comparable, forced: {problem}" for problem in report.mismatches] + report.notes
