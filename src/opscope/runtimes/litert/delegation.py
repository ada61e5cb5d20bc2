"""Decide which operators of a .tflite LiteRT's XNNPACK delegate takes, and why not the rest, from the file alone.

Source: ``tflite/delegates/xnnpack/xnnpack_delegate.cc`` of LiteRT at commit f6745779 (2026-08-21),
``VisitNode`` and the checks of types, of stored options and of numbers of inputs that the functions behind it
make; tested with release 2.3.0 on the models of ``tests/data``. They are rules for a file alone: a build of the
delegate with other options takes other operators, variables among them, and an operator that meets all of them
here may still be refused for an option that is not checked. The custom operators of MediaPipe that it takes
must be float32, including the indices of maxima.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.program.partition.verdicts import Cause, PortableReason
from opscope.program.xnnpack.graph import QuantisationKind
from opscope.runtimes.litert.composites import ATTENTION
from opscope.runtimes.litert.tflite import MEDIAPIPE

if TYPE_CHECKING:
    from opscope.runtimes.litert.tflite import TfliteOperator, TfliteSubgraph, TfliteTensor

RULES_OF = "LiteRT f6745779, tflite/delegates/xnnpack, tried with 2.3.0"
SOURCE = "tflite/delegates/xnnpack/xnnpack_delegate.cc"
DELEGATED = frozenset(
    """
    ABS ADD AVERAGE_POOL_2D BATCH_MATMUL CEIL CONCATENATION CONV_2D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV
    ELU EXP FLOOR FULLY_CONNECTED GELU HARD_SWISH LEAKY_RELU LOG LOGISTIC MAXIMUM MAX_POOL_2D MEAN MINIMUM
    MUL NEG PAD PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR ROUND RSQRT SIN
    SLICE SOFTMAX SPACE_TO_DEPTH SPLIT SQRT SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH TRANSPOSE
    TRANSPOSE_CONV
    """.split()
)
"""Built-in operators that the delegate has a rule for."""
_FIXED_WEIGHTS = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "Convolution2DTransposeBias"), (1, 2)),
    "TRANSPOSE_CONV": (0, 1),
    "PRELU": (1,),
}
_OPTIONS = {
    **dict.fromkeys("PAD MEAN SUM REDUCE_MAX REDUCE_MIN TRANSPOSE RESIZE_BILINEAR RESHAPE".split(), (1,)),
    "SLICE": (1, 2),
    "STRIDED_SLICE": (1, 2, 3),
    "SPLIT": (0,),
}
_PAIRS = (
    "ADD BATCH_MATMUL CONV_2D DEPTHWISE_CONV_2D DIV FULLY_CONNECTED MAXIMUM MINIMUM MUL PRELU SQUARED_DIFFERENCE SUB"
)
_LEAST_INPUTS = {**dict.fromkeys(_PAIRS.split(), 2), "TRANSPOSE_CONV": 3, "STRIDED_SLICE": 4, "SPLIT": 2}
_LEAST_INPUTS |= {"Convolution2DTransposeBias": 3, "MaxUnpooling2D": 2}
_BOUNDS = frozenset({"NONE", "RELU", "RELU_N1_TO_1", "RELU6"})
_FLOAT_ONLY = frozenset(
    """
    ABS AVERAGE_POOL_2D CEIL COS DIV EXP FLOOR GELU HARD_SWISH LOG MAXIMUM MINIMUM NEG PRELU RELU RELU6 RELU_N1_TO_1
    ROUND RSQRT SIN SOFTMAX SQRT SQUARE SQUARED_DIFFERENCE
    """.split()
).union(MEDIAPIPE)
"""Operators that the delegate takes only with floating-point data."""
_DATA_INPUT = {"TRANSPOSE_CONV": 2, "SPLIT": 1}
"""Position of the data among the inputs, where it is not the first."""
_FLOATS = frozenset({"float32", "float16"})
_QUANTISED = frozenset({"int8", "uint8", "int4"})


def unpacked(graph: TfliteSubgraph) -> dict[int, int]:
    """Find operators that make weights dense or floating point, which the delegate runs once, at load time.

    Returns the number of the operator for each tensor that such an operator writes.
    """
    makers: dict[int, int] = {}
    for number, operator in enumerate(graph.operators):
        if operator.name not in _UNPACKING or len(operator.inputs) != 1 or len(operator.outputs) != 1:
            continue
        (source,), (made,) = operator.inputs, operator.outputs
        if source >= 0 and _is_unpacked(operator.name, graph.tensors[source], graph.tensors[made], source in makers):
            makers[made] = number
    return makers


_UNPACKING = frozenset({"DENSIFY", "DEQUANTIZE"})


def _is_unpacked(name: str, source: TfliteTensor, made: TfliteTensor, unpacked_before: bool) -> bool:
    kind = source.dtype.name
    if name == "DENSIFY":
        return source.constant and source.sparse and kind in {"float16", "int8", "float32"} and made.dtype.name == kind
    stored = (source.constant or unpacked_before) and not source.sparse
    taken = kind == "float16" or (kind == "int8" and source.quantisation.kind is not QuantisationKind.NONE)
    return stored and taken and made.dtype.name == "float32"


def refusals(graph: TfliteSubgraph) -> dict[int, PortableReason]:
    """Return why the delegate does not take operators, by their numbers; operators that it takes are left out.

    An operator that is :func:`unpacked` is taken unless an operator outside reads its output.
    """
    once = unpacked(graph)
    reasons = {
        number: reason
        for number, operator in enumerate(graph.operators)
        if number not in once.values() and (reason := refusal(graph, operator, frozenset(once))) is not None
    }
    read = {value for number in reasons for value in graph.operators[number].inputs}
    for value, number in once.items():
        if value in read:
            reasons[number] = _refusal_reason(Cause.OPTION, "an operator outside the delegate reads it", None)
    return dict(sorted(reasons.items()))


def refusal(
    graph: TfliteSubgraph, operator: TfliteOperator, unpacked_tensors: frozenset[int] = frozenset()
) -> PortableReason | None:
    """Return why the delegate does not take an operator; None if it meets every known rule."""
    if operator.flex:
        return _refusal_reason(Cause.NO_RULE, "a TensorFlow operator, which only the Flex delegate runs", operator.name)
    if operator.custom and operator.name not in MEDIAPIPE:
        return _refusal_reason(Cause.NO_RULE, "a custom operator, unknown to the delegate", operator.name)
    if operator.name not in DELEGATED | MEDIAPIPE | {ATTENTION}:
        return _refusal_reason(Cause.NO_RULE, "not supported by the XNNPACK delegate", None)
    least = _LEAST_INPUTS.get(operator.name, 1)
    if len(operator.inputs) < least or min(operator.inputs[:least]) < 0 or not operator.outputs:
        return _refusal_reason(Cause.OPTION, "a required input or output is missing", None)
    if operator.options.activation not in _BOUNDS:
        return _refusal_reason(Cause.OPTION, "this fused activation is not supported", operator.options.activation)
    inputs = [graph.tensors[number] for number in operator.inputs if number >= 0]
    outputs = [graph.tensors[number] for number in operator.outputs]
    return (
        _type_refused(operator, inputs, outputs)
        or _shape_refused(inputs, outputs)
        or _weights_refused(graph, operator, unpacked_tensors)
        or _option_refused(graph, operator)
        or _scale_refused(operator.name, inputs, outputs)
    )


def _refusal_reason(cause: Cause, text: str, evidence: str | None) -> PortableReason:
    return PortableReason(cause, text, evidence, SOURCE)


def _type_refused(
    operator: TfliteOperator, inputs: list[TfliteTensor], outputs: list[TfliteTensor]
) -> PortableReason | None:
    position = _DATA_INPUT.get(operator.name, 0)
    data = [*inputs[position : position + 1], *(outputs if operator.custom else outputs[:1])]
    for tensor in data:
        name = tensor.dtype.name
        quantised = name in _QUANTISED and tensor.quantisation.kind is not QuantisationKind.NONE
        if name in _FLOATS or (quantised and operator.name not in _FLOAT_ONLY):
            continue
        text = "only float32 and quantised int8 and uint8 are supported"
        text = "only floating point is supported" if operator.name in _FLOAT_ONLY else text
        return _refusal_reason(Cause.NUMBER_TYPE, text, f"{tensor.name}: {name}")
    kinds = [tensor.dtype.name for tensor in data]
    if operator.name == "QUANTIZE" and _QUANTISED.issuperset(kinds) and len(set(kinds)) > 1:
        return _refusal_reason(
            Cause.NUMBER_TYPE, "integers can only be requantised to the same type", " to ".join(kinds)
        )
    return None


def _shape_refused(inputs: list[TfliteTensor], outputs: list[TfliteTensor]) -> PortableReason | None:
    empty = next((tensor for tensor in (*inputs, *outputs) if 0 in tensor.shape), None)
    return _refusal_reason(Cause.EMPTY, "empty tensors are not supported", empty.name) if empty else None


def _option_refused(graph: TfliteSubgraph, operator: TfliteOperator) -> PortableReason | None:
    """Check the limits of individual operators, as their functions in the delegate do."""
    input_count, output_count, options = len(operator.inputs), len(operator.outputs), operator.options
    if operator.name == "CONCATENATION" and input_count not in _JOINED:
        return _refusal_reason(
            Cause.OPTION, f"{_JOINED[0]} to {_JOINED[-1]} tensors can be concatenated", f"{input_count} tensors"
        )
    if operator.name == "SPLIT" and output_count not in _PARTS:
        return _refusal_reason(
            Cause.OPTION, f"{_PARTS[0]} to {_PARTS[-1]} parts are supported", f"{output_count} parts"
        )
    if operator.name == "SOFTMAX" and options.beta != 1.0:
        return _refusal_reason(Cause.OPTION, "softmax is supported only with beta 1", f"beta {options.beta:g}")
    return _stride_refused(graph, operator) if operator.name == "STRIDED_SLICE" else None


def _stride_refused(graph: TfliteSubgraph, operator: TfliteOperator) -> PortableReason | None:
    if any(operator.options.masks[2:]):
        return _refusal_reason(Cause.OPTION, "slice is supported only if it keeps the number of dimensions", None)
    strides = graph.tensors[operator.inputs[3]].values
    if strides is not None and set(strides) != {1}:
        return _refusal_reason(
            Cause.OPTION, "slice is supported only with stride 1", f"strides {', '.join(map(str, strides))}"
        )
    return None


_JOINED, _PARTS = range(2, 6), range(2, 5)
_RATIOS = {
    **dict.fromkeys(("ADD", "SUB"), (2**-10, 2**8)),
    "MUL": (2**-16, 2**8),
    "QUANTIZE": (2**-8, 2**7),
    "LEAKY_RELU": (2**-8, 2**7),
}
"""Range of the scale of an input, or of a product, relative to that of the output: the least, and an upper bound."""


def _scale_refused(name: str, read: list[TfliteTensor], written: list[TfliteTensor]) -> PortableReason | None:
    """Check that integers are rescaled within the limits of the delegate."""
    least, most = _RATIOS.get(name, (0.0, 0.0))
    scales = [tensor.quantisation.scale for tensor in (*read, *written[:1])]
    kinds = {tensor.dtype.name for tensor in (*read, *written[:1])}
    if not most or len(kinds) > 1 or not kinds <= {"int8", "uint8"} or not all(scales):
        return None
    *inputs, output = (scale for scale in scales if scale)
    ratios = [math.prod(inputs) / output] if name == "MUL" else [scale / output for scale in inputs]
    wrong = next((ratio for ratio in ratios if not least <= ratio < most), None)
    if wrong is None:
        return None
    return _refusal_reason(
        Cause.OPTION, f"input scales must be {least:g} to {most:g} times the output scale", f"{wrong:.3g} times"
    )


def _weights_refused(
    graph: TfliteSubgraph, operator: TfliteOperator, unpacked_tensors: frozenset[int]
) -> PortableReason | None:
    fixed, options = _FIXED_WEIGHTS.get(operator.name, ()), _OPTIONS.get(operator.name, ())
    computed = {number for graph_operator in graph.operators for number in graph_operator.outputs} - unpacked_tensors
    for position in (*fixed, *options):
        number = operator.inputs[position] if position < len(operator.inputs) else -1
        if number < 0 or graph.tensors[number].constant:
            continue
        if number in computed or number in graph.inputs or position in options:
            if position in fixed:
                text, cause = "weights must be stored with the model", Cause.COMPUTED_WEIGHTS
            else:
                text, cause = "its option must be stored with the model", Cause.DYNAMIC_SHAPE
            return _refusal_reason(cause, text, graph.tensors[number].name)
    return None
