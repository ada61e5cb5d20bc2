"""Read LiteRT programs (.tflite), FlatBuffers with identifier ``TFL3``, without LiteRT or tensorflow.

Source of the layout, of the names of built-in operators and of number types:
``tflite/converter/schema/schema.fbs`` of LiteRT 2.3.0, version 3 of the schema. The file is mapped, and weights
are never decoded here, except for the few integers that are options of an operator: paddings, permutations,
sizes.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.program.structure.dtypes import NumberType
from opscope.program.xnnpack.graph import QuantisationKind, QuantisationScales
from opscope.readers.compressed import mapped_file
from opscope.readers.flatbuffer import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
    FlatBuffer,
    Tables,
    nested,
    numbers,
    referred,
    texts,
    union,
    vectors,
)
from opscope.readers.other_files import not_recognised

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


IDENTIFIER, IDENTIFIER_OFFSET = b"TFL3", 4
VERSION = 3
_HINT = "give a .tflite file"
_CUSTOM, _MORE_CODES = 32, 127
_FLEX = "Flex"
_MOST_DIMENSIONS = 16
_DETAILS, _BLOCKWISE = 4, 2
"""Slot of the type of further scales, and the type of scales of blocks."""
_LONGEST_OPTION = 64  # elements of a constant that is an option of an operator
# Slots of the schema's tables.
_MODEL_VERSION, _CODES, _SUBGRAPHS, _DESCRIPTION, _BUFFERS, _METADATA, _SIGNATURES = 0, 1, 2, 3, 4, 6, 7
_TENSORS, _INPUTS, _OUTPUTS, _OPERATORS, _NAME = range(5)
BUILTIN_OPERATORS: tuple[str, ...] = tuple(
    """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
    FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
    LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH
    SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
    BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
    ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
    TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
    LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL
    FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL
    REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND
    HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
    BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
    HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
    ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
    DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
    UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE
    STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
    STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE
    STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
    STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT
    STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
    STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL
    STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE
    STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
    """.split()
)
"""Names of the built-in operators, by code."""

MEDIAPIPE = frozenset({"Convolution2DTransposeBias", "MaxPoolingWithArgmax2D", "MaxUnpooling2D"})
"""Custom operators of MediaPipe that LiteRT itself has no kernels for, and that its XNNPACK delegate runs."""

REGISTERED = frozenset(
    {"AudioSpectrogram", "Mfcc", "NumericVerify", "TFLite_Detection_PostProcess", "aeq.hadamard_rotation"}
)
"""Custom operators that LiteRT has kernels for: ``tflite/core/kernels/register.cc``."""

_TYPES = """
float32:32 float16:16 int32:32 uint8:8 int64:64 string: bool:8 int16:16 complex64:64 int8:8 float64:64 complex128:128
uint64:64 resource: variant: uint32:32 uint16:16 int4:4 bfloat16:16 int2:2 uint4:4 float8_e4m3fn:8 float8_e5m2:8
"""
NUMBER_TYPES: tuple[NumberType, ...] = tuple(
    NumberType(name, int(bits) if bits else None) for name, _, bits in (word.partition(":") for word in _TYPES.split())
)
"""Number types by code; text and handles of resources have no width."""


class TfliteTensor(msgspec.Struct, frozen=True):
    """A tensor of a subgraph."""

    name: str  # the converter's
    dtype: NumberType  # type of its elements
    shape: tuple[int, ...]  # that the file plans with; empty for a scalar
    open_axes: tuple[int, ...]  # dimensions whose size can differ between calls; the shape has 1 or a bound there
    buffer: int  # number of its data
    bytes: int  # of its stored data; 0 for what is computed or set
    quantisation: QuantisationScales  # its scales
    sparse: bool  # its data are stored in a sparse form
    variable: bool  # it keeps its value between calls
    # the stored integers of a short constant, which may be an option of an operator; None for others
    values: tuple[int, ...] | None

    @property
    def constant(self) -> bool:
        """Return whether it is stored with the model."""
        return self.bytes > 0


class TfliteOptions(msgspec.Struct, frozen=True):
    """Options of a built-in operator that its work or its delegation depend on; others have the schema's defaults."""

    activation: str = "NONE"  # fused: `NONE`, `RELU`, `RELU_N1_TO_1`, `RELU6`, `TANH`, `SIGN_BIT`
    same: bool = True  # padding keeps the size divided by the stride; False: there is none
    strides: tuple[int, int] = (1, 1)  # height, width
    dilations: tuple[int, int] = (1, 1)  # height, width
    window: tuple[int, int] = (1, 1)  # height, width of a pooling
    axis: int = 0  # of a concatenation
    keep: bool = False  # the number of dimensions stays
    alpha: float = 0.0  # slope for negative inputs
    beta: float = 1.0  # factor of the inputs of a softmax
    # of a strided slice, a bit for each dimension: begin and end that do not count, dimensions that an ellipsis
    # stands for, that are added, and that are dropped
    masks: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    offset: bool = False  # the end of a strided slice counts from its begin
    subgraphs: tuple[int, ...] = ()  # that control flow runs, or that a composite stands for
    composite: str = ""  # what a composite is


