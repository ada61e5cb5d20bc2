"""Real shapes of one inference, derived from those of the method's inputs.

A program states upper bounds for tensors whose shape can differ between calls, and a trace states no shapes at all.
Costs of such a program need the shapes of its inputs, which are followed through every instruction and every delegate.

Values of an XNNPACK graph have one rule for each kind of node. Source: the functions that reshape operators in
``src/subgraph`` and ``src/operators`` of XNNPACK at commit 92a7ad50, which ExecuTorch 1.5 uses. Images are N, H, W, C.
A rule raises NotKnownError for shapes that no kernel takes.
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
    """The shape of every value that follows from those of the inputs.

    Returns shapes by value; absent are values behind an unknown kind or input, and shapes beyond those of the file,
    which are upper bounds.
    """
    values = graph.by_id()
    if all(number in values and inputs.get(number) == values[number].dims for number in graph.inputs):
        return {value.id: value.dims for value in graph.values}
    known = {value.id: value.dims for value in graph.values if value.is_constant and fits(value.dims, value.dims)}
    known.update((number, shape) for number, shape in inputs.items() if _possible(values.get(number), shape))
    for node in graph.nodes:
        shape = _output(node, known)
        fitting = [number for number in node.outputs if shape is not None and _possible(values.get(number), shape)]
        known.update((number, shape) for number in fitting if shape is not None and number not in known)
    return known


def _possible(value: XnnValue | None, shape: Shape) -> bool:
    """Whether a value can have a shape: the file has the upper bound.

    Of an image that is quantised at run time the file has it in the order N, C, H, W, although it lies as N, H, W, C.
    """
    if value is None:
        return False
    per_token = value.quantisation.kind is QuantisationKind.PER_TOKEN and len(value.dims) == IMAGE
    return fits(shape, value.dims) or (per_token and fits(shape, permuted(value.dims, _TO_NHWC)))


def _output(node: XnnNode, known: Mapping[int, Shape]) -> Shape | None:
    """The shape that all outputs of a node have; None when it cannot be derived."""
    rule = _NODE_RULES.get(node.kind)
    if rule is None or any(number not in known for number in node.inputs):
        return None
    try:
        return rule(NodeShapes(node, tuple(known[number] for number in node.inputs), ()))
    except NotKnownError:
        return None


def _options(shaped: NodeShapes, kind: type[A]) -> A:
    if not isinstance(shaped.node.attributes, kind):
        raise NotKnownError
    return shaped.node.attributes


def _convolution(shaped: NodeShapes) -> Shape:
    options = _options(shaped, Convolution)
    count, height, width, _ = of_rank(shaped.input(0), IMAGE)
    down, across = _filter_windows(options)
    channels = options.groups * options.group_output_channels
    return (count, down.positions(height), across.positions(width), channels)


def _depthwise(shaped: NodeShapes) -> Shape:
    return (*_convolution(shaped)[:3], of_rank(shaped.input(1), IMAGE)[3])


def _deconvolution(shaped: NodeShapes) -> Shape:
    options = _options(shaped, Convolution)
    count, height, width, _ = of_rank(shaped.input(0), IMAGE)
    down, across = _filter_windows(options)
    height, width = down.expanded(height, options.adjustment_height), across.expanded(width, options.adjustment_width)
    return (count, height, width, options.groups * options.group_output_channels)


def _filter_windows(options: Convolution) -> tuple[Window, Window]:
    """How the filter walks down and across."""
    height, width = options.padding_top + options.padding_bottom, options.padding_left + options.padding_right
    down = Window(options.kernel_height, options.subsampling_height, height, options.dilation_height)
    return down, Window(options.kernel_width, options.subsampling_width, width, options.dilation_width)


def _pooling(shaped: NodeShapes) -> Shape:
    """Average pooling has no dilation, which stands as 0."""
    options = _options(shaped, Pooling)
    count, height, width, channels = of_rank(shaped.input(0), IMAGE)
    more_height, more_width = options.padding_top + options.padding_bottom, options.padding_left + options.padding_right
    down = Window(options.pooling_height, options.stride_height, more_height, max(1, options.dilation_height))
    across = Window(options.pooling_width, options.stride_width, more_width, max(1, options.dilation_width))
    return (count, down.positions(height), across.positions(width), channels)


def _argmax_pooling(shaped: NodeShapes) -> Shape:
    """Windows lie side by side, and what does not fill one is left out."""
    options = _options(shaped, Pooling)
    count, height, width, channels = of_rank(shaped.input(0), IMAGE)
    if min(options.pooling_height, options.pooling_width) < 1:
        raise NotKnownError
    height = (height + options.padding_top + options.padding_bottom) // options.pooling_height
    return (count, height, (width + options.padding_left + options.padding_right) // options.pooling_width, channels)


def _mean(shaped: NodeShapes) -> Shape:
    count, _, _, channels = of_rank(shaped.input(0), IMAGE)
    return (count, 1, 1, channels) if shaped.node.flags & _KEEP_DIMS else (count, channels)


def _fully_connected(shaped: NodeShapes) -> Shape:
    weight = of_rank(shaped.input(1), MATRIX)
    return (*at_least(shaped.input(0), 1)[:-1], weight[1 if shaped.node.flags & TRANSPOSED else 0])


def _matrix_product(shaped: NodeShapes) -> Shape:
    right = at_least(shaped.input(1), MATRIX)
    return product(shaped.input(0), (*right[:-2], right[-1], right[-2]) if shaped.node.flags & TRANSPOSED else right)


def _attention(shaped: NodeShapes) -> Shape:
    return (*at_least(shaped.input(0), 1)[:-1], at_least(shaped.input(2), 1)[-1])


def _slice(shaped: NodeShapes) -> Shape:
    """No elements from the first on stand for all; no part reaches beyond the data."""
    options, data = _options(shaped, Slicing), shaped.input(0)
    offsets, sizes = of_rank(options.offsets, len(data)), of_rank(options.sizes, len(data))
    parts = zip(data, offsets, sizes, strict=True)
    return tuple(max(0, min(size if offset + size else have, have - offset)) for have, offset, size in parts)


def _pad(shaped: NodeShapes) -> Shape:
    options, data = _options(shaped, Padding), shaped.input(0)
    before, behind = of_rank(options.pre_paddings, len(data)), of_rank(options.post_paddings, len(data))
    return tuple(map(sum, zip(before, data, behind, strict=True)))


def _resize(shaped: NodeShapes) -> Shape:
    options = _options(shaped, Resizing)
    count, _, _, channels = of_rank(shaped.input(0), IMAGE)
    return (count, options.new_height, options.new_width, channels)


def _concatenate(shaped: NodeShapes) -> Shape:
    axis = _options(shaped, int)
    return concatenated(shaped.inputs, axis - 2 * _SIGN if axis >= _SIGN else axis)


_NODE_RULES: dict[str, Callable[[NodeShapes], Shape]] = {
    **dict.fromkeys((*UNARY, "Softmax", "Copy"), lambda shaped: shaped.input(0)),
    **dict.fromkeys(BINARY, lambda shaped: broadcast(*shaped.inputs)),
    **dict.fromkeys((f"Concatenate{count}" for count in range(2, 6)), _concatenate),
    "Conv2d": _convolution,
    "DepthwiseConv2d": _depthwise,
    "ConvTranspose2d": _deconvolution,
    "AvgPooling2d": _pooling,
    "MaxPooling2d": _pooling,
    "ArgMaxPooling2d": _argmax_pooling,
    "GlobalAvgPooling2d": _mean,
    "FullyConnected": _fully_connected,
    "BatchMatrixMultiply": _matrix_product,
    "ScaledDotProductAttention": _attention,
    "StaticTranspose": lambda shaped: permuted(shaped.input(0), _options(shaped, tuple)),
    "StaticReshape": lambda shaped: resolved(_options(shaped, tuple), elements(shaped.input(0)), unknown=0),
    "StaticSlice": _slice,
    "StaticConstantPad": _pad,
    "StaticResizeBilinear2D": _resize,
}


def call_shapes(
    plan: MethodPlan, step: PlannedStep, graph: XnnGraph, sizes: Mapping[int, Shape]
) -> tuple[dict[int, Shape], dict[int, Shape | None]]:
    """What a call of a delegate makes of known shapes.

    Returns shapes of values of its graph, where those that cannot be derived are absent, and of the tensors that the
    call leaves, by value number of the plan, None for those that are unknown.
    """
    values = graph.by_id()
    places = list(zip(step.arguments, graph.arguments(), strict=False))
    given, left = places[: len(graph.inputs)], places[len(graph.inputs) :]
    known = {}
    for number, name in given:
        value = _value(plan, number)
        if isinstance(value, PlannedTensor) and number in sizes and name in values and _alike(value, values[name].dims):
            known[name] = _stored(value, sizes[number])
    dims = graph_shapes(graph, known)
    found: dict[int, Shape | None] = {}
    for number, name in left:
        value = _value(plan, number)
        if isinstance(value, PlannedTensor):
            fitting = name in values and _alike(value, values[name].dims)
            found[number] = _logical(value, dims.get(name)) if fitting else None
    return dims, found


def _alike(value: PlannedTensor, dims: Shape) -> bool:
    """Whether a tensor and a value of a graph are stated to have the same shape."""
    return _stored(value, value.sizes) == dims


def possible(value: PlannedTensor, shape: Shape) -> bool:
    """Whether a tensor can have a shape; that in the file is an upper bound unless the tensor is said to have none."""
    if value.dynamism is Dynamism.UNBOUNDED:
        return len(shape) == len(value.sizes) and min(shape, default=0) >= 0
    return fits(shape, value.sizes)


def _value(plan: MethodPlan, number: int) -> object:
    return plan.values[number] if 0 <= number < len(plan.values) else None


def _stored(value: PlannedTensor, shape: Shape) -> Shape:
    """A shape in the order of memory; a scalar stands as one element."""
    if len(value.dim_order) != len(shape):
        return shape or (1,)
    return tuple(shape[place] for place in value.dim_order) or (1,)


def _logical(value: PlannedTensor, stored: Shape | None) -> Shape | None:
    """The shape of a tensor from that in the order of memory."""
    if stored is None or not value.sizes:
        return None if stored is None else ()
    if sorted(value.dim_order) != list(range(len(stored))):
        return stored
    return tuple(size for _, size in sorted(zip(value.dim_order, stored, strict=True)))


_LARGEST = 2**63 - 1


def size_number(call: OperatorCall) -> int:
    """The integer that a call computes."""
    rule = _RULES.get(call.name)
    if rule is None:
        raise NotKnownError
    found = rule(call)
    if abs(found) > _LARGEST:
        raise NotKnownError
    return found


def _size(call: OperatorCall) -> int:
    data = call.shape(0)
    return data[call.axis(1, data)]


def _of_two(compute: Callable[[int, int], int]) -> Callable[[OperatorCall], int]:
    return lambda call: compute(call.number(0), call.number(1))


def _divided(compute: Callable[[int, int], int]) -> Callable[[OperatorCall], int]:
    def rule(call: OperatorCall) -> int:
        if not call.number(1):
            raise NotKnownError
        return compute(call.number(0), call.number(1))

    return rule


_RULES: dict[str, Callable[[OperatorCall], int]] = {
    "aten::_local_scalar_dense": lambda call: call.number(0),
    "aten::sym_size.int": _size,
    "aten::sym_numel": lambda call: elements(call.shape(0)),
    "executorch_prim::add.Scalar": _of_two(operator.add),
    "executorch_prim::sub.Scalar": _of_two(operator.sub),
    "executorch_prim::mul.Scalar": _of_two(operator.mul),
    "executorch_prim::sym_max.Scalar": _of_two(max),
    "executorch_prim::sym_min.Scalar": _of_two(min),
    "executorch_prim::floordiv.Scalar": _divided(operator.floordiv),
    "executorch_prim::floordiv.int": _divided(operator.floordiv),
    "executorch_prim::mod.Scalar": _divided(operator.mod),
    "executorch_prim::mod.int": _divided(operator.mod),
    "executorch_prim::neg.Scalar": lambda call: -call.number(0),
}


_PASSES = 8
_COPY_INTO = "executorch_prim::et_copy_index.tensor"
_EQUAL = "executorch_prim::eq.Scalar"


class Shapes(msgspec.Struct, frozen=True):
    """What is known of the shapes of one inference; a value whose shape cannot be derived is absent."""

    sizes: Mapping[int, Shape]  # of tensors of the plan, by value number
    # of values of delegates' graphs: by number of the delegate, then by value number
    dims: Mapping[int, Mapping[int, Shape]]


def is_dynamic(plan: MethodPlan) -> bool:
    """Whether a tensor of the method can have another shape in another inference, or grows within one."""
    return any(isinstance(value, PlannedTensor) and value.dynamism is not Dynamism.STATIC for value in plan.values)


def static_inputs(plan: MethodPlan) -> tuple[Shape, ...] | None:
    """The shapes of the tensors among a method's inputs, in their order; None when one can differ between calls."""
    tensors = [plan.values[number] for number in _input_tensors(plan)]
    shapes = [
        value.sizes for value in tensors if isinstance(value, PlannedTensor) and value.dynamism is Dynamism.STATIC
    ]
    return tuple(shapes) if len(shapes) == len(tensors) else None


