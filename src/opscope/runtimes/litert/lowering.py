"""The program that LiteRT makes of a .tflite: calls of its XNNPACK delegate, and operators that stay outside.

A .tflite names operators; the delegate turns those that it takes into graphs of XNNPACK when the model is loaded. This
module does the same from the file, so that a .tflite answers the questions of a .pte. What the delegate defines follows
``tflite/delegates/xnnpack/xnnpack_delegate.cc``; how the model is cut follows ``tflite/graph_info.cc``
(``PartitionGraphIntoIndependentNodeSubsets``), both of LiteRT at commit f6745779.

Instructions have LiteRT's numbers of nodes: those of the file first, calls of delegates behind them. A model that is
one call of the delegate has this one instruction.
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
"""What LiteRT calls the function of a model without signatures."""
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
"""Operators outside of the delegate whose work their shapes tell."""
_MOST_JOINED = 5
_TRANSPOSED = ("TRANSPOSE_CONV", "Convolution2DTransposeBias")
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", *_TRANSPOSED)
_QUANTISED_AT_RUN_TIME = frozenset({"BATCH_MATMUL", "CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
"""With stored weights of 8 or 4 bits."""
_OFF = PortableReason(Cause.SWITCHED_OFF, "this variant ran without the delegate")


def read_tflite_model(path: Path, *, delegated: bool = True) -> ProgramModel:
    """What LiteRT and its XNNPACK delegate will make of a .tflite; without the delegate its operators as they stand."""
    return lowered(read_tflite(path), delegated=delegated)


def lowered(model: TfliteModel, *, delegated: bool = True) -> ProgramModel:
    """A model as the delegate cuts it, or as LiteRT's own kernels run it; each signature is a method."""
    plans: list[MethodPlan] = []
    graphs: list[DelegateGraph] = []
    reasons: dict[tuple[str, int], PortableReason] = {}
    costs: dict[tuple[str, int], Callable[[], Cost | None]] = {}
    layers: dict[tuple[str, int], NamedLayer] = {}
    for signature in model.signatures or (TfliteSignature(UNSIGNED, 0, (), ()),):
        whole = decomposed(model, model.subgraphs[signature.subgraph], delegated=delegated)
        lowering = _Lowering(signature.key, whole, delegated=delegated)
        plans.append(lowering.plan())
        graphs += lowering.graphs
        reasons |= {(signature.key, number): reason for number, reason in lowering.reasons.items()}
        costs |= {(signature.key, number): cost for number, cost in lowering.costs()}
        names = layer_names(whole.graph)
        layers |= {(signature.key, number): name for number, name in names.items()}
    executable = Executable(IDENTIFIER.decode(), model.version, tuple(plans), (), {})
    return ProgramModel(executable, graphs, None, StayedOutside(RULES_OF, reasons), costs, layers)


