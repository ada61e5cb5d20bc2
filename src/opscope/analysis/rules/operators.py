"""Rules on what acceleration left unchanged, slowed down, or helped less than usual, and on unrolled recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.compare.compare import largest_speedup
from opscope.analysis.findings.message import Saving, Severity, finding, no_saving, not_checked, passed
from opscope.analysis.findings.rule import RECURRENT_LAYERS, declare_rule
from opscope.analysis.operators.modules import find_recurrences
from opscope.analysis.operators.operators import FRAMEWORK_BACKEND, PORTABLE_BACKEND
from opscope.analysis.roofline import Bound
from opscope.analysis.rules.acceleration import (
    CONTEXT,
    HEAVY,
    SME,
    UNHELPED_SPEEDUP,
    add_typical_speedups,
    gains_text,
    is_unused,
    kernel_gains,
    not_switched_reason,
    switched_text,
    undecided_reason,
    undetectable_reason,
)
from opscope.analysis.rules.evidence import (
    LEAST_SHARE,
    NO_CEILINGS,
    is_quantised,
    longest,
    number_types,
    places,
    time_of,
)
from opscope.analysis.rules.time import NEAR_CEILING, at_ceilings, reached_share
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.table.places import operator_key
from opscope.core.units import counted_text, milliseconds, ratio_text, share_text
from opscope.program.cost.operator_cost import DELEGATED_OPERATOR_NS
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.program.partition.verdicts import SmeSupport as Eligible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import CategoryChange, OperatorChange
    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.modules import Recurrence
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import Evidence, PairEvidence


# Where these come from: docs/design/rules.md.
_NAMED = 3
_NOT_DELEGATES = (PORTABLE_BACKEND, FRAMEWORK_BACKEND)
EXPECTED = {Category.GEMM: (3.0, 15.0), Category.CONVOLUTION: (3.0, 10.0)}
"""Speedups that SME2 usually gives, by the report skill of Arm's profiling kit for ExecuTorch."""


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE, NEAR_CEILING=NEAR_CEILING, UNHELPED_SPEEDUP=UNHELPED_SPEEDUP)
def unhelped_operators(pair: PairEvidence) -> Message:
    """Delegated convolutions and products that acceleration could speed up but did not, above 5 %."""
    rule = "unhelped_operators"
    problem = not_switched_reason(pair) or undecided_reason(pair)
    if problem:
        return not_checked(rule, problem)
    if is_unused(pair):
        hidden = undetectable_reason(pair.comparison.end_to_end, UNHELPED_SPEEDUP)
        same = "no operator changed detectably; see the check on latency"
        return not_checked(rule, hidden) if hidden else passed(rule, same)
    groups = _heavy_kinds(pair)
    unhelped = {
        kind: changes for kind, changes in groups.items() if _best_speedup(pair, kind, changes) < UNHELPED_SPEEDUP
    }
    if not unhelped:
        text = (
            ", ".join(f"{kind} {ratio_text(_total_speedup(changes))}" for kind, changes in groups.items())
            or "there are none"
        )
        return passed(rule, f"main delegated convolutions and products: {text}")
    members = [change for changes in unhelped.values() for change in changes]
    time = sum(change.candidate_ns or 0.0 for change in members)
    text = ", ".join(
        f"{kind} {_side_text(changes, 'baseline_ns')} to {_side_text(changes, 'candidate_ns')} ms, at most "
        f"{ratio_text(_best_speedup(pair, kind, changes))}"
        for kind, changes in unhelped.items()
    )
    title = f"Acceleration does not speed up {' and '.join(unhelped)} operators"
    share = share_text(time / pair.comparison.candidate.headline_ns)
    words = f"{share} of the latency: {text}{_limits_text(pair, members)}"
    message = finding(
        rule,
        Severity.MEDIUM,
        (title, words, _unhelped_step(pair, members)),
        _unhelped_saving(pair, members),
        places(members),
    )
    return add_typical_speedups(pair, message)


