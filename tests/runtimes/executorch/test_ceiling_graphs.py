"""Graphs that peak rates are measured with, as XNNPACK is asked for them: the library is not needed."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import pytest

from opscope.program.ceilings import KernelClass
from opscope.runtimes.ceilings.probes import ProbeCandidate
from opscope.runtimes.executorch.ceilings.child import SubgraphProbes
from opscope.runtimes.executorch.ceilings.xnnpack import Datatype, SubgraphBuilder

CONVOLUTIONS = {
    "xnn_define_convolution_2d": 0,
    "xnn_define_deconvolution_2d": 2,
    "xnn_define_depthwise_convolution_2d": 0,
}
"""How many words stand between the padding and the filter."""


class Window(NamedTuple):
    """A convolution that the library was asked for."""

    function: str
    padding: tuple[int, ...]
    adjustment: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    given: tuple[int, ...]
    weights: tuple[int, ...]
    left: tuple[int, ...]

    @property
    def sides(self) -> list[int]:
        """Height and width that such a convolution computes; see the formulas in ``xnnpack.h``."""
        around = [self.padding[0] + self.padding[2], self.padding[1] + self.padding[3]]
        rows = zip(self.given[1:3], around, self.filter, self.stride, strict=True)
        if self.adjustment:
            return [(side - 1) * step + size - more for side, more, size, step in rows]
        return [(side + more - size) // step + 1 for side, more, size, step in rows]

    @property
    def macs(self) -> int:
        """Each pixel of an image, or of a transposed convolution's input, meets the whole filter."""
        pixels = math.prod(self.given[:3] if self.adjustment else self.left[:3])
        return pixels * math.prod(self.weights)


class Library:
    """Takes what is defined in the place of XNNPACK, numbers its values and keeps their sizes."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []
        self.windows: list[Window] = []

    def call(self, function: str, *arguments: Any) -> None:
        """One call, which succeeds."""
        if "_value" in function:
            (sizes,) = (one for one in arguments if isinstance(one, ctypes.Array))
            arguments[-1]._obj.value = len(self.sizes)
            self.sizes.append(tuple(sizes))
        elif function in CONVOLUTIONS:
            words = arguments[1:]
            at = 4 + CONVOLUTIONS[function]
            values = [self.sizes[words[place]] for place in (-5, -4, -2)]
            self.windows.append(
                Window(function, words[:4], words[4:at], words[at : at + 2], words[at + 2 : at + 4], *values)
            )


CANDIDATES = [
    candidate
    for probe in SubgraphProbes(1).compute_probes()
    for candidate in probe.candidates
    if candidate.ceiling.kernel in {KernelClass.IGEMM, KernelClass.SUBCONV, KernelClass.DWCONV}
]


@pytest.mark.parametrize(
    "candidate", CANDIDATES, ids=lambda one: f"{one.ceiling.dtype}-{one.ceiling.kernel}-{one.ceiling.shape}"
)
def test_a_convolution_fits_its_output_and_its_work(candidate: ProbeCandidate[SubgraphBuilder]) -> None:
    """Padding, filter and stride give the sizes of the output, and the multiply-accumulates that a rate counts."""
    library = Library()
    candidate.build(SubgraphBuilder(library))
    (window,) = library.windows
    assert list(window.left[1:3]) == window.sides
    assert candidate.work == window.macs


@pytest.mark.parametrize(
    ("datatype", "numbers", "size"),
    [(Datatype.FP32, 16, 64), (Datatype.FP16, 32, 64), (Datatype.QINT8, 64, 64), (Datatype.QCINT4, 127, 64)],
)
def test_memory_holds_every_number_of_a_tensor(datatype: Datatype, numbers: int, size: int) -> None:
    """Random numbers to its last byte, and zeros in what the library may read behind it."""
    memory = SubgraphBuilder(Library()).random(datatype, (numbers, 1))
    assert any(ctypes.string_at(memory.address + size - 8, 8))
    assert not any(ctypes.string_at(memory.address + size, 64))
