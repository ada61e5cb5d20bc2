"""Rules on a pair of variants: does acceleration work, what did it leave or slow down, and are the results right.

With what was switched between them, what that should bring, and whether the measurement could have seen it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.compare.compare import NOT_FASTER
from opscope.analysis.findings.message import Saving, Severity, finding, no_saving, not_checked, passed
from opscope.analysis.findings.rule import declare_rule
from opscope.analysis.operators.delegates import delegated_kernels, is_delegated
from opscope.analysis.rules.advice import suggest_shapes
from opscope.analysis.rules.evidence import time_of
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.table.places import operator_key
from opscope.core.units import counted_text, interval_text, rate_text, ratio_text, share_text, time_text
from opscope.program.ceilings import computing_types
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.program.partition.verdicts import SmeSupport as Eligible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from opscope.analysis.compare.compare import OperatorChange
    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import PairEvidence

    _Cause: TypeAlias = tuple[Severity, str, str, str]
    from collections.abc import Iterable

    from opscope.analysis.compare.compare import EndToEnd
    from opscope.program.ceilings import Ceilings


HEAVY = (Category.CONVOLUTION, Category.GEMM)
"""Categories that matrix units and wide vectors are made for."""
LEAST_GAIN = NOT_FASTER
"""Smallest ratio of ceilings at which a number type counts as faster; see docs/design/rules.md."""
_NAMED = 3
_GIGA = 1e9


class KernelGain(NamedTuple):
    """Ceilings of one number type in both variants."""

    dtype: str  # number type
    baseline_per_s: float  # best rate without what was switched, in multiply-accumulates
    candidate_per_s: float  # best rate with what was switched, in multiply-accumulates
    time_ns: float  # what the candidate's operators of it take in an inference

    @property
    def ratio(self) -> float:
        """Speedup of the CPU in this type by what was switched."""
        return self.candidate_per_s / self.baseline_per_s

    @property
    def faster(self) -> bool:
        """Return whether the CPU computes the type faster with what was switched."""
        return self.ratio >= LEAST_GAIN

    def text(self) -> str:
        """Return both ceilings in words."""
        without, with_it = (rate_text(rate / _GIGA) for rate in (self.baseline_per_s, self.candidate_per_s))
        return f"{self.dtype}: {without} GMAC/s without, {with_it} with"


def switched_text(pair: PairEvidence) -> str:
    """Return what was switched, in words."""
    return ", ".join(pair.switched or ()) or "acceleration"


def not_switched_reason(pair: PairEvidence) -> str | None:
    """Return why a comparison shows nothing about acceleration; None if features differ between the sides."""
    if pair.switched is None:
        return "which CPU features differ between the two variants is not known"
    return None if pair.switched else "nothing was switched: the two variants ran with the same CPU features"


def undecided_reason(pair: PairEvidence) -> str | None:
    """Return why measurements decide nothing: they were disturbed, or too few rounds ran; None if they decide."""
    ends = pair.comparison.verdicts.values()
    if reasons := [end.reason for end in ends if end.reason]:
        return f"the comparison is withheld: {reasons[0]}"
    few = any(end.verdict is Verdict.UNDECIDABLE for end in ends)
    return "inconclusive: add rounds (--rounds 6)" if few else None


def heavy_operators(pair: PairEvidence) -> list[Operator]:
    """Return convolutions and matrix products that ran in the candidate's delegates."""
    delegated = pair.evidence.where(is_delegated) if pair.evidence else []
    return [operator for operator in delegated if operator.category in HEAVY]


def kernel_gains(pair: PairEvidence, operators: Iterable[Operator]) -> list[KernelGain]:
    """Return the ceilings of the operators' number types in both variants, by the time these types take.

    Empty if the ceilings of one variant were not measured, or exist for none of these types.
    """
    baseline, candidate = pair.ceilings
    if baseline is None or candidate is None:
        return []
    by_type = {dtype: rows for dtype, rows in grouped(operators, _number_type).items() if dtype is not None}
    gains = [_kernel_gain(dtype, time_of(rows), baseline, candidate) for dtype, rows in by_type.items()]
    return sorted((gain for gain in gains if gain), key=lambda gain: -gain.time_ns)


