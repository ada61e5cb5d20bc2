"""Probes of memory and of the fixed cost of an operator: passing over many sizes, and operators of a few numbers.

XNNPACK's own operators pass over the memory, in its own threads: what they reach is what operators can reach.
"""

from __future__ import annotations

import math
from ctypes import c_size_t
from typing import TYPE_CHECKING

from opscope.program.ceilings.ceilings import (
    Dispatch,
    DispatchCost,
    KernelClass,
    KernelUse,
    MemoryCeiling,
    Pattern,
    kernel_use,
    operator_name,
)
from opscope.runtimes.ceilings.sampler import Probe, ProbeCandidate
from opscope.runtimes.executorch.ceilings.subgraph import ABSENT, Buffer
from opscope.runtimes.executorch.ceilings.xnnpack import Datatype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.runtimes.executorch.ceilings.subgraph import SubgraphBuilder

_SMALLEST_SET, _LARGEST_SET = 1 << 15, 1 << 28
_SHARE_OF_MEMORY = 8
# Sizes of weights: from beyond the smallest caches to beyond the last one of most machines. Each is made and packed.
_SMALLEST_WEIGHTS, _LARGEST_WEIGHTS, _WEIGHTS_APART = 1 << 18, 1 << 26, 4
_PRODUCT, _INPUTS = 1 << 20, 512
_FREE = (-math.inf, math.inf)
_AT_ONCE = 1 << 21
_WIDTH = Datatype.FP32.bits // 8
_ROWS = 8
# Tensors that begin at the same place of a page slow each other down.
_APART = 192
_TINY = 16
_TINY_AT_ONCE = 128
_SUM = 0
_BOUNDS = (-1.0, 1.0)
_LAST_AXIS = (c_size_t * 1)(1)


def largest_working_set(memory: int) -> int:
    """Bytes of the largest working set on a machine with so much memory: 256 MiB, or an eighth of it."""
    return min(_LARGEST_SET, memory // _SHARE_OF_MEMORY)


def memory_probes(threads: int, largest: int) -> Iterator[Probe[SubgraphBuilder]]:
    """Copies, sums and updates over working sets from 32 KiB on, each twice the one before."""
    arena, sums = Buffer(largest + _APART), Buffer(_WIDTH * _ROWS * threads)
    size = _SMALLEST_SET
    while size <= largest:
        yield Probe([_copy(arena, size)], lambda name: operator_name(name) == "Copy")
        yield Probe([_sum(arena, sums, size, _ROWS * threads)], lambda name: operator_name(name) == "Sum")
        yield Probe([_update(arena, size)], lambda name: operator_name(name) == "Clamp")
        size *= 2


def weight_probes(threads: int, largest: int) -> Iterator[Probe[SubgraphBuilder]]:
    """One-row products whose weights fill a working set together, so each is evicted where the set is too large."""
    size = _SMALLEST_WEIGHTS
    while size <= min(largest, _LARGEST_WEIGHTS):
        yield Probe([_weights(size, threads)], _one_row)
        size *= _WEIGHTS_APART


def _one_row(name: str) -> bool:
    return kernel_use(name, 1) == KernelUse("f32", KernelClass.GEMV)


def _weights(size: int, threads: int) -> ProbeCandidate[SubgraphBuilder]:
    """Products of at most ``_PRODUCT`` bytes of weights."""
    products = max(1, size // (_PRODUCT * threads))
    outputs = size // products // _INPUTS // _WIDTH

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(products):
            weights = graph.weights(Datatype.FP32, (outputs, _INPUTS))
            given = graph.external(Datatype.FP32, (1, _INPUTS))
            left = graph.external(Datatype.FP32, (1, outputs), output=True)
            graph.define("xnn_define_fully_connected", *_FREE, given, weights, ABSENT, left, 0)

    work = products * outputs * _INPUTS * _WIDTH
    return ProbeCandidate(MemoryCeiling(pattern=Pattern.WEIGHTS, working_set=size), work, build)


def _copy(arena: Buffer, size: int) -> ProbeCandidate[SubgraphBuilder]:
    """One half of the working set into the other."""
    half, times = size // 2, max(1, _AT_ONCE // size)
    dims = (half // _WIDTH,)

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(times):
            given = graph.external(Datatype.FP32, dims, memory=arena)
            left = graph.external(Datatype.FP32, dims, output=True, memory=arena.part(half + _APART))
            graph.define("xnn_define_copy", given, left, 0)

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.COPY, working_set=size), 2 * half * times, build)


def _sum(arena: Buffer, sums: Buffer, size: int, rows: int) -> ProbeCandidate[SubgraphBuilder]:
    """The working set is read and next to nothing written."""
    columns, times = size // _WIDTH // rows, max(1, _AT_ONCE // size)

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(times):
            given = graph.external(Datatype.FP32, (rows, columns), memory=arena)
            left = graph.external(Datatype.FP32, (rows,), output=True, memory=sums)
            graph.define("xnn_define_static_reduce", _SUM, 1, _LAST_AXIS, given, left, 0)

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.READ, working_set=size), rows * columns * _WIDTH * times, build)


def _update(arena: Buffer, size: int) -> ProbeCandidate[SubgraphBuilder]:
    """Every number is read and written in its place, as XNNPACK does for elementwise operators."""
    dims, times = (size // _WIDTH,), max(1, _AT_ONCE // size)

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(times):
            given = graph.external(Datatype.FP32, dims, memory=arena)
            left = graph.external(Datatype.FP32, dims, output=True, memory=arena)
            graph.define("xnn_define_clamp", *_BOUNDS, given, left, 0)

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.UPDATE, working_set=size), 2 * size * times, build)


def dispatch_probes(threads: int) -> Iterator[Probe[SubgraphBuilder]]:
    """A copy of 16 numbers, which one thread does, and a softmax of 16 numbers for each thread."""
    yield Probe([_tiny(Dispatch.SERIAL, "xnn_define_copy", 1)], lambda name: operator_name(name) == "Copy")
    if threads > 1:
        probe = _tiny(Dispatch.PARALLEL, "xnn_define_softmax", threads)
        yield Probe([probe], lambda name: operator_name(name) == "Softmax")


def _tiny(dispatch: Dispatch, define: str, rows: int) -> ProbeCandidate[SubgraphBuilder]:
    dims = (rows, _TINY)

    def build(graph: SubgraphBuilder) -> None:
        given, left = graph.random(Datatype.FP32, dims), Buffer(rows * _TINY * _WIDTH)
        for _ in range(_TINY_AT_ONCE):
            values = [graph.external(Datatype.FP32, dims, memory=given)]
            values.append(graph.external(Datatype.FP32, dims, output=True, memory=left))
            graph.define(define, *values, 0)

    return ProbeCandidate(DispatchCost(dispatch=dispatch), _TINY_AT_ONCE, build)
