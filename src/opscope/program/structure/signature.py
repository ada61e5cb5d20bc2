"""Functions of a program that a caller can name, with what they take and give."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opscope.program.structure.plan import PlannedTensor


class NamedTensor(NamedTuple):
    """An input or output."""

    name: str  # that the signature gives it
    tensor: PlannedTensor  # its type and sizes; a size that is not known is 1, and the tensor then of any sizes


class Signature(NamedTuple):
    """A function of a program that can be called."""

    name: str  # by which it is called
    inputs: tuple[NamedTensor, ...]  # in the order of the file
    outputs: tuple[NamedTensor, ...]
