"""What XNNPACK calls its operators in events, and what a name tells about the tensors.

Source: ``xnn_operator_type_to_string`` of the XNNPACK (2026) in ExecuTorch 1.5.1, and the names that its runtime puts
on profiling events: operator, layout and number types in brackets, algorithm, and ``#k`` for the k-th of that name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from opscope.program.xnnpack.subgraph import CONCATENATE, LUT, MEAN_SQUARED, PACKED_CONVERT, SUM_SQUARED

_OWN = """
Abs Add Ceiling Clamp Convert Copy ELU Exp Floor LeakyReLU Log Maximum Minimum Multiply Negate PReLU Sigmoid
Softmax Square Subtract
""".split()
# Where weights are sparse and the processor has kernels for them, products of pixels run as convolutions of planes.
_SPARSE = "Convolution SPMM"
OPERATORS: dict[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in _OWN},
    "ArgMaxPooling2d": ("ArgMax Pooling",),
    "AvgPooling2d": ("Average Pooling",),
    "BankersRounding": ("Bankders Rounding", "Bankers Rounding"),
    "BatchMatrixMultiply": ("Batch Matrix Multiply",),
    CONCATENATE: ("Copy", "Concatenate"),
    "ConvTranspose2d": ("Deconvolution",),
    "Conv2d": ("Convolution", _SPARSE),
    "Cos": ("Cosine",),
    "DepthToSpace2D": ("Depth To Space",),
    "DepthwiseConv2d": ("Convolution",),
    "Div": ("Divide",),
    "EvenSplit": ("Copy",),
    "FullyConnected": ("Fully Connected", "Dynamic Fully Connected", _SPARSE),
    "Gelu": ("GELU", "ApproxGELU"),
    "GlobalAvgPooling2d": ("Mean", "Global Average Pooling"),
    "Hardswish": ("HardSwish",),
    LUT: ("Invalid Unary Op",),
    "MaxPooling2d": ("Max Pooling",),
    MEAN_SQUARED: ("Mean Squared",),
    SUM_SQUARED: ("Normalize", "Sum Squared"),
    PACKED_CONVERT: ("Convert",),
    "ReciprocalSquareRoot": ("Reciprocal Square Root",),
    "Sin": ("Sine",),
    "SpaceToDepth2D": ("Space To Depth",),
    "SquareRoot": ("Square Root",),
    "SquaredDifference": ("Squared Difference",),
    "StaticConstantPad": ("Constant Pad",),
    "StaticReduceMax": ("Reduce Max",),
    "StaticReduceMin": ("Reduce Min",),
    "StaticReshape": ("Static Reshape", "Copy"),
    "StaticResizeBilinear2D": ("Resize Bilinear",),
    "StaticSlice": ("Slice",),
    "StaticSum": ("Sum",),
    "StaticTranspose": ("Transpose",),
    "Tanh": ("TanH",),
    "Unpooling2d": ("Unpooling",),
}
"""Names by which an event of a node kind may go, the present one first."""

_FORM = re.compile(r"(?P<operator>[^(#]+?)(?: \((?P<tags>[^)#]*)\).*| #\d+)?\s*\Z", re.DOTALL)
_FLOATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


class EventName(NamedTuple):
    """The parts of an event's name."""

    operator: str  # XNNPACK's, compared without case and blanks, which changed between versions
    width: int | None  # bits of the elements that are moved; None where the name does not say
    floats: frozenset[str]  # number types that its tensors must have, by XNNPACK's names


_SPARSE_END = re.compile(r"\) SPMM(?: #\d+)?\s*\Z")


def is_sparse_product(name: str) -> bool:
    """Whether an event is of a kernel for sparse weights, by its name as recorded."""
    return _SPARSE_END.search(name) is not None


@lru_cache(maxsize=4096)
def event_name(name: str) -> EventName:
    """The parts of a name as recorded; of a name in no known form everything is the operator."""
    form = _FORM.match(name)
    if form is None:
        return EventName(folded(name), None, frozenset())
    tags = [tag.strip() for tag in (form["tags"] or "").split(",")]
    widths = [int(tag[1:]) for tag in tags if re.fullmatch(r"X\d{1,3}", tag)]
    floats = {_FLOATS[part] for tag in tags for part in tag.removeprefix("P").split("_") if part in _FLOATS}
    operator = _SPARSE if is_sparse_product(name) else form["operator"]
    return EventName(folded(operator), widths[0] if widths else None, frozenset(floats))


def folded(operator: str) -> str:
    """An operator's name without case and blanks."""
    return "".join(operator.split()).casefold()


_FOLDED = {kind: frozenset(map(folded, names)) for kind, names in OPERATORS.items()}


def can_be(kind: str, operator: str) -> bool:
    """Whether an event of this folded operator can come from a node of this kind."""
    return operator in _FOLDED.get(kind, ())
