"""Rules on where the time of one variant goes: portable operators, the bottleneck, and the ceilings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opscope.analysis.findings.message import Saving, Severity, finding, no_saving, not_checked, passed
from opscope.analysis.findings.rule import ATTENTION_MASKS, DYNAMIC_INT8, PORTABLE, declare_rule, recipe_of
from opscope.analysis.operators.delegates import is_delegated
from opscope.analysis.operators.operators import PORTABLE_BACKEND, dominant, limit_without
from opscope.analysis.roofline import Bound
from opscope.analysis.rules.advice import find_advice, suggest_shapes
from opscope.analysis.rules.attention import attention_operators
from opscope.analysis.rules.evidence import (
    LEAST_SHARE,
    NO_CEILINGS,
    count,
    display_name,
    is_quantised,
    longest,
    places,
    time_of,
)
from opscope.analysis.rules.movement import DATA_MOVEMENT_SHARE
from opscope.core.grouping import grouped
from opscope.core.table.places import operator_key
from opscope.core.units import counted_text, milliseconds, ratio_text, share_text, time_text
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import COMPILED_REGION, DEVICE_WAIT
from opscope.program.partition.verdicts import Cause, advice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.delegates import PortableTime
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.roofline import Placement
    from opscope.analysis.rules.evidence import Evidence
    from opscope.core.table.places import OperatorKey

# Where these come from: docs/design/rules.md.
HEADROOM_SHARE = 0.10
MEMORY_SHARE = 0.20
NEAR_CEILING = 0.7
WEIGHTY = 0.01
_FEWEST = 3
_OPTIMISED = frozenset("native_layer_norm log_softmax add sub mul div exp gelu elu bmm mm linear sum where".split())
"""Kernels that ExecuTorch also has in a vectorised form: kernels/optimized/optimized.yaml."""


@declare_rule(Severity.HIGH, recipes=(*PORTABLE, ATTENTION_MASKS), LEAST_SHARE=LEAST_SHARE, WEIGHTY=WEIGHTY)
def portable_operators(evidence: Evidence) -> Message:
    """Operators outside any delegate, above 5 % of the latency."""
    rule = "portable_operators"
    portable = evidence.where(lambda operator: operator.backend == PORTABLE_BACKEND)
    share, time = evidence.share(portable), time_of(portable)
    figures = f"{count(portable)}, {milliseconds(time)} ms of {milliseconds(evidence.total)} ms"
    if share <= LEAST_SHARE:
        return passed(rule, f"undelegated operators take {share_text(share)} ({figures})")
    if _is_undelegated(evidence):
        return passed(rule, f"no operator is delegated; see nothing_delegated ({figures})")
    title = f"Undelegated operators take {share_text(share)} of the latency"
    text = f"{figures}; longest: {longest(portable)}{_reasons_text(evidence.portable)}"
    step, recipe = _portable_step(evidence)
    saving = if_delegated(evidence, portable)
    return finding(rule, Severity.HIGH, (title, text, step), saving, places(portable)).about(recipe=recipe)


def _reasons_text(rows: Sequence[PortableTime]) -> str:
    """Return why the longest portable operators were left out, if known."""
    known = [row for row in _first_of_kinds(rows) if row.reason]
    texts = dict.fromkeys(
        f"{_plain_name(row)}: {row.reason}{f' ({row.evidence})' if row.evidence else ''}" for row in known[:_FEWEST]
    )
    return f"; not delegated because: {'; '.join(texts)}" if texts else ""


def _first_of_kinds(rows: Sequence[PortableTime]) -> list[PortableTime]:
    """Return the first row of each name and cause, those that take longest together first."""
    together = grouped(rows, lambda row: (row.name, row.cause))
    groups = sorted(together.values(), key=lambda portable_times: -sum(row.share for row in portable_times))
    return [portable_times[0] for portable_times in groups]


def _plain_name(row: PortableTime) -> str:
    return row.name.removeprefix("native_call_")


def _portable_step(evidence: Evidence) -> tuple[str, str | None]:
    """Return what to do about the longest portable operators, by their reasons, and the first recipe for it."""
    attention = {(operator.method, operator.instruction) for operator in attention_operators(evidence)}
    rows = _first_of_kinds([row for row in evidence.portable if (row.method, row.instruction) not in attention])[:2]
    steps = ["those inside attention: see the finding on attention"] if attention else []
    steps += [
        f"{display_name(_plain_name(row))}: {advice(row.name, Cause(row.cause), row.evidence)}{_kernel_step(row)}"
        for row in rows
        if row.cause
    ]
    known = [recipe_of(row.name, Cause(row.cause)) for row in rows if row.cause]
    recipes = [*([ATTENTION_MASKS] if attention else []), *filter(None, known)]
    step = "; ".join(steps) or find_advice(evidence.trace_format).why_outside
    return step, next(iter(recipes), None)


def _kernel_step(row: PortableTime) -> str:
    operator = _plain_name(row).partition(".")[0].strip("_")
    faster = ", or link optimized_native_cpu_ops_lib, if the runner has portable kernels only"
    return faster if operator in _OPTIMISED else ""


def if_delegated(evidence: Evidence, operators: Sequence[Operator]) -> Saving:
    """Return the saving if a delegate ran these operators as near to the ceilings as its own.

    Without ceilings it is the limit: the saving if they took no time.
    """
    placements = evidence.placements()
    ceilings = [
        placements[key].ceiling_ns if (key := operator_key(operator)) in placements else None for operator in operators
    ]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    reached = _reached_fractions(evidence, placements)
    if len(known) < len(ceilings) or reached is None:
        return evidence.limit(operators)
    time, best = time_of(operators), sum(known)
    low, middle = (min(best / fraction, time) for fraction in reached)
    interval = evidence.interval(operators)
    ends = (max(0.0, interval[0] - low), max(0.0, interval[1] - best)) if interval else None
    basis = f"if a delegate ran them as near to the machine's ceilings as its own operators: {share_text(reached[1])}"
    return evidence.saved(Saving(time - middle, ends, basis))


def _reached_fractions(
    evidence: Evidence, placements_by_key: Mapping[OperatorKey, Placement]
) -> tuple[float, float] | None:
    """Return first quartile and median of the ceiling fraction of delegated operators; None if too few."""
    weighty = [operator for operator in evidence.where(is_delegated) if operator.shown_ns >= WEIGHTY * evidence.total]
    placements = [placements_by_key[key] for key in places(weighty) if key in placements_by_key]
    fractions = [
        min(placement.fraction.low, 1.0)
        for placement in placements
        if placement.fraction and placement.fraction.low > 0
    ]
    if len(fractions) < _FEWEST:
        return None
    low, middle = np.quantile(fractions, (0.25, 0.5)).tolist()
    return low, middle


@declare_rule(Severity.HIGH)
def nothing_delegated(evidence: Evidence) -> Message:
    """A program with no delegated operator."""
    rule = "nothing_delegated"
    work = evidence.work()
    calls = len(evidence.delegates)
    if not _is_undelegated(evidence):
        return passed(rule, f"{counted_text(calls, 'delegate call')} per inference")
    if not work:
        return not_checked(rule, "the trace holds no operator, only the framework's own time")
    title = "Nothing is delegated: every operator runs in the runtime's own kernels"
    text = f"{count(work)}, {milliseconds(time_of(work))} ms, no call of a delegate; longest: {longest(work)}"
    off = any(row.cause == Cause.SWITCHED_OFF.value for row in evidence.portable)
    name = evidence.portable[0].name if evidence.portable and _is_litert(evidence) else ""
    words = title, text, advice(name, Cause.SWITCHED_OFF if off else Cause.NOT_LOWERED, None)
    saving = no_saving("how fast a delegate would run them was not measured")
    return finding(rule, Severity.HIGH, words, saving, places(work))


def _is_undelegated(evidence: Evidence) -> bool:
    """Return whether no delegate was called, not even one that reports no operators."""
    return not evidence.delegates and not any(is_delegated(operator) for operator in evidence.operators)


def _is_litert(evidence: Evidence) -> bool:
    """Return whether LiteRT ran the operators: its names are in capitals, those of ExecuTorch are PyTorch's."""
    return any(row.name.isupper() for row in evidence.portable)