class _Lowering:
    """One signature cut into calls of the delegate and operators outside, which without the delegate all are."""

    def __init__(self, name: str, whole: Decomposed, *, delegated: bool) -> None:
        graph, order = whole
        self._name, self._graph = name, graph
        running = frozenset(order)
        self.reasons = {number: reason for number, reason in refusals(graph).items() if number in running}
        self._refused = frozenset(self.reasons)
        if not delegated:
            self.reasons = dict.fromkeys(order, _OFF)
        self._outside = frozenset(self.reasons)
        self._parts = partitions(graph, self._outside, order)
        alone = len(self._parts) == 1 and not self._outside
        self._first = 0 if alone else len(graph.operators)
        built = [_GraphBuilder(graph, members).graph() for members in self._parts]
        # A part that only unpacks weights has nothing left to run, and LiteRT's profiler does not count it.
        self.graphs = [
            DelegateGraph(name, part, (self._first + part,), xnn_graph)
            for part, xnn_graph in enumerate(one for one in built if one.nodes)
        ]

    def costs(self) -> Iterator[tuple[int, Callable[[], Cost | None]]]:
        """What gives the costs of operators outside, by number, as of the same work in the delegate.

        Of operators that the delegate would refuse those have one that only look up, move or compare: shapes of others
        may be those of no graph of XNNPACK.
        """
        for number in sorted(self._outside - self._refused):
            yield number, partial(self._cost, number)
        for number in sorted(self._refused):
            if self._graph.operators[number].name in _LOOKED_UP | _MOVED | _COMPARED:
                yield number, partial(self._plain_cost, number)

    def _plain_cost(self, number: int) -> Cost | None:
        """What is read and written once; of a table the rows that are looked up."""
        operator, tensors = self._graph.operators[number], self._graph.tensors
        given = [tensors[value] for value in operator.inputs if value >= 0]
        made = [tensors[value] for value in operator.outputs]
        sizes = {id(one): one.dtype.bytes_of(one.shape) for one in (*given, *made)}
        if None in sizes.values():
            return None
        left = sum(sizes[id(one)] or 0 for one in made)
        read = sum(sizes[id(one)] or 0 for one in given if not one.constant)
        stored = sum(sizes[id(one)] or 0 for one in given if one.constant)
        if operator.name in _LOOKED_UP:
            read, stored = (min(read, 2 * left), min(stored, left))
        others = sum(math.prod(one.shape) for one in made) if operator.name in _COMPARED else 0
        return Cost(0, others, read, left, stored).if_possible()

    def _cost(self, number: int) -> Cost | None:
        graph = _GraphBuilder(self._graph, (number,)).graph()
        return GraphCosts(graph).nodes(range(len(graph.nodes)))

    def plan(self) -> MethodPlan:
        """Its instructions, with the tensors of the file as values."""
        operators = self._graph.operators
        called = list(dict.fromkeys(operators[number].name for number in sorted(self._outside)))
        steps = [self._step(number, called) for number in range(self._first)]
        steps += [PlannedStep(InstructionKind.DELEGATE, g.delegate, g.graph.arguments()) for g in self.graphs]
        return MethodPlan(
            name=self._name,
            values=tuple(_planned(tensor) for tensor in self._graph.tensors),
            inputs=self._graph.inputs,
            outputs=self._graph.outputs,
            operators=tuple(called),
            delegates=tuple(Delegate(XNNPACK, None) for _ in self.graphs),
            chains=(Chain(self._graph.inputs, self._graph.outputs, tuple(steps)),),
            planned_buffers=(),
        )

    def _step(self, number: int, called: Sequence[str]) -> PlannedStep:
        """An operator outside; one that the delegate took leaves its number behind."""
        operator = self._graph.operators[number]
        if number not in self._outside:
            return PlannedStep(InstructionKind.FREE, -1, ())
        given = tuple(value for value in operator.inputs if value >= 0)
        arguments = (*given, *operator.outputs, *operator.outputs[-1:])
        return PlannedStep(InstructionKind.KERNEL, called.index(operator.name), arguments)


