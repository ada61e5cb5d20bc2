"""Which operators of a .tflite LiteRT's XNNPACK delegate takes, and why not the rest, as far as the file shows it.

Source: ``tflite/delegates/xnnpack/xnnpack_delegate.cc`` of LiteRT at commit f6745779 (2026-08-21), ``VisitNode`` and
the checks of types, of stored options and of numbers of inputs that the functions behind it make; tried with release
2.3.0 on the models of ``tests/data/tflite``. They are rules for a file alone: a build of the delegate with other
options takes other operators, variables and custom operators of MediaPipe among them, and an operator that meets all
of them here may still be refused for an option that is not checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.partition.portable_reason import Cause, PortableReason

if TYPE_CHECKING:
    from opscope.runtimes.litert.tflite import TfliteOperator, TfliteSubgraph, TfliteTensor

RULES_OF = "LiteRT f6745779, tflite/delegates/xnnpack, tried with 2.3.0"
SOURCE = "tflite/delegates/xnnpack/xnnpack_delegate.cc"
DELEGATED = frozenset(
    """
    ABS ADD AVERAGE_POOL_2D BATCH_MATMUL CEIL CONCATENATION CONV_2D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV
    ELU EXP EXPAND_DIMS FLOOR FULLY_CONNECTED GELU HARD_SWISH LEAKY_RELU LOG LOGISTIC MAXIMUM MAX_POOL_2D MEAN MINIMUM
    MUL NEG PAD PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR ROUND RSQRT SIN
    SLICE SOFTMAX SPACE_TO_DEPTH SPLIT SQRT SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH TRANSPOSE
    TRANSPOSE_CONV
    """.split()
)
"""Built-in operators that the delegate has a rule for."""
_FIXED_WEIGHTS = {"CONV_2D": (1, 2), "DEPTHWISE_CONV_2D": (1, 2), "TRANSPOSE_CONV": (0, 1), "PRELU": (1,)}
_OPTIONS = {
    **dict.fromkeys("PAD MEAN SUM REDUCE_MAX REDUCE_MIN TRANSPOSE RESIZE_BILINEAR EXPAND_DIMS RESHAPE".split(), (1,)),
    "SLICE": (1, 2),
    "STRIDED_SLICE": (1, 2, 3),
    "SPLIT": (0,),
}
_PAIRS = (
    "ADD BATCH_MATMUL CONV_2D DEPTHWISE_CONV_2D DIV FULLY_CONNECTED MAXIMUM MINIMUM MUL PRELU SQUARED_DIFFERENCE SUB"
)
_LEAST_INPUTS = {**dict.fromkeys(_PAIRS.split(), 2), "TRANSPOSE_CONV": 3}
_BOUNDS = frozenset({"NONE", "RELU", "RELU_N1_TO_1", "RELU6"})
_FLOAT_ONLY = frozenset(
    """
    ABS AVERAGE_POOL_2D CEIL COS DIV EXP FLOOR GELU HARD_SWISH LOG MAXIMUM MINIMUM NEG PRELU RELU RELU6 RELU_N1_TO_1
    ROUND RSQRT SIN SOFTMAX SQRT SQUARE SQUARED_DIFFERENCE
    """.split()
)
"""Taken of floating point alone."""
_DATA_INPUT = {"TRANSPOSE_CONV": 2, "SPLIT": 1}
"""Place of the data among the inputs, where it is not the first."""
_FLOATS = frozenset({"float32", "float16"})
_QUANTISED = frozenset({"int8", "uint8", "int4"})


def refusal(graph: TfliteSubgraph, operator: TfliteOperator) -> PortableReason | None:
    """Why the delegate does not take an operator; None when every known rule is met."""
    if operator.flex:
        return _because(Cause.NO_RULE, "an operator of TensorFlow, which only the Flex delegate runs", operator.name)
    if operator.custom:
        return _because(Cause.NO_RULE, "a custom operator, which the delegate does not know", operator.name)
    if operator.name not in DELEGATED:
        return _because(Cause.NO_RULE, "the XNNPACK delegate has no rule for it", None)
    least = _LEAST_INPUTS.get(operator.name, 1)
    if len(operator.inputs) < least or min(operator.inputs[:least]) < 0 or not operator.outputs:
        return _because(Cause.OPTION, "an input or output that it needs is missing", None)
    if operator.options.activation not in _BOUNDS:
        return _because(Cause.OPTION, "this fused activation is not taken", operator.options.activation)
    given = [graph.tensors[number] for number in operator.inputs if number >= 0]
    made = [graph.tensors[number] for number in operator.outputs]
    return _type_refused(operator, given, made) or _shape_refused(given, made) or _weights_refused(graph, operator)


def _because(cause: Cause, text: str, evidence: str | None) -> PortableReason:
    return PortableReason(cause, text, evidence, SOURCE)


def _type_refused(
    operator: TfliteOperator, given: list[TfliteTensor], made: list[TfliteTensor]
) -> PortableReason | None:
    place = _DATA_INPUT.get(operator.name, 0)
    data = [*given[place : place + 1], *made[:1]]
    for tensor in data:
        name = tensor.dtype.name
        quantised = name in _QUANTISED and tensor.quantisation is not None
        if name in _FLOATS or (quantised and operator.name not in _FLOAT_ONLY):
            continue
        text = "tensors of float32 and quantised int8 and uint8 are taken"
        text = "tensors of floating point are taken" if operator.name in _FLOAT_ONLY else text
        return _because(Cause.NUMBER_TYPE, text, f"{tensor.name}: {name}")
    return None


def _shape_refused(given: list[TfliteTensor], made: list[TfliteTensor]) -> PortableReason | None:
    empty = next((tensor for tensor in (*given, *made) if 0 in tensor.shape), None)
    return _because(Cause.EMPTY, "empty tensors are not taken", empty.name) if empty else None


def _weights_refused(graph: TfliteSubgraph, operator: TfliteOperator) -> PortableReason | None:
    fixed, options = _FIXED_WEIGHTS.get(operator.name, ()), _OPTIONS.get(operator.name, ())
    computed = {number for other in graph.operators if other.name != "DEQUANTIZE" for number in other.outputs}
    for place in (*fixed, *options):
        number = operator.inputs[place] if place < len(operator.inputs) else -1
        if number < 0 or graph.tensors[number].constant:
            continue
        if number in computed or number in graph.inputs or place in options:
            text = "weights must be stored with the model" if place in fixed else "its option must be stored"
            return _because(Cause.COMPUTED_WEIGHTS, text, graph.tensors[number].name)
    return None
