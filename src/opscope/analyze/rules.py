"""Rules: what stands out in the figures, with the evidence, the most it could save, and the next step.

Each rule is one small function. It returns a Finding, or says what it checked and found in order, so that a report
can list what was ruled out.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from opscope.analyze.delegates import LayoutTime, PortableTime
from opscope.analyze.latency import Latency
from opscope.analyze.operators import BackendTime, CategoryTime, Operator
from opscope.analyze.roofline import Roofline
from opscope.program.taxonomy import Category
from opscope.stats.effect import Verdict
from opscope.units import milliseconds, ratio_text, share_text, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analyze.compare import Comparison, KindChange

# Thresholds of the domain, see docs/design/rules.md for where they come from.
PORTABLE_SHARE = 0.05
DATA_MOVEMENT_SHARE = 0.10
LAYOUT_SHARE = 0.05
HEADROOM_SHARE = 0.10
FRAMEWORK_SHARE = 0.10
OPERATOR_SHARE = 0.05
UNRESOLVED_SHARE = 0.02
SLOW_FIRST = 3.0
UNHELPED_SPEEDUP = 1.1
NAMED = 3


class Severity(str, enum.Enum):
    """How much a finding matters."""

    HIGH = "high"
    MEDIUM = "medium"
    INFO = "info"


class Finding(msgspec.Struct, frozen=True):
    """Something worth knowing or doing.

    Attributes:
        rule: stable identifier of the rule.
        severity: how much it matters.
        title: the finding in one sentence.
        evidence: the figures it rests on.
        saving_ns: the most that acting on it could save per inference; null where that cannot be said.
        next_step: what to do.
    """

    rule: str
    severity: Severity
    title: str
    evidence: str
    saving_ns: float | None
    next_step: str


class RuledOut(msgspec.Struct, frozen=True):
    """A rule that was checked and found nothing."""

    rule: str
    reason: str


class Evidence(msgspec.Struct, frozen=True):
    """What a rule for one variant may look at; ``attributed`` is the share of delegate time whose nodes are known."""

    latency: Latency
    operators: list[Operator]
    categories: list[CategoryTime]
    backends: list[BackendTime]
    layout: list[LayoutTime] = []
    portable: list[PortableTime] = []
    roofline: Roofline | None = None
    attributed: float = 0.0

    def longest(self, operators: Sequence[Operator]) -> str:
        """The longest of some operators, named with their times."""
        top = sorted(operators, key=lambda operator: -operator.time_ns)[:NAMED]
        return ", ".join(f"{_named(operator)} ({milliseconds(operator.time_ns)} ms)" for operator in top)


def _named(operator: Operator) -> str:
    """The layer of an operator, where it is known and the operator is the layer's own work; else its name."""
    return operator.module if operator.module and operator.change is None else operator.name


def examine(evidence: Evidence) -> tuple[list[Finding], list[RuledOut]]:
    """Apply the rules for one variant; findings come most severe first, then by what they could save."""
    return _sorted([rule(evidence) for rule in RULES])


def examine_comparison(comparison: Comparison) -> tuple[list[Finding], list[RuledOut]]:
    """Apply the rules for a pair of variants."""
    return _sorted([rule(comparison) for rule in COMPARISON_RULES])


def _sorted(results: Sequence[Finding | RuledOut]) -> tuple[list[Finding], list[RuledOut]]:
    order = list(Severity)
    findings = [result for result in results if isinstance(result, Finding)]
    findings.sort(key=lambda finding: (order.index(finding.severity), -(finding.saving_ns or 0)))
    return findings, [result for result in results if isinstance(result, RuledOut)]


def portable_operators(evidence: Evidence) -> Finding | RuledOut:
    """Operators that no delegate took, above 5 % of the latency."""
    rule = "portable_operators"
    portable = [operator for operator in evidence.operators if operator.backend == "portable"]
    time = sum(operator.time_ns for operator in portable)
    share = time / evidence.latency.mean_ns
    figures = f"{_count(portable)}, {milliseconds(time)} ms of {milliseconds(evidence.latency.mean_ns)} ms"
    if share <= PORTABLE_SHARE:
        return RuledOut(rule, f"operators outside of delegates take {share_text(share)} ({figures})")
    return Finding(
        rule,
        Severity.HIGH,
        f"Operators outside of any delegate take {share_text(share)} of the latency",
        f"{figures}; longest: {evidence.longest(portable)}{_reasons(evidence.portable)}",
        time,
        "replace them by operators that the delegate takes, or find out why the partitioner left them out",
    )


