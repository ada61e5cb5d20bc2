"""Probes of operators without multiply-accumulates, their data in cache: what arithmetic alone allows.

One graph holds an operator many times, always on the same memory, so that calling the library does not show.
"""

from __future__ import annotations

import math
from ctypes import c_size_t
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.ceilings.ceilings import ElementCeiling, operator_name
from opscope.runtimes.ceilings.sampler import Probe, ProbeCandidate
from opscope.runtimes.executorch.ceilings.subgraph import Buffer
from opscope.runtimes.executorch.ceilings.xnnpack import Datatype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opscope.runtimes.executorch.ceilings.subgraph import SubgraphBuilder

_DATATYPES = {"f32": Datatype.FP32, "f16": Datatype.FP16, "qs8": Datatype.QINT8}
# Elements for each thread: the first fit into the smallest cache with three tensors, the second with two.
_ELEMENTS = (2_048, 4_096, 16_384)
_AT_ONCE = 1 << 18
_ROW = 512
_MEAN_IMAGE = (16, 16)
_WIDEST = 4
_MEAN, _APPROXIMATE_GELU = 2, 1
_HEIGHT_AND_WIDTH = (c_size_t * 2)(1, 2)

# XNNPACK's operator -> the function that defines it, and its arguments before the values.
_UNARY: dict[str, tuple[str, tuple[float | None, ...]]] = {
    "Softmax": ("xnn_define_softmax", ()),
    "Sigmoid": ("xnn_define_sigmoid", ()),
    "TanH": ("xnn_define_tanh", ()),
    "GELU": ("xnn_define_gelu", ()),
    "ApproxGELU": ("xnn_define_unary", (_APPROXIMATE_GELU, None)),
    "HardSwish": ("xnn_define_hardswish", ()),
    "ELU": ("xnn_define_elu", (1.0,)),
    "Clamp": ("xnn_define_clamp", (0.25, 0.75)),
    "Exp": ("xnn_define_exp", ()),
    "Log": ("xnn_define_log", ()),
    "Square": ("xnn_define_square", ()),
    "Square Root": ("xnn_define_square_root", ()),
    "Reciprocal Square Root": ("xnn_define_reciprocal_square_root", ()),
}
_BINARY = {
    "Add": "xnn_define_add2",
    "Subtract": "xnn_define_subtract",
    "Multiply": "xnn_define_multiply2",
    "Divide": "xnn_define_divide",
}
_FREE = (-math.inf, math.inf)
_ALSO_QUANTISED = ("Add", "Clamp", "HardSwish", "Multiply", "Sigmoid", "TanH")
# XNNPACK leaves the output of an elementwise operator in the place of its input where it can, which halves the traffic.
# Probes of the cheap ones do the same; that their data become constant after some runs does not change their time.
_IN_PLACE = ("Add", "Clamp", "HardSwish", "Multiply", "Square", "Subtract")
_CONVERSIONS = (("f32", "f16"), ("f16", "f32"), ("f32", "qs8"), ("qs8", "f32"))


class _Operator(NamedTuple):
    """An operator: number types and shapes of its tensors, and how it is added to a graph, output last."""

    ceiling: ElementCeiling
    types: tuple[Datatype, Datatype]
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    define: Callable[[SubgraphBuilder, list[int]], None]
    in_place: bool


def element_probes(threads: int) -> Iterator[Probe[SubgraphBuilder]]:
    """Every function in every number type that XNNPACK's API has for it."""
    counts = [count * threads for count in _ELEMENTS]
    for function in (*_UNARY, *_BINARY):
        for dtype in ("f32", "f16", "qs8") if function in _ALSO_QUANTISED else ("f32", "f16"):
            candidates = [_elementwise(function, dtype, dtype, count) for count in counts]
            yield _probe(function, [*candidates, _with_scalar(candidates[-1])] if function in _BINARY else candidates)
    for source, target in _CONVERSIONS:
        found = [_elementwise(f"Convert to {target}", source, target, count) for count in counts]
        yield _probe("Convert", found)
    for dtype in _DATATYPES:
        yield _probe("Mean", [_mean(dtype, count) for count in counts])


def _probe(operator: str, candidates: list[_Operator]) -> Probe[SubgraphBuilder]:
    return Probe([_candidate(candidate) for candidate in candidates], lambda name: operator_name(name) == operator)


def _elementwise(function: str, source: str, target: str, count: int) -> _Operator:
    dims = (count // _ROW, _ROW)
    ceiling = ElementCeiling(function=function, dtype=source, shape=str(list(dims)))
    types = _DATATYPES[source], _DATATYPES[target]
    inputs = (dims,) * (2 if function in _BINARY else 1)
    return _Operator(ceiling, types, inputs, dims, _defining(function), function in _IN_PLACE)


def _with_scalar(operator: _Operator) -> _Operator:
    """The same with a single number as the second input, which leaves one tensor to read."""
    ceiling = msgspec.structs.replace(operator.ceiling, shape=f"{operator.ceiling.shape} and [1, 1]")
    return operator._replace(ceiling=ceiling, inputs=(operator.inputs[0], (1, 1)))


def _defining(function: str) -> Callable[[SubgraphBuilder, list[int]], None]:
    if function in _BINARY:
        return lambda graph, values: graph.define(_BINARY[function], *_FREE, *values, 0)
    name, before = _UNARY.get(function, ("xnn_define_convert", ()))
    return lambda graph, values: graph.define(name, *before, *values, 0)


def _mean(dtype: str, count: int) -> _Operator:
    height, width = _MEAN_IMAGE
    dims = (1, height, width, count // height // width)
    ceiling = ElementCeiling(function="Mean", dtype=dtype, shape=str(list(dims)))
    types = _DATATYPES[dtype], _DATATYPES[dtype]

    def define(graph: SubgraphBuilder, values: list[int]) -> None:
        graph.define("xnn_define_static_reduce", _MEAN, len(_HEIGHT_AND_WIDTH), _HEIGHT_AND_WIDTH, *values, 0)

    return _Operator(ceiling, types, (dims,), (1, dims[-1]), define, in_place=False)


def _candidate(operator: _Operator) -> ProbeCandidate[SubgraphBuilder]:
    """The operator many times on the same memory; elements are those of its first input."""
    count = math.prod(operator.inputs[0])
    times = max(1, _AT_ONCE // count)

    def build(graph: SubgraphBuilder) -> None:
        source, target = operator.types
        given = [(dims, graph.random(source, dims)) for dims in operator.inputs]
        left = given[0][1] if operator.in_place else Buffer(count * _WIDEST)
        for _ in range(times):
            values = [graph.external(source, dims, memory=memory) for dims, memory in given]
            values.append(graph.external(target, operator.output, output=True, memory=left))
            operator.define(graph, values)

    return ProbeCandidate(operator.ceiling, count * times, build)
