"""What the decision on all series of a store says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.gate.decision import Outcome
from opscope.core.units import counted_text, share_text, signed_share_text, time_text
from opscope.fleet.analysis.gate import budget_name, model_name
from opscope.fleet.reports.words import cause_text, fact_text, subject_text
from opscope.reports.document.blocks import Bullets, Format, Section, Sentence, column, table
from opscope.reports.document.text import plain
from opscope.reports.gate import GateText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.fleet.analysis.gate import FleetEvidence, SlowerSeries, VanishedDevice
    from opscope.reports.document.blocks import TableBlock

_MOST_PARTS = 3


def fleet_text(decision: Decision[FleetEvidence]) -> GateText:
    """Return what a decision on all series of a store says: what changed, where, in which operators, since when."""
    evidence = decision.evidence
    answer, since = _answer(decision), f"since {evidence.since.removesuffix('T00:00:00')}"
    sentence = f"{answer}, {since}, threshold {share_text(evidence.threshold)}"
    return GateText(
        answer=answer,
        sentence=sentence,
        subject="fleet",
        sections=lambda most: _sections(evidence, most),
        properties={"since": evidence.since, "threshold": f"{evidence.threshold:g}", "store": evidence.store},
        reasons=_reasons(decision),
        notes=_notes(evidence),
        problem=sentence,
    )


def _answer(decision: Decision[FleetEvidence]) -> str:
    """Return how many series of how many are slower, and beyond an absolute limit."""
    evidence = decision.evidence
    if decision.outcome in {Outcome.INCONCLUSIVE, Outcome.UNTRUSTED}:
        return f"none of {evidence.series} series with a new run could be judged"
    count, alone = len(evidence.slower), sum(row.cause is None for row in evidence.slower)
    ways = f" ({alone} alone, {count - alone} with others)" if alone < count else ""
    beyond = sum(one.beyond for one in evidence.budgets)
    limits = f", {beyond} series beyond an absolute limit" if beyond else ""
    return f"{count or 'none'} of {evidence.judged} judged series slower{ways}{limits}"


def _reasons(decision: Decision[FleetEvidence]) -> dict[str, str]:
    """Return more words than a criterion has: the longest series of a limit, the slower series of a model."""
    evidence, reasons = decision.evidence, {one.name: one.reason for one in decision.criteria}
    longer = {}
    for limit in evidence.budgets:
        name, longest = budget_name(limit), f"{time_text(limit.worst_ns)}, {subject_text(limit.worst)}"
        longer[name] = f"{reasons[name]}; the longest is {longest}"
    for count in evidence.models:
        own = [f"{subject_text(row.subject)}: {_change_text(row)}" for row in evidence.slower]
        own = [text for text, row in zip(own, evidence.slower, strict=True) if row.subject.model == count.model]
        longer[model_name(count)] = "\n".join([reasons[model_name(count)], *own])
    return longer


def _sections(evidence: FleetEvidence, most: int) -> list[Section]:
    sections = []
    if evidence.causes:
        sections.append(Section("What changed together", [Bullets([f"{cause_text(one)}." for one in evidence.causes])]))
    if evidence.slower:
        rest = len(evidence.slower) - most
        more = f"And {rest} more; the JSON decision has all of them." if rest > 0 else ""
        sections.append(
            Section(f"Slower: {len(evidence.slower)}", [_slower_table(evidence.slower[:most]), Sentence(more)])
        )
    return sections


def _slower_table(rows: Sequence[SlowerSeries]) -> TableBlock:
    return table(
        rows,
        column("series", Format.TEXT, lambda row: subject_text(row.subject)),
        column("from", Format.TIME, lambda row: row.before_ns),
        column("to", Format.TIME, lambda row: row.after_ns),
        column("change", Format.TEXT, _change_text),
        column("since", Format.TEXT, lambda row: f"{row.first.placed[:10]} ({row.first.bundle[:12]})"),
        column("before", Format.TEXT, lambda row: row.before.bundle[:12]),
        column("runs", Format.COUNT, lambda row: row.runs),
        column("with", Format.TEXT, lambda row: row.cause.value if row.cause else "alone"),
        column("manifest", Format.TEXT, lambda row: "; ".join(map(fact_text, row.changed)) or "no recorded change"),
        column("most in", Format.TEXT, _operators_text),
    )


def _change_text(row: SlowerSeries) -> str:
    low, high = row.ci95
    return f"{signed_share_text(row.slowdown)} ({signed_share_text(low)} to {signed_share_text(high)})"


def _operators_text(row: SlowerSeries) -> str:
    return "; ".join(
        f"{plain(one.name, 40)} {time_text(one.before_ns)} -> {time_text(one.after_ns)}"
        for one in row.operators[:_MOST_PARTS]
    )


def _notes(evidence: FleetEvidence) -> list[str]:
    notes = [f"not judged: {one.series} series, {one.reason}" for one in evidence.not_judged]
    if evidence.detectable:
        sizes = ", ".join(share_text(size) for size in evidence.detectable)
        notes.append(f"a slowdown of one series shows in half of the cases from {sizes} on, after one, two, three runs")
    notes += map(_vanished_text, evidence.vanished)
    nights = counted_text(round(evidence.false_red_nights * 30), "night")
    return [*notes, f"at most {nights} of 30 is expected to fail from noise alone, judging by earlier nights"]


def _vanished_text(one: VanishedDevice) -> str:
    appeared = ", ".join(plain(name, 60) for name in one.appeared)
    return (
        f"device {plain(one.device, 60)} vanished, {appeared} with the same CPU appeared. Their series are not "
        "compared: if they are one machine, name it with `opscope store add --device`"
    )
