"""Which nodes an XNNPACK event computed: the rewrites of the library, told by small graphs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beside import DUMPS, reads_dumps
from graphs import graph
from opscope.program.operators.kinds import Attribution
from opscope.program.xnnpack.attribution import match_events, predict_events
from opscope.runtimes.executorch.xnnpack import read_xnn_graphs


def events_of(text: str, *names: str) -> list[tuple[int, ...]]:
    """Nodes of each event; the match must be exact."""
    match = match_events(graph(text), names)
    assert match.problem is None
    assert {event.attribution for event in match.events} == {Attribution.EXACT}
    return [event.nodes for event in match.events]


CONVOLUTION = """
    input x fp32 1x8x8x4
    const w fp32 8x3x3x4
"""


def test_a_convolution_takes_the_clamp_behind_it():
    """A convolution takes the clamp behind it."""
    text = (
        CONVOLUTION
        + """
    a fp32 1x8x8x8 = Conv2d x w
    b fp32 1x8x8x8 = Clamp a min=0 max=6
    output b
    """
    )
    assert events_of(text, "Convolution (NHWC, F32) IGEMM #1") == [(0, 1)]


def test_a_clamp_with_a_second_reader_stays_itself():
    """A clamp with a second reader stays itself."""
    text = (
        CONVOLUTION
        + """
    a fp32 1x8x8x8 = Conv2d x w
    b fp32 1x8x8x8 = Clamp a min=0 max=6
    c fp32 1x8x8x8 = Add a b
    output c
    """
    )
    names = "Convolution (NHWC, F32) IGEMM #1", "Clamp (NC) #1", "Add (ND) #1"
    assert events_of(text, *names) == [(0,), (1,), (2,)]


def test_a_pointwise_convolution_is_a_matrix_product():
    """A pointwise convolution is a matrix product."""
    text = """
    input x fp32 1x8x8x4
    const w fp32 8x1x1x4
    a fp32 1x8x8x8 = Conv2d x w window=1
    output a
    """
    assert events_of(text, "Fully Connected (NC, F32) GEMM #1") == [(0,)]


def test_a_bounded_addition_is_two_operators():
    """A bounded addition is two operators."""
    text = """
    input x fp32 1x8
    input y fp32 1x8
    a fp32 1x8 = Add x y min=0 max=inf
    output a
    """
    assert events_of(text, "Add (ND) #1", "Clamp (NC) #1") == [(0,), (0,)]


def test_a_zero_border_is_left_to_the_convolution():
    """A zero border is left to the convolution."""
    text = """
    input x fp32 1x8x8x4
    const w fp32 8x3x3x4
    p fp32 1x10x10x4 = StaticConstantPad x before=0,1,1,0 after=0,1,1,0
    a fp32 1x10x10x8 = Conv2d p w
    output a
    """
    assert events_of(text, "Convolution (NHWC, F32) IGEMM #1") == [(0, 1)]


def test_a_transpose_of_rows_and_columns_is_left_to_the_product():
    """A transpose of rows and columns is left to the product."""
    text = """
    input x fp32 2x4x8
    input y fp32 2x6x8
    t fp32 2x8x6 = StaticTranspose y perm=0,2,1
    a fp32 2x4x6 = BatchMatrixMultiply x t
    output a
    """
    assert events_of(text, "Batch Matrix Multiply (NC, F32) GEMM #1") == [(0, 1)]


def test_a_dynamic_quantisation_is_done_while_packing():
    """A dynamic quantisation is done while packing."""
    text = """
    input x fp32 1x8
    const w qcint8 4x8
    q qdint8 1x8 = Convert x
    a fp32 1x4 = FullyConnected q w
    output a
    """
    assert events_of(text, "Fully Connected (NC, QDU8, F32, QC8W) GEMM #1") == [(0, 1)]


def test_functions_of_one_byte_become_a_table():
    """Functions of one byte become a table."""
    text = """
    input x qint8 1x8 scale=1
    a fp32 1x8 = Convert x
    b fp32 1x8 = Sigmoid a
    c qint8 1x8 = Convert b scale=1
    output c
    """
    assert events_of(text, "Invalid Unary Op #1") == [(0, 1, 2)]


def test_a_reshape_of_a_reshape_and_one_that_changes_nothing():
    """A reshape of a reshape and one that changes nothing."""
    text = """
    input x fp32 2x8
    a fp32 4x4 = StaticReshape x shape=4,4
    b fp32 16 = StaticReshape a shape=16
    c fp32 16 = StaticReshape b shape=16
    d fp32 16 = Abs c
    output d
    """
    assert events_of(text, "Static Reshape (NC) #1", "Abs (NC) #1") == [(0, 1, 2), (3,)]


def test_a_product_with_itself_is_a_square_and_a_maximum_with_a_number_a_clamp():
    """A product with itself is a square and a maximum with a number a clamp."""
    text = """
    input x fp32 1x8
    const zero fp32 1
    a fp32 1x8 = Multiply x x
    b fp32 1x8 = Maximum a zero
    output b
    """
    assert events_of(text, "Square (NC) #1", "Clamp (NC) #1") == [(0,), (1,)]


HALF = """
    input x fp16 1x8x8x4
    const w fp16 8x3x3x4
    a fp16 1x8x8x8 = Conv2d x w
    b fp16 1x4x4x8 = AvgPooling2d a
    output b
