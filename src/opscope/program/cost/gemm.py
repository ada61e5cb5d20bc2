"""The work of a matrix product on an array of AI Engine cores: how it is cut into calls, and what each call moves.

The product of A (M x K) and B (K x N) is cut into tiles of m x k and k x n. One call multiplies a pair of tiles
and adds to an output tile of m x n; K/k calls in a row complete an output tile. The output tiles are divided
evenly among the cores that compute.
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
        """Number of cores that share the work."""
        return self.rows * self.columns

    @property
    def macs_per_call(self) -> int:
        """Multiply-accumulates of one call."""
        return self.m * self.k * self.n

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of the complete product; None if only the tile is known."""
        if self.M is None or self.K is None or self.N is None:
            return None
        return self.M * self.K * self.N

    @property
    def calls_per_output(self) -> int | None:
        """Number of calls that complete one output tile, K/k; None if K is unknown or no multiple of k."""
        return None if self.K is None or self.K % self.k else self.K // self.k

    @property
    def outputs(self) -> int | None:
        """Number of output tiles of the product; None if its sizes are unknown or no multiples of the tile's."""
        if self.M is None or self.N is None or self.M % self.m or self.N % self.n:
            return None
        return (self.M // self.m) * (self.N // self.n)

    @property
    def outputs_per_core(self) -> int | None:
        """Number of output tiles of each core; None if it is unknown or differs between cores."""
        outputs = self.outputs
        return None if outputs is None or outputs % self.cores else outputs // self.cores

    @property
    def calls_per_core(self) -> int | None:
        """Number of multiplying calls of each core for the product; None if it is unknown or differs between cores."""
        outputs, calls = self.outputs_per_core, self.calls_per_output
        return None if outputs is None or calls is None else outputs * calls

    @property
    def problem(self) -> str | None:
        """Return why the calls of the product cannot be counted; None if they can."""
        if self.macs is None:
            return "the sizes M, K and N of the whole product are not given"
        uneven = [
            f"{tile} = {getattr(self, tile)} does not divide {size_name} = {getattr(self, size_name)}"
            for tile, size_name in (("m", "M"), ("k", "K"), ("n", "N"))
            if getattr(self, size_name) % getattr(self, tile)
        ]
        if uneven:
            return ", ".join(uneven)
        if self.outputs_per_core is None:
            return f"{self.outputs} output tiles cannot be divided evenly among {self.rows} x {self.columns} cores"
        return None

    def elements(self, operand: Operand) -> int:
        """Return the number of elements in the tile of an operand."""
        return {Operand.A: self.m * self.k, Operand.B: self.k * self.n, Operand.C: self.m * self.n}[operand]

    def buffer_bytes(self, operand: Operand, dtype: str) -> tuple[int, ...]:
        """Return the bytes that the tile of an operand can take in memory, the likeliest first.

        There are several if a type has several layouts: block floating point takes 9 bits an element (8 elements share
        an exponent of 8 bits), and 16 if a kernel converts bf16 by itself; outputs may stay as wide as they were added
        up.
        """
        if dtype not in _BITS:
            raise UsageError(f"unknown operand type '{dtype}'", hint=f"one of {', '.join(_BITS)}")
        known = _BITS[dtype]
        widths = known + _OUTPUT_BITS[dtype] if operand is Operand.C else known
        return tuple(dict.fromkeys((self.elements(operand) * bits + 7) // 8 for bits in widths))


def dtypes() -> tuple[str, ...]:
    """Return the operand types of known width."""
    return tuple(_BITS)


def tiling(
    tile: tuple[int, int, int],
    product_size: tuple[int, int, int] | None = None,
    cores: tuple[int, int] = (1, 1),
) -> Tiling:
    """Return a tiling of possible sizes. Sizes that do not divide each other are kept: see :attr:`Tiling.problem`.

    Raises UsageError for impossible sizes.
    """
    for name, value in zip("mkn", tile, strict=True):
        _check_size(name, value, LARGEST_SIZE)
    for name, value in zip(("rows", "columns"), cores, strict=True):
        _check_size(name, value, MOST_CORES)
    if cores[0] * cores[1] > MOST_CORES:
        raise UsageError(f"{cores[0]} x {cores[1]} cores exceed every array", hint=_SIZES)
    if product_size is None:
        return Tiling(*tile, rows=cores[0], columns=cores[1])
    for name, value, part in zip("MKN", product_size, tile, strict=True):
        _check_size(name, value, LARGEST_SIZE)
        if part > value:
            raise UsageError(f"a tile with {name.lower()} = {part} is larger than {name} = {value}", hint=_SIZES)
    return Tiling(*tile, *product_size, *cores)


_SIZES = "M, K, N are the sizes of the whole product; m, k, n those of one call; row and col the compute cores"


def _check_size(name: str, value: int, most: int) -> None:
    if value < 1:
        raise UsageError(f"{name} = {value} is not a size: it must be at least 1", hint=_SIZES)
    if value > most:
        raise UsageError(f"{name} = {value} is too large: the maximum is {most}", hint=_SIZES)
