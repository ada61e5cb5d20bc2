"""Rules on data that are moved: how much, for whom, between which delegates, and for quantisation."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from opscope.analysis.compare.number_types import converts_weights
from opscope.analysis.findings.message import Saving, Severity, finding, not_checked, passed
from opscope.analysis.findings.rule import CHANNELS_LAST_INPUTS, DYNAMIC_INT8, PORTABLE, declare_rule, recipe_of
from opscope.analysis.operators.delegates import is_delegated
from opscope.analysis.operators.modules import find_recurrences
from opscope.analysis.operators.operators import GIVEN, PORTABLE_BACKEND
from opscope.analysis.rules.advice import find_advice
from opscope.analysis.rules.evidence import LEAST_SHARE, count, longest, places, time_of
from opscope.core.grouping import grouped
from opscope.core.units import counted_text, milliseconds, share_text, time_text
from opscope.program.operators.kinds import Category
from opscope.program.partition.verdicts import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import Evidence

# Where these come from: docs/design/rules.md.
DATA_MOVEMENT_SHARE = 0.10
MANY_CALLS = 8
_NAMED = 3
_WEIGHTY = 0.05
_MOSTLY = 2 / 3
"""Share of the boundary cost from which a recurrence, not fragmentation, is what to change."""


@declare_rule(Severity.HIGH, recipes=(CHANNELS_LAST_INPUTS,), DATA_MOVEMENT_SHARE=DATA_MOVEMENT_SHARE)
def data_movement(evidence: Evidence) -> Message:
    """Transposes, copies, reshapes and conversions above 10 % of the latency, and the layers that cause them."""
    rule = "data_movement"
    moving = evidence.where(lambda operator: operator.category is Category.DATA_MOVEMENT)
    copies, time = evidence.copies_ns, time_of(moving) + evidence.copies_ns
    share = evidence.part(time)
    copied = f"copying inputs and outputs {milliseconds(copies)} ms" if copies else ""
    figures = " and ".join(filter(None, (count(moving) if moving or not copied else "", copied)))
    if share <= DATA_MOVEMENT_SHARE:
        return passed(rule, f"data movement takes {share_text(share)} of the latency ({figures})")
    title = f"Data movement takes {share_text(share)} of the latency"
    kinds = f": {_time_by_kind(moving)}; caused by {_causes_text(moving)}" if moving else ""
    total_text = f", {milliseconds(time)} ms{' together' if copied else ''}" if moving else ""
    text = f"{figures}{total_text}{kinds}"
    step = find_advice(evidence.trace_format).caller_copies if copies > time / 2 else _movement_step(evidence, moving)
    message = finding(rule, Severity.HIGH, (title, text, step), evidence.limit(moving, copies=True), places(moving))
    return message.about(recipe=_layout_recipe(evidence, step))


def _time_by_kind(operators: Sequence[Operator]) -> str:
    """Return the time by kind in words, longest first."""
    kinds = dict.fromkeys(operator.kind for operator in operators)
    times = {kind: time_of(operator for operator in operators if operator.kind == kind) for kind in kinds}
    top = sorted(times, key=lambda kind: -times[kind])[:_NAMED]
    return ", ".join(f"{kind} {milliseconds(times[kind])} ms" for kind in top)


def _causes_text(operators: Sequence[Operator]) -> str:
    """Return the longest operators, with the layers around those that the model did not ask for."""
    least = _WEIGHTY * time_of(operators)
    top = sorted(
        (operator for operator in operators if operator.shown_ns >= least), key=lambda operator: -operator.shown_ns
    )[:_NAMED]
    return ", ".join(f"{_cause_text(operator)} ({milliseconds(operator.shown_ns)} ms)" for operator in top)


def _cause_text(operator: Operator) -> str:
    if operator.change is None:
        return operator.module or operator.name
    return f"{operator.name} between {_ends_text(operator.change.before, operator.change.after)}"


def _ends_text(before: Sequence[str], after: Sequence[str]) -> str:
    return f"{' and '.join(before[:2]) or 'the input'} and {' and '.join(after[:2]) or 'the output'}"


def _movement_step(evidence: Evidence, operators: Sequence[Operator]) -> str:
    """Return what helps against the kind that takes longest; against layout changes by who asked for them."""
    times = {
        kind: time_of(operator for operator in operators if operator.kind == kind)
        for kind in {operator.kind for operator in operators}
    }
    most = max(times, key=lambda kind: times[kind])
    asked_ns = time_of(operator for operator in operators if operator.kind == most and operator.change is None)
    if most == "layout" and asked_ns < times[most] / 2:
        return _unasked_step(evidence, operators)
    if most == "copy":
        return find_advice(evidence.trace_format).copies
    return _STEPS.get(most, _STEPS["layout"])


def _unasked_step(evidence: Evidence, operators: Sequence[Operator]) -> str:
    """Return what helps against layout changes that the model did not ask for."""
    ends = [end for operator in operators if operator.change for end in operator.change.before]
    inputs = find_advice(evidence.trace_format).layout_of_inputs
    return f"{inputs}, and {_MIDDLE}" if inputs and GIVEN in ends else _MIDDLE


def _layout_recipe(evidence: Evidence, step: str) -> str | None:
    """Return the page about inputs if the step is about them; else None."""
    inputs = find_advice(evidence.trace_format).layout_of_inputs
    return CHANNELS_LAST_INPUTS if inputs and step.startswith(inputs) else None


_MIDDLE = "move operators that need another layout to the start or end"
_STEPS = {
    "layout": "keep one memory format throughout; remove transposes, or place them where they cancel out",
    "reshape": "remove redundant reshapes, and produce the shapes that attention and matmul need",
    "slice": "split weights at export instead of activations at run time: one linear layer for each part",
    "concatenate": "write into one tensor, or add instead of concatenating",
    "pad": "use the convolution's own padding instead of a separate pad",
    "gather": "shrink the table or its rows; keep indices in the type that the kernel expects",
    "quantisation": "see quantisation_overhead: quantise neighbouring operators the same way, or statically",
}


@declare_rule(Severity.HIGH, recipes=(CHANNELS_LAST_INPUTS,), LEAST_SHARE=LEAST_SHARE)
def layout_tax(evidence: Evidence) -> Message:
    """Transposes and conversions that are not in the model, above 5 % of the latency."""
    rule = "layout_tax"
    if not evidence.attributed:
        return not_checked(rule, "without attribution, opscope cannot tell which operators were added")
    added = evidence.where(lambda operator: operator.change is not None)
    share = evidence.share(added)
    if share <= LEAST_SHARE:
        is_complete = round(evidence.attributed, 3) >= 1
        part = "" if is_complete else f" of the {share_text(evidence.attributed)} that is attributed"
        return passed(rule, f"layout changes that are not in the model take {share_text(share)}{part}")
    title = f"Layout changes that are not in the model take {share_text(share)} of the latency"
    text = f"{len(added)} of them, {milliseconds(time_of(added))} ms: {_causes_text(added)}"
    step = _unasked_step(evidence, added)
    message = finding(rule, Severity.HIGH, (title, text, step), evidence.limit(added), places(added))
    return message.about(recipe=_layout_recipe(evidence, step))


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def layout_churn(evidence: Evidence) -> Message:
    """Delegate boundaries with a layout change on both sides, above 5 % of the latency."""
    rule = "layout_churn"
    if evidence.of_nodes():
        return passed(rule, "does not apply: ONNX Runtime has no delegate calls")
    calls = _delegated_calls(evidence)
    if len(calls) < 2:  # noqa: PLR2004 - there is nothing between fewer
        return passed(rule, f"{counted_text(len(calls), 'delegate call')}: none follows another")
    pairs = [
        (before, after)
        for before, after in pairwise(calls)
        if _is_layout_change(before[-1]) and _is_layout_change(after[0])
    ]
    members = list({id(operator): operator for before, after in pairs for operator in (before[-1], after[0])}.values())
    share = evidence.share(members)
    figures = f"{len(pairs)} of {len(calls) - 1} delegate boundaries have a layout change on both sides"
    if share <= LEAST_SHARE:
        return passed(rule, f"{figures}, {share_text(share)} of the latency")
    title = f"Layout changes on both sides of delegate boundaries take {share_text(share)} of the latency"
    text = f"{figures}: {milliseconds(time_of(members))} ms; {_causes_text(members)}"
    step = "merge these delegates (see the finding on portable operators): the layout changes may then cancel out"
    return finding(rule, Severity.MEDIUM, (title, text, step), evidence.limit(members), places(members))


def _delegated_calls(evidence: Evidence) -> list[list[Operator]]:
    """Return the operators of every delegate call in program order, without calls that report none."""
    calls = grouped(evidence.where(is_delegated), lambda operator: (operator.method, operator.instruction))
    return list(calls.values())


def _is_layout_change(operator: Operator) -> bool:
    return operator.kind == "layout"


@declare_rule(Severity.MEDIUM, recipes=PORTABLE, MANY_CALLS=MANY_CALLS, LEAST_SHARE=LEAST_SHARE)
def fragmentation(evidence: Evidence) -> Message:
    """Many delegate calls, whose boundaries cost more than 5 % of the latency."""
    rule = "fragmentation"
    calls = evidence.delegates
    borders = evidence.borders()
    cost = sum(borders.values())
    share = evidence.part(cost)
    spent = f"{milliseconds(cost)} ms ({share_text(share)}) at boundaries"
    figures = f"{counted_text(len(calls), 'delegate call')}, {spent}"
    if len(calls) < MANY_CALLS or share <= LEAST_SHARE:
        return passed(rule, figures)
    steps = {
        (operator.method, operator.instruction)
        for recurrence in find_recurrences(evidence.operators)
        for operator in recurrence.operators
    }
    if sum(cost_of_call for call_key, cost_of_call in borders.items() if call_key in steps) > _MOSTLY * cost:
        return passed(rule, f"{figures}, mostly of an unrolled recurrence (a separate finding)")
    title = f"The model is split into {len(calls)} delegate calls; crossing their boundaries takes {share_text(share)}"
    between = evidence.where(lambda operator: operator.backend == PORTABLE_BACKEND)
    text = f"{figures}, {time_text(cost / len(calls))} each; in between: {longest(between) or 'no operator'}"
    step = "merge delegates: replace the operators between them, the most frequent first"
    removed_share = (len(calls) - 1) / len(calls)
    spread = evidence.interval(
        [operator for operator in evidence.operators if operator.name == "DELEGATE_CALL" and operator.position is None]
    )
    boundary_ns = sum(call.boundary_ns or 0.0 for call in calls)
    ends = tuple(max(0.0, end - (boundary_ns - cost)) * removed_share for end in spread) if spread else None
    basis = "if only one call remained; part of it is tracing overhead"
    saving = Saving(cost * removed_share, (ends[0], ends[1]) if ends else None, basis)
    message = finding(rule, Severity.MEDIUM, (title, text, step), evidence.saved(saving))
    known = [recipe_of(row.name, Cause(row.cause)) for row in evidence.portable if row.cause]
    return message.about(recipe=max((recipe for recipe in known if recipe), key=known.count, default=None))


@declare_rule(Severity.MEDIUM, recipes=(DYNAMIC_INT8,), LEAST_SHARE=LEAST_SHARE)
def quantisation_overhead(evidence: Evidence) -> Message:
    """Quantising and converting number types, above 5 % of the latency, and the operators that need it."""
    rule = "quantisation_overhead"
    converting = evidence.where(lambda operator: operator.kind == "quantisation")
    share = evidence.share(converting)
    if share <= LEAST_SHARE:
        return passed(rule, f"quantising and converting take {share_text(share)} ({count(converting)})")
    message = finding(
        rule,
        Severity.MEDIUM,
        _describe_conversions(evidence, converting, share),
        evidence.limit(converting),
        places(converting),
    )
    return message.about(recipe=DYNAMIC_INT8 if _is_mostly(converting, _is_dynamic) else None)


def _describe_conversions(evidence: Evidence, converting: Sequence[Operator], share: float) -> tuple[str, str, str]:
    """Return title, evidence and next step by what is converted most: data at run time, stored weights, others."""
    text = f"{count(converting)}, {milliseconds(time_of(converting))} ms; longest: {longest(converting)}"
    part = f"takes {share_text(share)} of the latency"
    if _is_mostly(converting, _is_dynamic):
        served = evidence.where(lambda operator: any(tag in operator.name for tag in ("QD8", "QP8", "QDU8")))
        served = [operator for operator in served if operator not in converting]
        text += f"; needed by {count(served)} ({milliseconds(time_of(served))} ms)"
        step = "quantise statically, with calibration, or keep layers with few rows in their original type"
        return f"Quantising at run time {part}", text, step
    if _is_mostly(converting, converts_weights):
        title = f"Converting stored weights in every call {part}"
        return title, text, find_advice(evidence.trace_format).converted_weights
    step = "keep one number type throughout, or quantise neighbouring operators the same way"
    return f"Converting number types {part}", text, step


def _is_mostly(operators: Sequence[Operator], condition: Callable[[Operator], bool]) -> bool:
    """Return whether operators that fulfil a condition take more than half of the time."""
    return time_of(operator for operator in operators if condition(operator)) > time_of(operators) / 2


def _is_dynamic(operator: Operator) -> bool:
    """Return whether an operator finds the range of its data at run time, by XNNPACK's or ExecuTorch's names."""
    return any(tag in operator.name for tag in ("QD8", "QP8", "QDU8", "choose_qparams", "per_token"))
