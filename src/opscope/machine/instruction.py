"""What one execution of an instruction does, whatever the processor: of counted work."""

from __future__ import annotations

from typing import NamedTuple


class Instruction(NamedTuple):
    """What one execution of an instruction does."""

    kind: str  # its class, of :data:`opscope.analysis.work.work.CLASSES`
    loaded: int = 0  # bytes
    stored: int = 0  # bytes
    products: int = 0  # multiply-accumulates that it holds: lanes of a fused one, factors of a dot product
    tile_products: int = 0  # of these, those that a matrix unit sums up in its own registers
    streaming: int = 0  # whether the processor enters the mode of its matrix unit: 1, else 0


UNKNOWN = Instruction("unknown")
