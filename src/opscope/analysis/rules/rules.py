"""All rules: what stands out in the figures of a variant, of a pair of variants, and of a whole experiment.

Each rule is one small function. It returns a message: a finding, or what it checked and found in order, so that a
report can list what was ruled out. Thresholds and where they come from: ``docs/design/rules.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opscope.analysis.findings.finding import ordered, sorted_out, with_overlaps
from opscope.analysis.findings.message import not_checked
from opscope.analysis.findings.rule import asked, rule_of
from opscope.analysis.rules.acceleration import acceleration_effect, acceleration_unused, outputs_agree
from opscope.analysis.rules.attention import attention_masking
from opscope.analysis.rules.evidence import Evidence, ExperimentEvidence, MeasuredVariant, PairEvidence, place_times
from opscope.analysis.rules.experiment import runner_build, sme_number_types, thread_count
from opscope.analysis.rules.movement import (
    data_movement,
    fragmentation,
    layout_churn,
    layout_tax,
    quantisation_overhead,
)
from opscope.analysis.rules.operators import below_expectation, slowed_operators, unhelped_operators
from opscope.analysis.rules.plug_ins import of_plug_ins
from opscope.analysis.rules.recurrence import unrolled_recurrence
from opscope.analysis.rules.runtime import (
    costly_activations,
    framework_time,
    silent_delegate,
    slow_first_inference,
    slow_loading,
    tracer_cost,
    uneven_split,
    unfused_operators,
    unresolved_operators,
)
from opscope.analysis.rules.time import bottleneck, headroom, memory_bound, nothing_delegated, portable_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.message import Message
    from opscope.core.table.places import OperatorKey

    Subject = TypeVar("Subject")

__all__ = [
    "COMPARISON_RULES",
    "EXPERIMENT_RULES",
    "RULES",
    "Evidence",
    "ExperimentEvidence",
    "MeasuredVariant",
    "PairEvidence",
    "examine",
    "examine_comparison",
    "examine_experiment",
    "examined",
    "merged",
]

RULES: Final[tuple[Callable[[Evidence], Message], ...]] = (
    nothing_delegated,
    silent_delegate,
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
"""Of one variant, in the order in which they are told where nothing else orders them."""
COMPARISON_RULES: Final[tuple[Callable[[PairEvidence], Message], ...]] = (
    outputs_agree,
    acceleration_unused,
    acceleration_effect,
    unhelped_operators,
    slowed_operators,
    below_expectation,
)
"""Of a pair of variants."""
EXPERIMENT_RULES: Final[tuple[Callable[[ExperimentEvidence], Message], ...]] = (
    runner_build,
    thread_count,
    sme_number_types,
)
"""Of a whole experiment."""
LATENCY_RULES = (slow_first_inference, slow_loading)
LATENCY_COMPARISON_RULES = (outputs_agree, acceleration_unused, acceleration_effect)
LATENCY_EXPERIMENT_RULES = (thread_count,)
"""Of each, those that need no split into operators."""
DECISIVE = ("outputs_agree", "runner_build", "nothing_delegated", "silent_delegate", "acceleration_unused")
"""Rules whose findings make others meaningless: they are told first."""


def examine(evidence: Evidence) -> tuple[list[Message], list[Message]]:
    """Apply the rules for one variant; findings come most severe first, then by what they would save.

    Of times that other processes disturbed no rule is asked, only whether delegates ran at all.
    """
    rules = RULES if evidence.split else LATENCY_RULES
    others = of_plug_ins(evidence) if evidence.split else []
    findings, ruled_out = examined([*_asked(rules, evidence, evidence.disturbed), *others])
    kept, repeated = with_overlaps(findings, [], place_times(evidence.operators))
    return kept, [*ruled_out, *repeated]


def examine_comparison(pair: PairEvidence | Comparison) -> tuple[list[Message], list[Message]]:
    """Apply the rules for a pair of variants; a comparison alone tells less."""
    known = pair if isinstance(pair, PairEvidence) else PairEvidence(pair)
    split = known.evidence is None or known.evidence.split
    return examined(asked(COMPARISON_RULES if split else LATENCY_COMPARISON_RULES, known))


def examine_experiment(experiment: ExperimentEvidence) -> tuple[list[Message], list[Message]]:
    """Apply the rules for a whole experiment."""
    split = experiment.shown is None or experiment.shown.evidence.split
    disturbed = next((one.evidence.disturbed for one in experiment.variants if one.evidence.disturbed), None)
    return examined(_asked(EXPERIMENT_RULES if split else LATENCY_EXPERIMENT_RULES, experiment, disturbed))


def _asked(rules: Iterable[Callable[[Subject], Message]], subject: Subject, disturbed: str | None) -> Iterator[Message]:
    """What rules say; of disturbed times only those whose findings make others meaningless."""
    for rule in rules:
        if disturbed and rule_of(rule).name not in DECISIVE:
            yield not_checked(rule_of(rule).name, disturbed)
        else:
            yield from asked([rule], subject)


def merged(
    groups: Sequence[tuple[list[Message], list[Message]]], times: Mapping[OperatorKey, float]
) -> tuple[list[Message], list[Message]]:
    """Findings of several sources in one list, each saying which of its time an earlier one counts, too."""
    findings, ruled_out = list(groups[0][0]), [item for _, own in groups for item in own]
    for group, _ in groups[1:]:
        kept, repeated = with_overlaps(group, findings, times)
        findings += kept
        ruled_out += repeated
    return ordered(findings, DECISIVE), ruled_out


def examined(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """What rules said: findings, most severe first, and what was ruled out."""
    findings, ruled_out = sorted_out(messages)
    return ordered(findings, DECISIVE), ruled_out