def _number_type(operator: Operator) -> str | None:
    use = delegated_kernels(operator)
    return use.dtype if use else None


def _kernel_gain(dtype: str, time_ns: float, baseline: Ceilings, candidate: Ceilings) -> KernelGain | None:
    before, after = (ceilings.mac_ceiling(dtype) for ceilings in (baseline, candidate))
    if before is None or after is None:
        return None
    return KernelGain(dtype, before.rate.best, after.rate.best, time_ns)


def other_gains(pair: PairEvidence, used: Iterable[KernelGain]) -> list[KernelGain]:
    """Return number types that the CPU computes faster with what was switched and no operator uses, best first."""
    baseline, candidate = pair.ceilings
    if baseline is None or candidate is None:
        return []
    known = {computed for gain in used for computed in computing_types(gain.dtype)}
    dtypes = dict.fromkeys(ceiling.dtype for ceiling in candidate.compute if ceiling.dtype not in known)
    gains = [_kernel_gain(dtype, 0.0, baseline, candidate) for dtype in dtypes]
    return sorted((gain for gain in gains if gain and gain.faster), key=lambda gain: -gain.ratio)


def gains_text(gains: Sequence[KernelGain]) -> str:
    """Return the ceilings of some number types in words."""
    return "; ".join(gain.text() for gain in gains[:_NAMED])


def expected_speedup(pair: PairEvidence, gains: Sequence[KernelGain]) -> float | None:
    """Return the speedup of the inference if operators reach equal shares of both ceilings; None if unknown."""
    if not gains or pair.evidence is None or not pair.evidence.total:
        return None
    longer = sum(gain.time_ns * (gain.ratio - 1) for gain in gains)
    return max(1.0, 1 + longer / pair.evidence.total)


def undetectable_reason(result: EndToEnd, speedup: float) -> str | None:
    """Return why a speedup of this size may exist undetected; None if the measurement excludes it."""
    if result.ci95 is None or result.minimum_detectable is None:
        return "there is no interval"
    low, high = result.ci95
    if high >= speedup:
        between = f"{ratio_text(low)} to {ratio_text(high)}"
        return (
            f"no difference detected, but {ratio_text(speedup)} is not ruled out (95 % interval {between}): add rounds"
        )
    if result.minimum_detectable > speedup - 1:
        return (
            f"this data cannot detect a change below {share_text(result.minimum_detectable)}, "
            f"and {share_text(speedup - 1)} was expected: add rounds"
        )
    return None


# Where it comes from: docs/design/rules.md.
UNHELPED_SPEEDUP = LEAST_GAIN
SME = frozenset({"sme", "sme2"})
CONTEXT = (
    "SME2 usually speeds up matrix products 3-15x and convolutions 3-10x, and data movement not at all (report "
    "skill of Arm's profiling kit for ExecuTorch)"
)


@declare_rule(Severity.HIGH)
def outputs_agree(pair: PairEvidence) -> Message:
    """Variants that compute different results."""
    rule = "outputs_agree"
    outputs = pair.comparison.outputs
    if outputs is None:
        return not_checked(rule, "outputs were not compared: traces alone do not contain them")
    if outputs.agree:
        return passed(rule, f"outputs agree: relative error {outputs.max_rel_error:.2g} <= {outputs.tolerance:.2g}")
    if outputs.inputs_at_fault:
        title = "The outputs are not finite with these inputs"
        step = "give inputs that the model accepts with --input, and measure again"
    else:
        title = "The variants compute different results"
        step = "do not use the timings: run both on an input whose result you know to find which variant is wrong"
    saving = no_saving("a fast wrong result is worthless")
    return finding(rule, Severity.HIGH, (title, outputs.problem or "", step), saving)


