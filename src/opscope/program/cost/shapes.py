"""Derive the real shapes of one inference from those of the method's inputs.

A program states upper bounds for tensors whose shape can differ between calls, and a trace states no shapes at
all. Costs of such a program need the shapes of its inputs, which are propagated through every instruction and
every delegate.

Values of an XNNPACK graph have one rule for each kind of node. Source: the functions that reshape operators in
``src/subgraph`` and ``src/operators`` of XNNPACK at commit 92a7ad50, which ExecuTorch 1.5 uses. Images are N,
H, W, C. A rule raises NotKnownError for shapes that no kernel accepts.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.program.cost.call import OperatorCall, integer_in
from opscope.program.cost.dimensions import (
    NotKnownError,
    Shape,
    Window,
    at_least,
    broadcast,
    concatenated,
    elements,
    fits,
    of_rank,
    permuted,
    product,
    resolved,
)
from opscope.program.cost.node_cost import IMAGE, MATRIX, TRANSPOSED, NodeShapes
from opscope.program.cost.portable_shapes import output_shapes
from opscope.program.structure.plan import Dynamism, InstructionKind, PlannedTensor
from opscope.program.xnnpack.graph import (
    Convolution,
    Padding,
    Pooling,
    QuantisationKind,
    Resizing,
    Slicing,
)
from opscope.program.xnnpack.subgraph import BINARY, UNARY

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.structure.plan import MethodPlan, PlannedStep
    from opscope.program.xnnpack.graph import Attributes, XnnGraph, XnnNode, XnnValue


A = TypeVar("A", bound="Attributes")
_KEEP_DIMS = 0x40  # XNN_FLAG_KEEP_DIMS
_TO_NHWC = (0, 2, 3, 1)
_SIGN = 2**31  # an axis below 0 stands as an unsigned number


def graph_shapes(graph: XnnGraph, inputs: Mapping[int, Shape]) -> dict[int, Shape]:
    """Return the shape of every value that follows from those of the inputs, by value.

    Values after an unknown kind or input are missing, and so are shapes that exceed those of the file, which are
    upper bounds.
    """
    values = graph.by_id()
    if all(number in values and inputs.get(number) == values[number].dims for number in graph.inputs):
        return {value.id: value.dims for value in graph.values}
    known = {value.id: value.dims for value in graph.values if value.is_constant and fits(value.dims, value.dims)}
    known.update(
        (number, shape) for number, shape in inputs.items() if _is_possible_for_value(values.get(number), shape)
    )
    for node in graph.nodes:
        shape = _output_shape(node, known)
        fitting = [
            number for number in node.outputs if shape is not None and _is_possible_for_value(values.get(number), shape)
        ]
        known.update((number, shape) for number in fitting if shape is not None and number not in known)
    return known


def _is_possible_for_value(value: XnnValue | None, shape: Shape) -> bool:
    """Return whether a value can have a shape, of which the file states the upper bound.

    For an image that is quantised at run time the file states it in the order N, C, H, W, although it is N, H, W, C
    in memory.
    """
    if value is None:
        return False
    per_token = value.quantisation.kind is QuantisationKind.PER_TOKEN and len(value.dims) == IMAGE
    return fits(shape, value.dims) or (per_token and fits(shape, permuted(value.dims, _TO_NHWC)))


def _output_shape(node: XnnNode, known: Mapping[int, Shape]) -> Shape | None:
    """Return the shape that all outputs of a node have; None if it cannot be derived."""
    rule = _NODE_RULES.get(node.kind)
    if rule is None or any(number not in known for number in node.inputs):
        return None
    try:
        return rule(NodeShapes(node, tuple(known[number] for number in node.inputs), ()))
    except NotKnownError:
        return None


def _attributes_of(shaped: NodeShapes, kind: type[A]) -> A:
    if not isinstance(shaped.node.attributes, kind):
        raise NotKnownError
    return shaped.node.attributes


def _convolution_shape(shaped: NodeShapes) -> Shape:
    options = _attributes_of(shaped, Convolution)
    count, height, width, _ = of_rank(shaped.input(0), IMAGE)
    down, across = _filter_windows(options)
    channels = options.groups * options.group_output_channels
    return (count, down.positions(height), across.positions(width), channels)


def _depthwise_shape(shaped: NodeShapes) -> Shape:
    return (*_convolution_shape(shaped)[:3], of_rank(shaped.input(1), IMAGE)[3])


def _deconvolution_shape(shaped: NodeShapes) -> Shape:
    options = _attributes_of(shaped, Convolution)
    count, height, width, _ = of_rank(shaped.input(0), IMAGE)
    down, across = _filter_windows(options)
    height, width = down.expanded(height, options.adjustment_height), across.expanded(width, options.adjustment_width)
    return (count, height, width, options.groups * options.group_output_channels)


def _filter_windows(options: Convolution) -> tuple[Window, Window]:
    """Return the windows with which the filter moves down and across."""
    height, width = options.padding_top + options.padding_bottom, options.padding_left + options.padding_right
    down = Window(options.kernel_height, options.subsampling_height, height, options.dilation_height)
    return down, Window(options.kernel_width, options.subsampling_width, width, options.dilation_width)


def _pooling_shape(shaped: NodeShapes) -> Shape:
    """Return the shape of a pooling; average pooling has no dilation, which is stored as 0."""
    options = _attributes_of(shaped, Pooling)
    count, height, width, channels = of_rank(shaped.input(0), IMAGE)
    more_height, more_width = options.padding_top + options.padding_bottom, options.padding_left + options.padding_right
    down = Window(options.pooling_height, options.stride_height, more_height, max(1, options.dilation_height))
    across = Window(options.pooling_width, options.stride_width, more_width, max(1, options.dilation_width))
    return (count, down.positions(height), across.positions(width), channels)


def _argmax_pooling_shape(shaped: NodeShapes) -> Shape:
    """Return the shape of a pooling with adjacent windows; elements that do not fill a window are left out."""
    options = _attributes_of(shaped, Pooling)
    count, height, width, channels = of_rank(shaped.input(0), IMAGE)
    if min(options.pooling_height, options.pooling_width) < 1:
        raise NotKnownError
    height = (height + options.padding_top + options.padding_bottom) // options.pooling_height
    return (count, height, (width + options.padding_left + options.padding_right) // options.pooling_width, channels)


def _mean_shape(shaped: NodeShapes) -> Shape:
    count, _, _, channels = of_rank(shaped.input(0), IMAGE)
    return (count, 1, 1, channels) if shaped.node.flags & _KEEP_DIMS else (count, channels)


def _fully_connected_shape(shaped: NodeShapes) -> Shape:
    weight = of_rank(shaped.input(1), MATRIX)
    return (*at_least(shaped.input(0), 1)[:-1], weight[1 if shaped.node.flags & TRANSPOSED else 0])


def _matrix_product_shape(shaped: NodeShapes) -> Shape:
    right = at_least(shaped.input(1), MATRIX)
    return product(shaped.input(0), (*right[:-2], right[-1], right[-2]) if shaped.node.flags & TRANSPOSED else right)


def _attention_shape(shaped: NodeShapes) -> Shape:
    return (*at_least(shaped.input(0), 1)[:-1], at_least(shaped.input(2), 1)[-1])


def _slice_shape(shaped: NodeShapes) -> Shape:
    """Return the shape of a slice; size 0 means all elements up to the end, and no part exceeds the data."""
    options, data = _attributes_of(shaped, Slicing), shaped.input(0)
    offsets, sizes = of_rank(options.offsets, len(data)), of_rank(options.sizes, len(data))
    parts = zip(data, offsets, sizes, strict=True)
    return tuple(max(0, min(size if offset + size else have, have - offset)) for have, offset, size in parts)


def _pad_shape(shaped: NodeShapes) -> Shape:
    options, data = _attributes_of(shaped, Padding), shaped.input(0)
    before, behind = of_rank(options.pre_paddings, len(data)), of_rank(options.post_paddings, len(data))
    return tuple(map(sum, zip(before, data, behind, strict=True)))


def _resize_shape(shaped: NodeShapes) -> Shape:
    options = _attributes_of(shaped, Resizing)
    count, _, _, channels = of_rank(shaped.input(0), IMAGE)
    return (count, options.new_height, options.new_width, channels)


def _concatenate_shape(shaped: NodeShapes) -> Shape:
    axis = _attributes_of(shaped, int)
    return concatenated(shaped.inputs, axis - 2 * _SIGN if axis >= _SIGN else axis)


_NODE_RULES: dict[str, Callable[[NodeShapes], Shape]] = {
    **dict.fromkeys((*UNARY, "Softmax", "Copy"), lambda shaped: shaped.input(0)),
    **dict.fromkeys(BINARY, lambda shaped: broadcast(*shaped.inputs)),
    **dict.fromkeys((f"Concatenate{count}" for count in range(2, 6)), _concatenate_shape),
    "Conv2d": _convolution_shape,
    "DepthwiseConv2d": _depthwise_shape,
    "ConvTranspose2d": _deconvolution_shape,
    "AvgPooling2d": _pooling_shape,
    "MaxPooling2d": _pooling_shape,
    "ArgMaxPooling2d": _argmax_pooling_shape,
    "GlobalAvgPooling2d": _mean_shape,
    "FullyConnected": _fully_connected_shape,
    "BatchMatrixMultiply": _matrix_product_shape,
    "ScaledDotProductAttention": _attention_shape,
    "StaticTranspose": lambda shaped: permuted(shaped.input(0), _attributes_of(shaped, tuple)),
    "StaticReshape": lambda shaped: resolved(_attributes_of(shaped, tuple), elements(shaped.input(0)), unknown=0),
    "StaticSlice": _slice_shape,
    "StaticConstantPad": _pad_shape,
    "StaticResizeBilinear2D": _resize_shape,
}


def call_shapes(
    plan: MethodPlan, step: PlannedStep, graph: XnnGraph, sizes: Mapping[int, Shape]
) -> tuple[dict[int, Shape], dict[int, Shape | None]]:
    """Derive the shapes in and after a call of a delegate.

    Returns the shapes of its graph's values, without those that cannot be derived, and of the tensors that the call
    writes, by value number of the plan, None for unknown ones.
    """
    values = graph.by_id()
    arguments = list(zip(step.arguments, graph.arguments(), strict=False))
    input_arguments, output_arguments = arguments[: len(graph.inputs)], arguments[len(graph.inputs) :]
    known = {}
    for number, name in input_arguments:
        value = _value_of(plan, number)
        if (
            isinstance(value, PlannedTensor)
            and number in sizes
            and name in values
            and _has_declared_shape(value, values[name].dims)
        ):
            known[name] = _in_memory_order(value, sizes[number])
    dims = graph_shapes(graph, known)
    output_shapes: dict[int, Shape | None] = {}
    for number, name in output_arguments:
        value = _value_of(plan, number)
        if isinstance(value, PlannedTensor):
            fitting = name in values and _has_declared_shape(value, values[name].dims)
            output_shapes[number] = _in_logical_order(value, dims.get(name)) if fitting else None
    return dims, output_shapes


def _has_declared_shape(value: PlannedTensor, dims: Shape) -> bool:
    """Return whether a tensor and a value of a graph are declared with the same shape."""
    return _in_memory_order(value, value.sizes) == dims


def possible(value: PlannedTensor, shape: Shape) -> bool:
    """Return whether a tensor can have a shape; the file states an upper bound unless the tensor is unbounded."""
    if value.dynamism is Dynamism.UNBOUNDED:
        return len(shape) == len(value.sizes) and min(shape, default=0) >= 0
    return fits(shape, value.sizes)


def _value_of(plan: MethodPlan, number: int) -> object:
    return plan.values[number] if 0 <= number < len(plan.values) else None


def _in_memory_order(value: PlannedTensor, shape: Shape) -> Shape:
    """Return a shape in the order of memory; a scalar becomes one element."""
    if len(value.dim_order) != len(shape):
        return shape or (1,)
    return tuple(shape[axis] for axis in value.dim_order) or (1,)


def _in_logical_order(value: PlannedTensor, stored: Shape | None) -> Shape | None:
    """Return the shape of a tensor, given its shape in the order of memory."""
    if stored is None or not value.sizes:
        return None if stored is None else ()
    if sorted(value.dim_order) != list(range(len(stored))):
        return stored
    return tuple(size for _, size in sorted(zip(value.dim_order, stored, strict=True)))


_LARGEST = 2**63 - 1


def size_number(call: OperatorCall) -> int:
    """Return the integer that a call computes. Raises NotKnownError if it is unknown."""
    rule = _RULES.get(call.name)
    if rule is None:
        raise NotKnownError
    result = rule(call)
    if abs(result) > _LARGEST:
        raise NotKnownError
    return result


def _size_of_axis(call: OperatorCall) -> int:
    data = call.shape(0)
    return data[call.axis(1, data)]


def _binary_rule(compute: Callable[[int, int], int]) -> Callable[[OperatorCall], int]:
    return lambda call: compute(call.number(0), call.number(1))


def _division_rule(compute: Callable[[int, int], int]) -> Callable[[OperatorCall], int]:
    def rule(call: OperatorCall) -> int:
        if not call.number(1):
            raise NotKnownError
        return compute(call.number(0), call.number(1))

    return rule


_RULES: dict[str, Callable[[OperatorCall], int]] = {
    "aten::_local_scalar_dense": lambda call: call.number(0),
    "aten::sym_size.int": _size_of_axis,
    "aten::sym_numel": lambda call: elements(call.shape(0)),
    "executorch_prim::add.Scalar": _binary_rule(operator.add),
    "executorch_prim::sub.Scalar": _binary_rule(operator.sub),
    "executorch_prim::mul.Scalar": _binary_rule(operator.mul),
    "executorch_prim::sym_max.Scalar": _binary_rule(max),
    "executorch_prim::sym_min.Scalar": _binary_rule(min),
    "executorch_prim::floordiv.Scalar": _division_rule(operator.floordiv),
    "executorch_prim::floordiv.int": _division_rule(operator.floordiv),
    "executorch_prim::mod.Scalar": _division_rule(operator.mod),
    "executorch_prim::mod.int": _division_rule(operator.mod),
    "executorch_prim::neg.Scalar": lambda call: -call.number(0),
}


_PASSES = 8
_COPY_INTO = "executorch_prim::et_copy_index.tensor"
_EQUAL = "executorch_prim::eq.Scalar"


class Shapes(msgspec.Struct, frozen=True):
    """Known shapes of one inference; a value whose shape cannot be derived is missing."""

    sizes: Mapping[int, Shape]  # of tensors of the plan, by value number
    # of values of delegates' graphs: by number of the delegate, then by value number
    dims: Mapping[int, Mapping[int, Shape]]


def is_dynamic(plan: MethodPlan) -> bool:
    """Return whether a tensor of the method can have another shape in another inference, or grows within one."""
    return any(isinstance(value, PlannedTensor) and value.dynamism is not Dynamism.STATIC for value in plan.values)


def static_inputs(plan: MethodPlan) -> tuple[Shape, ...] | None:
    """Return the shapes of the tensors among a method's inputs, in order; None if one can differ between calls."""
    tensors = [plan.values[number] for number in _input_tensors(plan)]
    shapes = [
        value.sizes for value in tensors if isinstance(value, PlannedTensor) and value.dynamism is Dynamism.STATIC
    ]
    return tuple(shapes) if len(shapes) == len(tensors) else None


