"""What ExecuTorch's exporter puts around the products of an attention, outside of delegates: masks, scales, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Saving, Severity, finding, passed
from opscope.analysis.findings.rule import ATTENTION_MASKS, declare_rule
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
    "put opscope.patterns.replace_attentions(model) behind loading the weights: it replaces every "
    "torch.nn.MultiheadAttention, those of TransformerEncoder and TransformerDecoder with them, by one that a delegate "
    "takes as a whole; give masks as numbers that are made once (opscope.patterns.additive_mask). "
)
_FUNCTION = (
    "write the attention out with a mask of numbers, 0 or -1e4, that is made once "
    "(opscope.patterns.masked_attention): "
    "torch.softmax(q @ k.transpose(-2, -1) * scale + mask, -1) @ v, which a delegate takes; models of Hugging Face do "
    "so with attn_implementation='eager'. "
)
_CAUTION = "A row that is masked as a whole then gives the mean of v instead of 0"
_BASIS = "if none of them is left: their own time, measured; a delegate adds the mask"


def attention_operators(evidence: Evidence) -> list[Operator]:
    """Portable operators that mask an attention, or scale and copy what it multiplies.

    The program tells by what surrounds the softmax. Without one, the five that the softmax of
    ``scaled_dot_product_attention`` is made of tell, which nothing else brings together.
    """
    if evidence.attention is not None:
        known = evidence.attention
        return evidence.where(lambda o: o.backend == PORTABLE_BACKEND and operator_key(o) in known)
    candidates = evidence.where(lambda o: o.backend == PORTABLE_BACKEND and aten_operator(o.name) in _SAFE_SOFTMAX)
    methods = grouped(candidates, lambda operator: operator.method).values()
    whole = [own for own in methods if {aten_operator(operator.name) for operator in own} == _SAFE_SOFTMAX]
    return [operator for own in whole for operator in own]


def _is_masking(evidence: Evidence, operator: Operator) -> bool:
    key = operator_key(operator)
    return evidence.attention is None or (key is not None and evidence.attention[key] is AttentionPart.MASKING)


@declare_rule(Severity.HIGH, recipes=(ATTENTION_MASKS,), LEAST_SHARE=LEAST_SHARE)
def attention_masking(evidence: Evidence) -> Message:
    """Operators outside of delegates that mask an attention, or scale and copy its factors, above 5 %."""
    rule = "attention_masking"
    members = attention_operators(evidence)
    masking = [operator for operator in members if _is_masking(evidence, operator)]
    if not members:
        return passed(rule, "no portable operator masks an attention")
    share, time = evidence.share(members), time_of(members)
    if share <= LEAST_SHARE:
        return passed(rule, f"portable operators inside of attention take {share_text(share)} ({count(members)})")
    what = "Masks, scales and copies" if masking else "Scales and copies"
    title = f"{what} inside of attention take {share_text(share)} of the latency, outside of delegates"
    told = f"{count(members)}, {milliseconds(time)} ms of {milliseconds(evidence.total)} ms{_parts(masking, members)}"
    words = title, f"{told}; longest: {longest(members)}", _step(members)
    saving = Saving(time, evidence.interval(members), _BASIS)
    found = finding(rule, Severity.HIGH, words, evidence.saved(saving), places(members))
    return found.about(recipe=ATTENTION_MASKS)


def _parts(masking: Sequence[Operator], members: Sequence[Operator]) -> str:
    """How much of it masks, and by what: a guard for rows without any element is the exporter's."""
    if not masking:
        return ""
    names = list(dict.fromkeys(aten_operator(operator.name) for operator in masking))
    guard = ", which the exporter adds to the softmax for rows that are masked as a whole"
    own = f"{', '.join(names)}{guard if set(names) >= _SAFE_SOFTMAX else ''}"
    rest = len(members) - len(masking)
    return f"; masks: {milliseconds(time_of(masking))} ms ({own}); {counted_text(rest, 'other')} scale, copy or reshape"


def _step(members: Sequence[Operator]) -> str:
    """What to do: a call where torch's own module is used, else the function to write in its place."""
    modules = any((operator.module_type or "").endswith("MultiheadAttention") for operator in members)
    return f"{_MODULES if modules else _FUNCTION}{_CAUTION}"
