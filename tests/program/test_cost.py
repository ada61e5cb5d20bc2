"""The cost model against figures computed by hand: one small operator, its multiply-accumulates and its bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import graph
from opscope.program.cost.cost import GraphCosts, step_cost
from opscope.program.cost.operator_cost import Cost
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.plan import InstructionKind, PlannedStep
from opscope.program.xnnpack.graph import QuantisationKind, QuantisationScales, XnnGraph, XnnValue
from plans import Computed, call, tensor

NO = False  # an option that is not set


def cost(text: str, *nodes: int) -> Cost | None:
    """Cost of one event of a graph; of its first node unless others are named."""
    return GraphCosts(graph(text)).nodes(nodes or (0,))


def portable(operator: str, *arguments: object, out: object = None) -> Cost | None:
    """Cost of one call."""
    return step_cost(*call(operator, *arguments, out=out))


def with_options(found: XnnGraph, **options: object) -> XnnGraph:
    """The graph, its first node with other options, or its attributes with them."""
    node = found.nodes[0]
    own = {name: value for name, value in options.items() if name in node.__struct_fields__}
    inner = {name: value for name, value in options.items() if name not in own}
    attributes = msgspec.structs.replace(node.attributes, **inner) if inner else node.attributes
    first = msgspec.structs.replace(node, **{"attributes": attributes, **own})
    return msgspec.structs.replace(found, nodes=(first, *found.nodes[1:]))


def with_scales(found: XnnGraph, number: int, kind: QuantisationKind, scales: int) -> XnnGraph:
    """The graph, one value of which has so many stored scales."""
    values = [
        msgspec.structs.replace(value, quantisation=QuantisationScales(kind, scales)) if value.id == number else value
        for value in found.values
    ]
    return msgspec.structs.replace(found, values=tuple(values))


CONVOLUTION = """
    input x fp32 1x8x8x4
    const w fp32 16x3x3x4
    const b fp32 16
    y fp32 1x8x8x16 = Conv2d x w b in=4 out=16
    output y
