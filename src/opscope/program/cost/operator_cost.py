"""Work and traffic of one operator, as they are kept and added; :mod:`opscope.program.cost.cost` computes them."""

from __future__ import annotations

import msgspec

_LARGEST = 2**63 - 1


DELEGATED_OPERATOR_NS = 260.0
"""What an operator in a delegate costs beside its work, measured with executorch 1.5.1 on x86-64."""


class Cost(msgspec.Struct, frozen=True):
    """Work and traffic of an operator.

    Attributes:
        macs: multiply-accumulates.
        flops: operations on single numbers, of integers too; a multiply-accumulate is two.
        read_bytes: of the tensors that it is given, without weights.
        written_bytes: of the tensors that it leaves.
        weight_bytes: of constants with their scales.
        padding_macs: of the multiply-accumulates those with zeros around the input, which kernels may leave out; 0
            where they are not counted apart.
    """

    macs: int
    flops: int
    read_bytes: int
    written_bytes: int
    weight_bytes: int
    padding_macs: int = 0

    @property
    def bytes(self) -> int:
        """The least that must be moved."""
        return self.read_bytes + self.written_bytes + self.weight_bytes

    def if_possible(self) -> Cost | None:
        """It; None for what a damaged file says and no machine holds."""
        return self if max(self.macs, self.flops, self.bytes) <= _LARGEST else None

    def __add__(self, other: Cost) -> Cost:
        """Both, one after the other: a tensor that passes between them is written and read."""
        return Cost(
            self.macs + other.macs,
            self.flops + other.flops,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
            self.weight_bytes + other.weight_bytes,
            self.padding_macs + other.padding_macs,
        )
