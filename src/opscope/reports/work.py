"""Exact work of a model as a document: the answer, the operators that execute most, and the framework's part."""

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
"""Share of all tile products from which an operator matters, share of padding that is much, and rows shown."""
_CLASS_NAMES = {
    "multiply_add": "vector multiply-add",
    "dot_product": "dot product",
    "outer_product": "outer product",
    "vector": "other vector",
}


def work_document(work: Work) -> Document:
    """Return what a model executes in one inference, and how much of it the operators need."""
    texts = [
        *([f"inputs: {', '.join(work.inputs)}"] if work.inputs else []),
        f"counted by {work.counter}: {work.processor}; one thread",
        _rest_text(work.rest),
        "note: counts work, not time: stalls on memory and on results do not count",
    ]
    operators, methods = (
        counted_text(len(work.operators), "operator"),
        grouped(work.operators, lambda operator: operator.method),
    )
    counts = f"{count_text(work.instructions)} instructions per inference in {operators}"
    if len(methods) > 1:
        texts_of = (
            f"{name} {count_text(sum(operator.instructions for operator in method_operators))}"
            for name, method_operators in methods.items()
        )
        counts = f"{', '.join(texts_of)} instructions in {operators}"
    return Document(
        title=work.model,
        heading=f"{work.model}, {work.runtime}",
        answer=counts,
        blocks=[
            *(Sentence(text) for text in (_useful_products_sentence(work), *_tile_sentences(work)) if text),
            *([Section("Features off", [_features_table(work)])] if work.others else []),
            Section("Instructions by class", [class_table(work)]),
            Section("Operators", [operator_table(work)]),
            *(Sentence(text, Tone.DIM) for text in texts),
        ],
        sections=[],
    )


def _rest_text(rest: RestWork) -> str:
    framework, before, after = (count_text(count) for count in (rest.framework, rest.before, rest.after))
    return f"the rest: {framework} in the framework and tracing, {before} before the inference, {after} after it"


def _useful_products_sentence(work: Work) -> str:
    """Return which share of executed multiplications the model needs; empty if unknown."""
    needed = sum(operator.macs or 0 for operator in work.operators)
    operators = [operator for operator in work.operators if operator.held_macs]
    if not needed or not operators:
        return ""
    held, used = (
        sum(operator.mac_capacity for operator in operators),
        sum(operator.held_macs or 0 for operator in operators),
    )
    share = share_text(sum(operator.macs or 0 for operator in operators) / needed)
    return (
        f"{share} of {count_text(needed)} multiply-accumulates run in fused, dot or outer product instructions, "
        f"filling {share_text(used / held)} of their {count_text(held)} lanes"
    )


def _tile_sentences(work: Work) -> list[str]:
    """Return what the matrix unit did, and which important operators fill their tiles badly."""
    counted_operators = [operator for operator in work.operators if operator.tile_capacity]
    held = sum(operator.tile_capacity for operator in counted_operators)
    if not held:
        return []
    tiled = [operator for operator in counted_operators if operator.on_tiles]
    used, needed = (sum(operator.macs or 0 for operator in operators) for operators in (tiled, work.operators))
    starts, products = (
        sum(counts)
        for counts in (
            (operator.streaming_starts for operator in counted_operators),
            (operator.outer_products for operator in counted_operators),
        )
    )
    executed = counted_text(products, "outer product", ",")
    entered = f"{executed}, streaming mode entered {counted_text(starts, 'time', ',')}"
    if not used:
        return [f"SME: {entered}; tile fill unknown"]
    filled = share_text(used / sum(operator.tile_capacity for operator in tiled))
    text = f"SME ran {share_text(used / needed)} of the multiply-accumulates, tiles filled to {filled}: {entered}"
    padded = [operator for operator in tiled if operator.tile_capacity > _MATTERS * held and _is_padded(operator)]
    padded.sort(key=lambda operator: (operator.macs or 0) - operator.tile_capacity)
    rest = len(padded) - _MOST_PADDED
    more = [f"And {counted_text(rest, 'more operator')} with as much padding."] if rest > 0 else []
    return [text, *map(_padding_text, padded[:_MOST_PADDED]), *more]


def _is_padded(operator: CountedOperator) -> bool:
    return operator.tile_capacity - (operator.macs or 0) > _PADDED * operator.tile_capacity


def _padding_text(operator: CountedOperator) -> str:
    """Return how much of an operator's tile work is padding, and sizes that would fill the tiles."""
    lost = share_text(1 - (operator.macs or 0) / operator.tile_capacity)
    sizes = [f"{size.needed} {size.name} occupy {size.executed}" for size in operator.padded]
    why = f" ({'; '.join(sizes)})" if sizes else ""
    return f"{operator.layer or operator.name}: {lost} of its tile multiplications is padding{why}"


def _features_table(work: Work) -> TableBlock:
    return table(
        [work, *work.others],
        column("features", Format.TEXT, lambda counted: f"{', '.join(counted.off)} off" if counted.off else "none off"),
        column("instructions", Format.FIGURE, lambda counted: count_text(counted.instructions)),
        column(
            "ratio",
            Format.RATIO,
            lambda counted: counted.instructions / work.instructions if work.instructions else None,
        ),
        column("loaded", Format.FIGURE, lambda counted: size_text(sum(row.bytes_loaded for row in counted.operators))),
        column("stored", Format.FIGURE, lambda counted: size_text(sum(row.bytes_stored for row in counted.operators))),
    )


def class_table(work: Work) -> TableBlock:
    """Return the instructions of all operators by class."""
    counts: Counter[str] = Counter()
    for operator in work.operators:
        counts.update(operator.classes)
    rows = counts.most_common()
    return table(
        rows,
        column("class", Format.TEXT, lambda row: _CLASS_NAMES.get(row[0], row[0])),
        column("instructions", Format.FIGURE, lambda row: count_text(row[1])),
        column("share", Format.SHARE, lambda row: row[1] / work.instructions),
    )