def _reasons(rows: Sequence[PortableTime]) -> str:
    """Why the longest ones were left out, where that is known."""
    known = [row for row in rows[:NAMED] if row.reason]
    told = dict.fromkeys(
        f"{row.name.removeprefix('native_call_')}: {row.reason}{f' ({row.evidence})' if row.evidence else ''}"
        for row in known
    )
    return f"; left out because, {'; '.join(told)}" if told else ""


def data_movement(evidence: Evidence) -> Finding | RuledOut:
    """Transposes, copies, reshapes and conversions above 10 % of the latency."""
    rule = "data_movement"
    moving = [operator for operator in evidence.operators if operator.category is Category.DATA_MOVEMENT]
    time = sum(operator.time_ns for operator in moving)
    share = time / evidence.latency.mean_ns
    if share <= DATA_MOVEMENT_SHARE:
        return RuledOut(rule, f"data movement takes {share_text(share)} of the latency")
    return Finding(
        rule,
        Severity.HIGH,
        f"Data movement takes {share_text(share)} of the latency",
        f"{_count(moving)}, {milliseconds(time)} ms; longest: {evidence.longest(moving)}",
        time,
        "remove layout changes: keep one memory format through the model, fuse or drop transposes and copies",
    )


def layout_tax(evidence: Evidence) -> Finding | RuledOut:
    """Transposes and conversions for which the model did not ask, above 5 % of the latency."""
    rule = "layout_tax"
    if not evidence.attributed:
        return RuledOut(rule, "not checked: which operators were added is known only where they are attributed")
    time = sum(row.time_ns for row in evidence.layout)
    share = time / evidence.latency.mean_ns
    if share <= LAYOUT_SHARE:
        part = (
            ""
            if round(evidence.attributed, 3) >= 1
            else f", as far as {share_text(evidence.attributed)} of it is known"
        )
        return RuledOut(rule, f"layout changes that the model did not ask for take {share_text(share)}{part}")
    first = evidence.layout[0]
    pair = f"{' and '.join(first.before[:2]) or 'the input'} and {' and '.join(first.after[:2]) or 'the output'}"
    return Finding(
        rule,
        Severity.HIGH,
        f"Layout changes that the model did not ask for take {share_text(share)} of the latency",
        f"{len(evidence.layout)} of them, {milliseconds(time)} ms; the longest ({milliseconds(first.time_ns)} ms) is "
        f"between {pair}",
        time,
        "give the model its inputs channels last, and keep operators that want another layout out of the middle",
    )


def headroom(evidence: Evidence) -> Finding | RuledOut:
    """Operators that are far from what this machine was seen to reach, above 10 % of the latency."""
    rule = "headroom"
    found = evidence.roofline
    if found is None:
        return RuledOut(rule, "not checked: no ceilings were measured, or what operators cost is not known")
    share = found.headroom_ns.low / evidence.latency.mean_ns
    if share <= HEADROOM_SHARE:
        known = share_text(found.placed_ns / evidence.latency.mean_ns)
        return RuledOut(rule, f"at the ceilings {share_text(share)} of the latency would be saved; {known} was placed")
    rows = {(row.method, row.instruction, row.position): row for row in evidence.operators}
    placed = sorted(found.operators, key=lambda one: -(one.headroom_ns.low if one.headroom_ns else 0.0))[:NAMED]
    names = [
        f"{_named(rows[one.method, one.instruction, one.position])} ({time_text(one.headroom_ns.low)})"
        for one in placed
        if one.headroom_ns
    ]
    return Finding(
        rule,
        Severity.INFO,
        f"{share_text(share)} of the latency is above what this machine was seen to reach",
        f"{time_text(found.headroom_ns.low)} in {len(found.operators)} operators; most headroom: {', '.join(names)}",
        found.headroom_ns.low,
        "see the roofline: shapes that suit the kernels, fewer and larger operators, operators that are delegated",
    )