@declare_rule(Severity.HIGH, UNHELPED_SPEEDUP=UNHELPED_SPEEDUP)
def acceleration_effect(pair: PairEvidence) -> Message:
    """Acceleration that provably changes nothing, or slows the model down."""
    rule = "acceleration_effect"
    verdicts, figures = pair.comparison.verdicts, _figures_text(pair)
    problem = not_switched_reason(pair) or undecided_reason(pair)
    if problem or any(end.speedup is None for end in verdicts.values()):
        return not_checked(rule, f"{problem} ({figures})")
    slower = {method: end for method, end in verdicts.items() if end.verdict is Verdict.SLOWER}
    if slower:
        step = "turn it off for this model, or try another number type; the operator table shows what became slower"
        words = f"Acceleration makes {', '.join(slower) or 'the model'} slower", figures, step
        return finding(rule, Severity.HIGH, words, _loss_saving(pair))
    if any(end.verdict is Verdict.FASTER for end in verdicts.values()):
        return passed(rule, f"acceleration works: {figures}")
    hidden = _hidden_speedup_reason(pair, UNHELPED_SPEEDUP)
    if hidden:
        return not_checked(rule, hidden)
    if is_unused(pair):
        return passed(rule, f"no operator changed either; see the check on latency: {figures}")
    beyond = share_text(max(end.excluded_beyond or 0.0 for end in verdicts.values()))
    title = f"{switched_text(pair)} makes no difference to latency: a change beyond {beyond} is ruled out"
    step = "see which operators changed, and which category now takes the time"
    message = finding(rule, Severity.HIGH, (title, figures, step), no_saving("the latency is the same"))
    return add_typical_speedups(pair, message)


def _figures_text(pair: PairEvidence) -> str:
    """Return the speedup with its interval and both times, by method if there are several."""
    texts = []
    for method, end in pair.comparison.verdicts.items():
        sides = pair.comparison.baseline.headline_ns, pair.comparison.candidate.headline_ns
        before, after = (end.baseline_ns, end.candidate_ns) if method else sides
        interval = f" {interval_text(end.ci95, ratio_text)}" if end.ci95 else ""
        ratio = "" if end.speedup is None else f"{ratio_text(end.speedup)}{interval}, "
        texts.append(f"{f'{method} ' if method else ''}{ratio}{time_text(before)} to {time_text(after)}")
    return "; ".join(texts)


def _hidden_speedup_reason(pair: PairEvidence, speedup: float) -> str | None:
    """Return why a speedup of this size, of any method, would not have shown; None if it would have."""
    return next(filter(None, (undetectable_reason(end, speedup) for end in pair.comparison.verdicts.values())), None)


def _loss_saving(pair: PairEvidence) -> Saving:
    """Return what a slower candidate loses against the baseline, by the ratio that the verdict is on."""
    result, latency = pair.comparison.end_to_end, pair.comparison.candidate.headline_ns
    if pair.comparison.methods or result.speedup is None:
        return no_saving("it is of the calls of single methods")
    low, high = (latency * (1 - end) for end in reversed(result.ci95)) if result.ci95 else (None, None)
    interval = None if low is None or high is None else (max(0.0, low), max(0.0, high))
    return Saving(latency * (1 - result.speedup), interval, "if it ran as fast as the baseline")


def add_typical_speedups(pair: PairEvidence, message: Message) -> Message:
    """Return the message with SME2's typical speedups if SME2 was switched."""
    return message.about(context=CONTEXT) if "sme2" in (pair.switched or ()) else message


@declare_rule(Severity.HIGH, Severity.MEDIUM, UNHELPED_SPEEDUP=UNHELPED_SPEEDUP)
def acceleration_unused(pair: PairEvidence) -> Message:
    """CPU features that change nothing when switched: no speedup, no operator, no kernel name; and why."""
    rule = "acceleration_unused"
    ends = pair.comparison.verdicts.values()
    problem = not_switched_reason(pair) or undecided_reason(pair)
    if problem or any(end.speedup is None for end in ends):
        return not_checked(rule, problem or "the ratio is not known")
    speedups = ", ".join(ratio_text(end.speedup or 0.0) for end in ends)
    changed, renamed = _changed_operators(pair), _renamed_operators(pair)
    if not is_unused(pair):
        seen = f"{counted_text(len(changed), 'operator')} and {counted_text(len(renamed), 'name')} changed"
        return passed(rule, f"{speedups}; {seen}")
    gains = kernel_gains(pair, heavy_operators(pair))
    expected = expected_speedup(pair, gains)
    hidden = _hidden_speedup_reason(pair, max(UNHELPED_SPEEDUP, expected or 0.0))
    if hidden:
        return not_checked(rule, hidden)
    cause = _structural_cause(pair)
    if cause is None and expected is not None and expected < UNHELPED_SPEEDUP and any(gain.faster for gain in gains):
        small = f"{ratio_text(expected)} at most was expected: convolutions and products take too little time"
        return passed(rule, f"{small} ({gains_text(gains)})")
    text = (
        f"{speedups}, a change beyond {share_text(max(end.excluded_beyond or 0.0 for end in ends))} is ruled out; "
        f"none of {counted_text(len(pair.comparison.operators), 'operator')} changed detectably, and all kernel names "
        "are the same"
    )
    severity, title, why, step = cause or _cause_by_ceilings(pair, gains)
    words = title, f"{text}; {why}" if why else text, step
    return add_typical_speedups(pair, finding(rule, severity, words, no_saving("the latency is the same")))