def propagate(
    plan: MethodPlan, graphs: Mapping[int, XnnGraph], inputs: Sequence[Shape], numbers: Sequence[int | None] = ()
) -> Shapes:
    """The shapes of one inference, as the runtime computes them.

    ``numbers`` are the only elements of inputs that have one, such as the position of a token, where they are known.
    A value that gets several shapes within the inference, as in a loop or in two branches, has none. Derived
    shapes of another number of inputs, or beyond what the program allows, are taken as unknown.
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
    return [number for number in plan.inputs if isinstance(_value(plan, number), PlannedTensor)]


_PASSING = frozenset({"select", "squeeze", "unsqueeze", "view", "alias", "clone"})
"""They leave the only element of what they are given."""


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
        self._integers = self._constants()
        self._trips = {step.arguments[0]: step.arguments[1] for step in self._steps if self._compares(step)}
        static = Dynamism.STATIC
        self.sizes = {number: value.sizes for number, value in self._tensors.items() if value.dynamism is static}

    def start(self, inputs: Sequence[Shape], numbers: Sequence[int | None]) -> None:
        """Set the shapes of the inputs, and what is in those of one element."""
        tensors = _input_tensors(self._plan)
        if len(inputs) == len(tensors):
            for number, shape in zip(tensors, inputs, strict=True):
                self._set(number, tuple(shape))
        for number, content in zip(tensors, numbers, strict=False):
            if content is not None:
                self._know(number, content)

    def run(self) -> None:
        """Follow every instruction."""
        for step in self._steps:
            if step.kind is InstructionKind.KERNEL:
                self._kernel(step)
            elif step.kind is InstructionKind.DELEGATE:
                self._delegate(step)
            elif step.kind is InstructionKind.MOVE and step.arguments:
                self._set(step.arguments[-1], self.sizes.get(step.arguments[0]))

    def _compares(self, step: PlannedStep) -> bool:
        """A loop ends when its counter equals the number of trips."""
        kernel = step.kind is InstructionKind.KERNEL and len(step.arguments) > 1
        return kernel and self._plan.called(step) == _EQUAL

    def _constants(self) -> dict[int, int]:
        """Integers that no instruction computes."""
        computed = {step.arguments[-1] for step in self._steps if step.arguments}
        found = {number: integer_in(value) for number, value in enumerate(self._plan.values) if number not in computed}
        return {number: integer for number, integer in found.items() if integer is not None}

    def _set(self, number: int, shape: Shape | None) -> None:
        """A tensor has this shape from now on; static ones keep theirs."""
        value = self._tensors.get(number)
        if value is None or value.dynamism is Dynamism.STATIC:
            return
        allowed = shape is not None and possible(value, shape)
        if number in self.several or not allowed or self.sizes.get(number, shape) != shape:
            self._forget(number)
        elif shape is not None:
            self.sizes[number] = shape

    def _forget(self, number: int) -> None:
        self.several.add(number)
        self.sizes.pop(number, None)
        self._integers.pop(number, None)

    def _kernel(self, step: PlannedStep) -> None:
        call = OperatorCall(self._plan, step, self.sizes, self._integers)
        if call.name == _COPY_INTO:
            counter = step.arguments[2] if len(step.arguments) > 2 else -1  # noqa: PLR2004 - target, source, counter
            trips = self._integers.get(self._trips.get(counter, -1))
            try:
                shape = None if trips is None else (trips, *call.shape(1))
            except NotKnownError:
                shape = None
            self._set(step.arguments[0], shape)
        elif call.outputs:
            self._leave(call)
        elif step.arguments:
            self._compute(step.arguments[-1], call)

    def _compute(self, number: int, call: OperatorCall) -> None:
        """An operator that leaves a number."""
        try:
            found = size_number(call)
        except NotKnownError:
            self._forget(number)
            return
        self._know(number, found)

    def _know(self, number: int, content: int) -> None:
        """A number, or the only element of a tensor."""
        if number in self.several or self._integers.get(number, content) != content:
            self._forget(number)
        else:
            self._integers[number] = content

    def _leave(self, call: OperatorCall) -> None:
        """An operator that leaves tensors."""
        content = self._integers.get(call.inputs[0]) if call.operator in _PASSING and call.inputs else None
        if content is not None:
            self._know(call.outputs[0], content)
        dynamic = [number for number in call.outputs if self._tensors[number].dynamism is not Dynamism.STATIC]
        try:
            shapes = dict(zip(call.outputs, output_shapes(call) if dynamic else (), strict=False))
        except NotKnownError:
            shapes = {}
        for number in dynamic:
            self._set(number, shapes.get(number))

    def _delegate(self, step: PlannedStep) -> None:
        graph = self._graphs.get(step.target)
        if graph is None:
            for number in step.arguments:
                self._set(number, self.sizes.get(number))
            return
        dims, left = call_shapes(self._plan, step, graph, self.sizes)
        for number, shape in left.items():
            self._set(number, shape)
        same = step.target not in self._called or self.dims[step.target] == dims
        self.dims[step.target] = dims if same else {}
        self._called.add(step.target)