def _heavy_kinds(pair: PairEvidence) -> dict[str, list[OperatorChange]]:
    """Return changes of delegated convolutions and products by kind, for kinds above 5 % that SME may run."""
    shared = [
        change
        for change in pair.comparison.operators
        if change.category in HEAVY and change.backend not in _NOT_DELEGATES
    ]
    if SME & set(pair.switched or ()) and pair.evidence is not None:
        cannot = {key for key, eligibility in pair.evidence.sme.items() if eligibility.verdict is Eligible.NOT_ELIGIBLE}
        shared = [change for change in shared if operator_key(change) not in cannot]
    least = LEAST_SHARE * pair.comparison.candidate.headline_ns
    return {
        kind: changes
        for kind, changes in grouped(shared, lambda change: change.kind).items()
        if sum(change.candidate_ns or 0.0 for change in changes) > least
    }


def _best_speedup(pair: PairEvidence, kind: str, changes: Sequence[OperatorChange]) -> float:
    """Return the largest speedup of a kind that the interval of its saving allows; infinite without an interval."""
    kind_changes = [
        change for change in pair.comparison.kinds if change.kind == kind and change.backend not in _NOT_DELEGATES
    ]
    complete = sum(
        1 for change in pair.comparison.operators if change.kind == kind and change.backend not in _NOT_DELEGATES
    )
    if len(kind_changes) == 1 and complete == len(changes):
        before, most = (
            kind_changes[0].baseline_ns,
            kind_changes[0].ci95_saved_ns[1] if kind_changes[0].ci95_saved_ns else None,
        )
    else:  # a part of a kind has no interval of its own; the sum of its operators' holds it
        ends = [change.ci95_saved_ns for change in changes]
        before = sum(change.baseline_ns or 0.0 for change in changes)
        most = None if None in ends else sum(end[1] for end in ends if end is not None)
    if most is None or before <= most:
        return float("inf")
    return before / (before - most)


def _total_speedup(changes: Sequence[OperatorChange]) -> float:
    before, after = (
        sum(times)
        for times in zip(*[(change.baseline_ns or 0.0, change.candidate_ns or 0.0) for change in changes], strict=True)
    )
    return before / after if after else float("inf")


def _side_text(changes: Sequence[OperatorChange], side: str) -> str:
    return milliseconds(sum(getattr(change, side) or 0.0 for change in changes))


def _candidate_operators(pair: PairEvidence, members: Sequence[OperatorChange]) -> list[Operator]:
    """Return the candidate's operators of these changes."""
    keys = set(places(members))
    return (
        []
        if pair.evidence is None
        else [operator for operator in pair.evidence.operators if operator_key(operator) in keys]
    )


def _share_at_ceilings(pair: PairEvidence, members: Sequence[OperatorChange]) -> float | None:
    """Return the share of their time that operators would need at their ceilings; None if unknown."""
    return None if pair.evidence is None else reached_share(pair.evidence, _candidate_operators(pair, members))


def _limits_text(pair: PairEvidence, members: Sequence[OperatorChange]) -> str:
    """Return how near their ceilings these operators are, if ceilings were measured; else empty."""
    reached = _share_at_ceilings(pair, members)
    return "" if reached is None else f"; at their ceilings they would take {share_text(reached)} of that"


def _unhelped_step(pair: PairEvidence, members: Sequence[OperatorChange]) -> str:
    """Return what helps, by what limits the operators: memory, the ceiling of their type, or bad shapes."""
    placements = pair.evidence.placements() if pair.evidence else {}
    bounds = [placements[key].bound for key in places(members) if key in placements]
    reached = _share_at_ceilings(pair, members)
    if bounds and bounds.count(Bound.MEMORY) > len(bounds) / 2:
        return "move fewer bytes, with int8 or fp16: most are memory-bound, so faster arithmetic does not help"
    gains = kernel_gains(pair, _candidate_operators(pair, members))
    less = "fewer channels" if is_quantised(_candidate_operators(pair, members)) else "int8 or fewer channels"
    if gains and not any(gain.faster for gain in gains):
        ceilings = gains_text(gains)
        return f"this CPU computes them no faster ({ceilings}): give them less to do, with {less}"
    if reached is not None and reached >= NEAR_CEILING:
        return f"they run near their ceilings: give them less to do, with {less}"
    if gains:
        return (
            f"this CPU could run them faster ({gains_text(gains)}): small shapes gain least, so use fewer, larger ones"
        )
    if SME & set(pair.switched or ()):
        return "SME can run them: check the kernel log for KleidiAI kernels, and check the shapes"
    types = number_types(_candidate_operators(pair, members)) or "these number types"
    without = f"unknown whether this CPU computes {types} faster with {switched_text(pair)}"
    alternative = "or export the model in another type and compare"
    return f"{without}: measure the ceilings of both variants (leave out --no-ceilings), {alternative}"