def _count(operators: Sequence[Operator]) -> str:
    return f"{len(operators)} operator{'' if len(operators) == 1 else 's'}"


def framework_time(evidence: Evidence) -> Finding | RuledOut:
    """Time that no operator claims."""
    rule = "framework_time"
    framework = [operator for operator in evidence.operators if operator.kind == "framework"]
    time = sum(operator.time_ns for operator in framework)
    share = time / evidence.latency.mean_ns
    calls = sum(operator.calls for operator in framework if operator.name in {"DELEGATE_CALL", "OPERATOR_CALL"})
    figures = f"{milliseconds(time)} ms in {calls:.0f} calls of delegates and kernels"
    if share <= FRAMEWORK_SHARE:
        return RuledOut(rule, f"time that no operator claims is {share_text(share)} ({figures})")
    return Finding(
        rule,
        Severity.MEDIUM,
        f"No operator claims {share_text(share)} of the latency",
        f"{figures}; a part of it is the tracer's own cost and the cut-off of delegate durations",
        None,
        "for short inferences this is normal; else merge delegates, so that fewer calls cross their border",
    )


def bottleneck(evidence: Evidence) -> Finding | RuledOut:
    """The category that takes most of the latency, and what would be left without it."""
    work = [operator for operator in evidence.operators if operator.kind != "framework"]
    if not work:
        return RuledOut("bottleneck", "the trace holds no operator, only the framework's own time")
    times = {category: sum(o.time_ns for o in work if o.category is category) for category in Category}
    category = max(times, key=lambda candidate: times[candidate])
    members = [operator for operator in work if operator.category is category]
    total, rest = evidence.latency.mean_ns, evidence.latency.mean_ns - times[category]
    limit = f", {ratio_text(total / rest)} at most" if rest > 0 else ""
    kinds = "" if category is not Category.OTHER else f" ({', '.join(dict.fromkeys(o.kind for o in members))})"
    return Finding(
        "bottleneck",
        Severity.MEDIUM,
        f"{category.value}{kinds} takes most: {share_text(times[category] / total)} of the latency",
        f"{len(members)} of {len(work)} operators, {milliseconds(times[category])} ms; without them "
        f"{milliseconds(rest)} ms would be left{limit}; longest: {evidence.longest(members)}",
        None,
        _RELIEF[category],
    )


_RELIEF = {
    Category.CONVOLUTION: "try a smaller number type (int8, fp16), fewer channels, or another thread count",
    Category.GEMM: "try a smaller number type (int8, fp16), smaller layers, or another thread count",
    Category.DATA_MOVEMENT: "keep one memory format through the model; drop transposes and copies",
    Category.ELEMENTWISE: "fuse these into the operators before them, or use cheaper activations",
    Category.OTHER: "look at the longest ones: replace those that no delegate takes",
}


def unresolved_operators(evidence: Evidence) -> Finding | RuledOut:
    """Durations that the delegate cuts off, where their sum matters."""
    rule = "unresolved_operators"
    unresolved = sum(operator.uncertainty_ns for operator in evidence.operators)
    share = unresolved / evidence.latency.mean_ns
    if share <= UNRESOLVED_SHARE:
        return RuledOut(rule, f"durations that were cut off could add at most {share_text(share)} to operators")
    return Finding(
        rule,
        Severity.INFO,
        f"Up to {share_text(share)} of the latency is operator time that reads as framework time",
        f"the delegate cuts durations off to whole microseconds: at most {time_text(unresolved)} of an inference",
        None,
        "read operators of a few microseconds as a group; end-to-end latency is not affected",
    )


