"""Rules on the runtime: fusion, delegates that say nothing, loading, tracing."""

from __future__ import annotations

import msgspec
import pytest

from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.analysis.findings.message import Message
from opscope.analysis.latency.latency import CallTimes
from opscope.analysis.operators.operators import GIVEN, LayoutChange
from opscope.analysis.rules.evidence import Evidence
from opscope.analysis.rules.rules import examine
from opscope.reports.document.messages import sentence
from texts import NO_CEILINGS
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])
CONVOLUTION = "Convolution (NHWC, F32) IGEMM #1"


def trace(*events: tuple[str, int], loading: str = "") -> str:
    """An inference of one delegate call with these events, in us."""
    total = sum(time for _, time in events) * 1000
    lines = [f"Method::execute {total}", f"  DELEGATE_CALL @0 {total}"]
    return loading + "\n".join([*lines, *(f"    {name} {time * 1000}" for name, time in events)])


def analysed(text: str, calls: CallTimes | None = None) -> Analysis:
    """The analysis of a hand-written trace."""
    return analyse(table(text, repeat=4), SOURCE, calls=calls)


def finding(analysis: Analysis, rule: str) -> Message:
    """The finding of a rule."""
    return next(one for one in analysis.findings if one.rule == rule)


def passed(analysis: Analysis, rule: str) -> str:
    """Why a rule found nothing."""
    return next(sentence(item) for item in analysis.ruled_out if item.rule == rule)


def test_a_clamp_behind_a_product_could_have_been_fused() -> None:
    """A convolution can end with a clamp at no cost; here the clamp runs by itself for 60 of 1,000 us."""
    found = finding(analysed(trace((CONVOLUTION, 940), ("Clamp (NC) #1", 60))), "unfused_operators")
    assert "0 batch normalisations, 1 clamp after a product" in found.evidence
    assert found.saving_ns == 60_000
    assert "only the activation" in found.next_step


def test_a_clamp_behind_something_else_could_not() -> None:
    """Behind a softmax there is nothing to fuse it into."""
    told = passed(analysed(trace(("Softmax (NC, F32) #1", 950), ("Clamp (NC) #1", 50))), "unfused_operators")
    assert told.startswith("0 batch normalisations, 0 clamps")


def test_a_batch_normalisation_that_runs_by_itself_should_be_folded() -> None:
    """As a portable kernel, by its name."""
    text = """
        Method::execute 1000000
          DELEGATE_CALL @0 900000
            Convolution (NHWC, F32) IGEMM #1 900000
          OPERATOR_CALL @1 100000
            native_call__native_batch_norm_legit_no_training.out 100000
    """
    found = finding(analysed(text), "unfused_operators")
    assert "1 batch normalisation," in found.evidence
    assert "fuse_conv_bn_eval" in found.next_step
    assert "also counts in portable_operators" in found.evidence


def test_activations_that_no_product_ends_with_are_good_to_know() -> None:
    """HardSwish at 8 %; it is not an unfused operator."""
    analysis = analysed(trace((CONVOLUTION, 920), ("HardSwish (NC) #1", 80)))
    assert "8.0 %" in finding(analysis, "costly_activations").title
    assert "unfused_operators" not in {one.rule for one in analysis.findings}


SILENT = """
    Method::execute 1000000
      DELEGATE_CALL @0 700000
      DELEGATE_CALL @1 300000
        Convolution (NHWC, F32) IGEMM #1 300000
"""


def test_a_delegate_that_reports_nothing_is_told_first() -> None:
    """70 % of the latency cannot be split, so what is said about the rest says little."""
    analysis = analysed(SILENT)
    assert analysis.findings[0].rule == "compiled_regions"
    assert "0.700 ms in 1 compiled region of XNNPACK" in analysis.findings[0].evidence
    assert "EXECUTORCH_ENABLE_EVENT_TRACER" in analysis.findings[0].next_step


def test_a_program_without_delegates_is_told_as_such() -> None:
    """Once, and not as a long list of portable operators; nobody makes all of an inference go away."""
    text = """
        Method::execute 1000000
          OPERATOR_CALL @0 1000000
            native_call_convolution.out 1000000
    """
    analysis = analysed(text)
    (first,) = analysis.findings
    assert (first.rule, first.saving_ns) == ("nothing_delegated", None)
    assert "to_edge_transform_and_lower" in first.next_step
    assert "see nothing_delegated" in passed(analysis, "portable_operators")
    assert "is visible" in passed(analysis, "compiled_regions")


