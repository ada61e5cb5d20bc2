"""Decision of a gate on a terminal and in Markdown: the verdict in a sentence, every limit, then the evidence.

Each kind of evidence puts its own words into a :class:`GateText`; the writers are shared.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.analysis.gate.decision import Outcome, Quantity, failing_criteria
from opscope.analysis.gate.gate import DESIGN
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, interval_text, milliseconds, share_text, signed_share_text, time_text
from opscope.reports.content.content import NO_COUNTERPART, speedup_text
from opscope.reports.document.blocks import (
    Block,
    Bullets,
    Document,
    Format,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    table,
    words_table,
)
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.messages import COMPARISON, quality_sentence
from opscope.reports.document.terminal import terminal_document
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

    from opscope.analysis.compare.compare import EndToEnd, OperatorChange
    from opscope.analysis.gate.decision import Criterion, Decision
    from opscope.analysis.gate.gate import ComparisonEvidence
    from opscope.reports.document.blocks import TableBlock, TableColumn

_MOST_TOLD, _MOST_ROWS, _MOST_MARKDOWN_ROWS = 3, 8, 20
LEAST_LOSS = 0.005
"""Smallest loss of an operator that is listed, as a share of the latency."""
_NAME = 60
_RATIOS = (Quantity.SLOWDOWN, Quantity.WORK)
_NOTES = 2
"""Notes that a terminal shows."""
_CHANGES = {Verdict.SLOWER: "slower", Verdict.FASTER: "faster"}


class GateText(NamedTuple):
    """Words of one kind of evidence for its decision, for every writer."""

    answer: str  # answer in the heading, behind the outcome
    sentence: str  # all figures in one sentence, behind the outcome
    subject: str  # what was judged
    sections: Callable[[int], Sequence[Section]]  # the evidence, so many rows of each table at most
    sides: TableBlock | None = None  # what was compared
    where: str = ""  # what decides the outcome, where that is not the first criterion
    properties: Mapping[str, str] = {}  # further figures, for programs that read JUnit
    # longer reasons of criteria, by name; lines after the first are details
    reasons: Mapping[str, str] = {}
    notes: Sequence[str] = ()  # beside those of the decision
    problem: str = ""  # why it is not a pass, where the first criterion that decides does not say it all


def gate_sentence(decision: Decision[Any], text: GateText) -> str:
    """Return the verdict in one sentence: the outcome, and the figures that it rests on."""
    return f"{_outcome_text(decision, text.where)}: {text.sentence}"


def gate_notes(decision: Decision[Any], text: GateText) -> list[str]:
    """Return what limits the meaning of the figures, one sentence each."""
    forced = [f"not comparable, but compared anyway: {mismatch}" for mismatch in decision.mismatches]
    return [*forced, *decision.notes, *text.notes]


def gate_summary(decision: Decision[Any], text: GateText) -> RenderableType:
    """Return the decision for a terminal."""
    return terminal_document(gate_document(decision, text, _MOST_ROWS)._replace(heading=""))


def gate_markdown(decision: Decision[Any], text: GateText) -> str:
    """Return the decision in Markdown for a pull request, a mail or the summary of a job."""
    return markdown_document(gate_document(decision, text, _MOST_MARKDOWN_ROWS), level=2)


def gate_document(decision: Decision[Any], text: GateText, most: int) -> Document:
    """Return the verdict, every limit and the evidence; each table has at most ``most`` rows."""
    criteria = decision.criteria
    deciding = failing_criteria(decision) or (criteria if len(criteria) == 1 else [])
    notes = gate_notes(decision, text)
    blocks: list[Block] = [
        *([text.sides] if text.sides else []),
        Bullets(
            [
                f"{criterion.outcome.value}: {plain(criterion.name, _NAME)}: {reason(criterion, text)}"
                for criterion in deciding[:_MOST_TOLD]
            ]
        ),
        Sentence(f"Next: {decision.advice}." if decision.advice else ""),
        Sentence(
            f"{quality_sentence(decision.quality, [(COMPARISON, decision.quality)])}." if decision.quality else ""
        ),
        *criteria_blocks(decision, text, most),
        *text.sections(most),
        Section("Notes", [Bullets(notes[:_NOTES]), Bullets(notes[_NOTES:], wide=True)]),
    ]
    return Document(
        title="opscope check",
        heading=f"opscope check: {_outcome_text(decision)}, {text.answer}",
        answer=gate_sentence(decision, text),
        blocks=blocks,
        sections=[],
    )


def reason(criterion: Criterion, text: GateText) -> str:
    """Return why a criterion has its outcome, in one line."""
    return text.reasons.get(criterion.name, criterion.reason).partition("\n")[0]


def criteria_blocks(decision: Decision[Any], text: GateText, most: int) -> list[Block]:
    """Return a table of the limits, failing ones first if some are left out; empty for a single limit."""
    criteria = decision.criteria
    if len(criteria) == 1:
        return []
    first = failing_criteria(decision)
    listed = (
        criteria
        if len(criteria) <= most
        else [*first, *(criterion for criterion in criteria if criterion not in first)][:most]
    )
    rest = len(criteria) - len(listed)
    return [criteria_table(listed, text), Sentence(f"And {rest} more." if rest else "")]


def criteria_table(criteria: Sequence[Criterion], text: GateText) -> TableBlock:
    """Return a table of limits with the measured values."""
    return table(
        criteria,
        column("criterion", Format.NAME, lambda criterion: criterion.name),
        column("measured", Format.FIGURE, lambda criterion: value_text(criterion.quantity, criterion.measured)),
        column("95 % interval", Format.TEXT, lambda criterion: criterion_interval(criterion.quantity, criterion.ci95)),
        column("limit", Format.FIGURE, limit_text),
        column(
            "outcome", Format.TEXT, lambda criterion: TableCell(criterion.outcome.value, tone=_outcome_tone(criterion))
        ),
        column("why", Format.TEXT, lambda criterion: reason(criterion, text), wide=True),
    )


def _outcome_tone(criterion: Criterion) -> Tone:
    return Tone.PLAIN if criterion.outcome is Outcome.PASSED else Tone.STRONG


def value_text(quantity: Quantity, value: float | None) -> str:
    """Return a value of a criterion in its unit."""
    if value is None:
        return "not known"
    if quantity is Quantity.TIME:
        return time_text(value)
    if quantity is Quantity.COUNT:
        return f"{value:,.0f}"
    return signed_share_text(value) if quantity in _RATIOS else share_text(value)


def limit_text(criterion: Criterion) -> str:
    """Return a limit in its unit; a limit of a change has no sign."""
    is_ratio = criterion.quantity in _RATIOS
    return value_text(Quantity.SHARE if is_ratio else criterion.quantity, criterion.limit)


def measured_text(criterion: Criterion) -> str:
    """Return the measured value of a criterion, with its interval."""
    return (
        f"{value_text(criterion.quantity, criterion.measured)} {criterion_interval(criterion.quantity, criterion.ci95)}"
    )


def criterion_interval(quantity: Quantity, interval: tuple[float, float] | None) -> str:
    """Return an interval in the unit of its criterion."""
    if interval is None:
        return "exact" if quantity is Quantity.WORK else "(no interval)"
    return interval_text(interval, partial(value_text, quantity))


def slowdown_answer(decision: Decision[Any], name: str, budget: str = "") -> str:
    """Return whether a candidate is slower, in one line, to be read among many comments."""
    latency = latency_criteria(decision)
    listed = [criterion for criterion in failing_criteria(decision) if criterion in latency] or latency
    verdicts = {criterion.verdict for criterion in listed}
    furthest = min if verdicts == {Verdict.FASTER} else max
    first = furthest(listed, key=lambda criterion: criterion.measured or 0.0)
    several, method_text = len(listed) > 1, f" in {plain(first.method, _NAME)}" if first.method else ""
    change = "no ratio" if first.measured is None else signed_share_text(first.measured)
    change = f"(up to {change})" if several else f"({change})"
    if budget:
        keeps = "exceeds" if decision.outcome is Outcome.REGRESSION else "may exceed"
        return f"{name} {keeps} {budget} {change}"
    method_text = f" in {len(listed)} methods" if several else method_text
    if decision.outcome in {Outcome.INCONCLUSIVE, Outcome.UNTRUSTED}:
        return f"cannot tell whether {name} is slower{method_text} {change}"
    words = _CHANGES.get(first.verdict or Verdict.NO_DIFFERENCE, "not slower") if len(verdicts) == 1 else "not slower"
    return f"{name} is {words}{method_text} {change}"


def comparison_text(decision: Decision[ComparisonEvidence]) -> GateText:
    """Return the words for a decision on two sides, or on a run and its history."""
    evidence, latency = decision.evidence, latency_criteria(decision)
    name = evidence.model or "the candidate"
    failed = failing_criteria(decision)
    budget = f"{counted_text(len(failed), 'limit')} of the budget" if failed and failed[0] not in latency else ""
    grade = decision.quality.grade.value if decision.quality else "not judged"
    return GateText(
        answer=slowdown_answer(decision, name, budget),
        sentence="; ".join(
            _comparison_sentence(evidence.verdicts.get(criterion.method or ""), criterion) for criterion in latency
        ),
        subject=evidence.model or evidence.candidate.label,
        sections=lambda most: [_slower_section(evidence, most), *_unmatched_sections(evidence.unmatched)],
        sides=_sides_table(evidence),
        where=f" in {budget}" if budget else "",
        properties={
            "baseline": evidence.baseline.path,
            "candidate": evidence.candidate.path,
            **_properties_by_method("threshold", {criterion.method: f"{criterion.limit:g}" for criterion in latency}),
            **_properties_by_method("slowdown", {criterion.method: _slowdown_text(criterion) for criterion in latency}),
            "design": evidence.end_to_end.design,
            "arm": evidence.end_to_end.arm,
            "grade": grade,
        },
    )


def latency_criteria(decision: Decision[Any]) -> list[Criterion]:
    """Return the latency limits that a gate has without a budget file: of all calls, or by method."""
    first, *rest = decision.criteria
    return [first, *(criterion for criterion in rest if criterion.method and criterion.quantity is Quantity.SLOWDOWN)]


def _properties_by_method(name: str, figures: Mapping[str | None, str]) -> dict[str, str]:
    """Return figures as properties, whose names contain the method if there are several."""
    return {f"{name} of {plain(method)}" if method else name: text for method, text in figures.items()}


def _slowdown_text(criterion: Criterion) -> str:
    return "withheld" if criterion.measured is None else f"{criterion.measured:.6g}"


def _outcome_text(decision: Decision[Any], where: str = "") -> str:
    """Return the outcome, and whether it may pass although it failed."""
    excused = decision.let_through and decision.outcome is not Outcome.PASSED
    return f"{decision.outcome.value}{where}{' (allowed to pass)' if excused else ''}"


def _comparison_sentence(end_to_end: EndToEnd | None, criterion: Criterion) -> str:
    prefix = f"{plain(criterion.method, _NAME)} " if criterion.method else ""
    if end_to_end is None:
        return f"{prefix}{time_text(criterion.candidate_ns or 0.0)}, not judged: {criterion.reason}"
    latency = f"{prefix}{time_text(end_to_end.candidate_ns)}"
    if criterion.measured is None:
        return f"{latency}, no ratio to the baseline: {end_to_end.reason}"
    speed = f"{latency}, speedup {speedup_text(end_to_end)}"
    if criterion.method:
        return speed  # the table of criteria has the rest of it
    return f"{speed}, slowdown {measured_text(criterion)}, threshold {share_text(criterion.limit)}"


def _sides_table(evidence: ComparisonEvidence) -> TableBlock:
    end_to_end, sides = evidence.end_to_end, (evidence.baseline, evidence.candidate)
    paths = _strip_shared_directories(*(side.path for side in sides))
    counted = "runs or processes" if end_to_end.design == DESIGN else "processes"
    head = ("side", "path", f"latency ({end_to_end.arm}, {end_to_end.design})", counted)
    ends = evidence.verdicts.values()
    times = [
        " / ".join(time_text(end.baseline_ns) for end in ends),
        " / ".join(time_text(end.candidate_ns) for end in ends),
    ]
    counts = map(str, (end_to_end.baseline_processes, end_to_end.candidate_processes))
    return words_table(head, zip(("baseline", "candidate"), paths, times, counts, strict=True), texts=2)


def _strip_shared_directories(baseline: str, candidate: str) -> tuple[str, str]:
    """Return two paths without the directories that they share: a job's directories mean nothing."""
    sides = baseline.split("/"), candidate.split("/")
    shortest = min(map(len, sides)) - 1
    shared = next((at for at in range(shortest) if sides[0][at] != sides[1][at]), shortest)
    return "/".join(sides[0][shared:]), "/".join(sides[1][shared:])