def slow_first_inference(evidence: Evidence) -> Finding | RuledOut:
    """A first inference that costs much more than the later ones."""
    rule = "slow_first_inference"
    firsts = sorted(process.first_ns for process in evidence.latency.processes)
    first = firsts[len(firsts) // 2]
    ratio = first / evidence.latency.median_ns if evidence.latency.median_ns else 1.0
    figures = f"{time_text(first)} against {time_text(evidence.latency.median_ns)} once settled"
    if ratio <= SLOW_FIRST:
        return RuledOut(rule, f"the first inference takes {figures}")
    return Finding(
        rule,
        Severity.INFO,
        f"The first inference takes {ratio_text(ratio)} the settled latency",
        figures,
        None,
        "run one inference ahead of the user's first, or load the method early",
    )


def acceleration_effect(comparison: Comparison) -> Finding | RuledOut:
    """Acceleration that changes nothing, or makes things worse."""
    rule = "acceleration_effect"
    result = comparison.end_to_end
    figures = f"{ratio_text(result.speedup)}, {time_text(result.baseline_ns)} to {time_text(result.candidate_ns)}"
    if result.verdict is Verdict.FASTER:
        return RuledOut(rule, f"acceleration works: {figures}")
    if result.verdict is Verdict.UNDECIDABLE:
        title = "It cannot be decided whether acceleration helps"
        step = "run at least 6 rounds of both variants"
    elif result.verdict is Verdict.SLOWER:
        title = "Acceleration makes the model slower"
        step = "look at the operators that became slower; try another thread count"
    else:
        title = "Acceleration shows no effect"
        step = "check that operators are delegated and of a type that the accelerated kernels cover; add rounds"
    return Finding(rule, Severity.HIGH, title, figures, None, step)


def unhelped_kinds(comparison: Comparison) -> Finding | RuledOut:
    """Kinds of convolutions and matrix products in a delegate that acceleration left as they were."""
    rule = "unhelped_kinds"
    heavy = [
        change
        for change in comparison.kinds
        if change.category in (Category.CONVOLUTION, Category.GEMM)
        and change.backend not in ("portable", "framework")
        and change.candidate_ns > OPERATOR_SHARE * comparison.candidate.mean_ns
    ]
    unhelped = [change for change in heavy if (_best_speedup(change) or UNHELPED_SPEEDUP) < UNHELPED_SPEEDUP]
    if not unhelped:
        told = ", ".join(f"{c.kind} {ratio_text(c.speedup)}" for c in heavy if c.speedup) or "there are none"
        return RuledOut(rule, f"convolutions and matrix products that weigh: {told}")
    time = sum(change.candidate_ns for change in unhelped)
    told = ", ".join(
        f"{c.kind} {milliseconds(c.baseline_ns)} to {milliseconds(c.candidate_ns)} ms, at most "
        f"{ratio_text(_best_speedup(c) or 1)}"
        for c in unhelped
    )
    return Finding(
        rule,
        Severity.MEDIUM,
        f"Acceleration leaves {' and '.join(c.kind for c in unhelped)} operators as they were",
        f"{share_text(time / comparison.candidate.mean_ns)} of the latency: {told}",
        None,
        "check their number type and shape against what the accelerated kernels cover",
    )


def _best_speedup(change: KindChange) -> float | None:
    """The largest speedup that the interval of the saving allows; None without an interval."""
    if change.ci95_saved_ns is None:
        return None
    least = change.baseline_ns - change.ci95_saved_ns[1]
    return change.baseline_ns / least if least > 0 else None


def outputs_agree(comparison: Comparison) -> Finding | RuledOut:
    """Variants that compute different results."""
    rule = "outputs_agree"
    outputs = comparison.outputs
    if outputs is None:
        return RuledOut(rule, "outputs were not compared: the traces alone do not hold them")
    if outputs.agree:
        return RuledOut(rule, f"outputs agree: relative error {outputs.max_rel_error:.2g} <= {outputs.tolerance:.2g}")
    return Finding(
        rule,
        Severity.HIGH,
        "The variants compute different results",
        outputs.problem or "",
        None,
        "do not use the timings: find out which variant is wrong, against the eager model",
    )


RULES: tuple[Callable[[Evidence], Finding | RuledOut], ...] = (
    portable_operators,
    data_movement,
    layout_tax,
    headroom,
    framework_time,
    bottleneck,
    unresolved_operators,
    slow_first_inference,
)
COMPARISON_RULES: tuple[Callable[[Comparison], Finding | RuledOut], ...] = (
    acceleration_effect,
    unhelped_kinds,
    outputs_agree,
)
