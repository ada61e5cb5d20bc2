"""Build the program that LiteRT makes of a .tflite: calls of its XNNPACK delegate, and operators outside of it.

A .tflite names operators; the delegate turns those that it takes into graphs of XNNPACK when the model is
loaded. This module does the same from the file, so that a .tflite answers the questions of a .pte. What the
delegate defines follows ``tflite/delegates/xnnpack/xnnpack_delegate.cc``; how the model is cut follows
``tflite/graph_info.cc`` (``PartitionGraphIntoIndependentNodeSubsets``), both of LiteRT at commit f6745779.

Instructions have LiteRT's numbers of nodes: those of the file first, calls of delegates after them. A model
that is one call of the delegate has this one instruction.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING

from opscope.program.cost.cost import GraphCosts
from opscope.program.cost.operator_cost import Cost
from opscope.program.model import NamedLayer, ProgramModel, StayedOutside
from opscope.program.partition.verdicts import Cause, PortableReason
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.plan import (
    Chain,
    Delegate,
    Dynamism,
    Executable,
    InstructionKind,
    MethodPlan,
    PlannedStep,
    PlannedTensor,
)
from opscope.program.xnnpack.graph import (
    Convolution,
    DelegateGraph,
    Padding,
    Pooling,
    QuantisationKind,
    QuantisationScales,
    Resizing,
    Slicing,
    XnnGraph,
    XnnNode,
    XnnValue,
)
from opscope.runtimes.litert.composites import ATTENTION, decomposed
from opscope.runtimes.litert.delegation import RULES_OF, refusals, unpacked
from opscope.runtimes.litert.tflite import IDENTIFIER, TfliteSignature, read_tflite
from opscope.runtimes.litert.torch_names import torch_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from opscope.program.xnnpack.graph import Attributes
    from opscope.runtimes.litert.composites import Decomposed
    from opscope.runtimes.litert.tflite import TfliteModel, TfliteOperator, TfliteSubgraph, TfliteTensor


XNNPACK = "XnnpackBackend"
UNSIGNED = "serving_default"
"""Name that LiteRT gives the function of a model without signatures."""
_IMAGE = 4
_KINDS = {
    "ABS": "Abs",
    "ADD": "Add",
    "AVERAGE_POOL_2D": "AvgPooling2d",
    "BATCH_MATMUL": "BatchMatrixMultiply",
    "CEIL": "Ceiling",
    "CONV_2D": "Conv2d",
    "Convolution2DTransposeBias": "ConvTranspose2d",
    "COS": "Cos",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2d",
    "DEPTH_TO_SPACE": "DepthToSpace2D",
    "DEQUANTIZE": "Convert",
    "DIV": "Div",
    "ELU": "ELU",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "FULLY_CONNECTED": "FullyConnected",
    "GELU": "Gelu",
    "HARD_SWISH": "Hardswish",
    "LEAKY_RELU": "LeakyReLU",
    "LOG": "Log",
    "LOGISTIC": "Sigmoid",
    "MAXIMUM": "Maximum",
    "MAX_POOL_2D": "MaxPooling2d",
    "MaxPoolingWithArgmax2D": "ArgMaxPooling2d",
    "MaxUnpooling2D": "Unpooling2d",
    "MEAN": "GlobalAvgPooling2d",
    "MINIMUM": "Minimum",
    "MUL": "Multiply",
    "NEG": "Negate",
    "PAD": "StaticConstantPad",
    "PRELU": "PReLU",
    "QUANTIZE": "Convert",
    "REDUCE_MAX": "StaticReduceMax",
    "REDUCE_MIN": "StaticReduceMin",
    "RELU": "Clamp",
    "RELU6": "Clamp",
    "RELU_N1_TO_1": "Clamp",
    "RESHAPE": "StaticReshape",
    "RESIZE_BILINEAR": "StaticResizeBilinear2D",
    "ROUND": "BankersRounding",
    "RSQRT": "ReciprocalSquareRoot",
    "SIN": "Sin",
    "SLICE": "StaticSlice",
    "SOFTMAX": "Softmax",
    "SPACE_TO_DEPTH": "SpaceToDepth2D",
    "SPLIT": "EvenSplit",
    "SQRT": "SquareRoot",
    "SQUARE": "Square",
    "SQUARED_DIFFERENCE": "SquaredDifference",
    "STRIDED_SLICE": "StaticSlice",
    "SUB": "Subtract",
    "SUM": "StaticSum",
    "TANH": "Tanh",
    "TRANSPOSE": "StaticTranspose",
    "TRANSPOSE_CONV": "ConvTranspose2d",
}
_BOUNDS = {"RELU": (0.0, math.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}
# Inputs that are data of the node; the others are its options.
_DATA = dict.fromkeys(
    """
    PAD RESHAPE MEAN SUM REDUCE_MAX REDUCE_MIN TRANSPOSE SLICE STRIDED_SLICE RESIZE_BILINEAR
    """.split(),
    1,
)
_LOOKED_UP = frozenset({"EMBEDDING_LOOKUP", "GATHER", "GATHER_ND"})
_MOVED = frozenset({"RESHAPE", "PACK", "UNPACK", "CAST", "SLICE", "SQUEEZE", "EXPAND_DIMS", "SELECT", "SELECT_V2"})
_COMPARED = frozenset(
    """
    ADD SUB MUL LESS LESS_EQUAL GREATER GREATER_EQUAL EQUAL NOT_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT REDUCE_ALL
    """.split()
)
"""Operators outside of the delegate whose work follows from their shapes."""
_MOST_JOINED = 5
_TRANSPOSED = ("TRANSPOSE_CONV", "Convolution2DTransposeBias")
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", *_TRANSPOSED)
_QUANTISED_AT_RUN_TIME = frozenset({"BATCH_MATMUL", "CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
"""Operators whose data are quantised at run time if their stored weights have 8 or 4 bits."""
_OFF = PortableReason(Cause.SWITCHED_OFF, "this variant ran without the delegate")


def read_tflite_model(path: Path, *, delegated: bool = True) -> ProgramModel:
    """Return the program that LiteRT and its XNNPACK delegate make of a .tflite.

    Without it, its operators as they are.
    """
    return lowered(read_tflite(path), delegated=delegated)


def lowered(model: TfliteModel, *, delegated: bool = True) -> ProgramModel:
    """Return a model as the delegate cuts it, or as LiteRT's own kernels run it; each signature is a method."""
    plans: list[MethodPlan] = []
    graphs: list[DelegateGraph] = []
    reasons: dict[tuple[str, int], PortableReason] = {}
    costs: dict[tuple[str, int], Callable[[], Cost | None]] = {}
    layers: dict[tuple[str, int], NamedLayer] = {}
    for signature in model.signatures or (TfliteSignature(UNSIGNED, 0, (), ()),):
        expanded = decomposed(model, model.subgraphs[signature.subgraph], delegated=delegated)
        lowering = _Lowering(signature.key, expanded, delegated=delegated)
        plans.append(lowering.plan())
        graphs += lowering.graphs
        reasons |= {(signature.key, number): reason for number, reason in lowering.reasons.items()}
        costs |= {(signature.key, number): cost for number, cost in lowering.costs()}
        names = layer_names(expanded.graph)
        layers |= {(signature.key, number): name for number, name in names.items()}
    executable = Executable(IDENTIFIER.decode(), model.version, tuple(plans), (), {})
    return ProgramModel(executable, graphs, None, StayedOutside(RULES_OF, reasons), costs, layers)