class TfliteOperator(msgspec.Struct, frozen=True):
    """An operator of a subgraph."""

    name: str  # the schema's name of a built-in one, as `CONV_2D`; its own of a custom one
    code: int  # of the schema; 32 for custom ones
    version: int  # of the operator
    inputs: tuple[int, ...]  # numbers of tensors; -1 for one that is left out
    outputs: tuple[int, ...]  # numbers of tensors
    options: TfliteOptions  # of a built-in operator, and of those of MediaPipe

    @property
    def custom(self) -> bool:
        """Return whether it is a custom operator."""
        return self.code == _CUSTOM

    @property
    def flex(self) -> bool:
        """Return whether it is an operator of TensorFlow, which only LiteRT with its Flex delegate runs."""
        return self.custom and self.name.startswith(_FLEX)


class TfliteSubgraph(msgspec.Struct, frozen=True):
    """Tensors and operators, in the order in which they run."""

    name: str
    tensors: tuple[TfliteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[TfliteOperator, ...]


class TfliteSignature(msgspec.Struct, frozen=True):
    """A function that a caller can name."""

    key: str  # its name
    subgraph: int  # that it runs
    inputs: tuple[tuple[str, int], ...]  # name and number of the tensor, in the order of the file
    outputs: tuple[tuple[str, int], ...]


class TfliteModel(msgspec.Struct, frozen=True):
    """A .tflite without the bytes of its weights."""

    version: int  # of the schema
    description: str  # by the converter
    subgraphs: tuple[TfliteSubgraph, ...]  # the first one is the model, others are run by it or named by signatures
    signatures: tuple[TfliteSignature, ...]  # empty in old files
    metadata: tuple[str, ...]  # names of further data


def is_tflite_program(head: bytes) -> bool:
    """Return whether a file starts like a .tflite."""
    return head[IDENTIFIER_OFFSET : IDENTIFIER_OFFSET + len(IDENTIFIER)] == IDENTIFIER


def read_tflite(path: Path) -> TfliteModel:
    """Read a .tflite as a value."""
    data = mapped_file(path)
    if not is_tflite_program(bytes(data[:8])):
        raise not_recognised(path, "not a LiteRT model", _HINT)
    return decode_tflite(data, str(path))


def decode_tflite(data: bytes | memoryview, where: str) -> TfliteModel:
    """Decode a .tflite; ``where`` names it in errors. Raises TraceFormatError if it is damaged."""
    root = FlatBuffer(data, where).root()
    version = numbers(root, _MODEL_VERSION, UINT32)[0]
    if version != VERSION:
        raise root.buffer.error(f"unsupported schema version {version}: opscope reads version {VERSION}")
    buffers = _Buffers(root)
    graphs, _ = nested(root, _SUBGRAPHS)
    if not len(graphs):
        raise root.buffer.error("the model has no subgraph")
    subgraphs = _read_subgraphs(graphs, buffers, _read_operator_codes(root))
    metadata, _ = nested(root, _METADATA)
    return TfliteModel(
        version,
        texts(root, _DESCRIPTION)[0],
        subgraphs,
        _read_signatures(root, subgraphs),
        tuple(texts(metadata, 0)),
    )


class _Buffers:
    """Positions of stored data: inside the FlatBuffer, or after it in files of more than 2 GB."""

    def __init__(self, root: Tables) -> None:
        tables, _ = nested(root, _BUFFERS)
        self._raw = root.buffer
        first, lengths = (part.tolist() for part in tables.vector(0, 1))
        offsets, sizes = numbers(tables, 1, UINT64), numbers(tables, 2, UINT64)
        self.spans = [
            self._check_appended_span(offset, size) if offset > 1 else (start, length)
            for start, length, offset, size in zip(first, lengths, offsets, sizes, strict=True)
        ]

    def size(self, number: int) -> int:
        """Return the bytes of a buffer; 0 for one that does not exist."""
        return self.spans[number][1] if 0 <= number < len(self.spans) else 0

    def integers(self, number: int, dtype: NumberType, count: int) -> tuple[int, ...] | None:
        """Return the integers of a short constant; None for other tensors."""
        kind = {"int32": "<i4", "int64": "<i8"}.get(dtype.name)
        if kind is None or count > _LONGEST_OPTION or self.size(number) != count * np.dtype(kind).itemsize:
            return None
        start, size = self.spans[number]
        values: list[int] = np.frombuffer(self._raw.bytes[start : start + size].tobytes(), kind).tolist()
        return tuple(values)

    def _check_appended_span(self, offset: int, size: int) -> tuple[int, int]:
        if offset + size > self._raw.size:
            raise self._raw.error("a buffer's data extends past the end of the file", offset)
        return offset, size


def _read_operator_codes(root: Tables) -> list[tuple[str, int, int]]:
    """Return name, code and version of each operator that the model uses; old files state the code in a byte."""
    tables, _ = nested(root, _CODES)
    narrow, wide = numbers(tables, 0, UINT8), numbers(tables, 3, INT32)
    # The schema: the larger of both, where the old field is 127 for codes that do not fit.
    codes = [max(old if old <= _MORE_CODES else 0, new) for old, new in zip(narrow, wide, strict=True)]
    versions = [version or 1 for version in numbers(tables, 2, INT32)]
    names = texts(tables, 1)
    return [
        (_operator_name(code, name), code, version) for code, name, version in zip(codes, names, versions, strict=True)
    ]


def _operator_name(code: int, name: str) -> str:
    if code == _CUSTOM:
        return name or "custom"
    return BUILTIN_OPERATORS[code] if 0 <= code < len(BUILTIN_OPERATORS) else f"BUILTIN_{code}"


def _read_subgraphs(
    graphs: Tables, buffers: _Buffers, codes: Sequence[tuple[str, int, int]]
) -> tuple[TfliteSubgraph, ...]:
    columns = zip(texts(graphs, _NAME), vectors(graphs, _INPUTS, INT32), vectors(graphs, _OUTPUTS, INT32), strict=True)
    subgraphs = []
    for row, (name, inputs, outputs) in enumerate(columns):
        tables = graphs.only(row)
        tensors = _read_tensors(nested(tables, _TENSORS)[0], buffers)
        _check_tensor_numbers(tables, inputs, len(tensors), "an input or output of a subgraph")
        _check_tensor_numbers(tables, outputs, len(tensors), "an input or output of a subgraph")
        operators = _read_operators(nested(tables, _OPERATORS)[0], codes, len(tensors), len(graphs))
        subgraphs.append(TfliteSubgraph(name, tensors, inputs, outputs, operators))
    return tuple(subgraphs)


def _check_tensor_numbers(tables: Tables, members: Sequence[int], count: int, role: str, least: int = 0) -> None:
    wrong = next((number for number in members if not least <= number < count), None)
    if wrong is not None:
        raise tables.buffer.error(f"{role} is tensor {wrong} of {count}")


def _read_tensors(tables: Tables, buffers: _Buffers) -> tuple[TfliteTensor, ...]:
    shapes, shape_signatures = vectors(tables, 0, INT32), vectors(tables, 7, INT32)
    scales = _read_quantisations(tables, shapes)
    _, sparse = referred(tables, 6)
    columns = zip(
        texts(tables, 3), numbers(tables, 1, UINT8), numbers(tables, 2, UINT32), numbers(tables, 5, BOOL), strict=True
    )
    thin = set(sparse)
    tensors = []
    for row, (name, code, buffer, variable) in enumerate(columns):
        shape = shapes[row]
        if len(shape) > _MOST_DIMENSIONS or any(size < -1 for size in shape):
            raise tables.buffer.error(f"tensor {row} has an impossible shape", int(tables.at[row]))
        sizes = tuple(max(size, 1) if size < 0 else size for size in shape)
        dtype = NUMBER_TYPES[code] if code < len(NUMBER_TYPES) else NumberType(f"unknown-{code}", None)
        values = buffers.integers(buffer, dtype, math.prod(sizes))
        open_axes = sorted(
            {axis for sizes_of in (shape, shape_signatures[row]) for axis, size in enumerate(sizes_of) if size < 0}
        )
        tensors.append(
            TfliteTensor(
                name,
                dtype,
                sizes,
                tuple(open_axes),
                buffer,
                buffers.size(buffer),
                scales[row],
                row in thin,
                variable,
                values,
            )
        )
    return tuple(tensors)


def _read_quantisations(tables: Tables, shapes: Sequence[tuple[int, ...]]) -> list[QuantisationScales]:
    """Return the quantisation scales of tensors; those of blocks are a tensor of their own."""
    quantisation_scales = [QuantisationScales(QuantisationKind.NONE)] * len(tables)
    parameters, rows = referred(tables, 4)
    blocks = {
        row: math.prod(shapes[tensor][:_MOST_DIMENSIONS]) if 0 <= tensor < len(shapes) else 0
        for member in union(parameters, _DETAILS)
        if member.number == _BLOCKWISE
        for row, tensor in zip(member.rows, numbers(member.tables, 0, INT32), strict=True)
    }
    columns = zip(
        rows,
        vectors(parameters, 2, FLOAT32),
        vectors(parameters, 3, INT64),
        numbers(parameters, 4, UINT8),
        numbers(parameters, 6, INT32),
        strict=True,
    )
    for index, (row, scales, zeros, details, channel) in enumerate(columns):
        if details:
            count = blocks.get(index, len(scales))
            quantisation_scales[row] = QuantisationScales(QuantisationKind.PER_CHANNEL_GROUP, max(0, count), channel)
        elif len(scales) == 1:
            quantisation_scales[row] = QuantisationScales(
                QuantisationKind.PER_TENSOR, scale=scales[0], zero_point=zeros[0] if zeros else 0
            )
        elif scales:
            quantisation_scales[row] = QuantisationScales(QuantisationKind.PER_CHANNEL, len(scales), channel)
    return quantisation_scales


def _read_operators(
    tables: Tables, codes: Sequence[tuple[str, int, int]], tensors: int, graphs: int
) -> tuple[TfliteOperator, ...]:
    inputs, outputs = vectors(tables, 1, INT32), vectors(tables, 2, INT32)
    options = _read_options(tables)
    custom_options = vectors(tables, 5, UINT8) if any(name in MEDIAPIPE for name, _, _ in codes) else ()
    operators = []
    for row, code in enumerate(numbers(tables, 0, UINT32)):
        if code >= len(codes):
            raise tables.buffer.error(f"operator {row} has code {code} of {len(codes)}", int(tables.at[row]))
        _check_tensor_numbers(tables, inputs[row], tensors, f"an input of operator {row}", -1)
        _check_tensor_numbers(tables, outputs[row], tensors, f"an output of operator {row}")
        if any(not 0 <= graph < graphs for graph in options[row].subgraphs):
            raise tables.buffer.error(f"operator {row} runs a missing subgraph", int(tables.at[row]))
        tflite_options = (
            _decode_mediapipe_options(bytes(custom_options[row])) if codes[code][0] in MEDIAPIPE else options[row]
        )
        operators.append(TfliteOperator(*codes[code], inputs[row], outputs[row], tflite_options))
    return tuple(operators)


_ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
# Number of the options in the schema's union, and the slot of each field. Pairs are height and width.
_FIELDS: dict[int, dict[str, int | tuple[int, ...]]] = {
    1: {"same": 0, "strides": (2, 1), "activation": 3, "dilations": (5, 4)},
    2: {"same": 0, "strides": (2, 1), "activation": 4, "dilations": (6, 5)},
    5: {"same": 0, "strides": (2, 1), "window": (4, 3), "activation": 5},
    8: {"activation": 0, "keep": 2},
    9: {"beta": 0},
    10: {"axis": 0, "activation": 1},
    11: {"activation": 0},
    21: {"activation": 0},
    27: {"keep": 0},
    28: {"activation": 0},
    29: {"activation": 0},
    32: {"masks": (0, 1, 2, 3, 4), "offset": 5},
    49: {"same": 0, "strides": (2, 1), "activation": 3},
    75: {"alpha": 0},
    92: {"subgraphs": (0, 1)},
    93: {"subgraphs": (0, 1)},
    103: {"subgraphs": (0, 0)},
}


_FURTHER_OPTIONS, _COMPOSITE = 11, 21
"""Slot of the union with the options of later operators, and the number of a composite's options in it."""


def _read_options(tables: Tables) -> list[TfliteOptions]:
    options = [TfliteOptions()] * len(tables)
    for kind, rows, members in union(tables, 3):
        fields = _FIELDS.get(kind)
        if fields is None:
            continue
        columns = {name: _read_option(members, name, slots) for name, slots in fields.items()}
        for index, row in enumerate(rows):
            values = {name: column[index] for name, column in columns.items()}
            options[row] = msgspec.convert(values, TfliteOptions)
    for kind, rows, members in union(tables, _FURTHER_OPTIONS):
        if kind == _COMPOSITE:
            for row, name, graph in zip(rows, texts(members, 0), numbers(members, 1, INT32), strict=True):
                options[row] = TfliteOptions(subgraphs=(graph,), composite=name)
    return options


def _decode_mediapipe_options(data: bytes) -> TfliteOptions:
    """Decode the options of MediaPipe's operators.

    They are the C structures ``TfLiteTransposeConvParams`` and ``TfLitePoolParams`` of LiteRT.

    Both begin with padding (1 for SAME), and the stride's width and height; of a pooling the window's follow.
    """
    padded = data[: len(data) // 4 * 4].ljust(_PARAMETERS.size, b"\0")
    padding, across, down, width, height = _PARAMETERS.unpack_from(padded)
    return TfliteOptions(same=padding == 1, strides=(max(down, 1), max(across, 1)), window=(height, width))


_PARAMETERS = struct.Struct("<5i")


def _read_option(members: Tables, name: str, slots: int | tuple[int, ...]) -> Sequence[object]:
    """Return an option of all operators, one value each."""
    if isinstance(slots, tuple):
        return _read_numbers_option(members, name, slots)
    if name == "activation":
        codes = numbers(members, slots, UINT8)
        return [_ACTIVATIONS[code] if code < len(_ACTIVATIONS) else f"unknown-{code}" for code in codes]
    if name == "same":
        return [code == 0 for code in numbers(members, slots, UINT8)]
    if name in {"alpha", "beta"}:
        return numbers(members, slots, FLOAT32)
    if name == "axis":
        return numbers(members, slots, INT32)
    return numbers(members, slots, BOOL)


def _read_numbers_option(members: Tables, name: str, slots: tuple[int, ...]) -> Sequence[object]:
    """Return an option of several numbers for all operators; strides of 0 in a damaged file become 1."""
    both = zip(*(numbers(members, slot, INT32) for slot in slots), strict=True)
    return list(both) if name in {"window", "subgraphs", "masks"} else [(max(a, 1), max(b, 1)) for a, b in both]


def _read_signatures(root: Tables, subgraphs: Sequence[TfliteSubgraph]) -> tuple[TfliteSignature, ...]:
    tables, _ = nested(root, _SIGNATURES)
    columns = zip(texts(tables, 2), numbers(tables, 4, UINT32), strict=True)
    signatures = []
    for row, (key, graph) in enumerate(columns):
        if graph >= len(subgraphs):
            raise root.buffer.error(f"signature {key!r} runs subgraph {graph} of {len(subgraphs)}")
        signature, count = tables.only(row), len(subgraphs[graph].tensors)
        signatures.append(
            TfliteSignature(
                key, graph, _read_named_tensors(signature, 0, count), _read_named_tensors(signature, 1, count)
            )
        )
    return tuple(signatures)


def _read_named_tensors(signature: Tables, slot: int, count: int) -> tuple[tuple[str, int], ...]:
    maps, _ = nested(signature, slot)
    members = numbers(maps, 1, UINT32)
    _check_tensor_numbers(signature, members, count, "an input or output of a signature")
    return tuple(zip(texts(maps, 0), members, strict=True))
