"""The work of a matrix product on an array of AI Engine cores: how it is cut into calls, and what each call moves.

The product of A (M x K) and B (K x N) is cut into tiles of m x k and k x n. One call multiplies a pair of tiles and
adds to an output tile of m x n; K/k calls in a row make an output tile whole. The output tiles are shared out evenly
among the cores that compute.
"""

from __future__ import annotations

import enum

import msgspec

from opscope.core.errors import UsageError

LARGEST_SIZE = 1 << 24
"""A size above this is a mistake: a single row of that many elements would not fit the memories of an array."""
MOST_CORES = 1 << 10
"""Rows times columns above this are a mistake."""
_BITS: dict[str, tuple[int, ...]] = {"int8": (8,), "int16": (16,), "bf16": (16,), "bfp16": (9, 16)}
# Accumulators are wider than operands: int8 and int16 add up in 32 bits, floating-point types in float32.
_OUTPUT_BITS: dict[str, tuple[int, ...]] = {"int8": (16, 32), "int16": (32,), "bf16": (32,), "bfp16": (32,)}


class Operand(str, enum.Enum):
    """A matrix of the product."""

    A = "A"
    """Left input."""
    B = "B"
    """Right input."""
    C = "C"
    """Output."""


class Tiling(msgspec.Struct, frozen=True):
    """A matrix product and the tiles that one call works on; made by :func:`tiling`, which checks it.

    Attributes:
        m: rows of a tile of A.
        k: columns of a tile of A.
        n: columns of a tile of B.
        M: rows of A; null when only the tile is known.
        K: columns of A; null likewise.
        N: columns of B; null likewise.
        rows: of cores that share the output tiles.
        columns: of these cores.
    """

    m: int
    k: int
    n: int
    M: int | None = None
    K: int | None = None
    N: int | None = None
    rows: int = 1
    columns: int = 1

    @property
    def cores(self) -> int:
        """Cores that share the work."""
        return self.rows * self.columns

    @property
    def macs_per_call(self) -> int:
        """Multiply-accumulates of one call."""
        return self.m * self.k * self.n

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of the whole product; None when only the tile is known."""
        if self.M is None or self.K is None or self.N is None:
            return None
        return self.M * self.K * self.N

    @property
    def calls_per_output(self) -> int | None:
        """Calls that make one output tile whole, K/k; None when K is unknown or no multiple of k."""
        return None if self.K is None or self.K % self.k else self.K // self.k

    @property
    def outputs(self) -> int | None:
        """Output tiles of the whole product; None when its sizes are unknown or no multiples of the tile's."""
        if self.M is None or self.N is None or self.M % self.m or self.N % self.n:
            return None
        return (self.M // self.m) * (self.N // self.n)

    @property
    def outputs_per_core(self) -> int | None:
        """Output tiles that each core makes; None when that is unknown or not the same for all."""
        outputs = self.outputs
        return None if outputs is None or outputs % self.cores else outputs // self.cores

    @property
    def calls_per_core(self) -> int | None:
        """Multiplying calls of each core for the whole product; None when unknown or not the same for all."""
        outputs, each = self.outputs_per_core, self.calls_per_output
        return None if outputs is None or each is None else outputs * each

    @property
    def problem(self) -> str | None:
        """Why the calls of the whole product cannot be counted; None when they can."""
        if self.macs is None:
            return "the sizes M, K and N of the whole product are not given"
        uneven = [
            f"{tile} = {getattr(self, tile)} does not divide {whole} = {getattr(self, whole)}"
            for tile, whole in (("m", "M"), ("k", "K"), ("n", "N"))
            if getattr(self, whole) % getattr(self, tile)
        ]
        if uneven:
            return ", ".join(uneven)
        if self.outputs_per_core is None:
            return f"{self.outputs} output tiles cannot be divided evenly among {self.rows} x {self.columns} cores"
        return None

    def elements(self, operand: Operand) -> int:
        """Elements of the tile of an operand."""
        return {Operand.A: self.m * self.k, Operand.B: self.k * self.n, Operand.C: self.m * self.n}[operand]

    def buffer_bytes(self, operand: Operand, dtype: str) -> tuple[int, ...]:
        """Bytes that the tile of an operand can take in memory, the likeliest first.

        There are several where a type has several layouts: block floating point takes 9 bits an element (8 elements
        share an exponent of 8 bits), and 16 where a kernel converts bf16 by itself; outputs may stay as wide as they
        were added up.
        """
        if dtype not in _BITS:
            raise UsageError(f"unknown operand type '{dtype}'", hint=f"one of {', '.join(_BITS)}")
        known = _BITS[dtype]
        widths = known + _OUTPUT_BITS[dtype] if operand is Operand.C else known
        return tuple(dict.fromkeys((self.elements(operand) * bits + 7) // 8 for bits in widths))


def dtypes() -> tuple[str, ...]:
    """Types of operands whose width is known."""
    return tuple(_BITS)


def tiling(
    tile: tuple[int, int, int],
    whole: tuple[int, int, int] | None = None,
    cores: tuple[int, int] = (1, 1),
) -> Tiling:
    """A tiling whose sizes can be true. Sizes that do not divide each other are kept: see :attr:`Tiling.problem`."""
    for name, value in zip("mkn", tile, strict=True):
        _check(name, value, LARGEST_SIZE)
    for name, value in zip(("rows", "columns"), cores, strict=True):
        _check(name, value, MOST_CORES)
    if cores[0] * cores[1] > MOST_CORES:
        raise UsageError(f"{cores[0]} x {cores[1]} cores exceed every array", hint=_SIZES)
    if whole is None:
        return Tiling(*tile, rows=cores[0], columns=cores[1])
    for name, value, part in zip("MKN", whole, tile, strict=True):
        _check(name, value, LARGEST_SIZE)
        if part > value:
            raise UsageError(f"a tile with {name.lower()} = {part} is larger than {name} = {value}", hint=_SIZES)
    return Tiling(*tile, *whole, *cores)


_SIZES = "M, K, N are the sizes of the whole product; m, k, n those of one call; row and col the compute cores"


def _check(name: str, value: int, most: int) -> None:
    if value < 1:
        raise UsageError(f"{name} = {value} is not a size: it must be at least 1", hint=_SIZES)
    if value > most:
        raise UsageError(f"{name} = {value} is too large: the maximum is {most}", hint=_SIZES)
