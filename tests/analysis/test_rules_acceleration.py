"""Rules on a pair of variants and on a whole experiment: what was used, what was left, which threads, which types."""

from __future__ import annotations

import msgspec
import pytest

from fakes import round_ceilings
from opscope.analysis.analysis import Analysis, ProgramInfo, ProgramKnowledge, TraceSource, analyse, rule_evidence
from opscope.analysis.compare.compare import Comparison, compare
from opscope.analysis.findings.message import Message
from opscope.analysis.operators.attribution import Attributions
from opscope.analysis.operators.operators import OperatorFacts
from opscope.analysis.rules.evidence import Evidence, ExperimentEvidence, PairEvidence
from opscope.analysis.rules.rules import COMPARISON_RULES, EXPERIMENT_RULES, examine_comparison, examine_experiment
from opscope.core.stats.effect import Verdict
from opscope.core.table import EventTable
from opscope.core.table.places import OperatorKey
from opscope.program.ceilings import Ceilings
from opscope.program.partition.verdicts import Eligibility, Form, SmeSupport
from opscope.reports.document.messages import sentence
from texts import NO_CEILINGS
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])
LABELS = (("baseline", ""), ("accelerated", ""))
KINDS = {
    "convolution": "Convolution (NHWC, F32) IGEMM #1",
    "depthwise": "Convolution (NHWC, F32) DWConv #1",
    "linear": "Fully Connected (NC, F32) GEMM #1",
    "transpose": "Transpose (ND, X32) #1",
}
NAMES = tuple(KINDS)


def events(processes: int = 8, **times: int) -> EventTable:
    """Processes of two inferences whose one delegate call has these operators, in us; each process is 1 us longer."""
    parts = []
    for number in range(processes):
        own = {name: (time + number) * 1000 for name, time in times.items()}
        total = sum(own.values())
        lines = [f"Method::execute {total}", f"  DELEGATE_CALL @0 {total}"]
        lines += [f"    {KINDS.get(name, name)} {time}" for name, time in own.items()]
        parts.append(table("\n".join(lines), repeat=2))
    return EventTable.concat(parts)


def compared(baseline: EventTable, candidate: EventTable) -> Comparison:
    """The comparison, paired."""
    return compare(baseline, candidate, labels=LABELS, paired=True)


def evidence(candidate: EventTable, **cannot: str) -> Evidence:
    """What is known of the candidate; operators named are those that SME cannot run, with what would help."""
    facts = {
        OperatorKey(METHOD, 0, number): OperatorFacts(sme=_sme(name, cannot.get(name)))
        for number, name in enumerate(NAMES)
        if name != "transpose"
    }
    known = ProgramKnowledge(
        ProgramInfo("net.pte", "0" * 64, None, None, verified=True), Attributions(facts, [], None, [], {}, {})
    )
    return rule_evidence(candidate, analyse(candidate, SOURCE), known)


METHOD = "unknown"


def _sme(name: str, advice: str | None) -> Eligibility:
    verdict = SmeSupport.ELIGIBLE if advice is None else SmeSupport.NOT_ELIGIBLE
    form = Form.DEPTHWISE if name == "depthwise" else Form.PRODUCT
    return Eligibility(verdict, form, "F32", "there are no kernels", None, tried=True, advice=advice or None)


def told(found: tuple[list[Message], list[object]], rule: str) -> Message | None:
    """The finding of a rule; None when it found nothing."""
    return next((one for one in found[0] if one.rule == rule), None)


def reason(found: tuple[list[Message], list], rule: str) -> str:
    """Why a rule found nothing."""
    return next(sentence(item) for item in found[1] if item.rule == rule)


def test_every_rule_on_a_pair_finds_or_rules_out() -> None:
    """No rule is silent."""
    findings, ruled_out = examine_comparison(compared(events(convolution=500), events(convolution=400)))
    assert sorted(item.rule for item in [*findings, *ruled_out]) == sorted(rule.__name__ for rule in COMPARISON_RULES)


def unused(
    candidate: EventTable | None = None,
    switched: tuple[str, ...] | None = ("avx512",),
    ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None),
    **cannot: str,
) -> tuple[list[Message], list]:
    """What is told of variants without any difference: of a convolution, if nothing else is given."""
    own = candidate or events(convolution=500)
    return examine_comparison(PairEvidence(compared(own, own), evidence(own, **cannot), switched, ceilings))


