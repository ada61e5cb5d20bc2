"""Rules on a whole experiment: thread counts, the build, and number types that keep SME from running."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Saving, Severity, finding, no_saving, not_checked, passed
from opscope.analysis.findings.rule import declare_rule
from opscope.analysis.latency.latency import latency_effect
from opscope.analysis.operators.delegates import is_delegated
from opscope.analysis.rules.acceleration import CONTEXT, SME
from opscope.analysis.rules.evidence import LEAST_SHARE, places, time_of
from opscope.core.stats.effect import Verdict, interval_of
from opscope.core.table.places import operator_key
from opscope.core.units import counted_text, interval_text, milliseconds, ratio_text, share_text, time_text
from opscope.program.partition.sme_support import SmeSupport as Eligible

if TYPE_CHECKING:
    from opscope.analysis.findings.message import Message
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import ExperimentEvidence, MeasuredVariant
    from opscope.core.stats.effect import Effect
    from opscope.program.partition.sme_support import Eligibility

# Where these come from: docs/design/rules.md.


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def thread_count(experiment: ExperimentEvidence) -> Message:
    """A thread count at which the same variant was measured faster."""
    rule = "thread_count"
    shown = experiment.shown
    others = [
        other
        for other in experiment.variants
        if shown and other.ablated == shown.ablated and None not in {other.threads, shown.threads}
    ]
    others = [other for other in others if shown and other.threads != shown.threads]
    if shown is None or not others:
        return not_checked(rule, "one thread count was measured; try --threads 1,2,4")
    effects = {other.name: _effect(shown, other) for other in others}
    least = -math.log1p(-LEAST_SHARE)
    faster = [
        other
        for other in others
        if effects[other.name].verdict() is Verdict.FASTER and effects[other.name].estimate > least
    ]
    if not faster:
        seen = ", ".join(f"{other.threads} gives {_between(effects[other.name])}" for other in others)
        against = f"against {counted_text(shown.threads or 0, 'thread')}, {seen}"
        return passed(rule, f"{against}: none saves {share_text(LEAST_SHARE)}")
    best = max(faster, key=lambda other: effects[other.name].estimate)
    effect, typical = effects[best.name], _latency(shown).median_ns
    with_threads = counted_text(best.threads or 0, "thread")
    title = f"{with_threads}: {ratio_text(math.exp(effect.estimate))} faster than {shown.threads}"
    told = (
        f"{time_text(_latency(best).median_ns)} against {time_text(typical)}, {_between(effect)}; "
        f"the report shows {shown.name}"
    )
    step = f"run with {with_threads} if the product has that many free cores"
    ends = interval_of(effect, lambda gain: typical * -math.expm1(-gain))
    saving = Saving(typical * -math.expm1(-effect.estimate), ends, f"with {with_threads}, as measured")
    return finding(rule, Severity.MEDIUM, (title, told, step), saving)


def _between(effect: Effect) -> str:
    """A speedup with its interval."""
    ends = interval_of(effect, math.exp)
    between = f" {interval_text(ends, ratio_text)}" if ends else ""
    return f"{ratio_text(math.exp(effect.estimate))}{between}"


def _effect(shown: MeasuredVariant, other: MeasuredVariant) -> Effect:
    """Of another thread count on the latency, process by process."""
    return latency_effect(_latency(shown), _latency(other))


def _latency(ran: MeasuredVariant) -> Latency:
    return ran.evidence.untraced or ran.evidence.latency


@declare_rule(Severity.HIGH)
def runner_build(experiment: ExperimentEvidence) -> Message:
    """A program whose delegates never ran, or a runner that is not an optimised build."""
    rule = "runner_build"
    shown = experiment.shown
    if shown is None:
        return not_checked(rule, "nothing was measured")
    ran = shown.evidence.delegates or shown.evidence.where(is_delegated)
    if experiment.backends and not ran:
        title = "The program has delegates, but the trace shows no delegate call"
        told = f"the program was exported for {', '.join(experiment.backends[:3])}"
        step = "link the backend into the runner, and check that the trace is of this program"
        return finding(rule, Severity.HIGH, (title, told, step), no_saving("the measurement is not of this program"))
    if not experiment.known_runtime:
        return not_checked(
            rule, "whether the runner is an optimised build is not recorded: use CMAKE_BUILD_TYPE=Release"
        )
    return passed(rule, "the runtime is an optimised build with event tracing, and the program's delegates ran")


@declare_rule(Severity.MEDIUM, Severity.INFO, LEAST_SHARE=LEAST_SHARE)
def sme_number_types(experiment: ExperimentEvidence) -> Message:
    """Convolutions and products that SME cannot run because of number type or shape, above 5 % of the latency."""
    rule = "sme_number_types"
    shown = experiment.shown
    switched = SME & {name for ran in experiment.variants for name in ran.ablated or ()}
    if not switched and not SME & set(experiment.features or ()):
        return passed(rule, "does not apply: the CPU is not known to have SME")
    if shown is None or not shown.evidence.sme:
        return not_checked(rule, "the number types of operators are not known without the program")
    groups: dict[tuple[str, str, str | None], list[Operator]] = {}
    for operator in shown.evidence.where(is_delegated):
        known = _verdict(shown, operator)
        if known is not None and known.verdict is Eligible.NOT_ELIGIBLE:
            groups.setdefault((known.form.value, known.reason, known.advice), []).append(operator)
    members = [operator for own in groups.values() for operator in own]
    share = shown.evidence.share(members)
    if share <= LEAST_SHARE:
        return passed(rule, f"operators that SME cannot run take {share_text(share)}")
    ranked = sorted(groups.items(), key=lambda group: -time_of(group[1]))
    told = "; ".join(
        f"{counted_text(len(own), form)}, {milliseconds(time_of(own))} ms: {reason}"
        for (form, reason, _), own in ranked[:2]
    )
    advice = next((advice for (_, _, advice), _ in ranked if advice), None)
    title = f"Operators that SME cannot run take {share_text(share)} of the latency"
    step = advice or "no simple fix: they stay on the vector unit; use fewer of them, or fewer channels"
    saving = no_saving("their time with SME was not measured: export them in a supported type and compare")
    severity = Severity.MEDIUM if advice else Severity.INFO
    return finding(rule, severity, (title, told, step), saving, places(members)).about(context=CONTEXT)


def _verdict(ran: MeasuredVariant, operator: Operator) -> Eligibility | None:
    place = operator_key(operator)
    return ran.evidence.sme.get(place) if place else None
