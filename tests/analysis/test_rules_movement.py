"""Rules on moved data: what caused it, what stands between delegates, and what quantising costs."""

from __future__ import annotations

import msgspec
import pytest

from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.analysis.findings.message import Message
from opscope.analysis.operators.operators import LayoutChange
from opscope.analysis.rules.evidence import Evidence
from opscope.analysis.rules.rules import examine
from opscope.reports.document.messages import sentence
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])


def analysed(text: str) -> Analysis:
    """The analysis of a hand-written trace."""
    return analyse(table(text, repeat=4), SOURCE)


def delegate(instruction: int, *events: tuple[str, int], border: int = 0) -> str:
    """A delegate call with these events and a border, in us."""
    lines = [f"  DELEGATE_CALL @{instruction} {(sum(time for _, time in events) + border) * 1000}"]
    return "\n".join([*lines, *(f"    {name} {time * 1000}" for name, time in events)])


def portable(instruction: int, name: str, time: int) -> str:
    """A portable operator, in us."""
    return f"  OPERATOR_CALL @{instruction} {time * 1000}\n    {name} {time * 1000}"


def inference(total: int, *calls: str) -> str:
    """An inference of so many us."""
    return "\n".join([f"Method::execute {total * 1000}", *calls])


def finding(analysis: Analysis, rule: str) -> Message:
    """The finding of a rule."""
    return next(one for one in analysis.findings if one.rule == rule)


def passed(analysis: Analysis, rule: str) -> str:
    """Why a rule found nothing."""
    return next(sentence(item) for item in analysis.ruled_out if item.rule == rule)


MOVED = inference(
    1000,
    delegate(0, ("Transpose (ND, X32) #1", 150), ("Convolution (NHWC, F32) IGEMM #1", 800), ("Copy (NC, X32) #1", 50)),
)


def attributed(before: str = "input of the model") -> list[Message]:
    """Findings where the transpose is known to stand between the input and a layer, for which the model did not ask."""
    return examined(before)[0]


def examined(before: str) -> tuple[list[Message], list[Message]]:
    """The same, and what was ruled out."""
    analysis = analysed(MOVED)
    change = LayoutChange("partitioner", [before], ["stem.0 (Conv2d)"])
    operators = [
        msgspec.structs.replace(o, change=change) if o.name.startswith("Transpose") else o for o in analysis.operators
    ]
    return examine(Evidence(analysis.latency, operators, attributed=1.0, trace_format=SOURCE.format))


def test_data_movement_names_its_kinds_and_the_layers_that_cause_it() -> None:
    """By kind, then the operators with the layers around them."""
    found = next(one for one in attributed() if one.rule == "data_movement")
    assert "layout 0.150 ms, copy 0.050 ms" in found.evidence
    assert "Transpose (ND, X32) #1 between input of the model and stem.0 (Conv2d) (0.150 ms)" in found.evidence
    assert "channels last" in found.next_step
    assert found.recipe == "channels-last-inputs"


def test_inputs_channels_last_are_advised_only_where_inputs_are_changed() -> None:
    """A model that takes them so already is changed in its middle, if at all."""
    found = next(one for one in attributed("block.1 (Linear)") if one.rule == "data_movement")
    assert found.recipe is None
    assert found.next_step == "move operators that need another layout to the start or end"


def test_the_layout_tax_is_not_told_beside_the_same_advice() -> None:
    """Its 0.15 ms are among the 0.2 ms of data movement, of which they are most."""
    findings, ruled_out = examined("input of the model")
    assert "layout_tax" not in [one.rule for one in findings]
    why = next(one.title for one in ruled_out if one.rule == "layout_tax")
    assert why.endswith("take 15.0 % of the latency: same operators as data_movement")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Transpose (ND, X32) #1", "one memory format"),
        ("Copy (NC, X32) #1", "remove the copies"),
        ("Slice (ND, X32) #1", "split weights"),
        ("Constant Pad (ND, X32) #1", "own padding"),
        ("Convert (NC) #1", "quantisation_overhead"),
    ],
)
def test_the_next_step_is_that_for_what_takes_most(name: str, advice: str) -> None:
    """Against transposes other things help than against copies."""
    text = inference(1000, delegate(0, (name, 300), ("Convolution (NHWC, F32) IGEMM #1", 700)))
    assert advice in finding(analysed(text), "data_movement").next_step