"""


def test_a_convolution():
    """1024 outputs, each the sum of 3 * 3 * 4 products; input, output, filter and bias move once."""
    assert cost(CONVOLUTION) == Cost(
        macs=1024 * 36,
        flops=2 * 1024 * 36,
        read_bytes=8 * 8 * 4 * 4,
        written_bytes=8 * 8 * 16 * 4,
        weight_bytes=(16 * 3 * 3 * 4 + 16) * 4,
    )
    assert cost(CONVOLUTION).bytes == 1024 + 4096 + 2368


def test_a_grouped_convolution_sums_over_the_channels_of_its_group():
    """The filter has IC / groups channels."""
    text = """
        input x fp32 1x8x8x8
        const w fp32 12x3x3x2
        y fp32 1x8x8x12 = Conv2d x w groups=4 in=2 out=3
        output y
    """
    assert cost(text).macs == 8 * 8 * 12 * 3 * 3 * 2


def test_a_depthwise_convolution_sums_over_its_window_alone():
    """The filter is [1, KH, KW, OC]."""
    text = """
        input x fp32 1x8x8x4
        const w fp32 1x3x3x4
        y fp32 1x8x8x4 = DepthwiseConv2d x w groups=4 in=1 out=1
        output y
    """
    assert cost(text).macs == 8 * 8 * 4 * 9


def test_a_transposed_convolution_spreads_every_input():
    """Every element of the input meets a window for each output channel of its group."""
    text = """
        input x fp32 1x4x4x6
        const w fp32 8x2x2x3
        y fp32 1x8x8x8 = ConvTranspose2d x w window=2 groups=2 in=3 out=4
        output y
    """
    assert cost(text).macs == 4 * 4 * 6 * 2 * 2 * 4


def test_a_stride_beyond_the_window_reads_only_what_it_meets():
    """A 1x1 convolution with stride 2 looks at a quarter of the pixels."""
    text = """
        input x fp32 1x8x8x4
        const w fp32 16x1x1x4
        y fp32 1x4x4x16 = Conv2d x w window=1 in=4 out=16
        output y
    """
    found = with_options(graph(text), subsampling_height=2, subsampling_width=2)
    assert GraphCosts(found).nodes([0]).read_bytes == 8 * 8 * 4 * 4 // 4


def test_a_fully_connected_layer():
    """The inner dimension is the second of the matrix, or the first of one that lies transposed."""
    text = """
        input x fp32 2x3x5
        const w fp32 7x5
        y fp32 2x3x7 = FullyConnected x w
        output y
    """
    assert cost(text) == Cost(2 * 3 * 7 * 5, 2 * 2 * 3 * 7 * 5, 2 * 3 * 5 * 4, 2 * 3 * 7 * 4, 7 * 5 * 4)
    transposed = with_options(graph(text.replace("7x5", "5x7")), flags=1)
    assert GraphCosts(transposed).nodes([0]).macs == 2 * 3 * 7 * 5


def test_eight_bit_weights_have_a_scale_of_four_bytes_for_each_channel():
    """Bias values of 32 bits have scales too, which follow from the others and are not stored with the weights."""
    text = """
        input x qint8 2x5
        const w qcint8 7x5
        const b qcint32 7
        y qint8 2x7 = FullyConnected x w b
        output y
    """
    found = graph(text)
    bias = msgspec.structs.replace(found.values[2], dtype=NumberType("qcint32", 32))
    found = msgspec.structs.replace(found, values=(*found.values[:2], bias, *found.values[3:]))
    for number in (1, 2):
        found = with_scales(found, number, QuantisationKind.PER_CHANNEL, 7)
    assert GraphCosts(found).nodes([0]) == Cost(2 * 7 * 5, 2 * 2 * 7 * 5, 2 * 5, 2 * 7, 7 * 5 + 7 * 4 + 7 * 4)


def test_four_bit_weights_have_scales_of_two_bytes_for_each_group():
    """48 rows of 64 weights of half a byte; a scale for each 32 of them."""
    text = """
        input x qdint8 5x64
        const w qbint4 48x64
        y fp32 5x48 = FullyConnected x w
        output y
    """
    found = with_scales(graph(text), 1, QuantisationKind.PER_CHANNEL_GROUP, 48 * 2)
    assert GraphCosts(found).nodes([0]).weight_bytes == 48 * 32 + 48 * 2 * 2
    odd = with_scales(graph(text.replace("x64", "x63")), 1, QuantisationKind.PER_CHANNEL, 48)
    assert GraphCosts(odd).nodes([0]).weight_bytes == 48 * 32 + 48 * 4, "rows are filled up to whole bytes"


def test_a_matrix_product_with_broadcast_reads_the_small_side_once():
    """Five products of one left matrix with five right ones."""
    text = """
        input a fp32 1x2x3
        input b fp32 5x3x4
        y fp32 5x2x4 = BatchMatrixMultiply a b
        output y
    """
    assert cost(text) == Cost(5 * 2 * 4 * 3, 2 * 5 * 2 * 4 * 3, (6 + 60) * 4, 40 * 4, 0)


def test_what_passes_inside_an_event_costs_nothing():
    """A clamp that runs with its convolution: two comparisons an element, no more bytes."""
    text = """
        input x fp32 1x8x8x4
        const w fp32 16x3x3x4
        a fp32 1x8x8x16 = Conv2d x w in=4 out=16
        y fp32 1x8x8x16 = Clamp a min=0 max=6
        output y
    """
    apart, together = (cost(text, 0), cost(text, 1)), cost(text, 0, 1)
    assert together == Cost(1024 * 36, 2 * 1024 * 36 + 2 * 1024, 1024, 4096, 16 * 36 * 4)
    assert together.bytes == (apart[0] + apart[1]).bytes - 2 * 4096


def test_what_is_needed_elsewhere_is_written():
    """The tensor between two nodes of an event is an output of the graph as well, or another node takes it."""
    text = """
        input x fp32 4
        a fp32 4 = Exp x
        y fp32 4 = Negate a
        output y
    """
    assert cost(text, 0, 1).written_bytes == 16
    assert cost(text.replace("output y", "output y a"), 0, 1).written_bytes == 32
    assert cost(text.replace("output y", "z fp32 4 = Abs a\noutput y z"), 0, 1).written_bytes == 32


def test_data_quantised_for_a_product_inside_its_event():
    """fp32 is read; the eight-bit copy that the event makes for itself is not counted."""
    text = """
        input x fp32 5x64
        q qdint8 5x64 = Convert x
        const w qcint8 48x64
        y fp32 5x48 = FullyConnected q w
        output y
    """
    together, convert, product = cost(text, 0, 1), cost(text, 0), cost(text, 1)
    assert (together.read_bytes, together.written_bytes) == (5 * 64 * 4, 5 * 48 * 4)
    assert (convert.read_bytes, convert.written_bytes, convert.flops) == (5 * 64 * 4, 5 * 64, 0)
    assert product.read_bytes == 5 * 64


def test_one_tensor_taken_twice_is_read_once():
    """The square of a tensor as a product."""
    assert cost("input x fp32 8\ny fp32 8 = Multiply x x\noutput y") == Cost(0, 8, 32, 32, 0)


def test_a_fused_activation_that_runs_on_its_own():
    """XNNPACK adds first and clamps then, which is an event that reads and writes the sum."""
    costs = GraphCosts(graph("input x fp32 8\ny fp32 8 = Add x x min=0 max=6\noutput y"))
    assert costs.nodes([0]) == Cost(0, 8, 32, 32, 0)
    assert costs.activation(0) == Cost(0, 16, 32, 32, 0)
    half = GraphCosts(graph(CONVOLUTION.replace("out=16", "out=16 min=0 max=inf")))
    assert half.nodes([0]).flops == 2 * 1024 * 36 + 1024, "one bound, in the same event as the convolution"


@pytest.mark.parametrize(
    ("node", "flops", "read", "written"),
    [
        ("StaticSlice x at=0,0,0,0 size=1,2,8,4 | 1x2x8x4", 0, 256, 256),
        ("StaticReshape x shape=1,256 | 1x256", 0, 1024, 1024),
        ("StaticTranspose x perm=0,3,1,2 | 1x4x8x8", 0, 1024, 1024),
        ("StaticConstantPad x before=0,1,1,0 after=0,1,1,0 | 1x10x10x4", 0, 1024, 1600),
        ("Copy x | 1x8x8x4", 0, 1024, 1024),
        ("Concatenate2 x x | 1x8x8x8", 0, 1024, 2048),
        ("MaxPooling2d x | 1x4x4x4", 256, 1024, 256),
        ("AvgPooling2d x | 1x4x4x4", 256, 1024, 256),
        ("GlobalAvgPooling2d x | 1x1x1x4", 256, 1024, 16),
        ("Softmax x | 1x8x8x4", 5 * 256, 1024, 1024),
        ("Sigmoid x | 1x8x8x4", 4 * 256, 1024, 1024),
        ("Hardswish x | 1x8x8x4", 5 * 256, 1024, 1024),
        ("Gelu x | 1x8x8x4", 5 * 256, 1024, 1024),
        ("Negate x | 1x8x8x4", 256, 1024, 1024),
        ("StaticResizeBilinear2D x | 1x16x16x4", 9 * 1024, 1024, 4096),
        ("StaticResizeBilinear2D x | 1x2x2x4", 9 * 16, 256, 64),
    ],
)
def test_other_nodes(node: str, flops: int, read: int, written: int):
    """Operations as defined, tensors once; a slice reads what it leaves, a smaller picture four pixels for each."""
    text, dims = node.split(" | ")
    found = cost(f"input x fp32 1x8x8x4\ny fp32 {dims} = {text}\noutput y")
    assert found == Cost(0, flops, read, written, 0)


def test_half_precision_and_eight_bits_have_their_own_width():
    """Bytes of a sum by number type."""
    for dtype, width in (("fp32", 4), ("fp16", 2), ("qint8", 1)):
        assert cost(f"input x {dtype} 8\ny {dtype} 8 = Add x x\noutput y").bytes == 16 * width


def test_attention():
    """Scores and weighted values are products; scores are scaled, masked and go through a softmax."""
    text = """
        input q fp32 1x2x6x8
        input k fp32 1x2x5x8
        input v fp32 1x2x5x4
        input m fp32 6x5
        y fp32 1x2x6x4 = ScaledDotProductAttention q k v m
        output y
    """
    assert cost(text).macs == 2 * 6 * 5 * 8 + 2 * 6 * 5 * 4
    assert cost(text).flops == 2 * cost(text).macs + 7 * 2 * 6 * 5


def test_real_shapes_replace_those_of_the_file():
    """The file has the upper bound. With real shapes given, a value without one makes the cost unknown."""
    text = "input x fp32 100x8\nconst w fp32 4x8\ny fp32 100x4 = FullyConnected x w\noutput y"
    assert GraphCosts(graph(text), {0: (3, 8), 2: (3, 4)}).nodes([0]) == Cost(96, 192, 96, 48, 128)
    assert GraphCosts(graph(text), {0: (3, 8)}).nodes([0]) is None
    assert GraphCosts(graph(text), {}).nodes([0]) is None


def test_what_is_not_known_costs_nothing_we_could_name():
    """An unknown kind, an unknown width, no such node, and shapes that no kernel takes."""
    assert cost("input x fp32 8\ny fp32 8 = Wavelet x\noutput y") is None
    found = graph("input x fp32 8\ny fp32 8 = Exp x\noutput y")
    odd = msgspec.structs.replace(found.values[0], dtype=NumberType("unknown-99", None))
    assert GraphCosts(msgspec.structs.replace(found, values=(odd, *found.values[1:]))).nodes([0]) is None
    assert [GraphCosts(found).nodes(nodes) for nodes in ([], [1], [-1], [0, 7])] == [None] * 4
    assert [GraphCosts(found).activation(number) for number in (-1, 1)] == [None, None]
    assert cost(CONVOLUTION.replace("16x3x3x4", "16x36")) is None
    assert cost("input x fp32 8\ny fp32 8 = Conv2d x\noutput y") is None


def test_no_elements_cost_nothing_and_huge_ones_are_counted_exactly():
    """A tensor may be empty. Beyond 64 bits, which no machine holds, there is no figure."""
    assert cost("input x fp32 0x8\ny fp32 0x8 = Exp x\noutput y") == Cost(0, 0, 0, 0, 0)
    text = "input a fp32 {0}x{0}\ninput b fp32 {0}x{0}\ny fp32 {0}x{0} = BatchMatrixMultiply a b\noutput y"
    assert cost(text.format(2**20)) == Cost(2**60, 2**61, 2**43, 2**42, 0)
    assert cost(text.format(2**21)) is None


def test_a_shape_beyond_every_runtime_is_not_multiplied_out():
    """A damaged file can state a shape of thousands of dimensions."""
    found = graph("input x fp32 8\ny fp32 8 = Exp x\noutput y")
    values = tuple(msgspec.structs.replace(value, dims=(2**32 - 1,) * 5000) for value in found.values)
    assert GraphCosts(msgspec.structs.replace(found, values=values)).nodes([0]) is None


def test_portable_products():
    """mm, bmm, addmm and linear sum over the inner dimension; weights are apart."""
    left, right = tensor(2, 3), tensor(3, 4)
    assert portable("aten::mm.out", left, right, out=tensor(2, 4)) == Cost(24, 48, 72, 32, 0)
    batch = portable("aten::bmm.out", tensor(5, 2, 3), tensor(5, 3, 4), out=tensor(5, 2, 4))
    assert batch.macs == 5 * 24
    bias, weight = tensor(4, weight=True), tensor(3, 4, weight=True)
    added = portable("aten::addmm.out", bias, left, weight, 1, 1, out=tensor(2, 4))
    assert added == Cost(24, 48, 24, 32, 16 + 48)
    linear = portable("aten::linear.out", left, tensor(4, 3, weight=True), None, out=tensor(2, 4))
    assert linear == Cost(24, 48, 24, 32, 48)


def convolved(data: object, weight: object, out: object, *, stride: int = 1, transposed: bool = False) -> Cost | None:
    """Cost of a convolution with ATen's arguments."""
    options = ([stride, stride], [0, 0], [1, 1], transposed, [0, 0], 1)
    return portable("aten::convolution.out", data, weight, None, *options, out=out)