def propagate(
    plan: MethodPlan, graphs: Mapping[int, XnnGraph], inputs: Sequence[Shape], numbers: Sequence[int | None] = ()
) -> Shapes:
    """Return the shapes of one inference, as the runtime computes them.

    ``numbers`` are the only elements of inputs that have one, such as the position of a token, where they are
    known. A value that gets several shapes within the inference, as in a loop or in two branches, has none. Shapes
    that do not fit the number of inputs, or exceed what the program allows, are treated as unknown.
    """
    several: frozenset[int] = frozenset()
    for _ in range(_PASSES):
        walk = _Walk(plan, graphs, several)
        walk.start(inputs, numbers)
        walk.run()
        if walk.several == several:
            return Shapes(walk.sizes, walk.dims)
        several = frozenset(walk.several)
    return Shapes({}, {number: {} for number in graphs})


def _input_tensors(plan: MethodPlan) -> list[int]:
    return [number for number in plan.inputs if isinstance(_value_of(plan, number), PlannedTensor)]


_PASSING = frozenset({"select", "squeeze", "unsqueeze", "view", "alias", "clone"})
"""Operators that return the only element of their input."""


class _Walk:
    """One pass over the instructions in their order, whatever jumps they make."""

    def __init__(self, plan: MethodPlan, graphs: Mapping[int, XnnGraph], several: frozenset[int]) -> None:
        self.several = set(several)
        self.dims: dict[int, dict[int, Shape]] = {number: {} for number in graphs}
        self._called: set[int] = set()
        self._plan = plan
        self._graphs = graphs
        self._steps = [step for chain in plan.chains for step in chain.steps]
        self._tensors = {number: value for number, value in enumerate(plan.values) if isinstance(value, PlannedTensor)}
        self._integers = self._find_constants()
        self._trips = {step.arguments[0]: step.arguments[1] for step in self._steps if self._is_loop_comparison(step)}
        static = Dynamism.STATIC
        self.sizes = {number: value.sizes for number, value in self._tensors.items() if value.dynamism is static}

    def start(self, inputs: Sequence[Shape], numbers: Sequence[int | None]) -> None:
        """Set the shapes of the inputs, and the content of inputs with one element."""
        tensors = _input_tensors(self._plan)
        if len(inputs) == len(tensors):
            for number, shape in zip(tensors, inputs, strict=True):
                self._set_shape(number, tuple(shape))
        for number, content in zip(tensors, numbers, strict=False):
            if content is not None:
                self._set_number(number, content)

    def run(self) -> None:
        """Follow every instruction."""
        for step in self._steps:
            if step.kind is InstructionKind.KERNEL:
                self._follow_kernel(step)
            elif step.kind is InstructionKind.DELEGATE:
                self._follow_delegate(step)
            elif step.kind is InstructionKind.MOVE and step.arguments:
                self._set_shape(step.arguments[-1], self.sizes.get(step.arguments[0]))

    def _is_loop_comparison(self, step: PlannedStep) -> bool:
        """Return whether a step compares a loop's counter with the number of trips, which ends the loop."""
        kernel = step.kind is InstructionKind.KERNEL and len(step.arguments) > 1
        return kernel and self._plan.called(step) == _EQUAL

    def _find_constants(self) -> dict[int, int]:
        """Return the integers that no instruction computes, by value number."""
        computed = {step.arguments[-1] for step in self._steps if step.arguments}
        integers = {
            number: integer_in(value) for number, value in enumerate(self._plan.values) if number not in computed
        }
        return {number: integer for number, integer in integers.items() if integer is not None}

    def _set_shape(self, number: int, shape: Shape | None) -> None:
        """Set the shape of a tensor from now on; static ones keep theirs."""
        value = self._tensors.get(number)
        if value is None or value.dynamism is Dynamism.STATIC:
            return
        allowed = shape is not None and possible(value, shape)
        if number in self.several or not allowed or self.sizes.get(number, shape) != shape:
            self._forget_value(number)
        elif shape is not None:
            self.sizes[number] = shape

    def _forget_value(self, number: int) -> None:
        self.several.add(number)
        self.sizes.pop(number, None)
        self._integers.pop(number, None)

    def _follow_kernel(self, step: PlannedStep) -> None:
        call = OperatorCall(self._plan, step, self.sizes, self._integers)
        if call.name == _COPY_INTO:
            counter = step.arguments[2] if len(step.arguments) > 2 else -1  # noqa: PLR2004 - target, source, counter
            trips = self._integers.get(self._trips.get(counter, -1))
            try:
                shape = None if trips is None else (trips, *call.shape(1))
            except NotKnownError:
                shape = None
            self._set_shape(step.arguments[0], shape)
        elif call.outputs:
            self._set_output_shapes(call)
        elif step.arguments:
            self._compute_number(step.arguments[-1], call)

    def _compute_number(self, number: int, call: OperatorCall) -> None:
        """Compute the number that an operator returns."""
        try:
            result = size_number(call)
        except NotKnownError:
            self._forget_value(number)
            return
        self._set_number(number, result)

    def _set_number(self, number: int, content: int) -> None:
        """Store a number, or the only element of a tensor."""
        if number in self.several or self._integers.get(number, content) != content:
            self._forget_value(number)
        else:
            self._integers[number] = content

    def _set_output_shapes(self, call: OperatorCall) -> None:
        """Set the shapes of the tensors that an operator returns."""
        content = self._integers.get(call.inputs[0]) if call.operator in _PASSING and call.inputs else None
        if content is not None:
            self._set_number(call.outputs[0], content)
        dynamic = [number for number in call.outputs if self._tensors[number].dynamism is not Dynamism.STATIC]
        try:
            shapes = dict(zip(call.outputs, output_shapes(call) if dynamic else (), strict=False))
        except NotKnownError:
            shapes = {}
        for number in dynamic:
            self._set_shape(number, shapes.get(number))

    def _follow_delegate(self, step: PlannedStep) -> None:
        graph = self._graphs.get(step.target)
        if graph is None:
            for number in step.arguments:
                self._set_shape(number, self.sizes.get(number))
            return
        dims, output_shapes = call_shapes(self._plan, step, graph, self.sizes)
        for number, shape in output_shapes.items():
            self._set_shape(number, shape)
        same = step.target not in self._called or self.dims[step.target] == dims
        self.dims[step.target] = dims if same else {}
        self._called.add(step.target)
