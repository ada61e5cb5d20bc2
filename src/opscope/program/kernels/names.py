"""XNNPACK's microkernels: the grammar of their names, and the kernels that a log says were registered.

The names are built as follows (XNNPACK's own generator scripts, as of the library in ExecuTorch 1.5.1)::

    name     = "xnn_" dtype {"_" dtype} "_" operator {"_" variant} "_ukernel" ["_" tile] "__" chain
    dtype    = letters that stand for a number type, its width, and "w" for weights: f32, qd8, qc4w, pqs8, x32, xx
    operator = first word that is no dtype: gemm, igemm, dwconv, vadd, transposec
    variant  = every word between operator and "ukernel": minmax, relu
    tile     = what one call computes, as the kernel family writes it: 7x16, 1x16c4, 9p8c, 3x3s2p1c3x4
    chain    = instruction sets and tuning, in the name's order: neonsme2, or avx512f and broadcast, or neon and u8

Some families write the tile as the first word of the chain (``xnn_x32_transposec_ukernel__4x4_sse``); it is the tile.
A name that does not follow the grammar is kept whole and marked as not parsed.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

LONGEST_NAME = 256
_DTYPE = re.compile(r"(?:(?:bf|pf|f|pqs|qs|qu|qc|qb|qdu|qd|qp|x|s|u|i)\d+w?(?:acc)?|xx)\Z")
_NAME = re.compile(r"xnn_(?P<front>[a-z0-9]+(?:_[a-z0-9]+)*)_ukernel(?:_(?P<tile>[a-z0-9]+))?__(?P<chain>[a-z0-9_]+)\Z")
_TILE = re.compile(r"\d+x\d+[a-z0-9]*\Z")


class KernelName(msgspec.Struct, frozen=True):
    """The parts of a microkernel's name; all of them null or empty when the name does not follow the grammar."""

    whole: str  # the name as it was written
    parsed: bool  # whether it follows the grammar
    dtype: str | None = None  # number types, inputs before weights, joined by `_`: `f32`, `qd8_f32_qc8w`
    operator: str | None = None  # `gemm`, `igemm`, `vadd`
    variant: str | None = None  # `minmax`; null where the name has none
    tile: str | None = None  # `7x16`; null where the name has none
    isa_chain: tuple[str, ...] = ()  # instruction sets and tuning, as the name lists them

    @property
    def sme2(self) -> bool:
        """Whether the kernel needs SME2."""
        return any("sme2" in word for word in self.isa_chain)

    @property
    def sme(self) -> bool:
        """Whether the kernel needs SME or SME2."""
        return any("sme" in word for word in self.isa_chain)


def parse_kernel(name: str) -> KernelName:
    """The parts of a microkernel's name."""
    match = _NAME.match(name) if len(name) <= LONGEST_NAME else None
    words = match["front"].split("_") if match else []
    types = next((place for place, word in enumerate(words) if not _DTYPE.match(word)), len(words))
    if not match or not types or types == len(words):
        return KernelName(name, parsed=False)
    tile, chain = match["tile"], [word for word in match["chain"].split("_") if word]
    if tile is None and len(chain) > 1 and _TILE.match(chain[0]):
        tile, chain = chain[0], chain[1:]
    if not chain:
        return KernelName(name, parsed=False)
    return KernelName(
        whole=name,
        parsed=True,
        dtype="_".join(words[:types]),
        operator=words[types],
        variant="_".join(words[types + 1 :]) or None,
        tile=tile,
        isa_chain=tuple(chain),
    )


class KernelEntry(msgspec.Struct, frozen=True):
    """One kernel that the library registered."""

    kernel: KernelName  # its name and the parts of it
    category: str  # what the library registered it for, in the log's word: `gemm`, `binary`
    line: int  # number of the line in the log, from 1
    function: str | None = None  # of the library that wrote the line; null in the older form of the line
    source: str | None = None  # file and line of that function; null in the older form


class KernelLog(msgspec.Struct, frozen=True):
    """The kernels that a process of XNNPACK registered, in the order of its log.

    Registration is not execution: the library writes one line when it fills a table of kernels, once a process, for
    every tile size that it may choose from. How often a kernel was called, and whether at all, is not in a log.
    """

    entries: tuple[KernelEntry, ...]  # one for each line that names a kernel
    incomplete: tuple[int, ...] = ()  # numbers of lines that begin like one but are cut off or damaged
    evidence: Literal["registration"] = "registration"  # always `registration`

    def names(self) -> tuple[str, ...]:
        """The kernels, each once, in the order of the log."""
        return tuple(dict.fromkeys(entry.kernel.whole for entry in self.entries))
