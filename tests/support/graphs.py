"""XNNPACK graphs written by hand, as lines of text.

    input  x  fp32 1x8x8x4
    const  w  fp32 16x3x3x4
    a fp32 1x8x8x16 = Conv2d x w
    b fp32 1x8x8x16 = Clamp a min=0 max=6 handle=3
    output b

A line defines a value, or a node with its one output; nodes are numbered in order. ``scale=`` gives a value one scale
with zero point 0, ``place=`` an argument its place in the call. Convolutions are 3x3 with a border unless ``window=``
says otherwise.
"""

from __future__ import annotations

from opscope.program.structure.dtypes import NumberType
from opscope.program.xnnpack import graph as program
from opscope.program.xnnpack.graph import QuantisationKind, QuantisationScales, XnnGraph, XnnNode, XnnValue

_BITS = {"fp32": 32, "int32": 32, "fp16": 16, "bf16": 16, "qcint4": 4, "qbint4": 4}
_NUMBERS = {"Conv2d": 7, "Clamp": 6}


def graph(text: str) -> XnnGraph:
    """The graph of a description."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    outputs = {name for word, *names in lines if word == "output" for name in names}
    ids: dict[str, int] = {}
    values, nodes = [], []
    for words in lines:
        if words[0] == "output":
            continue
        role = words.pop(0) if words[0] in {"input", "const"} else ""
        name, dtype, dims, *rest = words
        ids[name] = len(ids)
        options = dict(word.split("=") for word in rest if "=" in word and word != "=")
        values.append(_value(ids[name], dtype, dims, role, name in outputs, options))
        if "=" in rest:
            kind, *inputs = [word for word in rest[1:] if "=" not in word]
            nodes.append(_node(kind, tuple(ids[i] for i in inputs), ids[name], options))
    external = [tuple(v.id for v in values if v.external_input), tuple(v.id for v in values if v.external_output)]
    return XnnGraph("XN01", "1", tuple(values), tuple(nodes), *external, (), 0)


def _value(number: int, dtype: str, dims: str, role: str, output: bool, options: dict[str, str]) -> XnnValue:
    bits = _BITS.get(dtype, 8)
    scaled = "scale" in options
    kind = QuantisationKind.PER_TENSOR if scaled else QuantisationKind.NONE
    return XnnValue(
        id=number,
        dtype=NumberType(dtype, bits),
        dims=tuple(int(d) for d in dims.split("x")),
        external_input=role == "input",
        external_output=output,
        constant=number + 1 if role == "const" else 0,
        quantisation=QuantisationScales(kind, scale=0.1, zero_point=0) if scaled else QuantisationScales(kind),
        external_id=int(options["place"]) if "place" in options else None,
    )


def _node(kind: str, inputs: tuple[int, ...], output: int, options: dict[str, str]) -> XnnNode:
    return XnnNode(
        kind=kind,
        number=_NUMBERS.get(kind, 99),
        debug_handle=int(options.get("handle", 1)),
        inputs=inputs,
        outputs=(output,),
        output_min=float(options["min"]) if "min" in options else None,
        output_max=float(options["max"]) if "max" in options else None,
        flags=0,
        attributes=_attributes(kind, options),
    )


def _attributes(kind: str, options: dict[str, str]) -> program.Attributes | None:
    def numbers(key: str) -> tuple[int, ...]:
        return tuple(int(n) for n in options.get(key, "0").split(","))

    if kind in {"Conv2d", "DepthwiseConv2d", "ConvTranspose2d"}:
        window = int(options.get("window", 3))
        border = window // 2
        groups, inputs, outputs = (int(options.get(key, default)) for key, default in _GROUPS)
        return program.Convolution(*[border] * 4, window, window, 1, 1, 1, 1, inputs, outputs, groups, 0, 0)
    made: dict[str, program.Attributes] = {
        "AvgPooling2d": program.Pooling(0, 0, 0, 0, 2, 2, 2, 2, 1, 1),
        "MaxPooling2d": program.Pooling(0, 0, 0, 0, 2, 2, 2, 2, 1, 1),
        "StaticTranspose": numbers("perm"),
        "StaticReshape": numbers("shape"),
        "StaticConstantPad": program.Padding(numbers("before"), numbers("after"), 0.0),
        "StaticSlice": program.Slicing(numbers("at"), numbers("size")),
    }
    return made.get(kind)


_GROUPS = (("groups", 1), ("in", 4), ("out", 4))
