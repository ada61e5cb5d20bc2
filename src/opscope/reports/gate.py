"""A decision on a terminal and in Markdown: the verdict in one sentence, every limit, then what it rests on.

Each kind of evidence says in a :class:`GateText` what is its own; the writers are the same for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group

from opscope.analysis.findings.message import note
from opscope.analysis.gate.decision import Outcome, Quantity, failing
from opscope.analysis.gate.gate import DESIGN
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
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rich.console import RenderableType

    from opscope.analysis.compare.compare import OperatorChange
    from opscope.analysis.gate.decision import Criterion, Decision
    from opscope.analysis.gate.gate import ComparisonEvidence

_MOST_TOLD, _MOST_ROWS, _MOST_MARKDOWN_ROWS = 3, 8, 20
_LEAST_LOSS = 0.005
"""Part of the latency that an operator lost at least, to be listed."""
_NAME, _LONGEST_NAME, _LONG = 40, 200, 600
_HEAD = ("criterion", "measured", "95 % interval", "limit", "outcome", "why")
_RIGHT = {"measured", "limit"}
_CHANGES = {Verdict.SLOWER: "slower", Verdict.FASTER: "faster"}
_OPERATOR_HEAD = ("operator", "layer", "baseline ms", "candidate ms", "lost ms", "95 % interval", "verdict")


class GateTable(NamedTuple):
    """A table of what a decision rests on; cells are plain text."""

    title: str  # its heading; empty: it has none
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: Collection[str] = ()  # columns of figures
    names: Collection[str] = ()  # columns with names of any origin
    narrow: tuple[str, ...] = ()  # columns that a terminal has room for; empty: all
    lines: Sequence[str] = ()  # on a terminal, in place of the table
    more: str = ""  # what is said below it, as of rows that are left out


class GateText(NamedTuple):
    """What a kind of evidence says of its decision, to every writer."""

    answer: str  # in the heading, behind the outcome
    sentence: str  # all figures in one sentence, behind the outcome
    subject: str  # what was judged
    sections: Callable[[int], Sequence[GateTable]]  # the evidence, so many rows of each table at most
    sides: GateTable | None = None  # what was compared
    where: str = ""  # what decides the outcome, where that is not the first criterion
    properties: Mapping[str, str] = {}  # further figures, for programs that read JUnit
    # longer words for the reason of a criterion, by its name; lines behind the first one are details
    reasons: Mapping[str, str] = {}
    notes: Sequence[str] = ()  # beside those of the decision
    problem: str = ""  # why it is not a pass, where the first criterion that decides does not say it all


def gate_sentence(decision: Decision[Any], text: GateText) -> str:
    """The verdict in one sentence: the outcome, and the figures that it rests on."""
    return f"{_word(decision, text.where)}: {text.sentence}"


def gate_notes(decision: Decision[Any], text: GateText) -> list[str]:
    """What limits the meaning of the figures, each as one sentence."""
    forced = [f"not comparable, and compared anyway: {one}" for one in decision.mismatches]
    return [*forced, *decision.notes, *text.notes]


def gate_summary(decision: Decision[Any], text: GateText) -> RenderableType:
    """What a person reads after a gate."""
    parts: list[RenderableType] = [Text(gate_sentence(decision, text), style="bold")]
    parts += _terminal(text.sides) if text.sides else []
    criteria = decision.criteria
    deciding = failing(decision) or (criteria if len(criteria) == 1 else [])
    parts += [Text(f"{c.outcome.value}: {plain(c.name, _NAME)}: {reason(c, text)}") for c in deciding[:_MOST_TOLD]]
    parts += [Text(f"next: {decision.advice}")] if decision.advice else []
    parts += quality_text(decision.quality)
    if len(criteria) > 1:
        parts += [Text(), *_terminal(criteria_section(decision, text, _MOST_ROWS))]
    for section in text.sections(_MOST_ROWS):
        parts += [Text(), *_terminal(section)] if section.rows else []
    return Group(*parts, *message_lines(map(note, gate_notes(decision, text))))


def gate_markdown(decision: Decision[Any], text: GateText) -> str:
    """The decision for a comment on a pull request, a mail or the summary of a job."""
    parts = [f"## opscope check: {_word(decision)}, {text.answer}\n", f"**{gate_sentence(decision, text)}**\n"]
    parts += _markdown(text.sides) if text.sides else []
    if len(decision.criteria) == 1:
        # The bold sentence has the figures, so that only the reason is left to say.
        parts.append(f"Why: {markdown(reason(decision.criteria[0], text), _LONG)}.\n")
    else:
        parts += _markdown(criteria_section(decision, text, _MOST_MARKDOWN_ROWS))
    parts += [f"Next: {decision.advice}.\n"] if decision.advice else []
    parts += [f"{markdown(quality_sentence(decision.quality), _LONG)}.\n"] if decision.quality else []
    for section in text.sections(_MOST_MARKDOWN_ROWS):
        parts += _markdown(section)
    notes = gate_notes(decision, text)
    if notes:
        parts.append("\n".join(["### Notes\n", *(f"- {markdown(one, _LONG)}" for one in notes), ""]))
    return marked_markdown("\n".join(parts))


def reason(criterion: Criterion, text: GateText) -> str:
    """Why a criterion has its outcome, in one line."""
    return text.reasons.get(criterion.name, criterion.reason).partition("\n")[0]


def criteria_section(decision: Decision[Any], text: GateText, most: int) -> GateTable:
    """Every limit, those that decide first where some are left out."""
    criteria = decision.criteria
    first = failing(decision)
    shown = criteria if len(criteria) <= most else [*first, *(c for c in criteria if c not in first)][:most]
    rest = len(criteria) - len(shown)
    rows = [(*criterion_cells(one), reason(one, text)) for one in shown]
    more = f"And {rest} more." if rest else ""
    return GateTable("", _HEAD, rows, _RIGHT, {"criterion", "why"}, _HEAD[:-1], more=more)


def criterion_cells(criterion: Criterion) -> tuple[str, str, str, str, str]:
    """Name, figures and outcome of a limit."""
    figures = value_text(criterion.quantity, criterion.measured), interval_text(criterion.quantity, criterion.ci95)
    return (criterion.name, *figures, limit_text(criterion), criterion.outcome.value)


def value_text(quantity: Quantity, value: float | None) -> str:
    """A figure of a criterion in its unit."""
    if value is None:
        return "not known"
    if quantity is Quantity.TIME:
        return time_text(value)
    if quantity is Quantity.COUNT:
        return f"{value:,.0f}"
    return slowdown_text(value) if quantity is Quantity.SLOWDOWN else share_text(value)


def limit_text(criterion: Criterion) -> str:
    """A limit in its unit; that of a slowdown without a sign."""
    slowdown = criterion.quantity is Quantity.SLOWDOWN
    return value_text(Quantity.SHARE if slowdown else criterion.quantity, criterion.limit)


def interval_text(quantity: Quantity, interval: tuple[float, float] | None) -> str:
    """An interval in the unit of its criterion."""
    if interval is None:
        return "(no interval)"
    return f"[{value_text(quantity, interval[0])}, {value_text(quantity, interval[1])}]"


def slowdown_text(slowdown: float) -> str:
    """A slowdown with its sign: ``+3.1 %`` is slower, ``-0.4 %`` faster."""
    return f"{slowdown * 100:+.1f} %"


def slowdown_answer(decision: Decision[Any], name: str, where: str = "") -> str:
    """Whether a candidate is slower, in one line: what is read of a comment among many."""
    first = decision.criteria[0]
    change = "(no ratio)" if first.measured is None else f"({slowdown_text(first.measured)})"
    if where:
        keeps = "exceeds" if decision.outcome is Outcome.REGRESSION else "may exceed"
        return f"{name} {keeps} {where} {change}"
    if decision.outcome in {Outcome.INCONCLUSIVE, Outcome.UNTRUSTED}:
        return f"whether {name} is slower cannot be told {change}"
    return f"{name} is {_CHANGES.get(first.verdict or Verdict.NO_DIFFERENCE, 'not slower')} {change}"


def comparison_text(decision: Decision[ComparisonEvidence]) -> GateText:
    """What a decision on two sides, or on a run and its history, says."""
    found, first = decision.evidence, decision.criteria[0]
    name = markdown(found.model) if found.model else "the candidate"
    failed = failing(decision)
    where = f"{counted_text(len(failed), 'limit')} of the budget" if failed and failed[0] is not first else ""
    grade = decision.quality.grade.value if decision.quality else "not judged"
    return GateText(
        answer=slowdown_answer(decision, name, where),
        sentence=_comparison_sentence(found, first),
        subject=found.model or found.candidate.label,
        sections=lambda most: [_slower_section(found, most), *_unmatched_sections(found.unmatched)],
        sides=_sides(found),
        where=f" in {where}" if where else "",
        properties={
            "baseline": found.baseline.path,
            "candidate": found.candidate.path,
            "threshold": f"{first.limit:g}",
            "slowdown": "withheld" if first.measured is None else f"{first.measured:.6g}",
            "design": found.end_to_end.design,
            "arm": found.end_to_end.arm,
            "grade": grade,
        },
    )


def _word(decision: Decision[Any], where: str = "") -> str:
    """The outcome, and whether it passes all the same."""
    excused = decision.let_through and decision.outcome is not Outcome.PASSED
    return f"{decision.outcome.value}{where}{' (allowed to pass)' if excused else ''}"


def _terminal(section: GateTable) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(section.title, style="bold")] if section.title else []
    if section.lines:
        parts += map(Text, section.lines)
    elif section.rows:
        shown = section.narrow or section.head
        at = [section.head.index(column) for column in shown]
        table = plain_table(*shown, text={column for column in shown if column not in section.right})
        for row in section.rows:
            table.add_row(*(NameCell(row[n]) if section.head[n] in section.names else row[n] for n in at))
        parts.append(table)
    return [*parts, *([Text(section.more)] if section.more else [])]


def _markdown(section: GateTable) -> list[str]:
    rows = ([_cell(section, *pair) for pair in zip(section.head, row, strict=True)] for row in section.rows)
    table = markdown_table(section.head, rows, right=section.right) if section.rows else ""
    return [
        part
        for part in (section.title and f"### {section.title}\n", table, section.more and f"{section.more}\n")
        if part
    ]


def _cell(section: GateTable, column: str, text: str) -> str:
    if column in section.names:
        return markdown(text, _LONG if column == "why" else _LONGEST_NAME)
    return f"**{text}**" if column == "outcome" and text != Outcome.PASSED.value else text


def _comparison_sentence(found: ComparisonEvidence, first: Criterion) -> str:
    latency = time_text(found.end_to_end.candidate_ns)
    if first.measured is None:
        return f"{latency}, no ratio to the baseline: {found.end_to_end.reason}"
    slowdown = f"{slowdown_text(first.measured)} {interval_text(Quantity.SLOWDOWN, first.ci95)}"
    speed = f"{latency}, {speedup_text(found.end_to_end)} as fast as the baseline"
    return f"{speed}, slowdown {slowdown}, threshold {share_text(first.limit)}"


def _sides(evidence: ComparisonEvidence) -> GateTable:
    found, sides = evidence.end_to_end, (evidence.baseline, evidence.candidate)
    paths = _told_apart(*(side.path for side in sides))
    counted = "runs or processes" if found.design == DESIGN else "processes"
    head = ("side", "path", f"latency ({found.arm}, {found.design})", counted)
    times = [time_text(ns) for ns in (found.baseline_ns, found.candidate_ns)]
    counts = map(str, (found.baseline_processes, found.candidate_processes))
    names = ("baseline", "candidate")
    lines = [
        f"{name:<10} {time:>10}  {plain(side.path, 200)}" for name, time, side in zip(names, times, sides, strict=True)
    ]
    return GateTable("", head, list(zip(names, paths, times, counts, strict=True)), head[2:], {"path"}, lines=lines)


def _told_apart(baseline: str, candidate: str) -> tuple[str, str]:
    """Two paths without the directories that they share: those of a job say nothing."""
    sides = baseline.split("/"), candidate.split("/")
    shortest = min(map(len, sides)) - 1
    shared = next((at for at in range(shortest) if sides[0][at] != sides[1][at]), shortest)
    return "/".join(sides[0][shared:]), "/".join(sides[1][shared:])


def _slower_section(found: ComparisonEvidence, most: int) -> GateTable:
    least = _LEAST_LOSS * found.end_to_end.candidate_ns
    shown = [change for change in found.slower if -change.saved_ns >= least][:most]
    if not shown:
        nothing = f"No operator is shown to be slower by {share_text(_LEAST_LOSS)} of the latency or more."
        return GateTable("", _OPERATOR_HEAD, [], more=nothing)
    rest = found.slower[len(shown) :]
    more = f"{len(rest)} more lost {time_text(-sum(c.saved_ns for c in rest))} together." if rest else ""
    narrow = (_OPERATOR_HEAD[0], *_OPERATOR_HEAD[2:5])
    return GateTable(
        "Operators that became slower, in traced runs",
        _OPERATOR_HEAD,
        [_operator_cells(change) for change in shown],
        _OPERATOR_HEAD[2:5],
        _OPERATOR_HEAD[:2],
        narrow,
        more=more,
    )


def _unmatched_sections(unmatched: Sequence[OperatorChange]) -> list[GateTable]:
    if not unmatched:
        return []
    head, rest = _OPERATOR_HEAD[:4], len(unmatched) - _MOST_ROWS
    rows = [(c.name, c.module or "", *_both_times(c)) for c in unmatched[:_MOST_ROWS]]
    more = f"And {rest} that take less." if rest > 0 else ""
    title = "Operators that only one side has, in traced runs"
    return [GateTable(title, head, rows, head[2:], head[:2], (head[0], *head[2:]), more=more)]


def _both_times(change: OperatorChange) -> tuple[str, str]:
    """Its time on the baseline and on the candidate, in ms."""
    before, after = ("-" if ns is None else milliseconds(ns) for ns in (change.baseline_ns, change.candidate_ns))
    return before, after


def _operator_cells(change: OperatorChange) -> tuple[str, ...]:
    lost, interval = milliseconds(-change.saved_ns), _lost_interval(change)
    return (change.name, change.module or "", *_both_times(change), lost, interval, verdict_text(change.verdict))


def _lost_interval(change: OperatorChange) -> str:
    if change.ci95_saved_ns is None:
        return "(no interval)"
    low, high = change.ci95_saved_ns
    return f"[{milliseconds(-high)}, {milliseconds(-low)}]"
