"""Rule on what ExecuTorch's exporter leaves around the products of an attention: masks, scales, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Saving, Severity, finding, passed
from opscope.analysis.findings.rule import ATTENTION_MASKS, declare_rule
from opscope.analysis.operators.delegates import is_delegated
from opscope.analysis.operators.operators import PORTABLE_BACKEND
from opscope.analysis.rules.evidence import LEAST_SHARE, count, longest, places, time_of
from opscope.core.grouping import grouped
from opscope.core.table.places import operator_key
from opscope.core.units import counted_text, milliseconds, share_text
from opscope.program.operators.kinds import AttentionPart
from opscope.program.operators.taxonomy import aten_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import Evidence

# Where it comes from: docs/design/rules.md.
# A softmax that gives 0 for a row whose every element is masked: torch/_decomp/decompositions.py, _safe_softmax.
_SAFE_SOFTMAX = frozenset({"eq", "logical_not", "any", "full_like", "where"})
_MODULES = (
    "call opscope.patterns.replace_attentions(model) after loading the weights: it replaces every "
    "torch.nn.MultiheadAttention, also in TransformerEncoder and TransformerDecoder, with one that is fully "
    "delegated; create numeric masks once (opscope.patterns.additive_mask). "
)
_FUNCTION = (
    "write the attention explicitly, with a numeric mask (0 or -1e4) created once "
    "(opscope.patterns.masked_attention); use torch.softmax(q @ k.transpose(-2, -1) * scale + mask, -1) @ v, which "
    "is delegated; Hugging Face models do this with attn_implementation='eager'. "
)
_CAUTION = "A fully masked row then gives the mean of v instead of 0"
_BASIS = "if all are removed: their measured time and call overhead; the delegate adds the mask"
_BASIS_WITH_PRODUCTS = "if all are removed and the delegate runs their products as fast as its others in this run"


def attention_operators(evidence: Evidence) -> list[Operator]:
    """Return portable operators that mask an attention, or scale and copy what it multiplies.

    With a program, the surroundings of the softmax tell. Without one, the five operators of the softmax of
    ``scaled_dot_product_attention`` tell, because nothing else combines them.
    """
    if evidence.attention is not None:
        known = evidence.attention
        return evidence.where(lambda o: o.backend == PORTABLE_BACKEND and operator_key(o) in known)
    candidates = evidence.where(lambda o: o.backend == PORTABLE_BACKEND and aten_operator(o.name) in _SAFE_SOFTMAX)
    methods = grouped(candidates, lambda operator: operator.method).values()
    complete = [
        operators for operators in methods if {aten_operator(operator.name) for operator in operators} == _SAFE_SOFTMAX
    ]
    return [operator for operators in complete for operator in operators]


def _select_part(evidence: Evidence, members: Sequence[Operator], part: AttentionPart) -> list[Operator]:
    """Select the operators that do one part of an attention; without a program, all of them mask."""
    known = evidence.attention
    if known is None:
        return [*members] if part is AttentionPart.MASKING else []
    return [operator for operator in members if (key := operator_key(operator)) is not None and known[key] is part]


@declare_rule(Severity.HIGH, recipes=(ATTENTION_MASKS,), LEAST_SHARE=LEAST_SHARE)
def attention_masking(evidence: Evidence) -> Message:
    """Undelegated operators that mask attention, or project, scale and copy its inputs, above 5 %."""
    rule = "attention_masking"
    members = attention_operators(evidence)
    masking = _select_part(evidence, members, AttentionPart.MASKING)
    projecting = _select_part(evidence, members, AttentionPart.PROJECTING)
    if not members:
        return passed(rule, "no portable operator masks an attention")
    share, time = evidence.share(members), time_of(members)
    if share <= LEAST_SHARE:
        return passed(rule, f"portable operators inside attention take {share_text(share)} ({count(members)})")
    parts = [*(["projections"] if projecting else []), *(["masks"] if masking else []), "scales and copies"]
    parts_text = ", ".join(parts)
    title = f"Undelegated {parts_text} inside attention take {share_text(share)} of the latency"
    text = f"{count(members)}, {milliseconds(time)} ms of {milliseconds(evidence.total)} ms"
    text += _parts_text(masking, projecting, len(members) - len(masking) - len(projecting))
    words = title, f"{text}; longest: {longest(members)}", _next_step(members)
    message = finding(rule, Severity.HIGH, words, _attention_saving(evidence, members, projecting), places(members))
    return message.about(recipe=ATTENTION_MASKS)


def _attention_saving(evidence: Evidence, members: Sequence[Operator], projecting: Sequence[Operator]) -> Saving:
    """Return the operators' time less what a delegate needs for their products at this run's rate of others.

    The limit if the run has no other products.
    """
    with_calls = [*members, *evidence.calls_of(members)]
    if not projecting:
        return evidence.saved(Saving(time_of(with_calls), evidence.interval(with_calls), _BASIS))
    other_products = evidence.where(lambda o: is_delegated(o) and o.kind == projecting[0].kind and bool(o.macs))
    work = [operator.macs or 0 for operator in projecting]
    if not other_products or not all(work):
        return evidence.limit(with_calls)
    remaining_ns = sum(work) * time_of(other_products) / sum(operator.macs or 0 for operator in other_products)
    ends = evidence.interval(with_calls)
    less = (max(0.0, ends[0] - remaining_ns), max(0.0, ends[1] - remaining_ns)) if ends else None
    return evidence.saved(Saving(max(0.0, time_of(with_calls) - remaining_ns), less, _BASIS_WITH_PRODUCTS))


def _parts_text(masking: Sequence[Operator], projecting: Sequence[Operator], rest: int) -> str:
    """Return how much of the time projects with sliced weights, how much masks, and by which operators."""
    products = f"; products whose weights are sliced in every call: {milliseconds(time_of(projecting))} ms"
    if not masking:
        return products if projecting else ""
    names = list(dict.fromkeys(aten_operator(operator.name) for operator in masking))
    guard = ", which the exporter adds to the softmax for fully masked rows"
    mask_text = f"{', '.join(names)}{guard if set(names) >= _SAFE_SOFTMAX else ''}"
    text = f"{products if projecting else ''}; masks: {milliseconds(time_of(masking))} ms ({mask_text})"
    return f"{text}; {counted_text(rest, 'other')} scale, copy or reshape" if rest else text


def _next_step(members: Sequence[Operator]) -> str:
    """Return what to do: a call if torch's own module is used, else the function to write in its place."""
    modules = any((operator.module_type or "").endswith("MultiheadAttention") for operator in members)
    return f"{_MODULES if modules else _FUNCTION}{_CAUTION}"
