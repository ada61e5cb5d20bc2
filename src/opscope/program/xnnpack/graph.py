"""The graph that XNNPACK is given: values and nodes of a delegate's payload.

Node types have the names of the schema without their prefix: ``Conv2d`` is ``XNNConv2d`` there. Attributes have
the names of the schema's fields. Dimensions of images are in the order N, H, W, C.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from opscope.program.structure.dtypes import NumberType

NO_HANDLE = 65535  # the debug handle of nodes that the partitioner added, which no source operator caused
UNKNOWN = "unknown"


class QuantisationKind(str, enum.Enum):
    """Scheme by which integers of a value stand for real numbers."""

    NONE = "none"
    PER_TENSOR = "per tensor"
    PER_CHANNEL = "per channel"
    PER_CHANNEL_GROUP = "per channel group"
    PER_TOKEN = "per token"  # noqa: S105 - rows of a tensor, no secret
    UNKNOWN = "unknown"


class QuantisationScales(msgspec.Struct, frozen=True):
    """Scales of a value."""

    kind: QuantisationKind  # how many values share a scale. Per token means at run time, from the data
    scales: int = 0  # number of stored scales; 0 for one per tensor, which stands here, and for those of run time
    channel: int | None = None  # dimension along which scales differ; None where they do not
    scale: float | None = None  # the scale of a whole tensor; None for the other kinds
    zero_point: int | None = None  # the integer that stands for zero of a whole tensor; None for the other kinds


class XnnValue(msgspec.Struct, frozen=True):
    """A tensor of the graph."""

    id: int  # the number by which nodes refer to it
    dtype: NumberType  # type of its elements
    dims: tuple[int, ...]  # its shape
    external_input: bool  # the caller sets it
    external_output: bool  # the caller gets it
    constant: int  # number of its data, 0 for a value that is computed or set
    quantisation: QuantisationScales  # its scales
    external_id: int | None = None  # its place among what the caller sets and gets; None for the others

    @property
    def is_constant(self) -> bool:
        """Return whether it is a weight, a bias or another number that is stored with the model."""
        return self.constant > 0

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its elements without scales; None if their width is unknown."""
        return self.dtype.bytes_of(self.dims)


class Convolution(msgspec.Struct, frozen=True, tag=True):
    """Attributes of Conv2d, DepthwiseConv2d and ConvTranspose2d; subsampling is the stride."""

    padding_top: int
    padding_right: int
    padding_bottom: int
    padding_left: int
    kernel_height: int
    kernel_width: int
    subsampling_height: int
    subsampling_width: int
    dilation_height: int
    dilation_width: int
    group_input_channels: int
    group_output_channels: int
    groups: int
    adjustment_height: int
    adjustment_width: int


class Pooling(msgspec.Struct, frozen=True, tag=True):
    """Attributes of AvgPooling2d, MaxPooling2d and ArgMaxPooling2d; that has no stride, which is the window."""

    padding_top: int
    padding_right: int
    padding_bottom: int
    padding_left: int
    pooling_height: int
    pooling_width: int
    stride_height: int = 0
    stride_width: int = 0
    dilation_height: int = 0
    dilation_width: int = 0


class Resizing(msgspec.Struct, frozen=True, tag=True):
    """Attributes of StaticResizeBilinear2D."""

    new_height: int
    new_width: int


class Padding(msgspec.Struct, frozen=True, tag=True):
    """Attributes of StaticConstantPad: elements before and after each dimension, and their value."""

    pre_paddings: tuple[int, ...]
    post_paddings: tuple[int, ...]
    padding_value: float


class Slicing(msgspec.Struct, frozen=True, tag=True):
    """Attributes of StaticSlice, for each dimension; size 0 means up to the end."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


Attributes: TypeAlias = Convolution | Pooling | Resizing | Padding | Slicing | tuple[int, ...] | int | float
"""Attributes of a node. Of kinds with a single one it is the value:

- StaticTranspose: for each dimension of the output, that of the input;
- StaticReshape: the new shape, in which 0 is a dimension that is taken from the input;
- Concatenate2 to Concatenate5: the axis;
- ELU and LeakyReLU: the factor for negative inputs.
"""


class XnnNode(msgspec.Struct, frozen=True):
    """An operator of the graph."""

    kind: str  # its type without the prefix XNN; `unknown` for one that is newer than this version
    number: int  # number of the type in the schema's union; new ones are appended, so it identifies an unknown one
    debug_handle: int  # number of the operator in the exporter's graph that it computes, or `NO_HANDLE`
    inputs: tuple[int, ...]  # ids of its inputs in the order of the schema (data, filter, bias), absent ones left out
    outputs: tuple[int, ...]  # ids of its outputs
    output_min: float | None  # lower bound of a fused activation; None when there is none
    output_max: float | None  # its upper bound
    flags: int  # of the schema, as they are
    attributes: Attributes | None  # sizes and options; None for types without any


class ConstantData(msgspec.Struct, frozen=True):
    """Position of a constant."""

    offset: int | None  # from the start of the payload's constants; None for data that are found by a key
    size: int  # in bytes; 0 where the file does not say
    key: str  # of named data; empty for data inside the payload


class XnnGraph(msgspec.Struct, frozen=True):
    """The payload of one delegate."""

    identifier: str  # `XN01`, or `XN00` with the weights inside the graph
    version: str  # of the schema, as the payload states it
    values: tuple[XnnValue, ...]  # tensors, in the order of the file
    nodes: tuple[XnnNode, ...]  # operators, in the order in which they are defined
    inputs: tuple[int, ...]  # ids of the values that the caller sets
    outputs: tuple[int, ...]  # ids of the values that the caller gets
    # where constants stand; number 0 is reserved. Empty when they are inside the graph
    constants: tuple[ConstantData, ...]
    unknown_values: int  # number of values of a kind newer than this version, which are left out

    def arguments(self) -> tuple[int, ...]:
        """Return values in the order of a call's arguments: what the caller sets, then what it gets.

        Source: ``backends/xnnpack/runtime/XNNExecutor.cpp`` of ExecuTorch 1.5.1, which sorts both.
        """
        positions = {value.id: value.external_id for value in self.values}

        def order(name: int) -> tuple[bool, int]:
            known = positions.get(name)
            return known is None, known or 0

        return (*sorted(self.inputs, key=order), *sorted(self.outputs, key=order))

    def by_id(self) -> dict[int, XnnValue]:
        """Return the values by the number that nodes use."""
        return {value.id: value for value in self.values}


class DelegateGraph(msgspec.Struct, frozen=True):
    """A delegate of a method with its graph."""

    method: str  # name of the method
    delegate: int  # its number among the delegates of the method
    instructions: tuple[int, ...]  # numbers of the instructions that call it
    graph: XnnGraph  # what it computes