@pytest.mark.parametrize(
    ("switched", "why"),
    [
        ((), "not checked: nothing was switched: the two variants ran with the same CPU features"),
        (None, "not checked: which CPU features differ between the two variants is not known"),
    ],
)
def test_where_nothing_is_known_to_be_switched_nothing_is_said_of_acceleration(
    switched: tuple[str, ...] | None, why: str
) -> None:
    """Two thread counts, or two builds: no rule on acceleration has anything to look at."""
    found = unused(switched=switched)
    assert not found[0]
    for rule in ("acceleration_unused", "acceleration_effect", "unhelped_operators", "slowed_operators"):
        assert reason(found, rule).startswith(why)


def test_a_difference_that_was_not_excluded_is_no_evidence_that_kernels_are_unused() -> None:
    """Processes that scatter by half: no difference is shown, and 1.1x is well within the interval."""
    wild = [events(1, convolution=time) for time in (500, 800, 400, 900, 350, 600, 750, 450)]
    sides = compared(EventTable.concat(wild), EventTable.concat(wild[::-1]))
    assert sides.end_to_end.verdict is Verdict.NO_DIFFERENCE
    found = examine_comparison(PairEvidence(sides, evidence(events(convolution=500)), ("avx512",)))
    assert not found[0]
    assert "1.10x is not ruled out" in reason(found, "acceleration_unused")
    assert "1.10x is not ruled out" in reason(found, "acceleration_effect")
    assert "1.10x is not ruled out" in reason(found, "unhelped_operators")


def test_without_ceilings_the_next_step_is_to_measure_them() -> None:
    """Nothing changed, and nothing tells what this CPU gains: measure that first."""
    found = told(unused(), "acceleration_unused")
    assert found is not None
    assert (found.title, found.severity.value) == ("avx512 makes no difference", "medium")
    assert "a change beyond" in found.evidence
    assert "ceilings of both variants were not measured" in found.evidence
    assert found.next_step.startswith("measure the ceilings")
    assert found.context is None


def test_ceilings_that_are_higher_with_acceleration_point_to_the_library_and_the_roofline() -> None:
    """Twice the rate: the CPU could be faster, so the kernels of the library or memory hold the model back."""
    found = told(unused(ceilings=(round_ceilings(slowdown=2), round_ceilings())), "acceleration_unused")
    assert found is not None
    assert found.title == "This CPU is faster with avx512, but this model gains nothing from it"
    assert "f32: 50.0 GMAC/s without, 100 with" in found.evidence
    assert "opscope kernels" in found.next_step


def test_ceilings_that_are_the_same_show_that_the_cpu_gains_nothing() -> None:
    """Then no kernel could; where another number type is faster with it, that comes first."""
    found = told(unused(ceilings=(round_ceilings(), round_ceilings())), "acceleration_unused")
    assert found is not None
    assert (found.title, found.severity.value) == (
        "This CPU computes the number types of this model no faster with avx512",
        "high",
    )
    assert found.next_step.startswith("choose another accelerator")
    slow = round_ceilings(slowdown=2)
    one = msgspec.structs.replace(round_ceilings(), compute=[*round_ceilings().compute[:2], slow.compute[2]])
    other = told(unused(ceilings=(one, round_ceilings())), "acceleration_unused")
    assert other is not None
    assert "compare with another number type" in other.next_step
    assert "bf16: 100 GMAC/s without, 200 with" in other.next_step


def test_where_products_take_too_little_no_gain_is_missed() -> None:
    """Kernels twice as fast for a fiftieth of the time: 1.02x was to be expected, which nobody would see."""
    own = events(convolution=10, transpose=500)
    found = unused(own, ceilings=(round_ceilings(slowdown=2), round_ceilings()))
    assert told(found, "acceleration_unused") is None
    assert "at most was expected" in reason(found, "acceleration_unused")


def test_what_ran_can_show_that_nothing_could_become_faster() -> None:
    """Where only transposes are delegated there is nothing to accelerate; for SME the number types are looked at."""
    only = told(unused(events(transpose=500)), "acceleration_unused")
    assert only is not None
    assert only.title == "avx512 makes no difference: no convolution or matrix product is delegated"
    types = told(unused(switched=("sme2",), convolution="use int8"), "acceleration_unused")
    assert types is not None
    assert types.title.endswith("no convolution or matrix product has a type that SME can run")
    assert "3-15x" in (types.context or "")