def test_a_part_of_framework_time_is_what_the_delegate_cuts_off() -> None:
    """120 us of a 1 ms inference are self time of the call; 100 operators hide half a us each of it."""
    events = [(f"Convolution (NHWC, F32) IGEMM #{n}", 9) for n in range(100)]
    text = trace(*events).replace("Method::execute 900000", "Method::execute 1020000")
    text = text.replace("DELEGATE_CALL @0 900000", "DELEGATE_CALL @0 1020000")
    assert "6.9 % (0.070 ms in 1 call to" in passed(analysed(text), "framework_time")


def calls(untraced: int, traced: int, load: int = 0) -> CallTimes:
    """Six processes of ten calls with these durations in us, and this loading time in ms."""
    rounds = range(6)
    return CallTimes(
        {n: [(untraced + n) * 1000] * 10 for n in rounds},
        {n: [(traced + n) * 1000] * 10 for n in rounds},
        0,
        dict.fromkeys(rounds, load * 1_000_000),
    )


@pytest.mark.parametrize(("load", "told"), [(200, True), (90, False)])
def test_loading_counts_when_a_person_feels_it(load: int, told: bool) -> None:
    """0.2 s is 200 inferences of 1 ms; 90 ms is below what anyone notices, however many inferences that is."""
    analysis = analysed(trace((CONVOLUTION, 1000)), calls(1000, 1000, load))
    assert ("slow_loading" in {one.rule for one in analysis.findings}) is told


def test_loading_as_long_as_a_few_inferences_is_in_order() -> None:
    """0.2 s is nothing where an inference takes 50 ms."""
    analysis = analysed(trace((CONVOLUTION, 50_000)), calls(50_000, 50_000, 200))
    assert passed(analysis, "slow_loading") == "loading takes 200 ms, as long as 4.0 inferences"


def test_what_tracing_costs_is_told_with_its_interval() -> None:
    """Calls take 1.2 times as long when traced: operators' times are those of longer inferences."""
    analysis = analysed(trace((CONVOLUTION, 1200)), calls(1000, 1200))
    found = finding(analysis, "tracer_cost")
    assert "20.0 %" in found.title
    assert "95 % interval" in found.evidence
    assert "uneven_split" not in {one.rule for one in analysis.findings}


def test_a_split_of_disturbed_inferences_is_told() -> None:
    """Traced inferences of 1.4 ms where tracing itself costs nothing: milliseconds of operators say little."""
    analysis = analysed(trace((CONVOLUTION, 1400)), calls(1000, 1000))
    assert "1.40x" in finding(analysis, "uneven_split").title


def test_ceilings_say_nothing_of_disturbed_inferences() -> None:
    """An operator that was held up is not far from its ceiling; the rule says why it was not checked."""
    analysis = analysed(trace((CONVOLUTION, 1400)), calls(1000, 1000))
    assert passed(analysis, "headroom").startswith(f"not checked: {NO_CEILINGS}")
    assert msgspec.json.encode(analysis)


CALLS = {
    "etdump": ("torch.", "XnnpackPartitioner", "MemoryPlanningPass", "MmapDataLoader", "clone()", "channels last"),
    "litert-trace": ("ai-edge", ".tflite"),
    "onnxruntime-json": ("onnxruntime.", "io_binding", "session"),
    "openvino-trace": ("NNCF", "CACHE_DIR", "infer request"),
}
"""Words of advice that mean calls or tools of one runtime, by the format of its traces."""


DOMINATED = [
    [("Copy (NC, X32) #1", 500), (CONVOLUTION, 500)],
    [("Transpose (ND, X32) #1", 500), (CONVOLUTION, 500)],
    [("Fully Connected (NC, F32) GEMM #1", 900), ("Clamp (NC) #1", 100)],
    [(CONVOLUTION, 900), ("native_batch_norm #1", 100)],
]
"""Inferences in which copies, layouts, products, and norms take the time."""


@pytest.mark.parametrize("trace_format", CALLS)
def test_advice_names_no_call_of_another_runtime(trace_format: str) -> None:
    """Rules with such advice find something; that it is the runtime's own is seen for each."""
    change = LayoutChange("runtime", [GIVEN], ["stem (Conv)"])
    source = TraceSource("trace", trace_format, [("trace", "0" * 64)])
    steps: list[str] = []
    for events in DOMINATED:
        analysis = analyse(table(trace(*events), repeat=4), source, calls=calls(1000, 1000, load=200))
        operators = [
            msgspec.structs.replace(o, change=change) if o.name.startswith("Transpose") else o
            for o in analysis.operators
        ]
        evidence = Evidence(analysis.latency, operators, attributed=1.0, trace_format=trace_format)
        steps += [message.next_step for message in [*examine(evidence)[0], *analysis.findings]]
    named = {word for words in CALLS.values() for word in words if any(word in step for step in steps)}
    assert named - set(CALLS[trace_format]) == set()
    assert named
