"""What a trace holds besides events with times: allocations, and values that were logged for debugging."""

from __future__ import annotations

import msgspec


class Allocation(msgspec.Struct, frozen=True):
    """Memory taken from one of the runtime's allocators.

    Attributes:
        run: block of the file, from 0.
        allocator: its name, or its number where the file names none.
        size: in bytes.
    """

    run: int
    allocator: str
    size: int


class LoggedValue(msgspec.Struct, frozen=True):
    """A value that the runtime logged for debugging.

    Attributes:
        run: block of the file, from 0.
        name: as recorded; null without.
        chain: of instructions.
        instruction: within the chain; null where none is given.
        delegate_id: integer identifier of the delegate; null without.
        delegate_label: textual identifier of the delegate; null without.
        kind: ``null``, ``int``, ``bool``, ``float``, ``double``, ``tensor``, ``tensor_list``, ``string`` or
            ``unknown``.
        number: the value of a number or truth value; null for all others.
        shape: sizes of a tensor; null for all others.
        dtype: number of the tensor's scalar type; null for all others.
        offset: where the tensor's data stand in the debug buffer; null for all others.
        output: whether it is an output of the method; null where the file does not tell.
    """

    run: int
    name: str | None
    chain: int
    instruction: int | None
    delegate_id: int | None
    delegate_label: str | None
    kind: str
    number: float | int | None
    shape: tuple[int, ...] | None
    dtype: int | None
    offset: int | None
    output: bool | None


class SideEvents(msgspec.Struct, frozen=True):
    """Everything of a trace that carries no time."""

    allocations: tuple[Allocation, ...] = ()
    logged: tuple[LoggedValue, ...] = ()

    def plus(self, other: SideEvents) -> SideEvents:
        """Both together, in order."""
        return SideEvents(self.allocations + other.allocations, self.logged + other.logged)