def operator_table(work: Work) -> TableBlock:
    """Return the operators that execute most."""
    rows = sorted(work.operators, key=lambda operator: -operator.instructions)
    rest = rows[_MOST:]
    more: dict[str, Value] = {
        "instructions": count_text(sum(operator.instructions for operator in rest)),
        "share": sum(operator.instructions for operator in rest) / (work.instructions or 1),
    }
    compared = {key: _work_ratio_text(work, key) for key in map(_operator_key, rows[:_MOST])} if work.others else {}
    several = len({operator.method for operator in rows}) > 1

    def operator_cell(operator: CountedOperator) -> TableCell:
        """Return the name of an operator, with its method if several ran."""
        return TableCell(
            operator.layer or operator.name, f"{operator.kind} in {operator.method}" if several else operator.kind, None
        )

    return table(
        rows[:_MOST],
        column("operator", Format.NAME, operator_cell),
        column("instructions", Format.FIGURE, lambda operator: count_text(operator.instructions)),
        column("share", Format.SHARE, lambda operator: operator.instructions / (work.instructions or 1)),
        column("MAC", Format.FIGURE, lambda operator: count_text(operator.macs) if operator.macs else "", spare=True),
        *(
            [column("outer products", Format.FIGURE, _outer_products_text)]
            if any(operator.outer_products for operator in rows)
            else []
        ),
        column("lanes filled", Format.SHARE, _filled_lanes, spare=True),
        column("loaded", Format.FIGURE, lambda operator: size_text(operator.bytes_loaded), spare=True),
        column("stored", Format.FIGURE, lambda operator: size_text(operator.bytes_stored), spare=True),
        column("off", Format.TEXT, lambda operator: compared[_operator_key(operator)]) if compared else None,
        closing=[Closing(counted_text(len(rest), "more operator"), more)] if rest else [],
    )


def _operator_key(operator: CountedOperator) -> tuple[str, int, int]:
    return operator.method, operator.instruction, operator.position


def _work_ratio_text(work: Work, key: tuple[str, int, int]) -> str:
    """Return the instructions with all features of the last step off, over those with all features on."""
    counts = [
        next((operator.instructions for operator in counted.operators if _operator_key(operator) == key), 0)
        for counted in (work, work.others[-1])
    ]
    return ratio_text(counts[1] / counts[0]) if all(counts) else ""


def _outer_products_text(operator: CountedOperator) -> str:
    return count_text(operator.outer_products) if operator.outer_products else ""


def _filled_lanes(operator: CountedOperator) -> float | None:
    """Return the share of the lanes of its multiplications that an operator needs; None if unknown."""
    return operator.held_macs / operator.mac_capacity if operator.held_macs else None


def work_gate_text(decision: Decision[WorkEvidence]) -> GateText:
    """Return the words for a decision on work."""
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
        sentence=(
            f"work {change}, exact: {counts[1]} instructions, {counts[0]} in the baseline; "
            f"{_equal_operators_text(evidence)}"
        ),
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
    """Return the words for a decision on work and on time: both verdicts with their figures."""
    untyped: Decision[Any] = decision
    evidence, (first, *time_criteria) = decision.evidence, decision.criteria
    work = work_gate_text(msgspec.structs.replace(untyped, evidence=evidence.work, criteria=[first]))
    time_decision = msgspec.structs.replace(untyped, evidence=evidence.time, criteria=time_criteria)
    time = comparison_text(time_decision)
    return time._replace(
        answer=(
            f"work {_work_change_text(first)}; time: {', '.join(map(_time_verdict, latency_criteria(time_decision)))}"
        ),
        sentence=f"{work.sentence}. Time: {time.sentence}",
        sections=lambda most: [*work.sections(most), *time.sections(most)],
        properties={**time.properties, **{key: text for key, text in work.properties.items() if "instructions" in key}},
        notes=work.notes,
    )


def _work_change_text(criterion: Criterion) -> str:
    return f"{signed_share_text(criterion.measured)}, exact" if criterion.measured else "equal, exact"


def _time_verdict(criterion: Criterion) -> str:
    """Return the verdict, change and interval of a latency criterion."""
    verdict = criterion.verdict.value if criterion.verdict else criterion.outcome.value
    verdict = f"{criterion.method} {verdict}" if criterion.method else verdict
    return verdict if criterion.measured is None else f"{verdict}, {measured_text(criterion)}"


def _equal_operators_text(evidence: WorkEvidence) -> str:
    total = evidence.equal + len(evidence.changed)
    return f"{evidence.equal} of {counted_text(total, 'operator')} equal to the instruction"


def _changed_sections(evidence: WorkEvidence, most: int) -> list[Section]:
    if not evidence.changed:
        return []
    rest = len(evidence.changed) - most
    rows = table(
        evidence.changed[:most],
        column("operator", Format.NAME, lambda change: TableCell(change.label, change.kind, None)),
        column(
            "baseline", Format.FIGURE, lambda change: "" if change.baseline is None else count_text(change.baseline)
        ),
        column(
            "candidate", Format.FIGURE, lambda change: "" if change.candidate is None else count_text(change.candidate)
        ),
        column("change", Format.TEXT, _change_text),
    )
    more = [Sentence(f"And {counted_text(rest, 'more operator')}.")] if rest > 0 else []
    return [Section("Operators that changed", [rows, *more])]


def _change_text(change: WorkChange) -> str:
    if change.baseline is None:
        return "new"
    if change.candidate is None:
        return "gone"
    return signed_share_text(change.candidate / change.baseline - 1) if change.baseline else ""
