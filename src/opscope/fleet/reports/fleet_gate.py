"""What the decision on all series of a store says."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from opscope.analysis.gate.decision import Outcome
from opscope.core.units import counted_text, interval_text, share_text, signed_share_text, time_text
from opscope.fleet.analysis.fleet_gate import budget_name, model_name, move_name
from opscope.fleet.reports.common_moves import fact_text, move_text
from opscope.fleet.reports.history import subject_text
from opscope.reports.document.blocks import Bullets, Format, Section, Sentence, column, table
from opscope.reports.document.text import plain
from opscope.reports.gate import GateText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.fleet.analysis.fleet_decision import VanishedDevice
    from opscope.fleet.analysis.fleet_gate import ChangeOrigin, Detectable, FleetEvidence, SlowerSeries

_MOST_TOGETHER = 5
_MOST_PARTS = 3


def fleet_text(decision: Decision[FleetEvidence]) -> GateText:
    """What a decision on all series of a store says: what changed, where, in which operators, since when."""
    evidence = decision.evidence
    answer, since = _answer(decision), f"since {evidence.since.removesuffix('T00:00:00')}"
    sentence = f"{answer}, {since}, threshold {share_text(evidence.threshold)}"
    changes = [f"change: {move_text(move)}" for move in evidence.moves if not move.regression]
    return GateText(
        answer=answer,
        sentence=sentence,
        subject="fleet",
        sections=lambda most: _sections(evidence, most),
        properties={"since": evidence.since, "threshold": f"{evidence.threshold:g}", "store": evidence.store},
        reasons=_reasons(decision),
        notes=[*changes, *_notes(evidence)],
        problem=sentence,
    )


def _answer(decision: Decision[FleetEvidence]) -> str:
    """How many series of how many are slower, and which devices or models as a whole."""
    evidence = decision.evidence
    if decision.outcome in {Outcome.INCONCLUSIVE, Outcome.UNTRUSTED}:
        return f"none of {evidence.series} series with a new run could be judged"
    kinds = Counter(move.kind.value for move in evidence.moves if move.regression)
    texts = [_slower_text(evidence)] if evidence.slower or not kinds else []
    texts += [f"{counted_text(count, kind)} slower as a whole" for kind, count in kinds.items()]
    beyond = sum(one.beyond for one in evidence.budgets)
    return ", ".join([*texts, *([f"{beyond} series beyond an absolute limit"] if beyond else [])])


def _slower_text(evidence: FleetEvidence) -> str:
    count, alone = len(evidence.slower), len(_alone(evidence))
    ways = f" ({alone} alone, {count - alone} with the device or model)" if alone < count else ""
    return f"{count or 'none'} of {evidence.judged} judged series slower{ways}"


def _reasons(decision: Decision[FleetEvidence]) -> dict[str, str]:
    """In more words than a criterion has: what moved with a device, the longest series, the series of a model."""
    evidence, reasons = decision.evidence, {one.name: one.reason for one in decision.criteria}
    told = {move_name(one): move_text(one).partition(": ")[2] for one in evidence.moves if one.regression}
    for limit in evidence.budgets:
        name, longest = budget_name(limit), f"{time_text(limit.worst_ns)}, {subject_text(limit.worst)}"
        told[name] = f"{reasons[name]}; the longest is {longest}"
    for one in evidence.models:
        if one.judged:
            own = [_series_text(row) for row in evidence.slower if row.subject.model == one.model]
            told[model_name(one)] = "\n".join([reasons[model_name(one)], *own])
    return told


def _sections(evidence: FleetEvidence, most: int) -> list[Section]:
    alone, fewer = _alone(evidence), min(most, _MOST_TOGETHER)
    together = [row for row in evidence.slower if row.common is not None]
    sections = (
        _section("Slower alone", alone, most),
        _section("Slower with the others of its device or model", together, fewer),
        _section("May be slower: the next runs will show", evidence.suspects, fewer),
    )
    return [section for section in sections if section is not None]


def _alone(evidence: FleetEvidence) -> list[SlowerSeries]:
    return [row for row in evidence.slower if row.common is None]


def _series_text(row: SlowerSeries) -> str:
    values = f"{time_text(row.before_ns)} -> {time_text(row.after_ns)}"
    sizes = f"{signed_share_text(row.slowdown)} {interval_text(row.ci95, signed_share_text)}"
    return f"{subject_text(row.subject)}: {values}, {sizes}, {counted_text(row.runs, 'run')}"


def _origin_lines(origin: ChangeOrigin | None) -> list[str]:
    if origin is None:
        return []
    parts = [
        f"{plain(one.name, 40)} {time_text(one.before_ns)} -> {time_text(one.after_ns)}"
        for one in origin.operators[:_MOST_PARTS]
    ]
    lines = [_since(origin)]
    return [*lines, f"most in {'; '.join(parts)}"] if parts else lines


def _since(origin: ChangeOrigin) -> str:
    """The first run of the new level, and what differs from the run before it."""
    first, before = origin.first, origin.before
    versions = [f"executorch {first.executorch}"] if first.executorch else []
    versions += [f"commit {plain(first.commit, 40)}"] if first.commit else []
    names = f"{first.placed} ({first.bundle[:12]}{', before ' + before.bundle[:12] if before else ''})"
    least, most = origin.runs_ago
    when = f"since {names}"
    if least < most:
        when = f"began {least} {'or' if most == least + 1 else 'to'} {most} runs ago, by {names}"
    text = "; ".join(map(fact_text, origin.changed)) or "no recorded change"
    return ", ".join([when, *versions, text])


def _section(title: str, rows: Sequence[SlowerSeries], most: int) -> Section | None:
    if not rows:
        return None
    rest = len(rows) - most
    more = f"And {rest} more; the JSON decision has all of them." if rest > 0 else ""
    listed = table(
        rows[:most],
        column("series", Format.TEXT, lambda row: subject_text(row.subject)),
        column("time", Format.TEXT, lambda row: f"{time_text(row.before_ns)} to {time_text(row.after_ns)}"),
        column("change", Format.TEXT, _change),
        column("runs", Format.COUNT, lambda row: row.runs),
    )
    origins = [
        f"{subject_text(row.subject)}: {'; '.join(_origin_lines(row.origin))}" for row in rows[:most] if row.origin
    ]
    return Section(f"{title}: {len(rows)}", [listed, Bullets(origins), Sentence(more)])


def _change(row: SlowerSeries) -> str:
    low, high = row.ci95
    return f"{signed_share_text(row.slowdown)} ({signed_share_text(low)} to {signed_share_text(high)})"


def _notes(evidence: FleetEvidence) -> list[str]:
    texts = [f"not judged: {one.series} series, {one.reason}" for one in evidence.not_judged]
    texts += [text for text in map(_detectable_text, evidence.detectable) if text]
    texts += map(_vanished_text, evidence.vanished)
    nights = f"{evidence.false_red_nights * 30:.0f} of 30 nights" if evidence.false_red_nights else "no night"
    return [*texts, f"at most {nights} is expected to fail from noise alone, judging by earlier nights"]


def _vanished_text(one: VanishedDevice) -> str:
    appeared = ", ".join(plain(name, 60) for name in one.appeared)
    return (
        f"device {plain(one.device, 60)} vanished, {appeared} with the same CPU appeared. Their series are not "
        "compared: if they are one machine, name it with `opscope store add --device`"
    )


def _detectable_text(one: Detectable) -> str:
    if one.slowdowns is None:
        return ""
    sizes = ", ".join(share_text(size) for size in one.slowdowns)
    what = {"series": "one series", "device": "a whole device", "model": "a whole model"}[one.what]
    return f"a slowdown of {what} shows in half of the cases from {sizes} on, after one, two and three runs"
