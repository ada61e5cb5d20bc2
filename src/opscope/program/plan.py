"""What a program will do: its methods, their instructions, and the delegates they call."""

from __future__ import annotations

import enum

import msgspec


class InstructionKind(str, enum.Enum):
    """What an instruction does."""

    KERNEL = "kernel"
    DELEGATE = "delegate"
    MOVE = "move"
    JUMP = "jump"
    FREE = "free"
    UNKNOWN = "unknown"


class Instruction(msgspec.Struct, frozen=True):
    """One instruction of a chain.

    Attributes:
        kind: what it does.
        name: operator with overload, or identifier of the delegate; empty for control flow.
    """

    kind: InstructionKind
    name: str


class Method(msgspec.Struct, frozen=True):
    """A method of the program: its name and the instructions of its first chain."""

    name: str
    instructions: tuple[Instruction, ...]


class Program(msgspec.Struct, frozen=True):
    """The methods of a program file."""

    methods: tuple[Method, ...]

    def backends(self) -> list[str]:
        """Identifiers of the delegates that are called, each once."""
        called = (i.name for m in self.methods for i in m.instructions if i.kind is InstructionKind.DELEGATE)
        return list(dict.fromkeys(called))
