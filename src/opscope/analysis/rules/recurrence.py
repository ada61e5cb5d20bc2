"""What it costs that an unrolled recurrence leaves its delegate in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Saving, Severity, finding, passed
from opscope.analysis.findings.rule import RECURRENT_LAYERS, declare_rule
from opscope.analysis.operators.operators import PORTABLE_BACKEND
from opscope.analysis.operators.unrolled import unrolled
from opscope.analysis.rules.evidence import LEAST_SHARE, longest, places, time_of
from opscope.core.units import counted_text, milliseconds, share_text
from opscope.program.cost.operator_cost import DELEGATED_OPERATOR_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.unrolled import Unrolled
    from opscope.analysis.rules.evidence import Evidence

# Where it comes from: docs/design/rules.md.
_REPLACE = (
    "call opscope.patterns.replace_recurrent(model) after loading the weights: it rewrites every torch.nn.GRU, "
    "LSTM and RNN as slices, products and sums, so all steps fit in one delegate"
)
_REWRITE = (
    "write the step with supported operators: slices instead of split, chunk and x[:, t], reshape instead of "
    "squeeze and unsqueeze; all steps then fit in one delegate"
)
_STEP = {"GRU": 14, "LSTM": 15, "RNN": 4}
"""Delegated operators of a step of what replaces these."""
_REPLACED = "if all steps ran in one call, with the operators of the recipe"
_REWRITTEN = "at most, if all steps ran in one call and the replacements of their portable operators took no time"


@declare_rule(
    Severity.MEDIUM,
    recipes=(RECURRENT_LAYERS,),
    LEAST_SHARE=LEAST_SHARE,
    DELEGATED_OPERATOR_NS=DELEGATED_OPERATOR_NS,
)
def unrolled_recurrence(evidence: Evidence) -> Message:
    """Recurrent steps that leave their delegate: portable operators and call boundaries, above 5 %."""
    rule = "unrolled_recurrence"
    found = unrolled(evidence.operators)
    if not found:
        return passed(rule, "no recurrence was unrolled")
    inside = {(operator.method, operator.instruction) for one in found for operator in one.operators}
    portable = [o for one in found for o in one.operators if o.backend == PORTABLE_BACKEND]
    leaving = [*portable, *evidence.calls_of(portable)]
    borders = [cost for place, cost in evidence.borders().items() if place in inside]
    kept = (len(borders) - 1) / len(borders) if borders else 0.0
    time = time_of(leaving) + sum(borders) * kept + _between(evidence, inside)
    saved = time - DELEGATED_OPERATOR_NS * sum(map(_added, found))
    share, named = evidence.part(time), _named(found)
    figures = f"{counted_text(len(portable), 'portable operator')} and {counted_text(len(borders), 'delegate call')}"
    if evidence.part(saved) <= LEAST_SHARE:
        return passed(rule, f"{named}: leaving the delegate takes {share_text(share)} ({figures})")
    title = f"Steps of {named} leave their delegate, which takes {share_text(share)} of the latency"
    own = f": {longest(portable)}" if portable else ""
    told = (
        f"{figures} in {counted_text(sum(one.steps for one in found), 'step')}; portable: "
        f"{milliseconds(time_of(portable))} ms{own}; entering and leaving: {milliseconds(sum(borders))} ms"
    )
    step, basis = (_REPLACE, _REPLACED) if any(map(_replaced, found)) else (_REWRITE, _REWRITTEN)
    whole = [*portable, *evidence.calls_of(operator for one in found for operator in one.operators)]
    spread, more = evidence.interval(whole), time_of(whole) - saved
    ends = (max(0.0, spread[0] - more), max(0.0, spread[1] - more)) if spread else None
    saving = evidence.saved(Saving(saved, ends, basis))
    return finding(rule, Severity.MEDIUM, (title, told, step), saving, places(portable)).about(recipe=RECURRENT_LAYERS)


def _between(evidence: Evidence, inside: set[tuple[str, int | None]]) -> float:
    """The framework's time between the instructions of a recurrence, in proportion to how many of all these are."""
    methods = {method for method, _ in inside}
    every = {(o.method, o.instruction) for o in evidence.operators if o.instruction is not None and o.method in methods}
    framework = [o for o in evidence.operators if o.instruction is None and o.method in methods]
    return time_of(framework) * (len(inside) - 1) / len(every) if every else 0.0


def _replaced(one: Unrolled) -> str | None:
    """Which of torch's own layers it is; None for a loop of the user's own."""
    types = {(operator.module_type or "").rpartition(".")[2] for operator in one.operators}
    return next((name for name in _STEP if name in types), None)


def _added(one: Unrolled) -> int:
    """How many more delegated operators the recipe's layer has."""
    layer = _replaced(one)
    inside = sum(operator.backend != PORTABLE_BACKEND for operator in one.operators)
    return max(0, _STEP[layer] * one.steps - inside) if layer else 0


def _named(found: Sequence[Unrolled]) -> str:
    return ", ".join(f"{one.module or 'the model'} ({counted_text(one.steps, 'step')})" for one in found)