def test_acceleration_that_moves_time_is_used() -> None:
    """One operator faster, one slower by the same: no effect, but the kernels ran."""
    sides = compared(events(convolution=600, linear=400), events(convolution=400, linear=600))
    found = examine_comparison(PairEvidence(sides, None, ("avx512",)))
    assert told(found, "acceleration_unused") is None
    effect = told(found, "acceleration_effect")
    assert effect is not None
    assert effect.title.startswith("avx512 makes no difference to latency: a change beyond ")


def test_operators_that_were_not_helped_are_named_with_what_they_could_have_been() -> None:
    """Convolutions twice as fast, depthwise ones as before: at most 1.0x, half of the latency."""
    baseline, candidate = events(convolution=1000, depthwise=500), events(convolution=500, depthwise=500)
    pair = PairEvidence(compared(baseline, candidate), None, ("avx512",))
    unhelped = told(examine_comparison(pair), "unhelped_operators")
    assert unhelped is not None
    assert unhelped.title == "Acceleration does not speed up depthwise operators"
    assert "depthwise 0.503 to 0.503 ms, at most 1.00x" in unhelped.evidence
    assert unhelped.operators == (OperatorKey(METHOD, 0, 1),)
    assert (unhelped.saving_ns, unhelped.saving_basis) == (
        None,
        f"not reported: {NO_CEILINGS}, or operator costs are unknown; profile without --no-ceilings",
    )


def test_operators_that_sme_cannot_run_are_not_held_against_it() -> None:
    """A depthwise convolution is not a matrix product; what SME2 could have helped is helped."""
    baseline, candidate = events(convolution=1500, depthwise=500), events(convolution=500, depthwise=500)
    pair = PairEvidence(compared(baseline, candidate), evidence(candidate), ("sme2",))
    assert told(examine_comparison(pair), "unhelped_operators") is not None
    known = evidence(candidate, depthwise="enlarge it")
    assert told(examine_comparison(pair._replace(evidence=known)), "unhelped_operators") is None


def test_operators_that_became_slower_are_told_with_what_they_cost() -> None:
    """A product that takes 100 us more: that much would be saved if it took as long as before."""
    baseline, candidate = events(convolution=1000, linear=300), events(convolution=500, linear=400)
    pair = PairEvidence(compared(baseline, candidate), None, ("avx512",))
    slower = told(examine_comparison(pair), "slowed_operators")
    assert slower is not None
    assert "(+0.100 ms)" in slower.evidence
    assert slower.saving_ns == pytest.approx(100_000, rel=1e-3)
    low, high = slower.saving_ci95_ns or (0, 0)
    assert low <= 100_000 <= high


def test_too_few_rounds_decide_nothing_about_operators() -> None:
    """Two rounds: what changed cannot be seen, and every rule that needs it says that it was not checked."""
    sides = compared(events(2, convolution=900), events(2, convolution=500))
    found = examine_comparison(PairEvidence(sides, None, ("avx512",)))
    for rule in ("acceleration_unused", "acceleration_effect", "unhelped_operators", "slowed_operators"):
        assert reason(found, rule).startswith("not checked: inconclusive: add rounds (--rounds 6)")


@pytest.mark.parametrize(("after", "expected"), [(400, False), (900, True)])
def test_less_than_sme2_usually_gives_is_told_with_its_source(after: int, expected: bool) -> None:
    """Products 2x as fast are below the 3 to 15 times of Arm's kit; 5x are not."""
    sides = compared(events(linear=2000), events(linear=after))
    below = told(examine_comparison(PairEvidence(sides, None, ("sme2",))), "below_expectation")
    assert (below is not None) is expected
    assert below is None or "Arm's profiling kit" in (below.context or "")


def test_other_features_have_no_expected_range() -> None:
    """What SME2 gives is not a measure for AVX-512."""
    sides = compared(events(linear=2000), events(linear=1800))
    found = examine_comparison(PairEvidence(sides, None, ("avx512",)))
    assert reason(found, "below_expectation").startswith("does not apply")
    assert all(finding.context is None for finding in found[0])


def ran(time: int, **cannot: str) -> Evidence:
    """A variant of one product and a depthwise convolution."""
    own = events(linear=time, depthwise=time)
    facts = {
        OperatorKey(METHOD, 0, number): OperatorFacts(sme=_sme(kind, cannot.get(kind)))
        for number, kind in enumerate(("linear", "depthwise"))
    }
    known = ProgramKnowledge(
        ProgramInfo("net.pte", "0" * 64, None, None, verified=True), Attributions(facts, [], None, [], {}, {})
    )
    return rule_evidence(own, analyse(own, SOURCE), known)