def _slower_section(evidence: ComparisonEvidence, most: int) -> Section:
    least = LEAST_LOSS * evidence.end_to_end.candidate_ns
    listed = [change for change in evidence.slower if -change.saved_ns >= least][:most]
    if not listed:
        nothing = f"No operator is detectably slower by {share_text(LEAST_LOSS)} of the latency or more."
        return Section("Operators that became slower", [Sentence(nothing, wide=True)])
    rest = evidence.slower[len(listed) :]
    more = f"{len(rest)} more lost {time_text(-sum(change.saved_ns for change in rest))} together." if rest else ""
    rows = table(
        listed,
        *_side_columns(),
        column("lost ms", Format.MS, lambda change: -change.saved_ns),
        column("95 % interval", Format.TEXT, _lost_interval, wide=True),
        column("verdict", Format.VERDICT, lambda change: change.verdict, wide=True),
    )
    return Section("Operators that became slower, in traced runs", [rows, Sentence(more)])


def _side_columns() -> tuple[TableColumn, ...]:
    return (
        column("operator", Format.NAME, lambda change: change.name),
        column("layer", Format.NAME, lambda change: change.module, wide=True),
        column("baseline ms", Format.MS, lambda change: change.baseline_ns, absent=NO_COUNTERPART),
        column("candidate ms", Format.MS, lambda change: change.candidate_ns, absent=NO_COUNTERPART),
    )


def _unmatched_sections(unmatched: Sequence[OperatorChange]) -> list[Section]:
    if not unmatched:
        return []
    rest = len(unmatched) - _MOST_ROWS
    more = f"And {rest} smaller ones." if rest > 0 else ""
    rows = table(unmatched[:_MOST_ROWS], *_side_columns())
    return [Section("Operators that only one side has, in traced runs", [rows, Sentence(more)])]


def _lost_interval(change: OperatorChange) -> str:
    if change.ci95_saved_ns is None:
        return "(no interval)"
    low, high = change.ci95_saved_ns
    return interval_text((-high, -low), milliseconds)
