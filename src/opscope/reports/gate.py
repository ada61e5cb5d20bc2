"""The decision of a gate on a terminal and in Markdown: the verdict in one sentence, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from opscope.analysis.findings.message import note
from opscope.analysis.gate.gate import DESIGN, Outcome, Quantity
from opscope.core.outputs import marked_markdown
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, milliseconds, share_text, time_text
from opscope.reports.content.content import speedup_text
from opscope.reports.document.blocks import verdict_text
from opscope.reports.document.console import NameCell, Text
from opscope.reports.document.messages import quality_sentence
from opscope.reports.document.terminal import message_lines, plain_table, quality_text
from opscope.reports.document.text import markdown, markdown_table, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from opscope.analysis.compare.compare import OperatorChange
    from opscope.analysis.gate.gate import Criterion, GateReport

_MOST_ROWS = 8
_MOST_MARKDOWN_ROWS = 20
_LEAST_LOSS = 0.005
"""Part of the latency that an operator lost at least, to be listed in a comment."""
_NAME = 40
_LONG = 600
_HEAD = ("criterion", "measured", "95 % interval", "limit", "outcome", "why")
_RIGHT = {"measured", "limit"}
_CHANGES = {Verdict.SLOWER: "slower", Verdict.FASTER: "faster"}
_OPERATOR_HEAD = ("operator", "layer", "baseline ms", "candidate ms", "lost ms", "95 % interval", "verdict")


def gate_sentence(report: GateReport) -> str:
    """The verdict in one sentence: outcome, speed, slowdown with its interval, threshold."""
    word = f"{report.outcome.value}{_where(report)}{' (allowed to pass)' if _excused(report) else ''}"
    interval = interval_text(Quantity.SLOWDOWN, report.ci95_slowdown)
    speed = f"{time_text(report.end_to_end.candidate_ns)}, {speedup_text(report.end_to_end)} as fast"
    if report.slowdown is None:
        latency = time_text(report.end_to_end.candidate_ns)
        return f"{word}: {latency}, no ratio to the baseline: {report.end_to_end.reason}"
    return (
        f"{word}: {speed} as the baseline, slowdown {slowdown_text(report.slowdown)} {interval}, "
        f"threshold {share_text(report.threshold)}"
    )


def failing(report: GateReport) -> list[Criterion]:
    """Criteria that decide an outcome other than a pass, in their order."""
    return [c for c in report.criteria if c.outcome is report.outcome and c.outcome is not Outcome.PASSED]


def gate_summary(report: GateReport) -> RenderableType:
    """What a person reads after `opscope check`."""
    parts: list[RenderableType] = [Text(gate_sentence(report), style="bold")]
    sides = ((report.baseline, report.end_to_end.baseline_ns), (report.candidate, report.end_to_end.candidate_ns))
    for name, (side, latency) in zip(("baseline", "candidate"), sides, strict=True):
        parts.append(Text(f"{name:<10} {time_text(latency):>10}  {plain(side.path, 200)}"))
    told = failing(report) or report.criteria[:1]
    parts += [Text(f"{c.outcome.value}: {plain(c.name, _NAME)}: {c.reason}") for c in told]
    if report.advice:
        parts.append(Text(f"next: {report.advice}"))
    parts += quality_text(report.quality)
    if len(report.criteria) > 1:
        parts += [Text(), _criteria(report.criteria)]
    if report.slower:
        parts += [Text(), _slower(report.slower)]
    if report.unmatched:
        parts += [Text(), _unmatched(report.unmatched)]
    notes = [f"not comparable, forced: {problem}" for problem in report.mismatches] + report.notes
    return Group(*parts, *message_lines(map(note, notes)))


def gate_markdown(report: GateReport) -> str:
    """The decision for a comment on a pull request or the summary of a job."""
    sections = [
        f"## opscope check: {_answer(report)}\n",
        f"**{gate_sentence(report)}**\n",
        _sides(report),
        _criteria_section(report.criteria),
    ]
    if report.advice:
        sections.append(f"Next: {report.advice}.\n")
    if report.quality:
        sections.append(f"{markdown(quality_sentence(report.quality), _LONG)}.\n")
    sections += _slower_section(report)
    sections += _unmatched_section(report.unmatched)
    notes = [f"Not comparable, and compared anyway: {problem}" for problem in report.mismatches] + report.notes
    if notes:
        sections.append("\n".join(["### Notes\n", *(f"- {markdown(one, _LONG)}" for one in notes), ""]))
    return marked_markdown("\n".join(sections))


def value_text(quantity: Quantity, value: float | None) -> str:
    """A figure of a criterion in its unit."""
    if value is None:
        return "not known"
    if quantity is Quantity.TIME:
        return time_text(value)
    return slowdown_text(value) if quantity is Quantity.SLOWDOWN else share_text(value)


def limit_text(criterion: Criterion) -> str:
    """A limit in its unit; that of a slowdown without a sign."""
    limit = criterion.limit
    return time_text(limit) if criterion.quantity is Quantity.TIME else share_text(limit)


def interval_text(quantity: Quantity, interval: tuple[float, float] | None) -> str:
    """An interval in the unit of its criterion."""
    if interval is None:
        return "(no interval)"
    return f"[{value_text(quantity, interval[0])}, {value_text(quantity, interval[1])}]"


def slowdown_text(slowdown: float) -> str:
    """A slowdown with its sign: ``+3.1 %`` is slower, ``-0.4 %`` faster."""
    return f"{slowdown * 100:+.1f} %"


def _excused(report: GateReport) -> bool:
    return report.let_through and report.outcome is not Outcome.PASSED


def _where(report: GateReport) -> str:
    """What decides the outcome, when that is not end-to-end latency against the baseline."""
    found = failing(report)
    if not found or found[0] is report.criteria[0]:
        return ""
    return f" in {counted_text(len(found), 'limit')} of the budget"


def _answer(report: GateReport) -> str:
    """Whether it is slower, in one line: what is read of a comment among many."""
    name = markdown(report.model) if report.model else "the candidate"
    change = "(no ratio)" if report.slowdown is None else f"({slowdown_text(report.slowdown)})"
    word = f"{report.outcome.value}{' (allowed to pass)' if _excused(report) else ''}"
    if _where(report):
        keeps = "exceeds" if report.outcome is Outcome.REGRESSION else "may exceed"
        return f"{word}, {name} {keeps} {_where(report).removeprefix(' in ')} {change}"
    if report.outcome in {Outcome.INCONCLUSIVE, Outcome.UNTRUSTED}:
        return f"{word}, whether {name} is slower cannot be told {change}"
    return f"{word}, {name} is {_CHANGES.get(report.end_to_end.verdict, 'not slower')} {change}"


def _sides(report: GateReport) -> str:
    found = report.end_to_end
    baseline, candidate = _told_apart(report.baseline.path, report.candidate.path)
    rows = (
        ("baseline", baseline, found.baseline_ns, found.baseline_processes),
        ("candidate", candidate, found.candidate_ns, found.candidate_processes),
    )
    cells = ((name, markdown(path), time_text(ns), str(processes)) for name, path, ns, processes in rows)
    counted = "runs or processes" if found.design == DESIGN else "processes"
    head = ("side", "path", f"latency ({found.arm}, {found.design})", counted)
    return markdown_table(head, cells, right=head[2:])


def _told_apart(baseline: str, candidate: str) -> tuple[str, str]:
    """Two paths without the directories that they share: those of a job say nothing."""
    sides = baseline.split("/"), candidate.split("/")
    shortest = min(map(len, sides)) - 1
    shared = next((at for at in range(shortest) if sides[0][at] != sides[1][at]), shortest)
    return "/".join(sides[0][shared:]), "/".join(sides[1][shared:])


def _criterion_cells(criterion: Criterion) -> tuple[str, ...]:
    return (
        markdown(criterion.name),
        value_text(criterion.quantity, criterion.measured),
        interval_text(criterion.quantity, criterion.ci95),
        limit_text(criterion),
        f"**{criterion.outcome.value}**" if criterion.outcome is not Outcome.PASSED else criterion.outcome.value,
        markdown(criterion.reason, _LONG),
    )


def _criteria_section(criteria: Sequence[Criterion]) -> str:
    """All limits; of a single one the bold sentence has the figures, so that only the reason is left to say."""
    if len(criteria) == 1:
        return f"Why: {markdown(criteria[0].reason, _LONG)}.\n"
    return markdown_table(_HEAD, map(_criterion_cells, criteria), right=_RIGHT)


def _slower_section(report: GateReport) -> list[str]:
    least = _LEAST_LOSS * report.end_to_end.candidate_ns
    shown = [change for change in report.slower if -change.saved_ns >= least][:_MOST_MARKDOWN_ROWS]
    if not shown:
        return [f"No operator is shown to be slower by {share_text(_LEAST_LOSS)} of the latency or more.\n"]
    table = markdown_table(_OPERATOR_HEAD, map(_operator_cells, shown), right=_OPERATOR_HEAD[2:5])
    rest = report.slower[len(shown) :]
    more = [f"{len(rest)} more lost {time_text(-sum(c.saved_ns for c in rest))} together.\n"] if rest else []
    return ["### Operators that became slower, in traced runs\n", table, *more]


def _unmatched_section(unmatched: Sequence[OperatorChange]) -> list[str]:
    if not unmatched:
        return []
    shown = unmatched[:_MOST_ROWS]
    rows = ((markdown(c.name), markdown(c.module or ""), *_both_times(c)) for c in shown)
    table = markdown_table(_OPERATOR_HEAD[:4], rows, right=_OPERATOR_HEAD[2:4])
    rest = len(unmatched) - len(shown)
    more = [f"And {rest} that take less.\n"] if rest else []
    return ["### Operators that only one side has, in traced runs\n", table, *more]


def _both_times(change: OperatorChange) -> tuple[str, str]:
    """Its time on the baseline and on the candidate, in ms."""
    before, after = ("-" if ns is None else milliseconds(ns) for ns in (change.baseline_ns, change.candidate_ns))
    return before, after


def _operator_cells(change: OperatorChange) -> tuple[str, ...]:
    return (
        markdown(change.name),
        markdown(change.module or ""),
        *_both_times(change),
        milliseconds(-change.saved_ns),
        _lost_interval(change),
        verdict_text(change.verdict),
    )


def _lost_interval(change: OperatorChange) -> str:
    if change.ci95_saved_ns is None:
        return "(no interval)"
    low, high = change.ci95_saved_ns
    return f"[{milliseconds(-high)}, {milliseconds(-low)}]"


def _criteria(criteria: Sequence[Criterion]) -> Table:
    table = plain_table(*_HEAD[:-1], text={"criterion", "outcome"})
    for c in criteria:
        figures = value_text(c.quantity, c.measured), interval_text(c.quantity, c.ci95), limit_text(c)
        table.add_row(NameCell(c.name), *figures, c.outcome.value)
    return table


def _slower(slower: Sequence[OperatorChange]) -> Table:
    table = plain_table("slower operator", "baseline ms", "candidate ms", "lost ms")
    for change in slower[:_MOST_ROWS]:
        table.add_row(NameCell(change.name), *_both_times(change), milliseconds(-change.saved_ns))
    rest = slower[_MOST_ROWS:]
    if rest:
        table.add_row(f"{len(rest)} more", "", "", milliseconds(-sum(change.saved_ns for change in rest)))
    return table


def _unmatched(unmatched: Sequence[OperatorChange]) -> Table:
    table = plain_table("operator of one side", "baseline ms", "candidate ms")
    for change in unmatched[:_MOST_ROWS]:
        table.add_row(NameCell(change.name), *_both_times(change))
    rest = len(unmatched) - _MOST_ROWS
    if rest > 0:
        table.add_row(f"{rest} more", "", "")
    return table