@declare_rule(
    Severity.MEDIUM,
    recipes=(DYNAMIC_INT8,),
    LEAST_SHARE=LEAST_SHARE,
    DATA_MOVEMENT_SHARE=DATA_MOVEMENT_SHARE,
    NEAR_CEILING=NEAR_CEILING,
)
def bottleneck(evidence: Evidence) -> Message:
    """The dominant category, the latency without it, and its distance from the ceilings."""
    rule = "bottleneck"
    work = evidence.work()
    largest = dominant(evidence.operators, evidence.headline.copies if evidence.headline else None)
    if largest is None:
        return not_checked(rule, "the trace holds no operator, only the framework's own time")
    category, time = largest.category, largest.time_ns or 0.0
    if largest.share <= LEAST_SHARE:
        return passed(rule, f"no category takes more than {share_text(largest.share)} of the latency")
    if category is Category.DATA_MOVEMENT and largest.share > DATA_MOVEMENT_SHARE:
        return passed(rule, "data movement dominates (a separate finding)")
    members = [operator for operator in work if operator.category is category]
    device = [operator for operator in members if operator.kind in {COMPILED_REGION.kind, DEVICE_WAIT.kind}]
    if time_of(device) > time_of(members) / 2:
        return passed(rule, "what an accelerator runs as a whole dominates (a separate finding)")
    outside = [operator for operator in members if operator.backend == PORTABLE_BACKEND]
    if time_of(outside) > max(time_of(members) / 2, LEAST_SHARE * evidence.total):
        seen = f"{category.value} dominates, {share_text(largest.share)}; {count(outside)} of it are not delegated"
        return passed(rule, f"{seen} (a separate finding)")
    rest = evidence.total - time
    most = limit_without(largest.share)
    limit = f" ({ratio_text(most)} faster)" if most else ""
    kinds = (
        ""
        if category is not Category.OTHER
        else f" ({', '.join(dict.fromkeys(operator.kind for operator in members))})"
    )
    reached = reached_share(evidence, members)
    text = (
        f"{len(members)} of {counted_text(len(work), 'operator')}, {milliseconds(time)} ms; without it: "
        f"{milliseconds(rest)} ms{limit}{_reached_text(reached)}; longest: {longest(members)}"
    )
    title = f"{category.value}{kinds} dominates: {share_text(largest.share)} of the latency"
    saving = at_ceilings(evidence, members)
    if reached is not None and reached >= NEAR_CEILING:
        saving = no_saving(
            "it runs near its ceilings; the saving from less work or another number type was not measured"
        )
    step = _relief_text(evidence, members, category, reached)
    is_about_type = step.startswith(find_advice(evidence.trace_format).narrower_type)
    recipe = DYNAMIC_INT8 if category is Category.GEMM and is_about_type else None
    return finding(rule, Severity.MEDIUM, (title, text, step), saving, places(members)).about(recipe=recipe)


