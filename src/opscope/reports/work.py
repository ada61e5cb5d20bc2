"""Exact work of a model as a document: the answer, the operators that execute most, what is no operator's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.units import count_text, counted_text, ratio_text, share_text, signed_share_text, size_text
from opscope.reports.document.blocks import (
    Closing,
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
from opscope.reports.gate import GateText, comparison_text, latency_criteria, measured_text

if TYPE_CHECKING:
    from opscope.analysis.gate.decision import Criterion, Decision
    from opscope.analysis.work.gate import WorkAndTimeEvidence, WorkChange, WorkEvidence
    from opscope.analysis.work.work import CountedOperator, RestWork, Work
    from opscope.reports.document.blocks import TableBlock, Value

_MOST = 12
_MATTERS, _PADDED, _MOST_PADDED = 0.02, 0.15, 3
"""Part of all products on tiles from which an operator matters, part of its own that is much padding, and how many."""
_CLASS_NAMES = {
    "multiply_add": "vector multiply-add",
    "dot_product": "dot product",
    "outer_product": "outer product",
    "vector": "other vector",
}


def work_document(work: Work) -> Document:
    """What a model executes in one inference, and how much of it the operators need."""
    texts = [
        *([f"inputs: {', '.join(work.inputs)}"] if work.inputs else []),
        f"counted by {work.counter}: {work.processor}; one thread",
        _rest(work.rest),
        "note: counts work, not time: stalls on memory and on results do not count",
    ]
    operators, methods = counted_text(len(work.operators), "operator"), grouped(work.operators, lambda one: one.method)
    counts = f"{count_text(work.instructions)} instructions per inference in {operators}"
    if len(methods) > 1:
        texts_of = (f"{name} {count_text(sum(one.instructions for one in own))}" for name, own in methods.items())
        counts = f"{', '.join(texts_of)} instructions in {operators}"
    return Document(
        title=work.model,
        heading=f"{work.model}, {work.runtime}",
        answer=counts,
        blocks=[
            *(Sentence(one) for one in (_products(work), *_tiles(work)) if one),
            *([Section("Features off", [_others(work)])] if work.others else []),
            Section("Instructions by class", [class_table(work)]),
            Section("Operators", [operator_table(work)]),
            *(Sentence(one, Tone.DIM) for one in texts),
        ],
        sections=[],
    )


def _rest(rest: RestWork) -> str:
    framework, before, after = (count_text(one) for one in (rest.framework, rest.before, rest.after))
    return f"the rest: {framework} in the framework and tracing, {before} before the inference, {after} after it"


def _products(work: Work) -> str:
    """How many multiplications were executed for those that the model needs."""
    needed = sum(one.macs or 0 for one in work.operators)
    operators = [one for one in work.operators if one.held_macs]
    if not needed or not operators:
        return ""
    held, used = sum(one.mac_capacity for one in operators), sum(one.held_macs or 0 for one in operators)
    share = share_text(sum(one.macs or 0 for one in operators) / needed)
    return (
        f"{share} of {count_text(needed)} multiply-accumulates run in fused, dot or outer product instructions, "
        f"filling {share_text(used / held)} of their {count_text(held)} lanes"
    )


def _tiles(work: Work) -> list[str]:
    """What the matrix unit did, and operators that matter whose tiles are filled badly."""
    counted_operators = [one for one in work.operators if one.tile_capacity]
    held = sum(one.tile_capacity for one in counted_operators)
    if not held:
        return []
    whole = [one for one in counted_operators if one.on_tiles]
    used, needed = (sum(one.macs or 0 for one in operators) for operators in (whole, work.operators))
    starts, products = (
        sum(counts)
        for counts in (
            (one.streaming_starts for one in counted_operators),
            (one.outer_products for one in counted_operators),
        )
    )
    executed = counted_text(products, "outer product", ",")
    entered = f"{executed}, streaming mode entered {counted_text(starts, 'time', ',')}"
    if not used:
        return [f"SME: {entered}; tile fill unknown"]
    filled = share_text(used / sum(one.tile_capacity for one in whole))
    text = f"SME ran {share_text(used / needed)} of the multiply-accumulates, tiles filled to {filled}: {entered}"
    padded = [one for one in whole if one.tile_capacity > _MATTERS * held and _is_padded(one)]
    padded.sort(key=lambda one: (one.macs or 0) - one.tile_capacity)
    rest = len(padded) - _MOST_PADDED
    more = [f"And {counted_text(rest, 'more operator')} with as much padding."] if rest > 0 else []
    return [text, *map(_padding, padded[:_MOST_PADDED]), *more]


def _is_padded(one: CountedOperator) -> bool:
    return one.tile_capacity - (one.macs or 0) > _PADDED * one.tile_capacity


def _padding(one: CountedOperator) -> str:
    """What is rounded up in an operator, and sizes that fill its tiles."""
    lost = share_text(1 - (one.macs or 0) / one.tile_capacity)
    sizes = [f"{size.needed} {size.name} occupy {size.executed}" for size in one.padded]
    why = f" ({'; '.join(sizes)})" if sizes else ""
    return f"{one.layer or one.name}: {lost} of its tile multiplications is padding{why}"


def _others(work: Work) -> TableBlock:
    return table(
        [work, *work.others],
        column("features", Format.TEXT, lambda one: f"{', '.join(one.off)} off" if one.off else "none off"),
        column("instructions", Format.FIGURE, lambda one: count_text(one.instructions)),
        column("ratio", Format.RATIO, lambda one: one.instructions / work.instructions if work.instructions else None),
        column("loaded", Format.FIGURE, lambda one: size_text(sum(own.bytes_loaded for own in one.operators))),
        column("stored", Format.FIGURE, lambda one: size_text(sum(own.bytes_stored for own in one.operators))),
    )


def class_table(work: Work) -> TableBlock:
    """Instructions of all operators by class."""
    counts: Counter[str] = Counter()
    for one in work.operators:
        counts.update(one.classes)
    rows = counts.most_common()
    return table(
        rows,
        column("class", Format.TEXT, lambda row: _CLASS_NAMES.get(row[0], row[0])),
        column("instructions", Format.FIGURE, lambda row: count_text(row[1])),
        column("share", Format.SHARE, lambda row: row[1] / work.instructions),
    )


def operator_table(work: Work) -> TableBlock:
    """The operators that execute most."""
    rows = sorted(work.operators, key=lambda one: -one.instructions)
    rest = rows[_MOST:]
    more: dict[str, Value] = {
        "instructions": count_text(sum(one.instructions for one in rest)),
        "share": sum(one.instructions for one in rest) / (work.instructions or 1),
    }
    compared = {key: _ratio(work, key) for key in map(_key, rows[:_MOST])} if work.others else {}
    several = len({one.method for one in rows}) > 1

    def named(one: CountedOperator) -> TableCell:
        """With its method where several ran."""
        return TableCell(one.layer or one.name, f"{one.kind} in {one.method}" if several else one.kind, None)

    return table(
        rows[:_MOST],
        column("operator", Format.NAME, named),
        column("instructions", Format.FIGURE, lambda one: count_text(one.instructions)),
        column("share", Format.SHARE, lambda one: one.instructions / (work.instructions or 1)),
        column("MAC", Format.FIGURE, lambda one: count_text(one.macs) if one.macs else "", spare=True),
        *([column("outer products", Format.FIGURE, _outer)] if any(one.outer_products for one in rows) else []),
        column("lanes filled", Format.SHARE, _filled, spare=True),
        column("loaded", Format.FIGURE, lambda one: size_text(one.bytes_loaded), spare=True),
        column("stored", Format.FIGURE, lambda one: size_text(one.bytes_stored), spare=True),
        column("off", Format.TEXT, lambda one: compared[_key(one)]) if compared else None,
        closing=[Closing(counted_text(len(rest), "more operator"), more)] if rest else [],
    )


def _key(one: CountedOperator) -> tuple[str, int, int]:
    return one.method, one.instruction, one.position


def _ratio(work: Work, key: tuple[str, int, int]) -> str:
    """Instructions with all features of the last step off, over those with them."""
    counts = [
        next((operator.instructions for operator in one.operators if _key(operator) == key), 0)
        for one in (work, work.others[-1])
    ]
    return ratio_text(counts[1] / counts[0]) if all(counts) else ""


def _outer(one: CountedOperator) -> str:
    return count_text(one.outer_products) if one.outer_products else ""


def _filled(one: CountedOperator) -> float | None:
    """Share of the lanes of its multiplying instructions that the operator needs."""
    return one.held_macs / one.mac_capacity if one.held_macs else None


def work_gate_text(decision: Decision[WorkEvidence]) -> GateText:
    """What a decision on work says."""
    evidence, first = decision.evidence, decision.criteria[0]
    change = signed_share_text(first.measured or 0.0) if first.measured else "equal"
    words = {Verdict.SLOWER: "executes more", Verdict.FASTER: "executes less"}
    counts = [count_text(side.instructions) for side in (evidence.baseline, evidence.candidate)]
    sides = [
        (name, side.model, count_text(side.instructions), str(side.operators))
        for name, side in (("baseline", evidence.baseline), ("candidate", evidence.candidate))
    ]
    return GateText(
        answer=f"the candidate {words.get(first.verdict or Verdict.NO_DIFFERENCE, 'executes the same')} ({change})",
        sentence=f"work {change}, exact: {counts[1]} instructions, {counts[0]} in the baseline; {_unchanged(evidence)}",
        subject=evidence.candidate.model,
        sections=lambda most: _changed_sections(evidence, most),
        sides=words_table(("side", "model", "instructions", "operators"), sides, texts=2),
        properties={
            "baseline": evidence.baseline.model,
            "candidate": evidence.candidate.model,
            "baseline_instructions": str(evidence.baseline.instructions),
            "candidate_instructions": str(evidence.candidate.instructions),
        },
        notes=[f"counted by {evidence.counter}: {evidence.processor}; work, not time"],
    )


def work_and_time_text(decision: Decision[WorkAndTimeEvidence]) -> GateText:
    """What a decision on work and on time says: both verdicts, each with its figures."""
    whole: Decision[Any] = decision
    evidence, (first, *others) = decision.evidence, decision.criteria
    work = work_gate_text(msgspec.structs.replace(whole, evidence=evidence.work, criteria=[first]))
    whole_time = msgspec.structs.replace(whole, evidence=evidence.time, criteria=others)
    time = comparison_text(whole_time)
    return time._replace(
        answer=f"work {_brief(first)}; time: {', '.join(map(_time_verdict, latency_criteria(whole_time)))}",
        sentence=f"{work.sentence}. Time: {time.sentence}",
        sections=lambda most: [*work.sections(most), *time.sections(most)],
        properties={**time.properties, **{key: text for key, text in work.properties.items() if "instructions" in key}},
        notes=work.notes,
    )


def _brief(criterion: Criterion) -> str:
    return f"{signed_share_text(criterion.measured)}, exact" if criterion.measured else "equal, exact"


def _time_verdict(criterion: Criterion) -> str:
    """Verdict, change and interval of a criterion of latency."""
    verdict = criterion.verdict.value if criterion.verdict else criterion.outcome.value
    verdict = f"{criterion.method} {verdict}" if criterion.method else verdict
    return verdict if criterion.measured is None else f"{verdict}, {measured_text(criterion)}"


def _unchanged(evidence: WorkEvidence) -> str:
    whole = evidence.equal + len(evidence.changed)
    return f"{evidence.equal} of {counted_text(whole, 'operator')} equal to the instruction"


def _changed_sections(evidence: WorkEvidence, most: int) -> list[Section]:
    if not evidence.changed:
        return []
    rest = len(evidence.changed) - most
    rows = table(
        evidence.changed[:most],
        column("operator", Format.NAME, lambda one: TableCell(one.label, one.kind, None)),
        column("baseline", Format.FIGURE, lambda one: "" if one.baseline is None else count_text(one.baseline)),
        column("candidate", Format.FIGURE, lambda one: "" if one.candidate is None else count_text(one.candidate)),
        column("change", Format.TEXT, _change_text),
    )
    more = [Sentence(f"And {counted_text(rest, 'more operator')}.")] if rest > 0 else []
    return [Section("Operators that changed", [rows, *more])]


def _change_text(one: WorkChange) -> str:
    if one.baseline is None:
        return "new"
    if one.candidate is None:
        return "gone"
    return signed_share_text(one.candidate / one.baseline - 1) if one.baseline else ""