class _Lowering:
    """Cuts a signature into delegate calls and operators outside; without the delegate, all operators are outside."""

    def __init__(self, name: str, expanded: Decomposed, *, delegated: bool) -> None:
        graph, order = expanded
        self._name, self._graph = name, graph
        running = frozenset(order)
        self.reasons = {number: reason for number, reason in refusals(graph).items() if number in running}
        self._refused = frozenset(self.reasons)
        if not delegated:
            self.reasons = dict.fromkeys(order, _OFF)
        self._outside = frozenset(self.reasons)
        self._parts = partitions(graph, self._outside, order)
        is_single_call = len(self._parts) == 1 and not self._outside
        self._first = 0 if is_single_call else len(graph.operators)
        built = [_GraphBuilder(graph, members).graph() for members in self._parts]
        # A part that only unpacks weights has nothing left to run, and LiteRT's profiler does not count it.
        self.graphs = [
            DelegateGraph(name, part, (self._first + part,), xnn_graph)
            for part, xnn_graph in enumerate(xnn_part for xnn_part in built if xnn_part.nodes)
        ]

    def costs(self) -> Iterator[tuple[int, Callable[[], Cost | None]]]:
        """Yield functions that compute the costs of operators outside, as if the delegate ran them, by number.

        Of operators that the delegate would refuse, only those that look up, move or compare have a cost: shapes of
        others may fit no graph of XNNPACK.
        """
        for number in sorted(self._outside - self._refused):
            yield number, partial(self._delegate_cost, number)
        for number in sorted(self._refused):
            if self._graph.operators[number].name in _LOOKED_UP | _MOVED | _COMPARED:
                yield number, partial(self._plain_cost, number)

    def _plain_cost(self, number: int) -> Cost | None:
        """Return the bytes that an operator reads and writes once; of a table only the rows that are looked up."""
        operator, tensors = self._graph.operators[number], self._graph.tensors
        inputs = [tensors[value] for value in operator.inputs if value >= 0]
        outputs = [tensors[value] for value in operator.outputs]
        sizes = {id(tensor): tensor.dtype.bytes_of(tensor.shape) for tensor in (*inputs, *outputs)}
        if None in sizes.values():
            return None
        written = sum(sizes[id(tensor)] or 0 for tensor in outputs)
        read = sum(sizes[id(tensor)] or 0 for tensor in inputs if not tensor.constant)
        stored = sum(sizes[id(tensor)] or 0 for tensor in inputs if tensor.constant)
        if operator.name in _LOOKED_UP:
            read, stored = (min(read, 2 * written), min(stored, written))
        operations = sum(math.prod(tensor.shape) for tensor in outputs) if operator.name in _COMPARED else 0
        return Cost(0, operations, read, written, stored).if_possible()

    def _delegate_cost(self, number: int) -> Cost | None:
        graph = _GraphBuilder(self._graph, (number,)).graph()
        return GraphCosts(graph).nodes(range(len(graph.nodes)))

    def plan(self) -> MethodPlan:
        """Return the plan of the method, with the tensors of the file as values."""
        operators = self._graph.operators
        names = list(dict.fromkeys(operators[number].name for number in sorted(self._outside)))
        steps = [self._plan_step(number, names) for number in range(self._first)]
        steps += [PlannedStep(InstructionKind.DELEGATE, g.delegate, g.graph.arguments()) for g in self.graphs]
        return MethodPlan(
            name=self._name,
            values=tuple(_plan_tensor(tensor) for tensor in self._graph.tensors),
            inputs=self._graph.inputs,
            outputs=self._graph.outputs,
            operators=tuple(names),
            delegates=tuple(Delegate(XNNPACK, None) for _ in self.graphs),
            chains=(Chain(self._graph.inputs, self._graph.outputs, tuple(steps)),),
            planned_buffers=(),
        )

    def _plan_step(self, number: int, names: Sequence[str]) -> PlannedStep:
        """Return the step of an operator outside; one that the delegate took leaves its number unused."""
        operator = self._graph.operators[number]
        if number not in self._outside:
            return PlannedStep(InstructionKind.FREE, -1, ())
        inputs = tuple(value for value in operator.inputs if value >= 0)
        arguments = (*inputs, *operator.outputs, *operator.outputs[-1:])
        return PlannedStep(InstructionKind.KERNEL, names.index(operator.name), arguments)


