"""Real shapes followed through programs: from the inputs of an inference to every tensor."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import graph
from opscope.program.cost.cost import step_cost
from opscope.program.cost.shapes import Shapes, graph_shapes, is_dynamic, propagate, static_inputs
from opscope.program.structure.plan import Delegate, InstructionKind, MethodPlan
from opscope.program.xnnpack import graph as xnn
from opscope.program.xnnpack.graph import XnnGraph
from plans import Computed, Given, Method, tensor

NO, YES = False, True


def left(operator: str, *arguments: object, outputs: int = 1, rank: int = 4) -> list:
    """The shapes of what one call leaves, where nothing but its arguments says so."""
    method = Method()
    out = [tensor(*[10**6] * rank, dynamic=True) for _ in range(outputs)]
    method.call(operator, *arguments, out=out[0] if outputs == 1 else out)
    found = propagate(method.plan(), {}, ())
    return [found.sizes.get(method.number(each)) for each in out]


def node_shape(
    kind: str, *inputs: tuple[int, ...], attributes: object = None, flags: int = 0
) -> tuple[int, ...] | None:
    """The shape of what one node leaves."""
    lines = "\n".join(f"input i{n} fp32 {'x'.join(map(str, dims))}" for n, dims in enumerate(inputs))
    names = " ".join(f"i{n}" for n in range(len(inputs)))
    for rank in range(1, 5):
        bound = "x".join(["1000000"] * rank)
        found = graph(f"{lines}\ny fp32 {bound} = {kind} {names}\noutput y")
        node = msgspec.structs.replace(found.nodes[0], flags=flags, attributes=attributes or found.nodes[0].attributes)
        missing = msgspec.structs.replace(found, nodes=(node,), inputs=(*found.inputs, 99))
        shape = graph_shapes(missing, dict(enumerate(inputs))).get(len(inputs))
        if shape is not None:
            return shape
    return None


def test_a_method_is_dynamic_when_one_of_its_tensors_is():
    """Its inputs need not be."""
    method = Method(data := tensor(4, 8))
    method.call("aten::nonzero.out", data, out=tensor(32, 2, dtype="int64", dynamic=True))
    assert is_dynamic(method.plan())
    assert static_inputs(method.plan()) == ((4, 8),)
    assert not is_dynamic(Method(data).plan())
    assert static_inputs(Method(tensor(4, dynamic=True)).plan()) is None


def test_shapes_follow_the_inputs():
    """A product, a sum with a bias, and a softmax, of 3 rows where 100 are allowed."""
    data, weight, bias = tensor(100, 8, dynamic=True), tensor(8, 4, weight=True), tensor(4, weight=True)
    product, total, out = (tensor(100, 4, dynamic=True) for _ in range(3))
    method = Method(data)
    method.call("aten::mm.out", data, weight, out=product)
    method.call("aten::add.out", product, bias, 1, out=total)
    method.call("aten::_softmax.out", total, -1, NO, out=out)
    found = propagate(method.plan(), {}, [(3, 8)])
    assert {method.number(each): (3, 4) for each in (product, total, out)}.items() <= found.sizes.items()


def test_sizes_are_numbers_that_programs_compute_with():
    """A view of half the rows and twice the columns; the file has 0 for what is computed."""
    data, out = tensor(100, 8, dynamic=True), tensor(50, 16, dynamic=True)
    rows, half, columns = Computed(), Computed(), Computed()
    method = Method(data)
    method.call("aten::sym_size.int", data, 0, rows)
    method.call("executorch_prim::floordiv.Scalar", rows, 2, half)
    method.call("executorch_prim::mul.Scalar", 8, 2, columns)
    method.call("executorch_prim::et_view.default", data, [half, columns], out)
    plan = method.plan()
    assert propagate(plan, {}, [(6, 8)]).sizes[method.number(out)] == (3, 16)
    assert method.number(out) not in propagate(plan, {}, [(5, 8)]).sizes, "5 rows cannot be viewed so"


def test_what_an_unknown_operator_leaves_is_not_known_and_neither_is_what_follows():
    """A dynamic tensor is then absent; static tensors keep their size, and the costs of what takes them are known."""
    data, odd, out, fixed = (tensor(9, dynamic=n < 3) for n in range(4))
    method = Method(data)
    method.call("mine::own.out", data, out=odd)
    late = method.call("aten::abs.out", odd, out=out)
    known = method.call("mine::own.out", odd, out=fixed), method.call("aten::abs.out", fixed, out=fixed)
    found = propagate(method.plan(), {}, [(4,)])
    assert found.sizes == {method.number(data): (4,), method.number(fixed): (9,)}
    assert step_cost(method.plan(), late, found.sizes) is None
    assert step_cost(method.plan(), known[1], found.sizes).flops == 9


@pytest.mark.parametrize("inputs", [[], [(4, 8), (4, 8)], [(4,)], [(101, 8)], [(-1, 8)]])
def test_inputs_that_cannot_be_those_of_the_program_are_unknown(inputs: list[tuple[int, ...]]):
    """Too few, too many, of another rank, and beyond the bound."""
    data, out = tensor(100, 8, dynamic=True), tensor(100, 8, dynamic=True)
    method = Method(data)
    method.call("aten::abs.out", data, out=out)
    assert propagate(method.plan(), {}, inputs) == Shapes({}, {})


def test_a_value_that_gets_two_shapes_has_none():
    """Two branches leave a value with different shapes; what is computed from it is unknown too."""
    first, second = tensor(9, dynamic=True), tensor(9, dynamic=True)
    joined, out = tensor(9, dynamic=True), tensor(9, dynamic=True)
    method = Method(first, second)
    for source in (first, second):
        method.step(InstructionKind.MOVE, (method.number(source), method.number(joined)))
    method.call("aten::abs.out", joined, out=out)
    plan = method.plan()
    assert propagate(plan, {}, [(4,), (5,)]).sizes == {method.number(first): (4,), method.number(second): (5,)}
    assert propagate(plan, {}, [(4,), (4,)]).sizes[method.number(out)] == (4,)


def test_a_loop_leaves_as_many_results_as_it_makes_trips():
    """A map over rows: its result grows while it runs, although no input is dynamic."""
    rows, row, result = tensor(4, 5), tensor(5), tensor(4, 5, dynamic=True)
    counter, trips, last, out = Computed(), Computed(), Computed(), tensor(4, 5, dynamic=True)
    method = Method(rows)
    method.call("aten::sym_size.int", rows, 0, trips)
    method.call("aten::select_copy.int_out", rows, 0, counter, out=row)
    method.call("executorch_prim::et_copy_index.tensor", result, row, counter)
    method.call("executorch_prim::add.Scalar", counter, 1, counter)
    method.call("executorch_prim::eq.Scalar", counter, trips, last)
    method.step(InstructionKind.JUMP, (method.number(last),), target=1)
    method.call("aten::relu.out", result, out=out)
    plan = method.plan()
    assert propagate(plan, {}, static_inputs(plan)).sizes[method.number(out)] == (4, 5)


def delegating(inputs: list[Given], outputs: list[Given]) -> tuple[Method, MethodPlan]:
    """A method that hands its inputs to a delegate."""
    method = Method(*inputs)
    method.step(InstructionKind.DELEGATE, tuple(map(method.number, [*inputs, *outputs])))
    return method, msgspec.structs.replace(method.plan(), delegates=(Delegate("XnnpackBackend", None),))


LAYER = """
    input x fp32 100x8
    const w fp32 4x8
    a fp32 100x4 = FullyConnected x w
    y fp32 100x4 = Sigmoid a
    output y
