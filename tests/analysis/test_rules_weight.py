"""That no finding is about less than 5 % of the latency, nor about what other processes took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.analysis.findings.message import MessageKind
from opscope.analysis.latency.latency import CallTimes
from opscope.analysis.operators.operators import limit_without
from opscope.analysis.rules.evidence import LEAST_SHARE
from opscope.analysis.rules.rules import DECISIVE, LATENCY_RULES, RULES, STRUCTURAL
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])
DELEGATED = (
    "Convolution (NHWC, F32) IGEMM #1",
    "Fully Connected (NC, F32) GEMM #1",
    "Transpose (ND, X32) #1",
    "Copy (NC, X32) #1",
    "Convert (NC, F32, QD8) #1",
    "Clamp (NC, F32) #1",
    "HardSwish (NC, F32) #1",
    "Softmax (NC, F32) #1",
)
PORTABLE = ("native_call_native_layer_norm.out", "native_call_mean.out", "native_call_permute_copy.out")


def network(calls: list[list[tuple[str, int]]]) -> str:
    """An inference of calls of delegates and of portable kernels, times in us."""
    lines, total = [], 0
    for number, events in enumerate(calls):
        own = sum(time for _, time in events) * 1000
        total += own
        kind = "OPERATOR_CALL" if events[0][0] in PORTABLE else "DELEGATE_CALL"
        lines += [f"  {kind} @{number} {own}", *(f"    {name} {time * 1000}" for name, time in events)]
    return "\n".join([f"Method::execute {total}", *lines])


times = st.integers(1, 3000)
delegate_calls = st.lists(st.tuples(st.sampled_from(DELEGATED), times), min_size=1, max_size=6)
kernel_calls = st.tuples(st.sampled_from(PORTABLE), times).map(lambda event: [event])


@given(st.lists(st.one_of(delegate_calls, kernel_calls), min_size=1, max_size=12))
def test_no_finding_on_operators_weighs_less(calls: list[list[tuple[str, int]]]) -> None:
    """Whatever a model is made of."""
    analysis = analyse(table(network(calls), repeat=2), SOURCE)
    shares = {(one.method, one.instruction, one.position): one.share for one in analysis.operators}
    for finding in analysis.findings:
        if finding.kind is MessageKind.FINDING and finding.operators:
            weight = sum(shares[place.method, place.instruction, place.position] for place in finding.operators)
            assert weight > LEAST_SHARE * 0.999, finding


def test_no_advice_is_given_twice() -> None:
    """Of a program without delegates there is one finding, and the category that dominates is among it."""
    analysis = analyse(table(network([[("native_call_mean.out", 900)], [(PORTABLE[0], 100)]]), repeat=2), SOURCE)
    assert [one.rule for one in analysis.findings] == ["nothing_delegated"]


def test_portable_operators_beside_a_silent_delegate_are_told() -> None:
    """A delegate that reports nothing was called all the same, so not everything runs outside of one."""
    text = """
        Method::execute 1000000
          DELEGATE_CALL @0 400000
          OPERATOR_CALL @1 600000
            native_call_mean.out 600000
    """
    analysis = analyse(table(text, repeat=2), SOURCE)
    found = {one.rule for one in analysis.findings}
    assert {"compiled_regions", "portable_operators"} <= found
    assert "nothing_delegated" not in found


def test_a_category_is_told_elsewhere_only_where_it_is() -> None:
    """Its portable operators take less than 5 %, and so have no finding of their own."""
    calls = [[("native_call_permute_copy.out", 40)], [("Transpose (ND, X32) #1", 20)]]
    text = network(calls).replace("Method::execute 60000", "Method::execute 1000000")
    dominant = next(one for one in analyse(table(text, repeat=2), SOURCE).findings if one.rule == "bottleneck")
    assert dominant.title.startswith("Data Movement dominates: 6.0 %")


def disturbed(why: str | None) -> Analysis:
    """Six processes whose first inference and loading are slow, beside others or not."""
    rounds = range(6)
    walls = {n: [9_000_000, *[1_000_000] * 10] for n in rounds}
    calls = CallTimes(walls, walls, 1, dict.fromkeys(rounds, 300_000_000))
    text = network([[(DELEGATED[0], 600)], [(PORTABLE[0], 400)]])
    return analyse(table(text, repeat=11), SOURCE, calls=calls, variant="accelerated", disturbed=why)


def test_what_others_took_is_no_finding() -> None:
    """Neither the first inference nor loading; what runs outside of delegates is still told, without a saving."""
    quiet = {one.rule for one in disturbed(None).findings}
    assert quiet >= {"slow_first_inference", "slow_loading", "portable_operators"}
    analysis = disturbed("others had the CPU")
    assert [(one.rule, one.saving_ns) for one in analysis.findings] == [("portable_operators", None)]
    assert "others had the CPU" in (analysis.findings[0].saving_basis or "")
    assert [one.rule for one in analysis.ruled_out if one.saving_basis] == []
    left = {one.rule: one.title for one in analysis.ruled_out if one.kind is MessageKind.NOT_CHECKED}
    asked = {rule.__name__ for rule in (RULES if analysis.has_split and analysis.timed else LATENCY_RULES)}
    assert {left[rule] for rule in asked - {*DECISIVE, *STRUCTURAL}} == {"others had the CPU"}


@pytest.mark.parametrize(("share", "speedup", "limit"), [(0.5, 1.0, 2.0), (0.9, 1.0, 10.0), (0.5, 3.0, 6.0)])
def test_what_is_left_without_a_part_bounds_the_speed(share: float, speedup: float, limit: float) -> None:
    """Amdahl's law."""
    assert limit_without(share, speedup) == pytest.approx(limit)


@pytest.mark.parametrize("share", [0.91, 0.996, 1.0])
def test_no_limit_is_told_where_hardly_anything_is_left(share: float) -> None:
    """Nobody makes an inference 250 times as fast by removing 99.6 % of it."""
    assert limit_without(share) is None
