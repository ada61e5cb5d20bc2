"""What an event stands for."""

from __future__ import annotations

import enum


class Scope(str, enum.Enum):
    """What an event stands for in the runtime's life."""

    EXECUTE = "execute"
    """One inference: the outermost event. Its duration is the end-to-end latency."""
    LOAD = "load"
    """Loading a method of the program."""
    INIT = "init"
    """Initialising a method: delegates compile or prepare their part here."""
    DELEGATE_CALL = "delegate_call"
    """The runtime hands an instruction to a delegate."""
    OPERATOR_CALL = "operator_call"
    """The runtime calls a kernel of its own."""
    DELEGATE_OP = "delegate_op"
    """An operator as the delegate reports it."""
    KERNEL = "kernel"
    """A portable or optimised kernel of the runtime."""
    CONTROL = "control"
    """Moves, jumps and frees of the program's control flow."""
    TILE_EVENT = "tile_event"
    """Cycles in which an event of an AI Engine tile was active."""


LEAVES = (Scope.DELEGATE_OP.value, Scope.KERNEL.value)
"""Scopes of events that do the work; all others are the framework's."""
