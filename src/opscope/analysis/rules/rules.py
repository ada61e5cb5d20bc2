"""All rules: what stands out in the figures of a variant, of a pair of variants, and of a whole experiment.

Each rule is one small function. It returns a message: a finding, or what it checked and found in order, so that a
report can list what was ruled out. Thresholds and where they come from: ``docs/design/rules.md``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from opscope.analysis.findings.message import (
    Message,
    MessageKind,
    Saving,
    Severity,
    finding,
    no_saving,
    not_checked,
    order_findings,
    passed,
    split_ruled_out,
    with_overlaps,
)
from opscope.analysis.findings.rule import ask_rules, declare_rule, rule_of
from opscope.analysis.latency.latency import latency_effect
from opscope.analysis.operators.delegates import is_delegated
from opscope.analysis.rules.acceleration import CONTEXT, SME, acceleration_effect, acceleration_unused, outputs_agree
from opscope.analysis.rules.attention import attention_masking
from opscope.analysis.rules.evidence import (
    LEAST_SHARE,
    Evidence,
    ExperimentEvidence,
    PairEvidence,
    place_times,
    places,
    time_of,
)
from opscope.analysis.rules.movement import (
    data_movement,
    fragmentation,
    layout_churn,
    layout_tax,
    quantisation_overhead,
)
from opscope.analysis.rules.operators import (
    below_expectation,
    slowed_operators,
    unhelped_operators,
    unrolled_recurrence,
)
from opscope.analysis.rules.runtime import (
    compiled_regions,
    costly_activations,
    device_wait,
    framework_time,
    packed_products,
    single_row_products,
    slow_first_inference,
    slow_loading,
    tracer_cost,
    uneven_split,
    unfused_operators,
    unresolved_operators,
)
from opscope.analysis.rules.time import bottleneck, headroom, memory_bound, nothing_delegated, portable_operators
from opscope.core.plug_ins import PlugIn, plug_ins
from opscope.core.stats.effect import Verdict, interval_of
from opscope.core.table.places import operator_key
from opscope.core.units import counted_text, interval_text, milliseconds, ratio_text, share_text, time_text
from opscope.program.partition.verdicts import SmeSupport as Eligible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.operators.operators import Operator
    from opscope.core.stats.effect import Effect
    from opscope.core.table.places import OperatorKey

    Subject = TypeVar("Subject")

GROUP = "opscope.rules"


def plug_in_messages(evidence: Evidence) -> list[Message]:
    """Return the messages of other packages' rules; each message bears ``PACKAGE:NAME`` as its rule.

    A rule that cannot be loaded, raises, or returns anything but a message was not checked, and why is its message.
    """
    return [_plug_in_message(rule, evidence) for rule in plug_ins(GROUP)]


def _plug_in_message(rule: PlugIn, evidence: Evidence) -> Message:
    why_not = rule.problem or evidence.disturbed
    return not_checked(rule.key, why_not) if why_not else _ask_plug_in(rule, evidence)


def _ask_plug_in(rule: PlugIn, evidence: Evidence) -> Message:
    copied = evidence._replace(
        operators=[*evidence.operators],
        layout=[*evidence.layout],
        portable=[*evidence.portable],
        delegates=[*evidence.delegates],
    )
    try:
        # What others return may have fields of any type, and every report reads them.
        message = msgspec.convert(msgspec.to_builtins(rule.loaded(copied)), Message)
    except Exception as error:  # noqa: BLE001 - the code of any package
        return not_checked(rule.key, rule.failed("failed", error))
    return msgspec.structs.replace(message, rule=rule.key)


# Where these come from: docs/design/rules.md.


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def thread_count(experiment: ExperimentEvidence) -> Message:
    """A thread count at which the same variant was measured faster."""
    rule = "thread_count"
    latencies = {threads: evidence.untraced or evidence.latency for threads, evidence in experiment.by_threads.items()}
    if len(latencies) <= 1:
        return not_checked(rule, "one thread count was measured; try --threads 1,2,4")
    threads_shown, *other_counts = latencies
    effects = {threads: latency_effect(latencies[threads_shown], latencies[threads]) for threads in other_counts}
    least = -math.log1p(-LEAST_SHARE)
    faster = {
        threads: effect
        for threads, effect in effects.items()
        if effect.verdict() is Verdict.FASTER and effect.estimate > least
    }
    if not faster:
        seen = ", ".join(f"{threads} gives {_speedup_text(effect)}" for threads, effect in effects.items())
        return passed(
            rule, f"against {counted_text(threads_shown, 'thread')}, {seen}: none saves {share_text(LEAST_SHARE)}"
        )
    best, effect = max(faster.items(), key=lambda pair: pair[1].estimate)
    typical, with_threads = latencies[threads_shown].median_ns, counted_text(best, "thread")
    title = f"{with_threads}: {ratio_text(math.exp(effect.estimate))} faster than {threads_shown}"
    text = (
        f"{time_text(latencies[best].median_ns)} against {time_text(typical)}, {_speedup_text(effect)}; "
        f"the report shows {experiment.name}"
    )
    step = f"run with {with_threads} if the product has that many free cores"
    ends = interval_of(effect, lambda gain: typical * -math.expm1(-gain))
    saving = Saving(typical * -math.expm1(-effect.estimate), ends, f"with {with_threads}, as measured")
    return finding(rule, Severity.MEDIUM, (title, text, step), saving)


def _speedup_text(effect: Effect) -> str:
    """Return a speedup with its interval."""
    ends = interval_of(effect, math.exp)
    between = f" {interval_text(ends, ratio_text)}" if ends else ""
    return f"{ratio_text(math.exp(effect.estimate))}{between}"


@declare_rule(Severity.HIGH)
def runner_build(experiment: ExperimentEvidence) -> Message:
    """A program whose delegates never ran, or a runner that is not an optimised build."""
    rule = "runner_build"
    evidence = experiment.shown
    if evidence is None:
        return not_checked(rule, "nothing was measured")
    if experiment.backends and not (evidence.delegates or evidence.where(is_delegated)):
        title = "The program has delegates, but the trace shows no delegate call"
        text = f"the program was exported for {', '.join(experiment.backends[:3])}"
        step = "link the backend into the runner, and check that the trace is of this program"
        return finding(rule, Severity.HIGH, (title, text, step), no_saving("the measurement is not of this program"))
    if not experiment.known_runtime:
        return not_checked(
            rule, "whether the runner is an optimised build is not recorded: use CMAKE_BUILD_TYPE=Release"
        )
    return passed(rule, "the runtime is an optimised build with event tracing, and the program's delegates ran")


@declare_rule(Severity.MEDIUM, Severity.INFO, LEAST_SHARE=LEAST_SHARE)
def sme_number_types(experiment: ExperimentEvidence) -> Message:
    """Convolutions and products that SME cannot run because of number type or shape, above 5 % of the latency."""
    rule = "sme_number_types"
    evidence = experiment.shown
    if not SME & experiment.switched and not SME & set(experiment.features or ()):
        return passed(rule, "does not apply: the CPU is not known to have SME")
    if evidence is None or not evidence.sme:
        return not_checked(rule, "the number types of operators are not known without the program")
    groups: dict[tuple[str, str, str | None], list[Operator]] = {}
    for operator in evidence.where(is_delegated):
        key = operator_key(operator)
        known = evidence.sme.get(key) if key else None
        if known is not None and known.verdict is Eligible.NOT_ELIGIBLE:
            groups.setdefault((known.form.value, known.reason, known.advice), []).append(operator)
    members = [operator for operators in groups.values() for operator in operators]
    share = evidence.share(members)
    if share <= LEAST_SHARE:
        return passed(rule, f"operators that SME cannot run take {share_text(share)}")
    ranked = sorted(groups.items(), key=lambda group: -time_of(group[1]))
    text = "; ".join(
        f"{counted_text(len(operators), form)}, {milliseconds(time_of(operators))} ms: {reason}"
        for (form, reason, _), operators in ranked[:2]
    )
    advice = next((advice for (_, _, advice), _ in ranked if advice), None)
    title = f"Operators that SME cannot run take {share_text(share)} of the latency"
    step = advice or "no simple fix: they stay on the vector unit; use fewer of them, or fewer channels"
    saving = no_saving("their time with SME was not measured: export them in a supported type and compare")
    severity = Severity.MEDIUM if advice else Severity.INFO
    return finding(rule, severity, (title, text, step), saving, places(members)).about(context=CONTEXT)


__all__ = [
    "COMPARISON_RULES",
    "EXPERIMENT_RULES",
    "PACKED_RULES",
    "RULES",
    "Evidence",
    "ExperimentEvidence",
    "PairEvidence",
    "examine",
    "examine_comparison",
    "examine_experiment",
    "merge_findings",
    "sort_messages",
]

RULES: Final[tuple[Callable[[Evidence], Message], ...]] = (
    nothing_delegated,
    compiled_regions,
    device_wait,
    attention_masking,
    portable_operators,
    data_movement,
    layout_tax,
    layout_churn,
    fragmentation,
    unrolled_recurrence,
    quantisation_overhead,
    unfused_operators,
    bottleneck,
    costly_activations,
    headroom,
    memory_bound,
    framework_time,
    slow_first_inference,
    slow_loading,
    tracer_cost,
    uneven_split,
    unresolved_operators,
)
"""Rules for one variant, in the order in which findings are listed if nothing else orders them."""
PACKED_RULES: Final[tuple[Callable[[Evidence], Message], ...]] = (single_row_products,)
"""Rules for one variant on which kernels of XNNPACK ran that need SME or SME2."""
COMPARISON_RULES: Final[tuple[Callable[[PairEvidence], Message], ...]] = (
    outputs_agree,
    acceleration_unused,
    acceleration_effect,
    unhelped_operators,
    slowed_operators,
    below_expectation,
)
"""Rules for a pair of variants."""
EXPERIMENT_RULES: Final[tuple[Callable[[ExperimentEvidence], Message], ...]] = (
    runner_build,
    thread_count,
    sme_number_types,
)
"""Rules for a whole experiment."""
LATENCY_RULES = (slow_first_inference, slow_loading)
LATENCY_COMPARISON_RULES = (outputs_agree, acceleration_unused, acceleration_effect)
LATENCY_EXPERIMENT_RULES = (thread_count,)
"""Rules of each kind that need no split into operators."""
DECISIVE = (
    "outputs_agree",
    "runner_build",
    "nothing_delegated",
    "compiled_regions",
    "device_wait",
    "acceleration_unused",
)
"""Rules whose findings make others meaningless, and so come first."""
STRUCTURAL = (
    *("portable_operators", "attention_masking", "unrolled_recurrence", "layout_tax", "layout_churn"),
    *("fragmentation", "quantisation_overhead", "unfused_operators", "sme_number_types"),
)
"""Rules on which operators run where: with disturbed times their findings have shares, and no savings."""


def examine(evidence: Evidence) -> tuple[list[Message], list[Message]]:
    """Apply the rules for one variant; findings come most severe first, then by what they would save.

    If other processes disturbed the times, only rules on structure apply.
    """
    rules = RULES if evidence.split else LATENCY_RULES
    if packed_products(evidence):
        rules = (*rules, *PACKED_RULES)
    from_plug_ins = plug_in_messages(evidence) if evidence.split else []
    findings, ruled_out = sort_messages([*_ask_rules(rules, evidence, evidence.disturbed), *from_plug_ins])
    new, repeated = with_overlaps(findings, [], place_times(evidence.operators))
    return new, [*ruled_out, *repeated]


def examine_comparison(pair: PairEvidence | Comparison) -> tuple[list[Message], list[Message]]:
    """Apply the rules for a pair of variants; a comparison without evidence decides less."""
    known = pair if isinstance(pair, PairEvidence) else PairEvidence(pair)
    split = known.evidence is None or known.evidence.split
    return sort_messages(ask_rules(COMPARISON_RULES if split else LATENCY_COMPARISON_RULES, known))


def examine_experiment(experiment: ExperimentEvidence) -> tuple[list[Message], list[Message]]:
    """Apply the rules for a whole experiment."""
    split = experiment.shown is None or experiment.shown.split
    return sort_messages(
        _ask_rules(EXPERIMENT_RULES if split else LATENCY_EXPERIMENT_RULES, experiment, experiment.disturbed)
    )


def _ask_rules(
    rules: Iterable[Callable[[Subject], Message]], subject: Subject, disturbed: str | None
) -> Iterator[Message]:
    """Ask rules. If the times are disturbed, only decisive rules and rules on structure; the latter without savings."""
    for rule in rules:
        name = rule_of(rule).name
        if disturbed and name not in {*DECISIVE, *STRUCTURAL}:
            yield not_checked(name, disturbed)
            continue
        (message,) = ask_rules([rule], subject)
        if disturbed and name in STRUCTURAL and message.kind is MessageKind.FINDING:
            basis = f"not reported: {disturbed}"
            message = msgspec.structs.replace(message, saving_ns=None, saving_ci95_ns=None, saving_basis=basis)
        yield message


def merge_findings(
    groups: Sequence[tuple[list[Message], list[Message]]], times: Mapping[OperatorKey, float]
) -> tuple[list[Message], list[Message]]:
    """Merge findings of several sources; each says which of its time an earlier one also counts."""
    findings, ruled_out = list(groups[0][0]), [item for _, messages in groups for item in messages]
    for group, _ in groups[1:]:
        new, repeated = with_overlaps(group, findings, times)
        findings += new
        ruled_out += repeated
    return order_findings(findings, DECISIVE), ruled_out


def sort_messages(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Return findings, most severe first, and what was ruled out."""
    findings, ruled_out = split_ruled_out(messages)
    return order_findings(findings, DECISIVE), ruled_out