def reached_share(evidence: Evidence, operators: Sequence[Operator]) -> float | None:
    """Return the share of their time that operators would need at their ceilings; None if less than half is placed."""
    placements = evidence.placements()
    pairs = [
        (operator.shown_ns, placements[key].ceiling_ns)
        for operator in operators
        if (key := operator_key(operator)) in placements
    ]
    known = [(time, ceiling) for time, ceiling in pairs if ceiling is not None]
    time = sum(time for time, _ in known)
    return sum(ceiling for _, ceiling in known) / time if time > time_of(operators) / 2 else None


def _reached_text(reached: float | None) -> str:
    return "" if reached is None else f"; at this machine's ceilings they would take {share_text(reached)} of that"


def at_ceilings(evidence: Evidence, operators: Sequence[Operator]) -> Saving:
    """Return the saving if these operators ran at the measured ceilings; no saving if none were measured."""
    placements = evidence.placements()
    rooms = [placements[key].headroom_ns for operator in operators if (key := operator_key(operator)) in placements]
    known = [room for room in rooms if room is not None]
    if not known:
        return no_saving(evidence.no_ceilings() or NO_CEILINGS)
    low, high = sum(room.low for room in known), sum(room.high or room.low for room in known)
    interval = evidence.interval(operators)
    spread = (time_of(operators) - interval[0], interval[1] - time_of(operators)) if interval else None
    ends = (max(0.0, low - spread[0]), max(high, low + spread[1])) if spread else None
    basis = "at most, if they ran at this machine's measured ceilings"
    return evidence.saved(Saving(low, ends, basis))