def partitions(
    graph: TfliteSubgraph, outside: frozenset[int], order: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Numbers of the operators of each call of the delegate, in the order in which LiteRT makes the calls.

    Operators that are ready are taken as long as they are of one sort, delegated or not; then the other sort has its
    turn.
    """
    left = list(range(len(graph.operators)) if order is None else order)
    made_by = {value: number for number in left for value in graph.operators[number].outputs}
    done: set[int] = set()
    found: list[tuple[int, ...]] = []
    while left:
        epoch: list[int] = []
        sort: bool | None = None
        for number in left:
            waits = [made_by[v] for v in graph.operators[number].inputs if v in made_by and made_by[v] != number]
            ready = all(maker in done for maker in waits)
            if not ready or (sort is not None and (number in outside) is not sort):
                continue
            sort = number in outside
            epoch.append(number)
            done.add(number)
        if not epoch:  # operators that wait for each other: the file is damaged, and no order is right
            epoch, sort = left, True
        left = [number for number in left if number not in set(epoch)]
        if not sort:
            found.append(tuple(epoch))
    return found


def _planned(tensor: TfliteTensor) -> PlannedTensor:
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
    """The graph that the delegate defines for some operators of a subgraph."""

    def __init__(self, graph: TfliteSubgraph, members: Sequence[int]) -> None:
        self._graph, self._members = graph, members
        self._nodes: list[XnnNode] = []
        self._added: list[XnnValue] = []
        self._once = unpacked(graph)
        self._stored = {number for number, tensor in enumerate(graph.tensors) if tensor.constant} | self._once.keys()

    def graph(self) -> XnnGraph:
        """Values and nodes, in the order in which the delegate defines them."""
        for number in self._members:
            self._define(number, self._graph.operators[number])
        made = {value for number in self._members for value in self._graph.operators[number].outputs}
        read = dict.fromkeys(value for node in self._nodes for value in node.inputs if value < self._own)
        others = [o for number, o in enumerate(self._graph.operators) if number not in set(self._members)]
        wanted = {*self._graph.outputs, *(value for operator in others for value in operator.inputs)}
        inputs = tuple(v for v in read if v not in made and v not in self._stored)
        outputs = tuple(v for v in sorted(made) if v in wanted and v not in self._stored)
        places = {value: place for place, value in enumerate((*inputs, *outputs))}
        values = [self._value(v, places, set(inputs)) for v in dict.fromkeys((*read, *sorted(made)))]
        nodes = tuple(self._nodes)
        return XnnGraph(IDENTIFIER.decode(), "", (*values, *self._added), nodes, inputs, outputs, (), 0)

    @property
    def _own(self) -> int:
        return len(self._graph.tensors)

    def _define(self, number: int, operator: TfliteOperator) -> None:
        given = [value for value in operator.inputs if value >= 0]
        if number in self._once.values():
            return
        if operator.name == ATTENTION:
            self._attention(number, operator)
            return
        if operator.name == "TRANSPOSE_CONV":
            given = [given[2], given[1], *given[3:]]
        if operator.name == "SPLIT":
            given = given[1:]
        given = given[: _DATA.get(operator.name, len(given))]
        kind, mixed = self._kind(operator, len(given)), self._is_mixed(given)
        if operator.name == "FULLY_CONNECTED" and not operator.options.keep:
            given[0] = self._flattened(number, given[0], given[1])
        if operator.name in _QUANTISED_AT_RUN_TIME and mixed:
            given[0] = self._quantised(number, given[0])
        self._node(number, kind, given, operator.outputs, operator)

    def _attention(self, number: int, operator: TfliteOperator) -> None:
        """What the delegate defines for an attention; heads that share keys are rows of one product."""
        queries, keys, values, mask = operator.inputs
        batch, rows, heads, width = self._shape(queries)
        _, places, shared, deep = self._shape(keys)
        wide = self._shape(values)[3]
        joined = (batch, shared, heads // shared * rows)

        def made(kind: str, given: Sequence[int], dims: tuple[int, ...], attributes: Attributes | None = None) -> int:
            return self._made(number, kind, given, dims, attributes)

        turn = (0, 2, 1, 3)
        scale = self._made_value(self._graph.tensors[queries], (1,), constant=True)
        scaled = made("Multiply", (queries, scale), (batch, rows, heads, width))
        left = made("StaticTranspose", (scaled,), (batch, heads, rows, width), turn)
        right = made("StaticTranspose", (keys,), (batch, shared, places, deep), turn)
        left = made("StaticReshape", (left,), (*joined, width), (*joined, width))
        right = made("StaticReshape", (right,), (batch, shared, places, deep), (batch, shared, places, deep))
        scores = made("BatchMatrixMultiply", (left, right), (*joined, places))
        scores = made("StaticReshape", (scores,), (batch, heads, rows, places), (batch, heads, rows, places))
        scores = made("Add", (scores, mask), (batch, heads, rows, places))
        shares = made("Softmax", (scores,), (batch, heads, rows, places))
        right = made("StaticTranspose", (values,), (batch, shared, places, wide), turn)
        left = made("StaticReshape", (shares,), (*joined, places), (*joined, places))
        right = made("StaticReshape", (right,), (batch, shared, places, wide), (batch, shared, places, wide))
        found = made("BatchMatrixMultiply", (left, right), (*joined, wide))
        found = made("StaticReshape", (found,), (batch, heads, rows, wide), (batch, heads, rows, wide))
        self._nodes.append(
            XnnNode("StaticTranspose", 0, number, (found,), tuple(operator.outputs), None, None, 0, turn)
        )

    def _made(
        self, number: int, kind: str, given: Sequence[int], dims: tuple[int, ...], attributes: Attributes | None
    ) -> int:
        """A node that the delegate adds for an operator, by the value that it leaves."""
        name = self._made_value(self._graph.tensors[self._graph.operators[number].outputs[0]], dims)
        self._nodes.append(XnnNode(kind, 0, number, tuple(given), (name,), None, None, 0, attributes))
        return name

    def _made_value(self, like: TfliteTensor, dims: tuple[int, ...], *, constant: bool = False) -> int:
        name, plain = self._own + len(self._added), QuantisationScales(QuantisationKind.NONE)
        self._added.append(XnnValue(name, number_type(like), dims, False, False, int(constant), plain))  # noqa: FBT003 - fields
        return name

    def _kind(self, operator: TfliteOperator, given: int) -> str:
        if operator.name == "CONCATENATION":
            return f"Concatenate{given}" if 1 < given <= _MOST_JOINED else "Concatenate"
        return _KINDS.get(operator.name, operator.name)

    def _flattened(self, number: int, value: int, weights: int) -> int:
        """The delegate makes the data of a fully connected layer a matrix first, of as many rows as there are."""
        columns = max(1, self._graph.tensors[weights].shape[-1] if self._graph.tensors[weights].shape else 1)
        tensor = self._graph.tensors[value]
        dims = (math.prod(tensor.shape) // columns, columns)
        name = self._own + len(self._added)
        self._added.append(
            XnnValue(name, number_type(tensor), dims, False, False, 0, tensor.quantisation)  # noqa: FBT003 - fields
        )
        self._nodes.append(XnnNode("StaticReshape", 0, number, (value,), (name,), None, None, 0, (0, columns)))
        return name

    def _is_mixed(self, given: Sequence[int]) -> bool:
        """Whether floating-point data meet stored weights of 8 or 4 bits."""
        types = [self._graph.tensors[value].dtype.name for value in given[:2]]
        return types in (["float32", "int8"], ["float32", "int4"]) and given[1] in self._stored

    def _quantised(self, number: int, value: int) -> int:
        """The delegate converts such data to int8 first, with a scale for each row."""
        name, kind = self._own + len(self._added), NumberType("qdint8", 8)
        dims = self._graph.tensors[value].shape if value < self._own else self._added[value - self._own].dims
        self._added.append(XnnValue(name, kind, dims, False, False, 0, QuantisationScales(QuantisationKind.NONE)))  # noqa: FBT003 - fields
        self._nodes.append(XnnNode("Convert", 0, number, (value,), (name,), None, None, 0, None))
        return name

    def _node(
        self, number: int, kind: str, given: Sequence[int], made: Sequence[int], operator: TfliteOperator
    ) -> None:
        least, most = _BOUNDS.get(operator.options.activation, _BOUNDS.get(operator.name, (None, None)))
        attributes = self._attributes(operator)
        self._nodes.append(XnnNode(kind, 0, number, tuple(given), tuple(made), least, most, 0, attributes))

    def _value(self, number: int, places: dict[int, int], inputs: set[int]) -> XnnValue:
        tensor = self._graph.tensors[number]
        placed = places.get(number)
        return XnnValue(
            id=number,
            dtype=number_type(tensor),
            dims=tensor.shape,
            external_input=number in inputs,
            external_output=placed is not None and number not in inputs,
            constant=max(tensor.buffer, 1) if number in self._stored else 0,
            quantisation=tensor.quantisation,
            external_id=placed,
        )

    def _shape(self, number: int) -> tuple[int, ...]:
        return self._graph.tensors[number].shape

    def _attributes(self, operator: TfliteOperator) -> Attributes | None:
        build = {
            **dict.fromkeys(_CONVOLUTIONS, self._convolution),
            "MaxPoolingWithArgmax2D": self._argmax_pooling,
            "AVERAGE_POOL_2D": self._pooling,
            "MAX_POOL_2D": self._pooling,
            "RESHAPE": self._reshaping,
            "TRANSPOSE": self._transposition,
            "PAD": self._padding,
            "SLICE": self._slicing,
            "STRIDED_SLICE": self._strided,
            "RESIZE_BILINEAR": self._resizing,
        }.get(operator.name)
        if build is not None:
            return build(operator)
        if operator.name == "CONCATENATION":
            return operator.options.axis
        return operator.options.alpha if operator.name == "LEAKY_RELU" else None

    def _convolution(self, operator: TfliteOperator) -> Attributes | None:
        data, weights = self._images(operator, 2 if operator.name == "TRANSPOSE_CONV" else 0)
        if data is None or weights is None:
            return None
        if operator.name in _TRANSPOSED:
            return self._window(operator, data, weights, (weights[3], weights[0], 1), back=True)
        if operator.name == "DEPTHWISE_CONV_2D":
            return self._window(operator, data, weights, (1, max(1, weights[3] // max(1, data[3])), data[3]))
        groups = max(1, data[3] // max(1, weights[3]))
        return self._window(operator, data, weights, (weights[3], weights[0] // groups, groups))

    def _images(self, operator: TfliteOperator, place: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Shapes of the data and the filter; None for those of another rank than images have."""
        shapes = [self._shape(operator.inputs[number]) for number in (place, 1) if number < len(operator.inputs)]
        known = [shape if len(shape) == _IMAGE else None for shape in shapes]
        return (known[0], known[1]) if len(known) > 1 else (None, None)

    def _window(
        self,
        operator: TfliteOperator,
        data: tuple[int, ...],
        weights: tuple[int, ...],
        channels: tuple[int, int, int],
        *,
        back: bool = False,
    ) -> Convolution:
        options = operator.options
        sizes = data[1:3] if not back else self._shape(operator.outputs[0])[1:3]
        rows = zip(sizes, weights[1:3], options.strides, options.dilations, strict=False)
        border = [_border(options.same, *row) for row in rows]
        (top, bottom), (left, right) = border if len(border) > 1 else [(0, 0), (0, 0)]
        height, width = weights[1:3]
        inputs, outputs, groups = channels
        return Convolution(
            *(top, right, bottom, left, height, width),
            *options.strides,
            *options.dilations,
            *(inputs, outputs, groups, 0, 0),
        )

    def _pooling(self, operator: TfliteOperator) -> Attributes | None:
        options, data = operator.options, self._shape(operator.inputs[0])
        if len(data) != _IMAGE:
            return None
        rows = zip(data[1:3], options.window, options.strides, (1, 1), strict=True)
        (top, bottom), (left, right) = (_border(options.same, *row) for row in rows)
        return Pooling(top, right, bottom, left, *options.window, *options.strides, 1, 1)

    def _argmax_pooling(self, operator: TfliteOperator) -> Attributes:
        return Pooling(0, 0, 0, 0, *operator.options.window)

    def _reshaping(self, operator: TfliteOperator) -> Attributes:
        return self._shape(operator.outputs[0])

    def _resizing(self, operator: TfliteOperator) -> Attributes | None:
        shape = self._shape(operator.outputs[0])
        return Resizing(*shape[1:3]) if len(shape) == _IMAGE else None

    def _transposition(self, operator: TfliteOperator) -> Attributes | None:
        return self._option(operator, 1)

    def _padding(self, operator: TfliteOperator) -> Attributes | None:
        both = self._option(operator, 1)
        value = float(self._graph.tensors[operator.inputs[0]].quantisation.zero_point or 0)
        return Padding(both[::2], both[1::2], value) if both is not None else None

    def _slicing(self, operator: TfliteOperator) -> Attributes | None:
        first = self._option(operator, 1)
        return Slicing(first, self._shape(operator.outputs[0])) if first is not None else None

    def _strided(self, operator: TfliteOperator) -> Attributes | None:
        """A slice without strides, as the delegate takes it; what is below zero counts from the end."""
        first, sizes = self._option(operator, 1), self._shape(operator.inputs[0])
        if first is None or len(first) != len(sizes):
            return None
        ignored = operator.options.masks[0]
        begins = (0 if ignored >> place & 1 else value for place, value in enumerate(first))
        offsets = tuple(value + size if value < 0 else value for value, size in zip(begins, sizes, strict=True))
        return Slicing(offsets, self._shape(operator.outputs[0]))

    def _option(self, operator: TfliteOperator, place: int) -> tuple[int, ...] | None:
        return self._graph.tensors[operator.inputs[place]].values if place < len(operator.inputs) else None


def _border(same: bool, size: int, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """Padding before and after a dimension, as TensorFlow's SAME spreads it."""
    if not same:
        return 0, 0
    whole = max(0, (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size)
    return whole // 2, whole - whole // 2


def number_type(tensor: TfliteTensor) -> NumberType:
    """The type that XNNPACK has for a tensor."""
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
    """Layers by number of the operator; those whose tensors tell none are left out."""
    found = ((number, layer_of(graph, operator)) for number, operator in enumerate(graph.operators))
    return {number: layer for number, layer in found if layer.path}


def layer_of(graph: TfliteSubgraph, operator: TfliteOperator) -> NamedLayer:
    """The layer that an operator is of, as ``block_2.conv``; an empty path where its tensor tells none."""
    if not operator.outputs or operator.outputs[0] < 0:
        return NamedLayer("")
    name = graph.tensors[operator.outputs[0]].name
    return torch_layer(operator.name, name) or NamedLayer(_layer_name(operator, name))


def _layer_name(operator: TfliteOperator, name: str) -> str:
    parts = [_ADDED.sub("", part) for part in name.split(";") if part]
    sorts = _SORTS.get(operator.name, ())
    own = [part for part in parts if re.sub(r"_?\d+\Z", "", part.rpartition("/")[2]) in sorts]
    chosen = own[-1] if own else parts[0] if parts else ""
    return _path(chosen)[:_LONGEST]


def _path(part: str) -> str:
    """The path of a layer: without what called the model, and without the operation at its end."""
    shorter = _CALL.sub("", part)
    while shorter != part:
        part, shorter = shorter, _CALL.sub("", shorter)
    steps = [step for step in part.split("/") if step]
    if len(steps) > 1 and _OPERATION.fullmatch(steps[-1]):
        steps = steps[:-1]
    return ".".join(dict.fromkeys(steps))
