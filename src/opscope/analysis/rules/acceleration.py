"""Rules on a pair of variants: does acceleration work, what did it leave or slow down, is the result right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Saving, Severity, finding, no_saving, not_checked, passed
from opscope.analysis.findings.rule import declare_rule
from opscope.analysis.operators.delegates import is_delegated
from opscope.core.stats.effect import Verdict
from opscope.core.table.places import operator_key
from opscope.core.units import counted_text, ratio_text, share_text, time_text
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.program.partition.sme_support import SmeSupport as Eligible

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import OperatorChange
    from opscope.analysis.findings.message import Message
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import PairEvidence

# Where it comes from: docs/design/rules.md.
OPERATOR_SHARE = 0.05
HEAVY = (Category.CONVOLUTION, Category.GEMM)
"""Categories that matrix units and wide vectors are made for."""
SME = frozenset({"sme", "sme2"})
CONTEXT = (
    "with SME2, matrix products are usually 3 to 15 times as fast, convolutions 3 to 10 times, and data movement not "
    "at all faster (report skill of Arm's profiling kit for ExecuTorch)"
)


@declare_rule(Severity.HIGH)
def outputs_agree(pair: PairEvidence) -> Message:
    """Variants that compute different results."""
    rule = "outputs_agree"
    outputs = pair.comparison.outputs
    if outputs is None:
        return not_checked(rule, "outputs were not compared, the traces alone do not hold them")
    if outputs.agree:
        return passed(rule, f"outputs agree: relative error {outputs.max_rel_error:.2g} <= {outputs.tolerance:.2g}")
    title = "The variants compute different results"
    step = "do not use the timings: find out which variant is wrong, against the eager model"
    saving = no_saving("a fast wrong result is no result")
    return finding(rule, Severity.HIGH, (title, outputs.problem or "", step), saving)


@declare_rule(Severity.HIGH)
def acceleration_effect(pair: PairEvidence) -> Message:
    """Acceleration of which no effect is shown, or that makes things worse."""
    rule = "acceleration_effect"
    result = pair.comparison.end_to_end
    interval = f" [{ratio_text(result.ci95[0])}, {ratio_text(result.ci95[1])}]" if result.ci95 else ""
    figures = (
        f"{ratio_text(result.speedup)}{interval}, {time_text(result.baseline_ns)} to {time_text(result.candidate_ns)}"
    )
    if result.verdict is Verdict.FASTER:
        return passed(rule, f"acceleration works: {figures}")
    if is_unused(pair):
        return passed(rule, f"see acceleration_unused: {figures}")
    if result.verdict is Verdict.UNDECIDABLE:
        words = "It cannot be decided whether acceleration helps", figures, "run at least 6 rounds of both variants"
        return finding(rule, Severity.HIGH, words, no_saving("no difference is shown"))
    if result.verdict is Verdict.SLOWER:
        step = (
            "leave it off for this model, or try another number type; the table of operators shows what became slower"
        )
        saving = Saving(result.candidate_ns - result.baseline_ns, _lost(pair), "if it ran as the baseline does")
        words = "Acceleration makes the model slower", figures, step
        return finding(rule, Severity.HIGH, words, saving)
    detectable = f"; below {share_text(result.minimum_detectable)} none could" if result.minimum_detectable else ""
    step = "see which operators changed, and in bottleneck what takes the time instead; add rounds to see less"
    words = "Acceleration shows no effect", f"{figures}{detectable}", step
    return contextual(pair, finding(rule, Severity.HIGH, words, no_saving("no difference is shown")))


def _lost(pair: PairEvidence) -> tuple[float, float] | None:
    """95 % interval of what a slower candidate loses against the baseline, from that of the speedup."""
    result = pair.comparison.end_to_end
    if result.ci95 is None:
        return None
    low, high = (result.candidate_ns * (1 - speedup) for speedup in reversed(result.ci95))
    return max(0.0, low), max(0.0, high)


def contextual(pair: PairEvidence, found: Message) -> Message:
    """With what is usual of SME2, where that is what was switched."""
    return found._replace(context=CONTEXT) if "sme2" in (pair.switched or ()) else found


@declare_rule(Severity.HIGH)
def acceleration_unused(pair: PairEvidence) -> Message:
    """No faster, no operator changed and no name changed: the accelerated kernels were not used. Why that may be."""
    rule = "acceleration_unused"
    result = pair.comparison.end_to_end
    if result.verdict is Verdict.UNDECIDABLE:
        return not_checked(rule, "there are too few rounds to see a difference")
    changed, renamed = _changed(pair), _renamed(pair)
    if not is_unused(pair):
        seen = f"{counted_text(len(changed), 'operator')} and {counted_text(len(renamed), 'name')} were shown to change"
        return passed(rule, f"{ratio_text(result.speedup)}; {seen}")
    title = "The accelerated kernels seem not to be used at all"
    told = (
        f"{ratio_text(result.speedup)}; of {counted_text(len(pair.comparison.operators), 'operator')} none changed its "
        f"time, and all have the same names on both sides; {_causes(pair)}"
    )
    step = (
        "look for what was switched off in `opscope features`, and at the share that can be accelerated in "
        "`opscope preflight MODEL.pte`; then rebuild the library with these kernels"
    )
    return contextual(pair, finding(rule, Severity.HIGH, (title, told, step), no_saving("no difference is shown")))


def is_unused(pair: PairEvidence) -> bool:
    """Whether nothing differs: neither latency nor any operator's time or name."""
    same = pair.comparison.end_to_end.verdict is Verdict.NO_DIFFERENCE
    return same and not _changed(pair) and not _renamed(pair)


def _changed(pair: PairEvidence) -> list[OperatorChange]:
    moved = (Verdict.FASTER, Verdict.SLOWER)
    return [c for c in pair.comparison.operators if c.kind != FRAMEWORK.kind and c.verdict in moved]


def _renamed(pair: PairEvidence) -> list[OperatorChange]:
    return [c for c in pair.comparison.operators if c.baseline_name != c.candidate_name]


def _causes(pair: PairEvidence) -> str:
    """Why the kernels may not be used: what the figures show first, then what they cannot tell."""
    sure, possible = _shown_causes(pair), ["the library was built without these kernels"]
    if SME & set(pair.switched or ()):
        possible.append("KleidiAI is switched off in it")
    if pair.switched is None or not pair.switched:
        possible.append("both sides ran with the same features")
    else:
        possible.append("what was switched off reaches another library than the one that computes")
    known = f"because {' and '.join(sure)}; else perhaps " if sure else "perhaps "
    return f"{known}{', or '.join(possible)}"


def _shown_causes(pair: PairEvidence) -> list[str]:
    found: list[str] = []
    evidence = pair.evidence
    if evidence is None:
        return found
    delegated = evidence.where(is_delegated)
    heavy = [operator for operator in delegated if operator.category in HEAVY]
    if not delegated:
        found.append("nothing is delegated")
    elif not heavy:
        found.append("no convolution or matrix product is delegated")
    elif SME & set(pair.switched or ()) and not any(_eligible(pair, operator) for operator in heavy):
        found.append("no convolution or matrix product is of a type that SME can run")
    return found


def _eligible(pair: PairEvidence, operator: Operator) -> bool:
    """Whether SME can run an operator, or it is not known that it cannot."""
    place = operator_key(operator)
    known = pair.evidence.sme.get(place) if pair.evidence and place else None
    return known is None or known.verdict is not Eligible.NOT_ELIGIBLE