def _relief_text(evidence: Evidence, members: Sequence[Operator], category: Category, reached: float | None) -> str:
    """Return what helps a category: less work if it runs at its ceilings, else better use of the machine."""
    if category in {Category.CONVOLUTION, Category.GEMM} and reached is not None and reached < NEAR_CEILING:
        return suggest_shapes(members)
    if category in _LESS and is_quantised(members):
        return f"{_LESS[category]}, or use more threads"
    if category in _LESS:
        return f"{find_advice(evidence.trace_format).narrower_type}; else {_LESS[category]}"
    return _RELIEF[category]


_LESS = {Category.CONVOLUTION: "use fewer channels or smaller images", Category.GEMM: "shrink or remove layers"}
_RELIEF = {
    Category.DATA_MOVEMENT: "keep one memory format throughout; remove transposes and copies",
    Category.ELEMENTWISE: "fuse these into the operators before them, or use cheaper activations",
    Category.OTHER: "replace those that no delegate supports, the longest first",
}


@declare_rule(Severity.INFO, HEADROOM_SHARE=HEADROOM_SHARE)
def headroom(evidence: Evidence) -> Message:
    """Delegated operators far below this machine's measured ceilings, above 10 % of the latency."""
    rule = "headroom"
    problem = evidence.no_ceilings()
    if problem or evidence.roofline is None:
        return not_checked(rule, problem or NO_CEILINGS)
    placements = evidence.placements()
    rooms = {
        id(operator): room.low
        for operator in evidence.where(is_delegated)
        if (key := operator_key(operator)) in placements and (room := placements[key].headroom_ns) is not None
    }
    members = sorted(
        (operator for operator in evidence.operators if rooms.get(id(operator), 0.0) > 0),
        key=lambda operator: -rooms[id(operator)],
    )
    saving = at_ceilings(evidence, members)
    above = saving.ns or 0.0
    share, who = evidence.part(above), "nodes" if evidence.of_nodes() else "delegates"
    if share <= HEADROOM_SHARE:
        known = share_text(evidence.part(evidence.roofline.placed_ns))
        return passed(
            rule, f"at the ceilings, {who} would save {share_text(share)}; {known} of the latency has a ceiling"
        )
    names = ", ".join(
        f"{operator.module or operator.name} ({time_text(rooms[id(operator)])})" for operator in members[:_FEWEST]
    )
    title = f"{who.capitalize()} miss the roofline by {share_text(share)} of the latency"
    text = f"{time_text(above)} in {count(members)}; most headroom: {names}"
    return finding(rule, Severity.INFO, (title, text, suggest_shapes(members)), saving, places(members))


@declare_rule(Severity.INFO, recipes=(DYNAMIC_INT8,), MEMORY_SHARE=MEMORY_SHARE)
def memory_bound(evidence: Evidence) -> Message:
    """Memory-bound operators, above 20 % of the latency: faster arithmetic does not help them."""
    rule = "memory_bound"
    problem = evidence.no_ceilings()
    if problem or evidence.roofline is None:
        return not_checked(rule, problem or NO_CEILINGS)
    placements = evidence.placements()
    members = [
        operator
        for operator in evidence.work()
        if (key := operator_key(operator)) in placements and placements[key].bound is Bound.MEMORY
    ]
    share = evidence.share(members)
    if share <= MEMORY_SHARE:
        return passed(rule, f"memory-bound operators take {share_text(share)}")
    title = f"Memory-bound operators take {share_text(share)} of the latency"
    text = (
        f"{count(members)}, {milliseconds(time_of(members))} ms: moving their bytes once accounts for at least half of "
        f"it; longest: {longest(members)}"
    )
    step = "move fewer bytes: fp16 or int8 weights and activations, or operators fused with their neighbours"
    saving = no_saving("it depends on which bytes you save")
    products = time_of(
        operator for operator in members if operator.category is Category.GEMM and not is_quantised([operator])
    )
    recipe = DYNAMIC_INT8 if products > time_of(members) / 2 else None
    return finding(rule, Severity.INFO, (title, text, step), saving, places(members)).about(recipe=recipe)
