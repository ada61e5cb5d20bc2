"""Where the fields of XNNPACK's node types stand: union numbers and slots as tables.

Source: ``backends/xnnpack/serialization/runtime_schema.fbs`` of ExecuTorch 1.5.1 (identifier XN01), which agrees with
``schema.fbs`` (XN00) in every slot that is read here. Both only ever append, so an older payload lacks the last slots
and a newer one has types that are not listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.program import xnn_graph as program
from opscope.read.fields import FLOAT32, UINT32, Number, numbers, vectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.read.flatbuffer import Tables


class Field(NamedTuple):
    """An attribute: its slot, the type of its numbers, and whether it is a vector of them."""

    slot: int
    number: Number[int] | Number[float] = UINT32
    vector: bool = False

    def column(self, tables: Tables) -> list[Any]:
        """The attribute of every table: a number or a tuple of them."""
        read: Callable[[Tables, int, Number[Any]], list[Any]] = vectors if self.vector else numbers
        return read(tables, self.slot, self.number)


class Layout(NamedTuple):
    """Slots of one node type.

    Attributes:
        inputs: ids of inputs.
        outputs: ids of outputs.
        flags: the flags.
        attributes: what holds the attributes, None for none.
        fields: the attributes, in the order of that type's fields.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    flags: int
    attributes: Callable[..., program.Attributes] | None = None
    fields: tuple[Field, ...] = ()

    def read_attributes(self, tables: Tables) -> list[program.Attributes | None]:
        """The attributes of every table."""
        if self.attributes is None:
            return [None] * len(tables)
        rows = zip(*(field.column(tables) for field in self.fields), strict=True)
        return [self.attributes(*row) for row in rows]


def _first(count: int) -> tuple[Field, ...]:
    return tuple(Field(slot) for slot in range(count))


def _concatenate(count: int) -> Layout:
    """The fifth input was appended behind the flags."""
    return Layout((1, 2, 3, 4, 7)[:count], (5,), 6, program.Concatenation, _first(1))


_UNARY = Layout((0,), (1,), 2)
_BINARY = Layout((0, 1), (2,), 3)
_CONVOLUTION = Layout((15, 16, 17), (18,), 19, program.Convolution, _first(15))
_POOLING = Layout((10,), (11,), 12, program.Pooling, _first(10))
_ARGMAX = Layout((6,), (7, 8), 9, program.ArgMaxPooling, _first(6))
_SLOPE = Layout((1,), (2,), 3, program.Slope, (Field(0, FLOAT32),))
_TRANSPOSE = Layout((2,), (3,), 4, program.Transposition, (Field(1, vector=True),))
_RESIZE = Layout((2,), (3,), 4, program.Resizing, _first(2))
_PAD = Layout(
    (3,), (4,), 5, program.Padding, (Field(0, vector=True), Field(1, vector=True), Field(2, FLOAT32))
)  # fmt: skip
_RESHAPE = Layout((2,), (3,), 4, program.Reshaping, (Field(1, vector=True),))
_SLICE = Layout((3,), (4,), 5, program.Slicing, (Field(1, vector=True), Field(2, vector=True)))
_FULLY_CONNECTED = Layout((0, 1, 2), (3,), 4)
_ATTENTION = Layout((0, 1, 2, 3, 4), (5,), 6)

# XNodeUnion
NODES: dict[int, tuple[str, Layout]] = {
    1: ("Add", _BINARY),
    2: ("FullyConnected", _FULLY_CONNECTED),
    3: ("Softmax", _UNARY),
    4: ("Sigmoid", _UNARY),
    5: ("StaticTranspose", _TRANSPOSE),
    6: ("Clamp", _UNARY),
    7: ("Conv2d", _CONVOLUTION),
    8: ("Div", _BINARY),
    9: ("StaticResizeBilinear2D", _RESIZE),
    10: ("StaticConstantPad", _PAD),
    11: ("AvgPooling2d", _POOLING),
    12: ("Minimum", _BINARY),
    13: ("DepthwiseConv2d", _CONVOLUTION),
    14: ("MaxPooling2d", _POOLING),
    15: ("Multiply", _BINARY),
    16: ("Subtract", _BINARY),
    17: ("Floor", _UNARY),
    18: ("Convert", _UNARY),
    19: ("GlobalAvgPooling2d", _UNARY),
    20: ("StaticReshape", _RESHAPE),
    21: ("ArgMaxPooling2d", _ARGMAX),
    22: ("SquareRoot", _UNARY),
    23: ("Ceiling", _UNARY),
    24: ("Hardswish", _UNARY),
    25: ("LeakyReLU", _SLOPE),
    26: ("Maximum", _BINARY),
    27: ("Negate", _UNARY),
    28: ("Square", _UNARY),
    29: ("ELU", _SLOPE),
    30: ("Abs", _UNARY),
    31: ("PReLU", _BINARY),
    32: ("Concatenate2", _concatenate(2)),
    33: ("Concatenate3", _concatenate(3)),
    34: ("Concatenate4", _concatenate(4)),
    35: ("StaticSlice", _SLICE),
    36: ("ScaledDotProductAttention", _ATTENTION),
    37: ("BatchMatrixMultiply", _BINARY),
    38: ("Concatenate5", _concatenate(5)),
    39: ("ConvTranspose2d", _CONVOLUTION),
    40: ("ReciprocalSquareRoot", _UNARY),
    41: ("Log", _UNARY),
    42: ("Gelu", _UNARY),
    43: ("Tanh", _UNARY),
    44: ("Exp", _UNARY),
    45: ("Sin", _UNARY),
    46: ("Copy", _UNARY),
    47: ("Cos", _UNARY),
}
