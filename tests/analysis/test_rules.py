"""Rules: each finding with its evidence, and what was checked and found in order."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.analysis.compare.compare import compare
from opscope.analysis.compare.outputs import compare_outputs
from opscope.analysis.rules.evidence import PairEvidence
from opscope.analysis.rules.rules import RULES, examine_comparison
from opscope.core.table import EventTable
from opscope.program.partition.verdicts import Cause, advice
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])


def analysed(text: str, repeat: int = 4) -> Analysis:
    """The analysis of a hand-written trace."""
    return analyse(table(text, repeat=repeat), SOURCE)


def trace(convolution: int = 0, transpose: int = 0, add: int = 0, overhead: int = 0) -> str:
    """An inference with these times in each part, in microseconds."""
    call = (convolution + transpose) * 1000
    return f"""
        Method::execute {call + (add + overhead) * 1000}
          DELEGATE_CALL @0 {call}
            Convolution (NHWC, F32) IGEMM #1 {convolution * 1000}
            Transpose (ND, X32) #1 {transpose * 1000}
          OPERATOR_CALL @1 {add * 1000}
            native_call_add.out {add * 1000}
    """


def rules_of(analysis: Analysis) -> set[str]:
    """Identifiers of what was found."""
    return {finding.rule for finding in analysis.findings}


@pytest.mark.parametrize(
    ("rule", "found", "ruled_out"),
    [
        ("portable_operators", trace(convolution=900, add=60), trace(convolution=960, add=40)),
        ("data_movement", trace(convolution=880, transpose=110), trace(convolution=900, transpose=90)),
        ("framework_time", trace(convolution=880, overhead=110), trace(convolution=910, overhead=90)),
    ],
)
def test_a_rule_fires_above_its_threshold_only(rule: str, found: str, ruled_out: str) -> None:
    """Portable above 5 %, data movement above 10 %, framework above 10 %; below, the rule says what it saw."""
    assert rule in rules_of(analysed(found))
    below = analysed(ruled_out)
    assert rule not in rules_of(below)
    assert rule in {item.rule for item in below.ruled_out}


def test_every_rule_either_finds_or_rules_out() -> None:
    """No rule is silent: findings and what was ruled out are together all rules."""
    analysis = analysed(trace(convolution=500, transpose=100, add=100))
    told = [item.rule for item in [*analysis.findings, *analysis.ruled_out]]
    assert sorted(told) == sorted(rule.__name__ for rule in RULES)


def test_a_finding_carries_its_evidence_and_what_it_could_save() -> None:
    """The portable add of 60 of 960 us is named with its time, and no more than that can be saved."""
    (finding,) = (f for f in analysed(trace(convolution=900, add=60)).findings if f.rule == "portable_operators")
    assert "native_call_add.out (0.060 ms)" in finding.evidence
    assert finding.saving_ns == 60_000
    assert "6.2 %" in finding.title


def test_the_bottleneck_is_named_with_what_would_be_left() -> None:
    """Convolution of 800 in 1000 us: without it 0.2 ms, five times as fast at most."""
    (finding,) = (f for f in analysed(trace(convolution=800, transpose=50, add=150)).findings if f.rule == "bottleneck")
    assert "Convolution dominates: 80.0 %" in finding.title
    assert "without it: 0.200 ms (5.00x faster)" in finding.evidence


def test_a_slow_first_inference_is_told() -> None:
    """A first inference of five times the steady-state latency stands in the findings."""
    text = trace(convolution=500) + trace(convolution=100) * 4
    events = table(text).with_warmup(1)
    assert "slow_first_inference" in rules_of(analyse(events, SOURCE))


def side(convolution: int) -> EventTable:
    """Six processes whose convolution takes this time."""
    return EventTable.concat([table(trace(convolution=convolution + n, add=20), repeat=2) for n in range(6)])


LABELS = (("baseline", ""), ("accelerated", ""))


def test_acceleration_without_any_effect_is_a_finding() -> None:
    """The same latency, times and names on both sides: the kernels were not used, said first and once."""
    same = compare(side(500), side(500), labels=LABELS, paired=True)
    findings, ruled_out = examine_comparison(PairEvidence(same, None, ("avx512",)))
    assert [finding.rule for finding in findings] == ["acceleration_unused"]
    told = {item.rule: item.title for item in ruled_out}
    assert told["acceleration_effect"].startswith("no operator changed either")
    assert told["unhelped_operators"].startswith("no operator changed detectably")


def test_different_outputs_outrank_everything() -> None:
    """A fast wrong result is not a result."""
    wrong = compare_outputs([np.array([1.0, 2.0])], [np.array([1.0, 2.5])], "fp32")
    findings, _ = examine_comparison(compare(side(1000), side(500), labels=LABELS, paired=True, outputs=wrong))
    assert findings[0].rule == "outputs_agree"
    assert findings[0].severity.value == "high"


def test_data_movement_on_top_is_said_once() -> None:
    """The rule on data movement says it with what to do; the one on the bottleneck does not say it again."""
    found = analysed(trace(convolution=300, transpose=600, add=10))
    assert "data_movement" in rules_of(found)
    assert "bottleneck" not in rules_of(found)
    assert any(item.rule == "bottleneck" for item in found.ruled_out)


@pytest.mark.parametrize(("scale", "advice"), [(1, "under a millisecond"), (100, "does unrecorded work")])
def test_unclaimed_time_is_explained_by_how_long_an_inference_is(scale: int, advice: str) -> None:
    """A tenth of half a millisecond is the price of calls; a tenth of 50 ms in two calls is not."""
    found = analysed(trace(convolution=400 * scale, overhead=80 * scale))
    (finding,) = (f for f in found.findings if f.rule == "framework_time")
    assert advice in finding.next_step


ATTENTION = """
Method::execute 1000000
  DELEGATE_CALL @0 300000
    Batch Matrix Multiply (NC, F32) GEMM #1 290000
  OPERATOR_CALL @1 210000
    native_call_eq.Scalar_out 200000
  OPERATOR_CALL @2 10000
    native_call_logical_not.out 9000
  OPERATOR_CALL @3 110000
    native_call_any.out 100000
  OPERATOR_CALL @4 10000
    native_call_logical_not.out 9000
  OPERATOR_CALL @5 10000
    native_call_full_like.out 9000
  OPERATOR_CALL @6 310000
    native_call_where.self_out 300000
  OPERATOR_CALL @7 20000
    native_call_mul.Scalar_out 19000