def is_unused(pair: PairEvidence) -> bool:
    """Return whether neither the latency nor any operator's time or name differs."""
    same = all(end.verdict is Verdict.NO_DIFFERENCE for end in pair.comparison.verdicts.values())
    return same and not _changed_operators(pair) and not _renamed_operators(pair)


def _changed_operators(pair: PairEvidence) -> list[OperatorChange]:
    moved = (Verdict.FASTER, Verdict.SLOWER)
    return [change for change in pair.comparison.operators if change.kind != FRAMEWORK.kind and change.verdict in moved]


def _renamed_operators(pair: PairEvidence) -> list[OperatorChange]:
    return [change for change in pair.comparison.operators if change.baseline_name != change.candidate_name]


def _structural_cause(pair: PairEvidence) -> _Cause | None:
    """Return why nothing could become faster, by what ran; None if something could."""
    evidence = pair.evidence
    if evidence is None or not evidence.split:
        return None
    heavy, title = heavy_operators(pair), f"{switched_text(pair)} makes no difference"
    if not evidence.where(is_delegated):
        return Severity.HIGH, f"{title}: nothing is delegated", "", "delegate the convolutions and matrix products"
    if not heavy:
        step = "delegate the convolutions and matrix products, if the model has any"
        return Severity.HIGH, f"{title}: no convolution or matrix product is delegated", "", step
    if SME & set(pair.switched or ()) and not any(_may_run_with_sme(pair, operator) for operator in heavy):
        step = "export the model with a number type that SME can run, and compare"
        kinds = "no convolution or matrix product has a type that SME can run"
        return Severity.HIGH, f"{title}: {kinds}", "", step
    return None


def _cause_by_ceilings(pair: PairEvidence, gains: Sequence[KernelGain]) -> _Cause:
    """Return whether this CPU computes the number types faster, by the ceilings of both variants."""
    switched = switched_text(pair)
    if not gains:
        step = "measure the ceilings of both variants (leave out --no-ceilings): they show what this CPU gains by it"
        unknown = "unknown whether this CPU could run them faster: ceilings of both variants were not measured"
        return Severity.MEDIUM, f"{switched} makes no difference", unknown, step
    if any(gain.faster for gain in gains):
        title = f"This CPU is faster with {switched}, but this model gains nothing from it"
        step = (
            f"check that the library has kernels for {switched} (`opscope kernels`); "
            f"{suggest_shapes(heavy_operators(pair))}"
        )
        return Severity.MEDIUM, title, f"ceilings: {gains_text(gains)}", step
    faster_types = other_gains(pair, gains)
    title = f"This CPU computes the number types of this model no faster with {switched}"
    why = f"ceilings: {gains_text(gains)}"
    if faster_types:
        step = f"compare with another number type; with {switched} this CPU is faster in {gains_text(faster_types)}"
        return Severity.HIGH, title, why, step
    step = f"choose another accelerator: no ceiling of this CPU is higher with {switched}"
    return Severity.HIGH, title, why, step


def _may_run_with_sme(pair: PairEvidence, operator: Operator) -> bool:
    """Return whether SME can run an operator, or whether that is unknown."""
    key = operator_key(operator)
    known = pair.evidence.sme.get(key) if pair.evidence and key else None
    return known is None or known.verdict is not Eligible.NOT_ELIGIBLE