def test_portable_convolutions():
    """The filter is [OC, IC / groups, KH, KW], of a transposed convolution [IC, OC / groups, KH, KW]."""
    weight = tensor(16, 4, 3, 3, weight=True)
    plain = convolved(tensor(1, 4, 8, 8), weight, tensor(1, 16, 6, 6))
    assert plain == Cost(16 * 36 * 36, 2 * 16 * 36 * 36, 1024, 16 * 36 * 4, 16 * 36 * 4)
    grouped = convolved(tensor(1, 8, 8, 8), tensor(12, 2, 3, 3, weight=True), tensor(1, 12, 6, 6))
    assert grouped.macs == 12 * 36 * 2 * 9
    spread = tensor(6, 4, 2, 2, weight=True)
    assert convolved(tensor(1, 6, 4, 4), spread, tensor(1, 4, 8, 8), stride=2, transposed=True).macs == 6 * 16 * 4 * 4
    narrow = convolved(tensor(1, 4, 8, 8), tensor(16, 4, 1, 1, weight=True), tensor(1, 16, 4, 4), stride=2)
    assert narrow.read_bytes == 1024 // 4
    line = portable(
        "aten::convolution.out",
        *(tensor(1, 4, 9), tensor(16, 4, 3, weight=True), None, [1], [0], [1], False, [0], 1),
        out=tensor(1, 16, 7),
    )
    assert line.macs == 16 * 7 * 12