def _unhelped_saving(pair: PairEvidence, members: Sequence[OperatorChange]) -> Saving:
    reached = _share_at_ceilings(pair, members)
    if pair.evidence is None or reached is None:
        return no_saving(pair.evidence.no_ceilings() or NO_CEILINGS if pair.evidence else NO_CEILINGS)
    if reached >= NEAR_CEILING:
        return no_saving("they run near their ceilings; the saving from another number type was not measured")
    return at_ceilings(pair.evidence, _candidate_operators(pair, members))


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def slowed_operators(pair: PairEvidence) -> Message:
    """Operators that became slower with acceleration, above 5 % of the latency together."""
    rule = "slowed_operators"
    problem = not_switched_reason(pair) or undecided_reason(pair)
    if problem:
        return not_checked(rule, problem)
    slower = [
        change
        for change in pair.comparison.operators
        if change.kind != FRAMEWORK.kind and change.verdict is Verdict.SLOWER
    ]
    lost = -sum(change.saved_ns for change in slower)
    share = lost / pair.comparison.candidate.headline_ns
    if share <= LEAST_SHARE:
        figures = f"{counted_text(len(slower), 'operator')} slower beyond noise"
        return passed(rule, f"{figures}, by {share_text(share)} of the latency" if slower else figures)
    top = sorted(slower, key=lambda change: change.saved_ns)[:_NAMED]
    text = ", ".join(f"{change.module or change.name} (+{milliseconds(-change.saved_ns)} ms)" for change in top)
    title = (
        f"{counted_text(len(slower), 'operator')} became slower with acceleration: {share_text(share)} of the latency"
    )
    words = f"{milliseconds(lost)} ms more than without; most: {text}"
    step = "report these shapes to the library's maintainers; leave this feature off for models that they dominate"
    ends = [change.ci95_saved_ns for change in slower]
    known = [end for end in ends if end is not None]
    interval = (
        (max(0.0, -sum(end[1] for end in known)), -sum(end[0] for end in known)) if len(known) == len(ends) else None
    )
    saving = Saving(lost, interval, "if they took as long as without acceleration")
    saving = pair.evidence.saved(saving) if pair.evidence else saving
    return finding(rule, Severity.MEDIUM, (title, words, step), saving, places(slower))


@declare_rule(Severity.INFO, LEAST_SHARE=LEAST_SHARE)
def below_expectation(pair: PairEvidence) -> Message:
    """Convolutions or products that SME2 speeds up less than 3x; other features have no typical figure."""
    rule = "below_expectation"
    if "sme2" not in (pair.switched or ()):
        return passed(rule, "does not apply: typical speedups are known for SME2 only")
    few = undecided_reason(pair)
    if few:
        return not_checked(rule, few)
    least = LEAST_SHARE * pair.comparison.candidate.headline_ns
    changes = {change.category: change for change in pair.comparison.categories if (change.candidate_ns or 0.0) > least}
    texts = {
        category: text
        for category in EXPECTED
        if category in changes and (text := _comparison_text(changes[category], EXPECTED[category])) is not None
    }
    low = [
        category
        for category in texts
        if (most := largest_speedup(changes[category])) is not None and most < EXPECTED[category][0]
    ]
    if not low:
        return passed(rule, "; ".join(texts.values()) or "there is no delegated convolution or product")
    title = f"SME2 speeds up {' and '.join(category.value for category in low)} less than usual"
    step = "see the findings on unaccelerated operators and on number types; small shapes gain least"
    saving = no_saving("typical figures are not measurements of this model")
    words = title, "; ".join(texts[category] for category in low), step
    return finding(rule, Severity.INFO, words, saving).about(context=CONTEXT)