def layouts(*, second: str) -> Analysis:
    """Two delegates, the first ending with a transpose, the second beginning with this operator."""
    return analysed(
        inference(
            1000,
            delegate(0, ("Convolution (NHWC, F32) IGEMM #1", 400), ("Transpose (ND, X32) #1", 30)),
            portable(1, "native_call_native_layer_norm.out", 40),
            delegate(2, (second, 30), ("Convolution (NHWC, F32) IGEMM #1", 500)),
        )
    )


def test_layout_changes_on_both_sides_of_a_border_are_told() -> None:
    """30 + 30 of 1,000 us, between the two delegates."""
    found = finding(layouts(second="Transpose (ND, X32) #1"), "layout_churn")
    assert "6.0 %" in found.title
    assert found.evidence.startswith("1 of 1 delegate boundaries")
    assert found.saving_ns == 60_000


def test_a_layout_change_on_one_side_only_is_none_of_that() -> None:
    """A delegate that ends with a transpose and one that begins with a clamp."""
    told = passed(layouts(second="Clamp (NC) #1"), "layout_churn")
    assert told.startswith("0 of 1 delegate boundaries")


def fragmented(border: int) -> Analysis:
    """Eight delegates of 100 us with a portable operator behind each, and borders of so many us."""
    calls = [
        part
        for number in range(8)
        for part in (
            delegate(2 * number, ("Convolution (NHWC, F32) IGEMM #1", 100), border=border),
            portable(2 * number + 1, "native_call_expand_copy.out", 2),
        )
    ]
    return analysed(inference(8 * (102 + border), *calls))


def test_many_delegates_with_costly_borders_are_told() -> None:
    """Eight borders of 10 us; with one call left, seven would be saved. What the clock cuts off is not a border."""
    found = finding(fragmented(10), "fragmentation")
    assert found.title.startswith("The model is split into 8 delegate calls")
    assert "native_call_expand_copy.out x 8" in found.evidence
    assert found.saving_ns == pytest.approx(7 * (10_000 - 499.5))


def test_many_delegates_with_cheap_borders_are_not() -> None:
    """The number alone costs nothing: one us a border is below 2 %."""
    assert "8 delegate calls" in passed(fragmented(1), "fragmentation")


def quantised(convert: int, name: str = "Convert (NC, F32, QDU8) #1") -> Analysis:
    """A product that is quantised at run time."""
    product = ("Fully Connected (NC, QD8, F32, QC8W) GEMM #1", 1000 - convert)
    return analysed(inference(1000, delegate(0, (name, convert), product)))


def test_quantising_at_run_time_is_told_with_what_it_is_done_for() -> None:
    """80 of 1,000 us for one product of 920."""
    found = finding(quantised(80), "quantisation_overhead")
    assert found.title == "Quantising at run time takes 8.0 % of the latency"
    assert "needed by 1 operator (0.920 ms)" in found.evidence
    assert "statically" in found.next_step


def test_converting_for_another_reason_is_told_apart() -> None:
    """A conversion between floating types is not quantisation."""
    found = finding(quantised(80, "Convert (NC, F32, F16) #1"), "quantisation_overhead")
    assert found.title == "Converting number types takes 8.0 % of the latency"


def test_weights_that_are_converted_in_every_call_are_to_be_folded() -> None:
    """By what the conversion reads from storage; of data it reads only a scale."""
    analysis = quantised(80, "Convert (NC, F32, F16) #1")
    operators = [
        msgspec.structs.replace(row, bytes=60_000, weight_bytes=20_000) if row.name.startswith("Convert") else row
        for row in analysis.operators
    ]
    findings, _ = examine(Evidence(analysis.latency, operators, trace_format="onnxruntime-json"))
    (message,) = [message for message in findings if message.rule == "quantisation_overhead"]
    assert message.title == "Converting stored weights in every call takes 8.0 % of the latency"
    assert "initializers" in message.next_step


def test_a_little_quantising_is_in_order() -> None:
    """4 % is below the threshold, and said."""
    assert passed(quantised(40), "quantisation_overhead") == "quantising and converting take 4.0 % (1 operator)"


def test_inferences_that_take_no_time_have_no_shares() -> None:
    """Every rule can be asked of a trace whose durations are all 0, with delegates and portable operators in it."""
    found = analysed(inference(0, delegate(0, ("Transpose (ND, X32) #1", 0)), portable(1, "native_call_add.out", 0)))
    assert passed(found, "fragmentation") == "1 delegate call, 0.000 ms (0.0 %) at boundaries"
    assert (found.headline_ns, found.timed) == (0, True)
    assert {row.share for row in found.operators} == {0}