def test_several_outputs_are_all_written():
    """A layer norm leaves mean and deviation too, pooling the places of its maxima."""
    norm = portable(
        "aten::native_layer_norm.out",
        *(tensor(2, 3, 8), [8], tensor(8, weight=True), tensor(8, weight=True), 1e-5),
        out=[tensor(2, 3, 8), tensor(2, 3, 1), tensor(2, 3, 1)],
    )
    assert norm == Cost(0, 7 * 48, 192, 192 + 24 + 24, 64)
    pooled = portable(
        "aten::max_pool2d_with_indices.out",
        *(tensor(1, 4, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False),
        out=[tensor(1, 4, 4, 4), tensor(1, 4, 4, 4, dtype="int64")],
    )
    assert pooled == Cost(0, 64 * 4, 1024, 256 + 512, 0)
    parts = [tensor(2, 3), tensor(2, 5)]
    assert portable("aten::split_with_sizes_copy.out", tensor(2, 8), [3, 5], 1, parts, out=None).bytes == 128


def test_an_embedding_reads_the_rows_that_are_named():
    """Six rows of a large table; a table smaller than that is read once."""
    words = tensor(1, 6, dtype="int64")
    options = (-1, False, False)
    large = portable("aten::embedding.out", tensor(1000, 16, weight=True), words, *options, out=tensor(1, 6, 16))
    assert large == Cost(0, 0, 48, 6 * 64, 6 * 64)
    small = portable("aten::embedding.out", tensor(3, 16, weight=True), words, *options, out=tensor(1, 6, 16))
    assert small.weight_bytes == 3 * 64
    table, scales = tensor(1000, 8, dtype="uint8", weight=True), tensor(1000, 2, weight=True)
    packed = (table, scales, None, -8, 7, words)
    found = portable("quantized_decomposed::embedding_4bit.out", *packed, out=tensor(1, 6, 16))
    assert found == Cost(0, 0, 48, 6 * 64, 6 * 8 + 6 * 8)


def test_what_moves_data():
    """Parts are read as far as they go, new values need no input, views move nothing."""
    data, part = tensor(4, 8), tensor(4, 2)
    assert portable("aten::slice_copy.Tensor_out", data, 1, 0, 2, 1, out=part) == Cost(0, 0, 32, 32, 0)
    assert portable("aten::select_copy.int_out", data, 0, -1, out=tensor(8)) == Cost(0, 0, 32, 32, 0)
    assert portable("aten::cat.out", [data, data], 0, out=tensor(8, 8)) == Cost(0, 0, 128, 256, 0)
    assert portable("aten::expand_copy.out", tensor(1, 8), [4, 8], NO, out=data) == Cost(0, 0, 32, 128, 0)
    assert portable("aten::full_like.out", data, 0, None, out=tensor(4, 8)) == Cost(0, 0, 0, 128, 0)
    assert portable("aten::permute_copy.out", data, [1, 0], out=tensor(8, 4)) == Cost(0, 0, 128, 128, 0)
    assert portable("aten::view_copy.out", data, [32], out=tensor(32)) == Cost(0, 0, 128, 128, 0)
    assert portable("executorch_prim::et_view.default", data, [32], tensor(32)) == Cost(0, 0, 0, 0, 0)
    assert portable("aten::sym_size.int", data, 0, Computed()) == Cost(0, 0, 0, 0, 0)
    assert portable("dim_order_ops::_to_dim_order_copy.out", data, NO, [0, 1], out=tensor(4, 8)).flops == 0


def test_rows_by_number():
    """As many elements are read as are left, besides the numbers."""
    rows = tensor(2, dtype="int64")
    assert portable("aten::index.Tensor_out", tensor(9, 8), [rows], out=tensor(2, 8)) == Cost(0, 0, 16 + 64, 64, 0)
    assert portable("aten::index.Tensor_out", tensor(9, 8), [None, rows], out=tensor(9, 2)).read_bytes == 16 + 72


def test_what_is_put_into_a_tensor_where_it_stands():
    """A cache takes two rows: they are read and written, the rest of the cache stays."""
    cache, rows, places = tensor(1, 16, 8), tensor(1, 2, 8), tensor(2, dtype="int64")
    found = portable("aten::index_put_", cache, [None, places], rows, NO, cache)
    assert found == Cost(0, 0, 16 + 64, 64, 0)
    assert portable("aten::copy_", cache, tensor(1, 1, 8), NO, cache) == Cost(0, 0, 32, 512, 0)
    result = tensor(4, 8, dynamic=True)
    assert portable("executorch_prim::et_copy_index.tensor", result, tensor(8), Computed()) == Cost(0, 0, 32, 32, 0)


@pytest.mark.parametrize(
    ("operator", "arguments", "flops"),
    [
        ("aten::add.out", (tensor(4, 8), tensor(8), 1), 32),
        ("aten::where.self_out", (tensor(4, 8, dtype="bool"), tensor(4, 8), tensor(4, 8)), 32),
        ("aten::gelu.out", (tensor(4, 8), "none"), 5 * 32),
        ("aten::rsqrt.out", (tensor(4, 8),), 2 * 32),
        ("aten::clamp.out", (tensor(4, 8), 0, None), 32),
        ("aten::clamp.out", (tensor(4, 8), 0, 6), 2 * 32),
        ("aten::_softmax.out", (tensor(4, 8), -1, NO), 5 * 32),
        ("aten::cumsum.out", (tensor(4, 8), 1, None), 32),
    ],
)
def test_portable_operators_element_by_element(operator: str, arguments: tuple[object, ...], flops: int):
    """So many operations for each element of the output, as the operator is defined."""
    assert portable(operator, *arguments, out=tensor(4, 8)).flops == flops


def test_reductions_count_what_they_reduce():
    """One operation for each element of the input, four for a variance."""
    data, out = tensor(4, 8), tensor(4)
    assert portable("aten::mean.out", data, [-1], NO, None, out=out) == Cost(0, 32, 128, 16, 0)
    assert portable("aten::argmax.out", data, 1, NO, out=tensor(4, dtype="int64")).flops == 32
    assert portable("aten::var.correction_out", data, [1], 1, NO, out=out).flops == 4 * 32


def test_portable_attention():
    """As that of a delegate, with a scale and without a mask."""
    query, key = tensor(1, 2, 6, 8), tensor(1, 2, 5, 8)
    found = portable("aten::scaled_dot_product_attention.out", query, key, key, None, 0.0, NO, out=tensor(1, 2, 6, 8))
    assert (found.macs, found.flops) == (2 * 2 * 6 * 5 * 8, 4 * 2 * 6 * 5 * 8 + 6 * 2 * 6 * 5)


def test_an_unknown_portable_operator_has_no_cost():
    """Nothing is made up: a sort, an operator of somebody's own, and an instruction that calls no kernel."""
    values, places = tensor(8), tensor(8, dtype="int64")
    assert portable("aten::sort.values", tensor(8), 0, NO, out=[values, places]) is None
    assert portable("mine::fused.out", tensor(8), out=tensor(8)) is None
    plan, _ = call("aten::abs.out", tensor(8), out=tensor(8))
    assert step_cost(plan, PlannedStep(InstructionKind.MOVE, -1, (0, 1))) is None
    assert portable("aten::abs.out", tensor(8, dtype="complex7"), out=tensor(8)) is None


def test_real_sizes_of_portable_tensors():
    """Static tensors keep theirs; a dynamic one that is not listed makes the cost unknown."""
    data, out = tensor(100, 8, dynamic=True), tensor(100, 4, dynamic=True)
    plan, step = call("aten::mm.out", data, tensor(8, 4), out=out)
    assert step_cost(plan, step).macs == 3200
    assert step_cost(plan, step, {0: (3, 8), 2: (3, 4)}) == Cost(96, 192, 96 + 128, 48, 0)
    assert step_cost(plan, step, {0: (3, 8)}) is None


def test_a_window_that_is_not_in_the_file_is_not_guessed():
    """Pooling by a size that the program computes: the file has 0 there."""
    window = [Computed(), Computed()]
    options = (window, window, [0, 0], False, True, None)
    assert portable("aten::avg_pool2d.out", tensor(1, 4, 8, 8), *options, out=tensor(1, 4, 1, 1)) is None


KINDS = """Conv2d DepthwiseConv2d ConvTranspose2d FullyConnected BatchMatrixMultiply ScaledDotProductAttention
AvgPooling2d StaticSlice StaticResizeBilinear2D Add Clamp Softmax GlobalAvgPooling2d unknown""".split()
DIMS = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)