"""


def test_a_delegate_hands_shapes_on():
    """From its argument through its graph to what it leaves."""
    data, out = tensor(100, 8, dynamic=True), tensor(100, 4, dynamic=True)
    method, plan = delegating([data], [out])
    found = propagate(plan, {0: graph(LAYER)}, [(3, 8)])
    assert found.dims == {0: {0: (3, 8), 1: (4, 8), 2: (3, 4), 3: (3, 4)}}
    assert found.sizes[method.number(out)] == (3, 4)
    assert method.number(out) not in propagate(plan, {}, [(3, 8)]).sizes, "without its graph nothing is known"
    assert propagate(plan, {0: graph(LAYER.replace("Sigmoid", "Wavelet"))}, [(3, 8)]).dims[0][2] == (3, 4)


CONCATENATION = """
    input b fp32 2x9 place=1
    input a fp32 2x9 place=0
    y fp32 2x18 = Add b a
    output y
"""


def test_arguments_that_look_alike_are_told_apart_by_their_place():
    """A graph lists its inputs in the order in which its nodes use them, not in that of the call."""
    data = [tensor(2, 9, dynamic=True), tensor(2, 9, dynamic=True)]
    _, plan = delegating(data, [tensor(2, 18, dynamic=True)])
    graphs = {0: graph(CONCATENATION)}
    found = propagate(plan, graphs, [(2, 3), (2, 5)]).dims[0]
    assert (found[0], found[1]) == ((2, 5), (2, 3))


def test_a_delegate_sees_dimensions_in_the_order_of_memory():
    """A channels-last tensor of shape N, C, H, W is N, H, W, C to it."""
    data, out = tensor(1, 3, 64, 48, dynamic=True), tensor(1, 3, 64, 48, dynamic=True)
    for each in (data, out):
        each.value = msgspec.structs.replace(each.value, dim_order=(0, 2, 3, 1))
    method, plan = delegating([data], [out])
    found = propagate(plan, {0: graph("input x fp32 1x64x48x3\ny fp32 1x64x48x3 = Exp x\noutput y")}, [(1, 3, 8, 6)])
    assert found.dims[0][1] == (1, 8, 6, 3)
    assert found.sizes[method.number(out)] == (1, 3, 8, 6)


def test_a_delegate_that_is_called_with_two_shapes_has_none():
    """One payload, two calls."""
    data = [tensor(100, 8, dynamic=True), tensor(100, 8, dynamic=True)]
    outs = [tensor(100, 4, dynamic=True), tensor(100, 4, dynamic=True)]
    method = Method(*data)
    for source, target in zip(data, outs, strict=True):
        method.step(InstructionKind.DELEGATE, (method.number(source), method.number(target)))
    plan = msgspec.structs.replace(method.plan(), delegates=(Delegate("XnnpackBackend", None),))
    found = propagate(plan, {0: graph(LAYER)}, [(3, 8), (5, 8)])
    assert found.dims == {0: {}}
    assert [found.sizes[method.number(each)] for each in outs] == [(3, 4), (5, 4)]


def convolution(**sizes: int) -> xnn.Convolution:
    """Attributes of a convolution: 3x3, stride 1, nothing around."""
    fields = dict.fromkeys(xnn.Convolution.__struct_fields__, 0)
    ones = "subsampling_height subsampling_width dilation_height dilation_width groups".split()
    return xnn.Convolution(**{**fields, **dict.fromkeys(ones, 1), "kernel_height": 3, "kernel_width": 3, **sizes})


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        (convolution(group_output_channels=6), (1, 7, 8, 6)),
        (convolution(group_output_channels=3, groups=2), (1, 7, 8, 6)),
        (convolution(group_output_channels=6, padding_top=1, padding_bottom=1), (1, 9, 8, 6)),
        (convolution(group_output_channels=6, subsampling_height=2, subsampling_width=2), (1, 4, 4, 6)),
        (convolution(group_output_channels=6, dilation_height=3, dilation_width=2), (1, 3, 6, 6)),
        (convolution(group_output_channels=6, subsampling_height=0), None),
    ],
)
def test_convolutions_of_a_delegate(attributes: xnn.Convolution, shape: tuple[int, ...] | None):
    """Images of 9 by 10, with windows of 3 by 3."""
    assert node_shape("Conv2d", (1, 9, 10, 4), (6, 3, 3, 4), attributes=attributes) == shape


def test_transposed_and_depthwise_convolutions_of_a_delegate():
    """(9 - 1) * 2 + 3 + 1 - 2, (10 - 1) * 1 + 3; channels of a depthwise one are those of its filter."""
    options = convolution(
        group_output_channels=6, subsampling_height=2, adjustment_height=1, padding_top=1, padding_bottom=1
    )
    assert node_shape("ConvTranspose2d", (1, 9, 10, 4), (6, 3, 3, 4), attributes=options) == (1, 18, 12, 6)
    depthwise = convolution(groups=4, group_output_channels=2)
    assert node_shape("DepthwiseConv2d", (1, 9, 10, 4), (1, 3, 3, 8), attributes=depthwise) == (1, 7, 8, 8)


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "flags", "shape"),
    [
        ("Add", ((4, 1, 3), (5, 1)), None, 0, (4, 5, 3)),
        ("Add", ((4, 2), (4, 3)), None, 0, None),
        ("FullyConnected", ((2, 3, 8), (4, 8)), None, 0, (2, 3, 4)),
        ("FullyConnected", ((2, 3, 8), (8, 4)), None, 1, (2, 3, 4)),
        ("BatchMatrixMultiply", ((1, 2, 3), (5, 3, 4)), None, 0, (5, 2, 4)),
        ("BatchMatrixMultiply", ((5, 2, 3), (4, 3)), None, 1, (5, 2, 4)),
        ("BatchMatrixMultiply", ((5, 2, 3), (4, 3)), None, 0, None),
        ("AvgPooling2d", ((1, 9, 8, 3),), xnn.Pooling(0, 0, 0, 0, 2, 2, 2, 2, 0, 0), 0, (1, 4, 4, 3)),
        ("MaxPooling2d", ((1, 9, 8, 3),), xnn.Pooling(1, 1, 1, 1, 3, 3, 2, 2, 1, 1), 0, (1, 5, 4, 3)),
        ("ArgMaxPooling2d", ((1, 9, 8, 3),), xnn.Pooling(0, 0, 0, 0, 2, 4), 0, (1, 4, 2, 3)),
        ("ArgMaxPooling2d", ((1, 9, 8, 3),), xnn.Pooling(1, 3, 2, 1, 2, 4), 0, (1, 6, 3, 3)),
        ("ArgMaxPooling2d", ((1, 9, 8, 3),), xnn.Pooling(0, 0, 0, 0, 0, 0), 0, None),
        ("GlobalAvgPooling2d", ((1, 9, 8, 3),), None, 0x40, (1, 1, 1, 3)),
        ("GlobalAvgPooling2d", ((1, 9, 8, 3),), None, 0, (1, 3)),
        ("StaticTranspose", ((2, 3, 4),), (2, 0, 1), 0, (4, 2, 3)),
        ("StaticTranspose", ((2, 3, 4),), (2, 0, 0), 0, None),
        ("StaticReshape", ((2, 3, 4),), (6, 0), 0, (6, 4)),
        ("StaticReshape", ((2, 3, 4),), (5, 0), 0, None),
        ("StaticSlice", ((9, 4),), xnn.Slicing((2, 0), (100, 4)), 0, (7, 4)),
        ("StaticSlice", ((9, 4),), xnn.Slicing((0, 0), (0, 3)), 0, (9, 3)),
        ("StaticConstantPad", ((9, 4),), xnn.Padding((1, 0), (2, 3), 0.0), 0, (12, 7)),
        ("StaticResizeBilinear2D", ((1, 9, 8, 3),), xnn.Resizing(5, 6), 0, (1, 5, 6, 3)),
        ("Concatenate3", ((2, 3), (2, 4), (2, 5)), 1, 0, (2, 12)),
        ("Concatenate2", ((2, 3), (2, 4)), 2**32 - 1, 0, (2, 7)),
        ("Concatenate2", ((2, 3), (3, 4)), 1, 0, None),
        ("ScaledDotProductAttention", ((1, 2, 6, 8), (1, 2, 5, 8), (1, 2, 5, 4)), None, 0, (1, 2, 6, 4)),
        ("Softmax", ((2, 3),), None, 0, (2, 3)),
        ("Wavelet", ((2, 3),), None, 0, None),
    ],
)
def test_nodes_of_a_delegate(kind, inputs, attributes, flags, shape):
    """As XNNPACK reshapes its operators; None where it would refuse."""
    assert node_shape(kind, *inputs, attributes=attributes, flags=flags) == shape


def test_an_image_quantised_at_run_time_may_be_stated_in_another_order():
    """The exporter states the eight-bit copy as N, C, H, W; what lies there is N, H, W, C."""
    text = """
        input x fp32 1x64x32x3
        q qdint8 1x3x64x32 = Convert x
        y fp32 1x64x32x3 = Copy q
        output y
    """
    found = graph(text)
    value = msgspec.structs.replace(
        found.values[1], quantisation=xnn.QuantisationScales(xnn.QuantisationKind.PER_TOKEN)
    )
    found = msgspec.structs.replace(found, values=(found.values[0], value, found.values[2]))
    assert graph_shapes(found, {0: (1, 8, 4, 3)}) == dict.fromkeys(range(3), (1, 8, 4, 3))


IMAGE = tensor(1, 4, 9, 8)
DATA = tensor(2, 3, 4)


@pytest.mark.parametrize(
    ("operator", "arguments", "shape"),
    [
        ("aten::mm.out", (tensor(2, 3), tensor(3, 4)), (2, 4)),
        ("aten::bmm.out", (tensor(5, 2, 3), tensor(5, 3, 4)), (5, 2, 4)),
        ("aten::addmm.out", (tensor(4), tensor(2, 3), tensor(3, 4), 1, 1), (2, 4)),
        ("aten::linear.out", (DATA, tensor(7, 4), None), (2, 3, 7)),
        ("aten::convolution.out", (IMAGE, tensor(6, 4, 3, 3), None, [2, 2], [1], [1, 1], NO, [0, 0], 1), (1, 6, 5, 4)),
        ("aten::convolution.out", (IMAGE, tensor(4, 3, 2, 2), None, [2], [0], [1], YES, [1], 2), (1, 6, 19, 17)),
        ("aten::convolution.out", (tensor(1, 4, 9), tensor(6, 4, 3), None, [1], [0], [1], NO, [0], 1), (1, 6, 7)),
        ("aten::avg_pool2d.out", (IMAGE, [2, 2], [], [0, 0], NO, YES, None), (1, 4, 4, 4)),
        ("aten::avg_pool2d.out", (IMAGE, [2, 2], [2, 2], [0, 0], YES, YES, None), (1, 4, 5, 4)),
        ("aten::mean.out", (DATA, [-1], NO, None), (2, 3)),
        ("aten::mean.out", (DATA, [1, 2], YES, None), (2, 1, 1)),
        ("aten::sum.IntList_out", (DATA, [], NO, None), ()),
        ("aten::sum.IntList_out", (DATA, None, NO, None), ()),
        ("aten::mean.dtype_out", (DATA, None), ()),
        ("aten::argmax.out", (DATA, 0, YES), (1, 3, 4)),
        ("aten::argmax.out", (DATA, None, NO), ()),
        ("aten::any.all_out", (DATA,), ()),
        ("aten::prod.out", (DATA, None), ()),
        ("aten::prod.int_out", (DATA, 1, NO, None), (2, 4)),
        ("aten::var.correction_out", (DATA, [0], 1, YES), (1, 3, 4)),
        ("aten::cumsum.out", (DATA, 1, None), (2, 3, 4)),
        ("aten::where.self_out", (tensor(3, 1), tensor(4), tensor(2, 1, 1)), (2, 3, 4)),
        ("aten::prelu.out", (IMAGE, tensor(4)), (1, 4, 9, 8)),
        ("aten::embedding.out", (tensor(50, 8), tensor(1, 6), -1, NO, NO), (1, 6, 8)),
        ("aten::cat.out", ([DATA, DATA, tensor(0)], -2), (2, 6, 4)),
        ("aten::stack.out", ([DATA, DATA, DATA], 1), (2, 3, 3, 4)),
        ("aten::slice_copy.Tensor_out", (DATA, 2, 1, 2**63 - 1, 2), (2, 3, 2)),
        ("aten::slice_copy.Tensor_out", (DATA, -1, -3, None, 1), (2, 3, 3)),
        ("aten::slice_copy.Tensor_out", (DATA, 2, None, -1, 1), (2, 3, 3)),
        ("aten::slice_copy.Tensor_out", (DATA, 2, 3, 1, 1), (2, 3, 0)),
        ("aten::narrow_copy.out", (DATA, 2, 1, 2), (2, 3, 2)),
        ("aten::select_copy.int_out", (DATA, 1, 0), (2, 4)),
        ("aten::permute_copy.out", (DATA, [2, 0, -2]), (4, 2, 3)),
        ("aten::transpose_copy.int_out", (DATA, 0, -1), (4, 3, 2)),
        ("aten::t_copy.out", (tensor(2, 3),), (3, 2)),
        ("aten::view_copy.out", (DATA, [6, -1]), (6, 4)),
        ("aten::view_copy.out", (DATA, [5, -1]), None),
        ("aten::expand_copy.out", (tensor(3, 1), [2, -1, 4], NO), (2, 3, 4)),
        ("aten::repeat.out", (tensor(3), [2, 2]), (2, 6)),
        ("aten::unsqueeze_copy.out", (DATA, -1), (2, 3, 4, 1)),
        ("aten::squeeze_copy.dims_out", (tensor(1, 3, 1), [0, 1]), (3, 1)),
        ("aten::constant_pad_nd.out", (DATA, [1, 2, 3, 0], 0), (2, 6, 7)),
        ("aten::index.Tensor_out", (DATA, [None, tensor(5, dtype="int64")]), (2, 5, 4)),
        ("aten::index.Tensor_out", (DATA, [tensor(5, 1, dtype="int64"), None, tensor(6, dtype="int64")]), (5, 6, 3)),
        ("aten::index.Tensor_out", (DATA, [tensor(2, dtype="bool")]), None),
        ("aten::index_select.out", (DATA, 1, tensor(5, dtype="int64")), (2, 5, 4)),
        ("aten::gather.out", (DATA, 1, tensor(2, 1, 4, dtype="int64"), NO), (2, 1, 4)),
        ("aten::full.out", ([2, 5], 1.5), (2, 5)),
        ("aten::arange.out", (5,), (5,)),
        ("aten::arange.start_out", (1, 8, 3), (3,)),
        ("aten::arange.start_out", (8, 1, -3), (3,)),
        ("aten::arange.start_out", (1, 8, 0), None),
        ("aten::upsample_bilinear2d.vec_out", (IMAGE, None, NO, (2.0, 1.5)), (1, 4, 18, 12)),
        ("aten::upsample_bilinear2d.vec_out", (IMAGE, None, NO, (float("inf"), 1.0)), None),
        ("aten::upsample_nearest2d.vec_out", (IMAGE, [3, 5], None), (1, 4, 3, 5)),
        ("aten::pixel_shuffle.out", (IMAGE, 2), (1, 1, 18, 16)),
        ("aten::pixel_unshuffle.out", (tensor(1, 4, 8, 8), 2), (1, 16, 4, 4)),
        ("aten::scaled_dot_product_attention.out", (DATA, DATA, tensor(2, 3, 7), None, 0.0, NO), (2, 3, 7)),
        ("dim_order_ops::_to_dim_order_copy.out", (DATA, NO, [0, 1, 2]), (2, 3, 4)),
        ("aten::nonzero.out", (DATA,), None),
        ("aten::glu.out", (DATA, -1), None),
    ],
)
def test_portable_operators(operator: str, arguments: tuple[object, ...], shape: tuple[int, ...] | None):
    """What one call leaves; None where it depends on data, or where no such call could run."""
    ranks = [len(shape)] if shape is not None else range(5)
    assert all(left(operator, *arguments, rank=rank) == [shape] for rank in ranks)


def test_portable_operators_with_several_outputs():
    """A shape for each."""
    kernel = ([2, 2], [2, 2], [0, 0], [1, 1], NO)
    assert left("aten::max_pool2d_with_indices.out", IMAGE, *kernel, outputs=2) == [(1, 4, 4, 4)] * 2
    assert left("aten::topk.values", DATA, 2, -1, YES, YES, outputs=2, rank=3) == [(2, 3, 2)] * 2
    assert left("aten::max.dim_max", DATA, 1, NO, outputs=2, rank=2) == [(2, 4)] * 2
    assert left("aten::split_copy.Tensor_out", DATA, 3, 2, outputs=2, rank=3) == [(2, 3, 3), (2, 3, 1)]
    assert left("aten::split_with_sizes_copy.out", DATA, [1, 3], 2, outputs=2, rank=3) == [(2, 3, 1), (2, 3, 3)]
    assert left("aten::unbind_copy.int_out", DATA, 0, outputs=2, rank=2) == [(3, 4)] * 2
    norm = left("aten::native_layer_norm.out", DATA, [4], None, None, 1e-5, outputs=3, rank=3)
    assert norm == [(2, 3, 4), (2, 3, 1), (2, 3, 1)]
    group = left("aten::native_group_norm.out", IMAGE, None, None, 1, 4, 72, 2, 1e-5, outputs=3, rank=2)
    assert group == [None, (1, 2), (1, 2)], "the first is of four dimensions, which the test's tensor is not"


OPERATORS = """aten::convolution.out aten::mm.out aten::view_copy.out aten::slice_copy.Tensor_out aten::cat.out
aten::expand_copy.out aten::index.Tensor_out aten::mean.out aten::avg_pool2d.out aten::split_copy.Tensor_out
aten::arange.start_out aten::upsample_bilinear2d.vec_out aten::constant_pad_nd.out aten::sym_size.int
executorch_prim::floordiv.Scalar executorch_prim::et_copy_index.tensor aten::add.out aten::copy_""".split()
NUMBER = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
ARGUMENT = st.one_of(
    st.lists(st.integers(0, 9), max_size=4).map(lambda sizes: tensor(*sizes, dynamic=True)),
    NUMBER,
    st.none(),
    st.booleans(),
    st.lists(NUMBER, max_size=4),
    st.lists(st.floats(), min_size=2, max_size=2).map(tuple),
    st.just([None, DATA]),
    st.builds(Computed),
)


@given(calls=st.lists(st.tuples(st.sampled_from(OPERATORS), st.lists(ARGUMENT, max_size=9)), max_size=4))
def test_whatever_a_damaged_program_says_shapes_stay_within_their_bounds(calls):
    """Arguments of every sort, too few of them, and in any order."""
    method = Method(data := tensor(9, 9, dynamic=True))
    for operator, arguments in calls:
        method.call(operator, data, *arguments)
    plan = method.plan()
    for number, shape in propagate(plan, {0: graph(LAYER)}, [(3, 2)]).sizes.items():
        assert all(0 <= size <= bound for size, bound in zip(shape, plan.values[number].sizes, strict=True))


ATTRIBUTES = [None, convolution(), convolution(kernel_height=0), (0, 0), xnn.Slicing((9,), (0,))]
ATTRIBUTES += [2**31, (7, 7), xnn.Pooling(*[0] * 10), xnn.Padding((), (1,), 0.0)]
KINDS = "Conv2d ConvTranspose2d MaxPooling2d FullyConnected StaticReshape StaticSlice Concatenate2 StaticTranspose Add"


@given(
    kind=st.sampled_from(KINDS.split()),
    attributes=st.sampled_from(ATTRIBUTES),
    shapes=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple), min_size=1, max_size=3),
)
def test_whatever_a_damaged_graph_says_shapes_stay_within_their_bounds(kind, attributes, shapes):
    """Missing inputs and attributes of other kinds."""
    found = graph("input x fp32 4x4\ny fp32 4x4 = Exp x\noutput y")
    values = [msgspec.structs.replace(found.values[0], id=n, dims=dims) for n, dims in enumerate(shapes)]
    node = msgspec.structs.replace(
        found.nodes[0], kind=kind, attributes=attributes, inputs=(0, len(shapes)), outputs=(9,)
    )
    out = msgspec.structs.replace(found.values[1], id=9)
    broken: XnnGraph = msgspec.structs.replace(found, values=(*values, out), nodes=(node,), inputs=(0, 77))
    shape = graph_shapes(broken, dict(enumerate(shapes))).get(9)
    assert shape is None or all(0 <= size <= bound for size, bound in zip(shape, (4, 4), strict=True))