"""


def test_half_precision_with_its_kernels():
    """Half precision with its kernels."""
    names = "Convolution (NHWC, F16) IGEMM #1", "Average Pooling (NHWC, F16) Average Pooling #1"
    assert events_of(HALF, *names) == [(0,), (1,)]


def test_half_precision_without_its_kernels_runs_in_fp32_between_conversions():
    """Half precision without its kernels runs in fp32 between conversions."""
    names = [
        "Convert (NC) #1",
        "Convolution (NHWC, F32) IGEMM #1",
        "Average Pooling (NHWC, F32) Average Pooling #1",
        "Convert (NC) #2",
    ]
    match = match_events(graph(HALF), names)
    assert match.profile == "fp16 on x86 without AVX2"
    assert [(event.nodes, event.inserted) for event in match.events] == [
        ((0,), True),
        ((0,), False),
        ((1,), False),
        ((1,), True),
    ]


def test_a_sine_has_a_half_precision_kernel_everywhere():
    """Without any other of them, what follows it is converted, and it is not."""
    text = """
    input x fp16 1x8
    a fp16 1x8 = Sin x
    b fp16 1x8 = Exp a
    output b
    """
    names = ["Sine (NC) #1", "Convert (NC) #1", "Exp (NC) #1", "Convert (NC) #2"]
    match = match_events(graph(text), names)
    assert (match.profile, [event.nodes for event in match.events]) == ("no fp16", [(0,), (1,), (1,), (1,)])


def test_a_mean_of_squares_has_no_half_precision_kernel_anywhere():
    """It is converted also where everything else is native."""
    text = """
    input x fp16 1x4x4x8
    a fp16 1x4x4x8 = Multiply x x
    b fp16 1x1x1x8 = GlobalAvgPooling2d a
    output b
    """
    names = ["Convert (NC) #1", "Mean Squared (ND) #1", "Convert (NC) #2"]
    assert [event.nodes for event in match_events(graph(text), names).events] == [(0, 1), (0, 1), (0, 1)]


def test_a_sum_of_squares_is_what_xnnpack_calls_normalize():
    """One operator for both nodes, as it is for a mean."""
    text = """
    input x fp32 1x4x8
    a fp32 1x4x8 = Square x
    b fp32 1x4x1 = StaticSum a
    output b
    """
    found = match_events(graph(text), ["Normalize (ND) Reduce2"])
    assert [(event.nodes, event.attribution) for event in found.events] == [((0, 1), "exact")]


def test_a_brain_float_product_runs_in_fp32():
    """Its bias is fp32 already; data and weights are converted, and so is what it leaves."""
    text = """
    input x bf16 4x8
    const w bf16 6x8
    const c fp32 6
    y bf16 4x6 = FullyConnected x w c
    output y
    """
    names = ["Convert (NC) #1", "Fully Connected (NC, F32) GEMM #1", "Convert (NC) #2"]
    assert [event.nodes for event in match_events(graph(text), names).events] == [(0,), (0,), (0,)]


def test_a_name_of_another_number_type_is_no_exact_match():
    """Operators fit, but a convolution of fp32 values cannot have run in half precision."""
    text = CONVOLUTION + "a fp32 1x8x8x8 = Conv2d x w\n    output a\n"
    assert match_events(graph(text), ["Convolution (NHWC, F16) IGEMM #1"]).profile is None


def test_what_runs_is_ordered_by_what_it_reads():
    """A node that stands before its input waits for the next pass, and whatever is ready goes first."""
    text = """
    input x fp32 1x8
    a fp32 1x8 = Abs x
    b fp32 1x8 = Exp a
    c fp32 1x8 = Add a b
    output c
    """
    assert [event.operator for event in predict_events(graph(text))] == ["Abs", "Exp", "Add"]


def test_alignment_says_what_fits_in_one_way_only():
    """Without a replay: the Clamp has no event of its own, which kinds and order show."""
    text = (
        CONVOLUTION
        + """
    a fp32 1x8x8x8 = Conv2d x w
    b fp32 1x8x8x8 = Clamp a min=0 max=6
    c fp32 1x8x8x8 = Exp b
    output c
    """
    )
    match = match_events(graph(text), ["Convolution (NHWC, F32) IGEMM #1", "Exp (NC) #1"], rewrites=False)
    assert [(event.main, event.attribution) for event in match.events] == [
        (0, Attribution.ALIGNED),
        (2, Attribution.ALIGNED),
    ]
    assert match.problem is not None


def test_alignment_lists_the_candidates_when_there_are_several():
    """Alignment lists the candidates when there are several."""
    text = """
    input x fp32 1x8
    a fp32 1x8 = Clamp x min=0 max=6
    b fp32 1x8 = Clamp a min=1 max=5
    output b
    """
    event = match_events(graph(text), ["Clamp (NC) #1"], rewrites=False).events[0]
    assert (event.attribution, event.main, event.candidates) == (Attribution.AMBIGUOUS, None, (0, 1))


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["Exp (NC) #1"],
        ["Convolution (NHWC, F32) IGEMM #1", "Exp (NC) #1"],
        ["Convolution (NHWC, F32) IGEMM #1", "Convolution (NHWC, F32) IGEMM #2"],
    ],
)
def test_events_of_another_program_are_attributed_to_nothing(names):
    """Events of another program are attributed to nothing."""
    text = CONVOLUTION + "a fp32 1x8x8x8 = Conv2d x w\n    output a\n"
    match = match_events(graph(text), names)
    assert match.foreign
    assert {event.attribution for event in match.events} <= {Attribution.NAME}


def test_nodes_of_an_unknown_kind_are_said():
    """Nodes of an unknown kind are said."""
    text = "input x fp32 1x8\n a fp32 1x8 = Frobnicate x\n output a"
    match = match_events(graph(text), ["Frobnicate (NC) #1"])
    assert (match.foreign, match.events[0].attribution) == (False, Attribution.NAME)
    assert "newer" in str(match.problem)


def test_a_cycle_ends():
    """A damaged payload: the nodes read each other."""
    damaged = graph("input x fp32 1x8\n a fp32 1x8 = Abs x\n b fp32 1x8 = Exp a\n output b")
    first, second = damaged.nodes
    import msgspec

    looped = msgspec.structs.replace(first, inputs=second.outputs), second
    match_events(msgspec.structs.replace(damaged, nodes=looped), ["Abs (NC) #1", "Exp (NC) #1"])


UNARY_KINDS = {"Abs": "Abs", "Exp": "Exp", "Clamp": "Clamp", "Sigmoid": "Sigmoid", "Negate": "Negate"}


@given(st.lists(st.sampled_from(sorted(UNARY_KINDS)), min_size=1, max_size=12))
def test_the_replay_foretells_itself_and_alignment_never_contradicts_it(kinds):
    """Chains of functions: events made from the replay match exactly; alignment alone is right or says it is unsure."""
    lines = ["input v0 fp32 1x8"]
    lines += [f"v{i + 1} fp32 1x8 = {kind} v{i} min=0 max={9 - i / 10}" for i, kind in enumerate(kinds)]
    made = graph("\n".join([*lines, f"output v{len(kinds)}"]))
    predicted = predict_events(made)
    names = [f"{event.operator} (NC) #1" for event in predicted]
    assert match_events(made, names).problem is None
    for event, truth in zip(match_events(made, names, rewrites=False).events, predicted, strict=True):
        if event.attribution is Attribution.ALIGNED:
            assert event.main in truth.nodes


@reads_dumps
@pytest.mark.parametrize("rewrites", [True, False])
def test_captures_with_ground_truth(rewrites):
    """Replay: every delegate exact, every main node right. Alignment alone: never wrong without saying so."""
    for name, calls in json.loads((DUMPS / "truth.json").read_text()).items():
        graphs = {found.delegate: found.graph for found in read_xnn_graphs(DUMPS / f"{name}.pte")}
        for call in calls:
            match = match_events(graphs[call["delegate"]], [e["name"] for e in call["events"]], rewrites=rewrites)
            assert (match.problem is None) is rewrites, (name, call["delegate"])
            for event, truth in zip(match.events, call["events"], strict=True):
                if event.main is not None and truth["nodes"]:
                    assert event.main in truth["nodes"], (name, truth)