def _comparison_text(change: CategoryChange, expected: tuple[float, float]) -> str | None:
    if change.speedup is None:
        return None
    return f"{change.category.value} {ratio_text(change.speedup)}, usual are {expected[0]:g} to {expected[1]:g}"


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
"""Delegated operators per step of the recipe's replacement of each layer."""
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
    recurrences = find_recurrences(evidence.operators)
    if not recurrences:
        return passed(rule, "no recurrence was unrolled")
    instructions = {
        (operator.method, operator.instruction) for recurrence in recurrences for operator in recurrence.operators
    }
    portable = [
        operator
        for recurrence in recurrences
        for operator in recurrence.operators
        if operator.backend == PORTABLE_BACKEND
    ]
    leaving = [*portable, *evidence.calls_of(portable)]
    borders = [cost for key, cost in evidence.borders().items() if key in instructions]
    removed_share = (len(borders) - 1) / len(borders) if borders else 0.0
    time = time_of(leaving) + sum(borders) * removed_share + _framework_between_steps(evidence, instructions)
    saved = time - DELEGATED_OPERATOR_NS * sum(map(_added_operators, recurrences))
    share, names = evidence.part(time), _recurrences_text(recurrences)
    figures = f"{counted_text(len(portable), 'portable operator')} and {counted_text(len(borders), 'delegate call')}"
    if evidence.part(saved) <= LEAST_SHARE:
        return passed(rule, f"{names}: leaving the delegate takes {share_text(share)} ({figures})")
    title = f"Steps of {names} leave their delegate, which takes {share_text(share)} of the latency"
    longest_text = f": {longest(portable)}" if portable else ""
    text = (
        f"{figures} in {counted_text(sum(recurrence.steps for recurrence in recurrences), 'step')}; portable: "
        f"{milliseconds(time_of(portable))} ms{longest_text}; entering and leaving: {milliseconds(sum(borders))} ms"
    )
    step, basis = (_REPLACE, _REPLACED) if any(map(_torch_layer, recurrences)) else (_REWRITE, _REWRITTEN)
    leaving_and_calls = [
        *portable,
        *evidence.calls_of(operator for recurrence in recurrences for operator in recurrence.operators),
    ]
    spread, more = evidence.interval(leaving_and_calls), time_of(leaving_and_calls) - saved
    ends = (max(0.0, spread[0] - more), max(0.0, spread[1] - more)) if spread else None
    saving = evidence.saved(Saving(saved, ends, basis))
    return finding(rule, Severity.MEDIUM, (title, text, step), saving, places(portable)).about(recipe=RECURRENT_LAYERS)


def _framework_between_steps(evidence: Evidence, instructions: set[tuple[str, int | None]]) -> float:
    """Return framework time between the instructions of a recurrence, in proportion to their number."""
    methods = {method for method, _ in instructions}
    every = {
        (operator.method, operator.instruction)
        for operator in evidence.operators
        if operator.instruction is not None and operator.method in methods
    }
    framework = [
        operator for operator in evidence.operators if operator.instruction is None and operator.method in methods
    ]
    return time_of(framework) * (len(instructions) - 1) / len(every) if every else 0.0


def _torch_layer(recurrence: Recurrence) -> str | None:
    """Return which of torch's own recurrent layers it is; None for a user's own loop."""
    types = {(operator.module_type or "").rpartition(".")[2] for operator in recurrence.operators}
    return next((name for name in _STEP if name in types), None)


def _added_operators(recurrence: Recurrence) -> int:
    """Return how many more delegated operators the recipe's layer has."""
    layer = _torch_layer(recurrence)
    delegated = sum(operator.backend != PORTABLE_BACKEND for operator in recurrence.operators)
    return max(0, _STEP[layer] * recurrence.steps - delegated) if layer else 0


def _recurrences_text(recurrences: Sequence[Recurrence]) -> str:
    return ", ".join(
        f"{recurrence.module or 'the model'} ({counted_text(recurrence.steps, 'step')})" for recurrence in recurrences
    )
