"""Work and traffic of one operator, as they are stored and added; :mod:`opscope.program.cost.cost` computes them.

The convention: an operation of an operator's textbook definition counts as one. That is an addition, a
multiplication, a division, a comparison, or one value of an elementary function (exp, log, sin, tanh, erf,
square root). What a kernel really executes for an exponential differs between processors and is not counted.
Integers count like floating-point numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

_LARGEST = 2**63 - 1


DELEGATED_OPERATOR_NS = 260.0
"""Time that an operator in a delegate costs beside its work, measured with executorch 1.5.1 on x86-64."""


class Cost(msgspec.Struct, frozen=True):
    """Work and traffic of an operator."""

    macs: int  # multiply-accumulates
    flops: int  # operations on single numbers, of integers too; a multiply-accumulate is two
    read_bytes: int  # of the tensors that it is given, without weights
    written_bytes: int  # of the tensors that it leaves
    weight_bytes: int  # of constants with their scales
    # of the multiply-accumulates those with zeros around the input, which kernels may leave out; 0 where they are not
    # counted apart
    padding_macs: int = 0

    @property
    def bytes(self) -> int:
        """Least number of bytes that must be moved."""
        return self.read_bytes + self.written_bytes + self.weight_bytes

    def if_possible(self) -> Cost | None:
        """Return the cost; None if a damaged file states impossible sizes."""
        return self if max(self.macs, self.flops, self.bytes) <= _LARGEST else None

    def __add__(self, second: Cost) -> Cost:
        """Return the cost of both, one after the other: a tensor that passes between them is written and read."""
        return Cost(
            self.macs + second.macs,
            self.flops + second.flops,
            self.read_bytes + second.read_bytes,
            self.written_bytes + second.written_bytes,
            self.weight_bytes + second.weight_bytes,
            self.padding_macs + second.padding_macs,
        )


class Arithmetic(NamedTuple):
    """Counts of one operator."""

    macs: int = 0  # multiply-accumulates
    others: int = 0  # operations besides them

    @property
    def flops(self) -> int:
        """Number of all operations; a multiply-accumulate is two."""
        return 2 * self.macs + self.others


NOTHING = Arithmetic()

# Operations for each element of the output, by ATen's name. Elementwise operators that are not listed count one.
PER_ELEMENT: dict[str, int] = {
    "addcdiv": 3,  # x + value * a / b
    "addcmul": 3,  # x + value * a * b
    "elu": 4,  # x > 0 ? x : alpha * (exp(x) - 1)
    "gelu": 5,  # x / 2 * (1 + erf(x / sqrt(2)))
    "glu": 5,  # a * sigmoid(b)
    "hardsigmoid": 4,  # min(max(x + 3, 0), 6) / 6
    "hardswish": 5,  # x * min(max(x + 3, 0), 6) / 6
    "hardtanh": 2,  # min(max(x, low), high)
    "leaky_relu": 2,  # x > 0 ? x : slope * x
    "lerp": 3,  # a + weight * (b - a)
    "logit": 3,  # log(x / (1 - x))
    "mish": 5,  # x * tanh(log(1 + exp(x)))
    "prelu": 2,  # x > 0 ? x : slope * x
    "relu6": 2,  # min(max(x, 0), 6)
    "rsqrt": 2,  # 1 / sqrt(x)
    "sigmoid": 4,  # 1 / (1 + exp(-x))
    "silu": 5,  # x * sigmoid(x)
    "softplus": 3,  # log(1 + exp(x))
    "squareddifference": 2,  # (a - b)^2, by the name of XNNPACK's node
}

SOFTMAX = 5  # for each element: maximum, subtraction, exp, sum, division
NORMALISATION = 5  # for each element: sum, subtraction, square, sum of squares, product with 1 / deviation
VARIANCE = 4  # for each element: sum, subtraction, square, sum of squares
BILINEAR = 9  # for each element: three interpolations a + t * (b - a)


def operations(name: str) -> int:
    """Return the operations for each element of an elementwise operator."""
    return PER_ELEMENT.get(name, 1)