def experiment(*variants: Evidence, features: tuple[str, ...] = (), known_runtime: bool = True) -> ExperimentEvidence:
    """An experiment whose report is about the first of these, which ran with one thread, the next with two."""
    by_threads = dict(enumerate(variants, 1))
    disturbed = next((one.disturbed for one in variants if one.disturbed), None)
    return ExperimentEvidence(
        variants[0], "one", by_threads, {"avx512"}, disturbed, ["XnnpackBackend"], features, known_runtime
    )


def test_every_rule_on_an_experiment_finds_or_rules_out() -> None:
    """No rule is silent, also where nothing was measured."""
    for own in (experiment(ran(500)), ExperimentEvidence(None, "", {}, set(), None, [], None, known_runtime=True)):
        findings, ruled_out = examine_experiment(own)
        assert sorted(item.rule for item in [*findings, *ruled_out]) == sorted(r.__name__ for r in EXPERIMENT_RULES)


def test_a_faster_thread_count_is_told_with_its_interval() -> None:
    """Two threads half as long as one: the saving is that of the measured one."""
    found = examine_experiment(experiment(ran(1000), ran(500)))
    faster = told(found, "thread_count")
    assert faster is not None
    assert faster.title.startswith("2 threads: 1.99x faster than 1")
    assert faster.saving_ns == pytest.approx(1_000_000, rel=0.01)
    low, high = faster.saving_ci95_ns or (0, 0)
    assert low < 1_000_000 < high


def test_more_threads_that_do_not_help_are_ruled_out() -> None:
    """The baseline's thread counts are another variant and say nothing."""
    found = examine_experiment(experiment(ran(1000), ran(1000)))
    assert told(found, "thread_count") is None
    assert "2 gives 1.00x" in reason(found, "thread_count")
    hardly = examine_experiment(experiment(ran(1000), ran(970)))
    assert told(hardly, "thread_count") is None
    assert reason(hardly, "thread_count").endswith("none saves 5.0 %")
    busy = ran(500)
    busy = busy._replace(disturbed="others had the CPU")
    assert reason(examine_experiment(experiment(ran(1000), busy)), "thread_count").endswith("had the CPU")
    alone = examine_experiment(experiment(ran(1000)))
    assert reason(alone, "thread_count").startswith("not checked: one thread count")


def test_a_program_whose_delegates_did_not_run_is_a_wrong_build() -> None:
    """The program was exported for XNNPACK, and the trace has portable operators only."""
    text = "Method::execute 1000\n  OPERATOR_CALL @0 900\n    native_call_add.out 900"
    own = table(text, repeat=2)
    shown = rule_evidence(own, analyse(own, SOURCE), None)
    wrong = told(examine_experiment(experiment(shown)), "runner_build")
    assert wrong is not None
    assert "XnnpackBackend" in wrong.evidence


def test_a_foreign_runner_may_be_a_debug_build() -> None:
    """Nothing records how it was compiled, so that is not said to be in order."""
    assert reason(examine_experiment(experiment(ran(500))), "runner_build").startswith("the runtime is an opt")
    foreign = examine_experiment(experiment(ran(500), known_runtime=False))
    assert reason(foreign, "runner_build").startswith("not checked: whether the runner is an optimised build")


def test_types_that_sme_cannot_run_are_told_with_what_would_help() -> None:
    """Half of the latency is a product in a type for which there are no kernels."""
    own = ran(500, linear="use int8")
    found = told(examine_experiment(experiment(own, features=("sme2",))), "sme_number_types")
    assert found is not None
    assert found.severity.value == "medium"
    assert found.next_step == "use int8"
    assert found.saving_ns is None
    assert "50.0 %" in found.title


def test_number_types_for_sme_mean_nothing_elsewhere() -> None:
    """On x86 the same program has no such finding."""
    found = examine_experiment(experiment(ran(500, linear="use int8"), features=("avx512",)))
    assert reason(found, "sme_number_types").startswith("does not apply")


def analysis_of(own: EventTable) -> Analysis:
    """The analysis of a variant."""
    return analyse(own, SOURCE)


def test_rules_of_one_variant_know_nothing_of_acceleration() -> None:
    """A single variant has no findings about what was switched off."""
    rules = {
        item.rule for item in [*analysis_of(events(linear=500)).findings, *analysis_of(events(linear=500)).ruled_out]
    }
    assert not rules & {rule.__name__ for rule in (*COMPARISON_RULES, *EXPERIMENT_RULES)}