def partitions(
    graph: TfliteSubgraph, outside: frozenset[int], order: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Return the numbers of the operators of each delegate call, in the order in which LiteRT makes the calls.

    Operators that are ready are taken as long as they are of one kind, delegated or not; then the other kind has
    its turn.
    """
    remaining = list(range(len(graph.operators)) if order is None else order)
    made_by = {value: number for number in remaining for value in graph.operators[number].outputs}
    finished: set[int] = set()
    calls: list[tuple[int, ...]] = []
    while remaining:
        epoch: list[int] = []
        is_outside: bool | None = None
        for number in remaining:
            waits = [made_by[v] for v in graph.operators[number].inputs if v in made_by and made_by[v] != number]
            ready = all(maker in finished for maker in waits)
            if not ready or (is_outside is not None and (number in outside) is not is_outside):
                continue
            is_outside = number in outside
            epoch.append(number)
            finished.add(number)
        if not epoch:  # operators that wait for each other: the file is damaged, and no order is right
            epoch, is_outside = remaining, True
        remaining = [number for number in remaining if number not in set(epoch)]
        if not is_outside:
            calls.append(tuple(epoch))
    return calls


def _plan_tensor(tensor: TfliteTensor) -> PlannedTensor:
    return PlannedTensor(
        dtype=tensor.dtype,
        sizes=tensor.shape,
        dim_order=tuple(range(len(tensor.shape))),
        dynamism=Dynamism.BOUNDED if tensor.open_axes else Dynamism.STATIC,
        data_buffer=tensor.buffer if tensor.constant else 0,
        planned=not tensor.constant,
        name=tensor.name,
        external=False,
    )


class _GraphBuilder:
    """Builds the graph that the delegate defines for some operators of a subgraph."""

    def __init__(self, graph: TfliteSubgraph, members: Sequence[int]) -> None:
        self._graph, self._members = graph, members
        self._nodes: list[XnnNode] = []
        self._added: list[XnnValue] = []
        self._once = unpacked(graph)
        self._stored = {number for number, tensor in enumerate(graph.tensors) if tensor.constant} | self._once.keys()

    def graph(self) -> XnnGraph:
        """Return values and nodes, in the order in which the delegate defines them."""
        for number in self._members:
            self._define_operator(number, self._graph.operators[number])
        made = {value for number in self._members for value in self._graph.operators[number].outputs}
        read = dict.fromkeys(value for node in self._nodes for value in node.inputs if value < self._tensor_count)
        other_operators = [o for number, o in enumerate(self._graph.operators) if number not in set(self._members)]
        values_read_outside = {
            *self._graph.outputs,
            *(value for operator in other_operators for value in operator.inputs),
        }
        inputs = tuple(v for v in read if v not in made and v not in self._stored)
        outputs = tuple(v for v in sorted(made) if v in values_read_outside and v not in self._stored)
        external_ids = {value: external_id for external_id, value in enumerate((*inputs, *outputs))}
        values = [self._describe_value(v, external_ids, set(inputs)) for v in dict.fromkeys((*read, *sorted(made)))]
        nodes = tuple(self._nodes)
        return XnnGraph(IDENTIFIER.decode(), "", (*values, *self._added), nodes, inputs, outputs, (), 0)

    @property
    def _tensor_count(self) -> int:
        return len(self._graph.tensors)

    def _define_operator(self, number: int, operator: TfliteOperator) -> None:
        inputs = [value for value in operator.inputs if value >= 0]
        if number in self._once.values():
            return
        if operator.name == ATTENTION:
            self._define_attention(number, operator)
            return
        if operator.name == "TRANSPOSE_CONV":
            inputs = [inputs[2], inputs[1], *inputs[3:]]
        if operator.name == "SPLIT":
            inputs = inputs[1:]
        inputs = inputs[: _DATA.get(operator.name, len(inputs))]
        kind, mixed = self._node_kind(operator, len(inputs)), self._is_mixed(inputs)
        if operator.name == "FULLY_CONNECTED" and not operator.options.keep:
            inputs[0] = self._add_flattening(number, inputs[0], inputs[1])
        if operator.name in _QUANTISED_AT_RUN_TIME and mixed:
            inputs[0] = self._add_quantisation(number, inputs[0])
        self._define_node(number, kind, inputs, operator.outputs, operator)

    def _define_attention(self, number: int, operator: TfliteOperator) -> None:
        """Define the nodes of an attention as the delegate does; heads that share keys are rows of one product."""
        queries, keys, values, mask = operator.inputs
        batch, rows, heads, width = self._tensor_shape(queries)
        _, positions, shared, deep = self._tensor_shape(keys)
        wide = self._tensor_shape(values)[3]
        joined = (batch, shared, heads // shared * rows)

        def add_node(
            kind: str, inputs: Sequence[int], dims: tuple[int, ...], attributes: Attributes | None = None
        ) -> int:
            return self._add_node(number, kind, inputs, dims, attributes)

        turn = (0, 2, 1, 3)
        scale = self._add_value(self._graph.tensors[queries], (1,), constant=True)
        scaled = add_node("Multiply", (queries, scale), (batch, rows, heads, width))
        left_factor = add_node("StaticTranspose", (scaled,), (batch, heads, rows, width), turn)
        right_factor = add_node("StaticTranspose", (keys,), (batch, shared, positions, deep), turn)
        left_factor = add_node("StaticReshape", (left_factor,), (*joined, width), (*joined, width))
        right_factor = add_node(
            "StaticReshape", (right_factor,), (batch, shared, positions, deep), (batch, shared, positions, deep)
        )
        scores = add_node("BatchMatrixMultiply", (left_factor, right_factor), (*joined, positions))
        scores = add_node("StaticReshape", (scores,), (batch, heads, rows, positions), (batch, heads, rows, positions))
        scores = add_node("Add", (scores, mask), (batch, heads, rows, positions))
        shares = add_node("Softmax", (scores,), (batch, heads, rows, positions))
        right_factor = add_node("StaticTranspose", (values,), (batch, shared, positions, wide), turn)
        left_factor = add_node("StaticReshape", (shares,), (*joined, positions), (*joined, positions))
        right_factor = add_node(
            "StaticReshape", (right_factor,), (batch, shared, positions, wide), (batch, shared, positions, wide)
        )
        result = add_node("BatchMatrixMultiply", (left_factor, right_factor), (*joined, wide))
        result = add_node("StaticReshape", (result,), (batch, heads, rows, wide), (batch, heads, rows, wide))
        self._nodes.append(
            XnnNode("StaticTranspose", 0, number, (result,), tuple(operator.outputs), None, None, 0, turn)
        )

    def _add_node(
        self, number: int, kind: str, inputs: Sequence[int], dims: tuple[int, ...], attributes: Attributes | None
    ) -> int:
        """Add a node for an operator, and return the value that it writes."""
        name = self._add_value(self._graph.tensors[self._graph.operators[number].outputs[0]], dims)
        self._nodes.append(XnnNode(kind, 0, number, tuple(inputs), (name,), None, None, 0, attributes))
        return name

    def _add_value(self, like: TfliteTensor, dims: tuple[int, ...], *, constant: bool = False) -> int:
        name, plain = self._tensor_count + len(self._added), QuantisationScales(QuantisationKind.NONE)
        self._added.append(XnnValue(name, number_type(like), dims, False, False, int(constant), plain))  # noqa: FBT003 - fields
        return name

    def _node_kind(self, operator: TfliteOperator, input_count: int) -> str:
        if operator.name == "CONCATENATION":
            return f"Concatenate{input_count}" if 1 < input_count <= _MOST_JOINED else "Concatenate"
        return _KINDS.get(operator.name, operator.name)

    def _add_flattening(self, number: int, value: int, weights: int) -> int:
        """Add the reshape that makes the data of a fully connected layer a matrix, and return its value."""
        columns = max(1, self._graph.tensors[weights].shape[-1] if self._graph.tensors[weights].shape else 1)
        tensor = self._graph.tensors[value]
        dims = (math.prod(tensor.shape) // columns, columns)
        name = self._tensor_count + len(self._added)
        self._added.append(
            XnnValue(name, number_type(tensor), dims, False, False, 0, tensor.quantisation)  # noqa: FBT003 - fields
        )
        self._nodes.append(XnnNode("StaticReshape", 0, number, (value,), (name,), None, None, 0, (0, columns)))
        return name

    def _is_mixed(self, inputs: Sequence[int]) -> bool:
        """Return whether floating-point data meet stored weights of 8 or 4 bits."""
        types = [self._graph.tensors[value].dtype.name for value in inputs[:2]]
        return types in (["float32", "int8"], ["float32", "int4"]) and inputs[1] in self._stored

    def _add_quantisation(self, number: int, value: int) -> int:
        """Add the conversion of data to int8 with a scale for each row, and return its value."""
        name, kind = self._tensor_count + len(self._added), NumberType("qdint8", 8)
        dims = (
            self._graph.tensors[value].shape
            if value < self._tensor_count
            else self._added[value - self._tensor_count].dims
        )
        self._added.append(XnnValue(name, kind, dims, False, False, 0, QuantisationScales(QuantisationKind.NONE)))  # noqa: FBT003 - fields
        self._nodes.append(XnnNode("Convert", 0, number, (value,), (name,), None, None, 0, None))
        return name

    def _define_node(
        self, number: int, kind: str, inputs: Sequence[int], outputs: Sequence[int], operator: TfliteOperator
    ) -> None:
        least, most = _BOUNDS.get(operator.options.activation, _BOUNDS.get(operator.name, (None, None)))
        attributes = self._node_attributes(operator)
        self._nodes.append(XnnNode(kind, 0, number, tuple(inputs), tuple(outputs), least, most, 0, attributes))

    def _describe_value(self, number: int, external_ids: dict[int, int], inputs: set[int]) -> XnnValue:
        tensor = self._graph.tensors[number]
        external_id = external_ids.get(number)
        return XnnValue(
            id=number,
            dtype=number_type(tensor),
            dims=tensor.shape,
            external_input=number in inputs,
            external_output=external_id is not None and number not in inputs,
            constant=max(tensor.buffer, 1) if number in self._stored else 0,
            quantisation=tensor.quantisation,
            external_id=external_id,
        )

    def _tensor_shape(self, number: int) -> tuple[int, ...]:
        return self._graph.tensors[number].shape

    def _node_attributes(self, operator: TfliteOperator) -> Attributes | None:
        build = {
            **dict.fromkeys(_CONVOLUTIONS, self._convolution_attributes),
            "MaxPoolingWithArgmax2D": self._argmax_pooling_attributes,
            "AVERAGE_POOL_2D": self._pooling_attributes,
            "MAX_POOL_2D": self._pooling_attributes,
            "RESHAPE": self._reshape_sizes,
            "TRANSPOSE": self._transpose_order,
            "PAD": self._padding_attributes,
            "SLICE": self._slice_attributes,
            "STRIDED_SLICE": self._strided_slice_attributes,
            "RESIZE_BILINEAR": self._resize_attributes,
        }.get(operator.name)
        if build is not None:
            return build(operator)
        if operator.name == "CONCATENATION":
            return operator.options.axis
        return operator.options.alpha if operator.name == "LEAKY_RELU" else None

    def _convolution_attributes(self, operator: TfliteOperator) -> Attributes | None:
        data, weights = self._image_shapes(operator, 2 if operator.name == "TRANSPOSE_CONV" else 0)
        if data is None or weights is None:
            return None
        if operator.name in _TRANSPOSED:
            return self._convolution_window(operator, data, weights, (weights[3], weights[0], 1), back=True)
        if operator.name == "DEPTHWISE_CONV_2D":
            return self._convolution_window(
                operator, data, weights, (1, max(1, weights[3] // max(1, data[3])), data[3])
            )
        groups = max(1, data[3] // max(1, weights[3]))
        return self._convolution_window(operator, data, weights, (weights[3], weights[0] // groups, groups))

    def _image_shapes(
        self, operator: TfliteOperator, data_input: int
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Return the shapes of the data and the filter; None for a shape without the rank of images."""
        shapes = [
            self._tensor_shape(operator.inputs[number]) for number in (data_input, 1) if number < len(operator.inputs)
        ]
        known = [shape if len(shape) == _IMAGE else None for shape in shapes]
        return (known[0], known[1]) if len(known) > 1 else (None, None)

    def _convolution_window(
        self,
        operator: TfliteOperator,
        data: tuple[int, ...],
        weights: tuple[int, ...],
        channels: tuple[int, int, int],
        *,
        back: bool = False,
    ) -> Convolution:
        options = operator.options
        sizes = data[1:3] if not back else self._tensor_shape(operator.outputs[0])[1:3]
        rows = zip(sizes, weights[1:3], options.strides, options.dilations, strict=False)
        border = [_same_padding(options.same, *row) for row in rows]
        (top_padding, bottom_padding), (left_padding, right_padding) = border if len(border) > 1 else [(0, 0), (0, 0)]
        height, width = weights[1:3]
        inputs, outputs, groups = channels
        return Convolution(
            *(top_padding, right_padding, bottom_padding, left_padding, height, width),
            *options.strides,
            *options.dilations,
            *(inputs, outputs, groups, 0, 0),
        )

    def _pooling_attributes(self, operator: TfliteOperator) -> Attributes | None:
        options, data = operator.options, self._tensor_shape(operator.inputs[0])
        if len(data) != _IMAGE:
            return None
        rows = zip(data[1:3], options.window, options.strides, (1, 1), strict=True)
        (top_padding, bottom_padding), (left_padding, right_padding) = (
            _same_padding(options.same, *row) for row in rows
        )
        return Pooling(
            top_padding, right_padding, bottom_padding, left_padding, *options.window, *options.strides, 1, 1
        )

    def _argmax_pooling_attributes(self, operator: TfliteOperator) -> Attributes:
        return Pooling(0, 0, 0, 0, *operator.options.window)

    def _reshape_sizes(self, operator: TfliteOperator) -> Attributes:
        return self._tensor_shape(operator.outputs[0])

    def _resize_attributes(self, operator: TfliteOperator) -> Attributes | None:
        shape = self._tensor_shape(operator.outputs[0])
        return Resizing(*shape[1:3]) if len(shape) == _IMAGE else None

    def _transpose_order(self, operator: TfliteOperator) -> Attributes | None:
        return self._option_values(operator, 1)

    def _padding_attributes(self, operator: TfliteOperator) -> Attributes | None:
        both = self._option_values(operator, 1)
        value = float(self._graph.tensors[operator.inputs[0]].quantisation.zero_point or 0)
        return Padding(both[::2], both[1::2], value) if both is not None else None

    def _slice_attributes(self, operator: TfliteOperator) -> Attributes | None:
        first = self._option_values(operator, 1)
        return Slicing(first, self._tensor_shape(operator.outputs[0])) if first is not None else None

    def _strided_slice_attributes(self, operator: TfliteOperator) -> Attributes | None:
        """Return a slice without strides, as the delegate takes it; negative begins count from the end."""
        first, sizes = self._option_values(operator, 1), self._tensor_shape(operator.inputs[0])
        if first is None or len(first) != len(sizes):
            return None
        ignored = operator.options.masks[0]
        begins = (0 if ignored >> axis & 1 else value for axis, value in enumerate(first))
        offsets = tuple(value + size if value < 0 else value for value, size in zip(begins, sizes, strict=True))
        return Slicing(offsets, self._tensor_shape(operator.outputs[0]))

    def _option_values(self, operator: TfliteOperator, input_number: int) -> tuple[int, ...] | None:
        return (
            self._graph.tensors[operator.inputs[input_number]].values if input_number < len(operator.inputs) else None
        )


def _same_padding(same: bool, size: int, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the padding before and after a dimension, as TensorFlow's SAME spreads it."""
    if not same:
        return 0, 0
    total = max(0, (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


def number_type(tensor: TfliteTensor) -> NumberType:
    """Return the type that XNNPACK has for a tensor."""
    name, scales = tensor.dtype.name, tensor.quantisation
    short = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(name)
    if short is not None or scales.kind is QuantisationKind.NONE:
        return NumberType(short or name, tensor.dtype.bits)
    if name == "uint8":
        return NumberType("quint8", 8)
    if name not in {"int4", "int8", "int32"}:
        return tensor.dtype
    if scales.kind is QuantisationKind.PER_CHANNEL_GROUP:
        return NumberType("qbint4" if name == "int4" else f"qb{name}", tensor.dtype.bits)
    return NumberType(
        f"q{'' if scales.kind is QuantisationKind.PER_TENSOR and name != 'int4' else 'c'}{name}", tensor.dtype.bits
    )


# What TensorFlow calls the operation, at the end of a tensor's name.
_SORTS = {
    "ADD": ("add", "Add", "AddV2"),
    "AVERAGE_POOL_2D": ("AvgPool",),
    "BATCH_MATMUL": ("MatMul", "BatchMatMulV2"),
    "CONV_2D": ("Conv2D",),
    "DEPTHWISE_CONV_2D": ("depthwise", "DepthwiseConv2dNative"),
    "FULLY_CONNECTED": ("MatMul",),
    "MAX_POOL_2D": ("MaxPool",),
    "MEAN": ("Mean",),
    "MUL": ("mul", "Mul"),
    "PAD": ("Pad",),
    "RESHAPE": ("Reshape",),
    "SOFTMAX": ("Softmax",),
    "TRANSPOSE_CONV": ("conv2d_transpose",),
}
# Ends that name an operation of TensorFlow and no layer.
_OPERATION = re.compile(
    r"(?:Conv2D|depthwise|MatMul|BiasAdd|FusedBatchNormV3|Relu6?|Elu|Sigmoid|Tanh|Softmax|AddV2|add|mul|Mean|Pad|PadV2"
    r"|AvgPool|MaxPool|Reshape|conv2d_transpose|concat|ReadVariableOp|Shape|StridedSlice|strided_slice)(?:_?\d+)?"
)
_ADDED = re.compile(r"_(?:dequantize|requantized|quant)\d*\Z")
_CALL = re.compile(
    r"\A(?:StatefulPartitionedCall|PartitionedCall|serving_default|main|model|functional)(?:_\d+)?(?::\d+)?/"
)
_LONGEST = 200


def layer_names(graph: TfliteSubgraph) -> dict[int, NamedLayer]:
    """Return the layer of each operator, by its number; operators whose tensor names none are left out."""
    layers = ((number, layer_of(graph, operator)) for number, operator in enumerate(graph.operators))
    return {number: layer for number, layer in layers if layer.path}


def layer_of(graph: TfliteSubgraph, operator: TfliteOperator) -> NamedLayer:
    """Return the layer of an operator, such as ``block_2.conv``; an empty path if its output's name states none."""
    if not operator.outputs or operator.outputs[0] < 0:
        return NamedLayer("")
    name = graph.tensors[operator.outputs[0]].name
    return torch_layer(operator.name, name) or NamedLayer(_layer_name(operator, name))


def _layer_name(operator: TfliteOperator, name: str) -> str:
    parts = [_ADDED.sub("", part) for part in name.split(";") if part]
    sorts = _SORTS.get(operator.name, ())
    operation_parts = [part for part in parts if re.sub(r"_?\d+\Z", "", part.rpartition("/")[2]) in sorts]
    chosen = operation_parts[-1] if operation_parts else parts[0] if parts else ""
    return _layer_path(chosen)[:_LONGEST]


def _layer_path(part: str) -> str:
    """Return the path of a layer, without the name of the call around it and without the operation at its end."""
    shorter = _CALL.sub("", part)
    while shorter != part:
        part, shorter = shorter, _CALL.sub("", shorter)
    steps = [step for step in part.split("/") if step]
    if len(steps) > 1 and _OPERATION.fullmatch(steps[-1]):
        steps = steps[:-1]
    return ".".join(dict.fromkeys(steps))