@given(kind=st.sampled_from(KINDS), shapes=st.lists(DIMS, min_size=4, max_size=4), inputs=st.integers(0, 3))
def test_whatever_a_damaged_graph_says_there_is_a_cost_or_none(kind, shapes, inputs):
    """Missing inputs and attributes, wrong ranks, zeros and huge sizes."""
    found = graph(f"input x fp32 1\ny fp32 1 = {kind} x\noutput y")
    names = [
        XnnValue(n, NumberType("fp32", 32), dims, n < 3, n > 2, 0, found.values[0].quantisation)
        for n, dims in enumerate(shapes)
    ]
    node = msgspec.structs.replace(found.nodes[0], inputs=tuple(range(inputs)), outputs=(3,) if inputs else (9,))
    known = GraphCosts(msgspec.structs.replace(found, values=tuple(names), nodes=(node,))).nodes([0])
    assert known is None or min(msgspec.structs.astuple(known)) >= 0


OPERATORS = """aten::convolution.out aten::mm.out aten::addmm.out aten::native_layer_norm.out aten::embedding.out
aten::avg_pool2d.out aten::max_pool2d_with_indices.out aten::slice_copy.Tensor_out aten::index_put_ aten::mean.out
aten::scaled_dot_product_attention.out aten::upsample_bilinear2d.vec_out aten::clamp.out mine::own.out
executorch_prim::et_copy_index.tensor quantized_decomposed::embedding_4bit.out""".split()
SIZES = st.lists(st.integers(0, 2**31 - 1), max_size=4)
ARGUMENT = st.one_of(
    SIZES.map(lambda sizes: tensor(*sizes)),
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-9, 9), max_size=3),
)


@given(operator=st.sampled_from(OPERATORS), arguments=st.lists(ARGUMENT, max_size=10))
def test_whatever_a_damaged_call_is_given_there_is_a_cost_or_none(operator, arguments):
    """Arguments of every sort, too few of them, and in any order."""
    known = portable(operator, *arguments)
    assert known is None or min(msgspec.structs.astuple(known)) >= 0