"""


def test_the_masking_of_attention_is_told_by_its_operators() -> None:
    """Without a program the five of its softmax tell; multiplications may be anybody's."""
    found = next(f for f in analysed(ATTENTION).findings if f.rule == "attention_masking")
    assert found.recipe == "attention-masks"
    assert found.saving_ns == pytest.approx(660_000)
    assert [place.instruction for place in found.operators] == [1, 2, 3, 4, 5, 6]
    assert "attn_implementation='eager'" in found.next_step
    assert "softmax" in found.next_step
    for analysis in (
        analysed(ATTENTION.replace("any.out", "sum.out")),
        analysed(ATTENTION.replace("where.self", "mul")),
    ):
        assert "attention_masking" in {item.rule for item in analysis.ruled_out}


def test_portable_operators_are_not_called_activations_that_could_be_cheaper() -> None:
    """Where comparisons and choices take most, the advice is about delegation."""
    analysis = analysed(ATTENTION)
    assert "bottleneck" not in [one.rule for one in analysis.findings]
    dominant = next(one.title for one in analysis.ruled_out if one.rule == "bottleneck")
    assert dominant.endswith("are not delegated (a separate finding)")
    portable = next(f for f in analysis.findings if f.rule == "portable_operators")
    assert "finding on attention" in portable.next_step


@pytest.mark.parametrize(
    "name", ["cat.out", "convolution.out", "_native_batch_norm_legit_no_training.out", "max.dim_max"]
)
def test_no_option_is_to_be_changed_where_there_is_none(name: str) -> None:
    """What stands in the way is how many tensors there are, or their dimensions."""
    assert "option" not in advice(f"aten::{name}", Cause.OPTION, None)
    assert "change the option" in advice("aten::avg_pool2d.out", Cause.OPTION, "ceil_mode is True")


def test_advice_for_litert_speaks_of_litert() -> None:
    """Nobody who converts a model to a .tflite has an exporter or a partitioner of PyTorch."""
    for cause in Cause:
        for words in ("torch", "export", "Partitioner"):
            assert words not in advice("RESHAPE", cause, None)
    assert advice("CONCATENATION", Cause.OPTION, "8 tensors").startswith("concatenate at most five")


def test_kernels_that_are_made_for_language_models_stay() -> None:
    """Nothing that a delegate takes replaces ExecuTorch's own attention with a cache."""
    text = ATTENTION.replace("native_call_where.self_out", "llama::custom_sdpa.out")
    (portable,) = [f for f in analysed(text).findings if f.rule == "portable_operators"]
    assert "custom_sdpa" in portable.evidence
    assert advice("llama::custom_sdpa.out", Cause.NO_RULE, None).startswith("leave it")
    assert "XNNPACK supports" in advice("aten::erf.out", Cause.NO_RULE, None)
