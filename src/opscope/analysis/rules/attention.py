"""What the masks of an attention cost: operators that ExecuTorch puts into scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Severity, finding, passed
from opscope.analysis.findings.rule import ATTENTION_MASKS, declare_rule
from opscope.analysis.operators.operators import PORTABLE_BACKEND
from opscope.analysis.rules.evidence import LEAST_SHARE, count, longest, places, time_of
from opscope.core.grouping import grouped
from opscope.core.units import milliseconds, share_text

if TYPE_CHECKING:
    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import Evidence

# Where it comes from: docs/design/rules.md.
_ATTENTION = "scaled_dot_product_attention"
# A softmax that gives 0 for a row whose every element is masked: torch/_decomp/decompositions.py, _safe_softmax.
_SAFE_SOFTMAX = frozenset({"eq.Scalar", "logical_not", "any", "full_like", "where.self"})
_INSIDE = _SAFE_SOFTMAX | {"scalar_tensor", "full", "bitwise_not", "le.Scalar", "logical_and", "mul.Scalar"}
STEP = (
    "write the attention out with a mask of numbers, 0 or -1e4, that is made once "
    "(opscope.patterns.masked_attention): "
    "torch.softmax(q @ k.transpose(-2, -1) * scale + mask, -1) @ v, which a delegate takes; models of Hugging Face do "
    "so with attn_implementation='eager'. A row that is masked as a whole then gives the mean of v instead of 0"
)


def masking_operators(evidence: Evidence) -> list[Operator]:
    """Portable operators that scale and mask an attention's products, or keep its softmax from dividing by zero.

    By the line of the model that caused them; where no line is known, by the five that the softmax is made of, which
    nothing else brings together.
    """
    candidates = evidence.where(lambda o: o.backend == PORTABLE_BACKEND and _name(o) in _INSIDE)
    found = []
    for own in grouped(candidates, lambda operator: operator.method).values():
        unknown = [o for o in own if o.code is None and _name(o) in _SAFE_SOFTMAX]
        found += unknown if {_name(operator) for operator in unknown} == _SAFE_SOFTMAX else []
        found += [operator for operator in own if _ATTENTION in (operator.code or "")]
    return found


def _name(operator: Operator) -> str:
    """The aten operator of a portable kernel: ``eq.Scalar`` of ``native_call_eq.Scalar_out``."""
    name = operator.name.removeprefix("native_call_")
    return name.removesuffix("_out") if name.endswith("_out") else name.removesuffix(".out")


@declare_rule(Severity.HIGH, recipes=(ATTENTION_MASKS,), LEAST_SHARE=LEAST_SHARE)
def attention_masking(evidence: Evidence) -> Message:
    """Operators that scale and mask the products inside of scaled_dot_product_attention, above 5 % of the latency."""
    rule = "attention_masking"
    members = masking_operators(evidence)
    if not members:
        return passed(rule, "no portable operator masks an attention")
    share, time = evidence.share(members), time_of(members)
    if share <= LEAST_SHARE:
        return passed(rule, f"masking inside of attention takes {share_text(share)} ({count(members)})")
    title = f"Masking and scaling inside of {_ATTENTION} take {share_text(share)} of the latency"
    told = (
        f"{count(members)}, {milliseconds(time)} ms of {milliseconds(evidence.total)} ms; longest: {longest(members)}; "
        "the exporter writes the softmax of this function so that it allows for rows without any element"
    )
    found = finding(rule, Severity.HIGH, (title, told, STEP), evidence.limit(members), places(members))
    return found.about(recipe=ATTENTION_MASKS)
