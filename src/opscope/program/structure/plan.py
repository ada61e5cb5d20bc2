"""The plan of a program: its methods, their instructions, and the delegates they call.

:class:`Executable` is the whole program with its values, arguments and positions in the file. It is a value;
``opscope.runtimes.executorch.pte`` reads it.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from opscope.program.structure.dtypes import NumberType


class InstructionKind(str, enum.Enum):
    """Kind of an instruction."""

    KERNEL = "kernel"
    DELEGATE = "delegate"
    MOVE = "move"
    JUMP = "jump"
    FREE = "free"
    UNKNOWN = "unknown"


class Span(msgspec.Struct, frozen=True):
    """A stretch of the file: position of its first byte, and its length in bytes."""

    offset: int
    size: int


class Dynamism(str, enum.Enum):
    """Kind of sizes of a tensor, which may differ between calls; of a bounded one the sizes are the upper bound."""

    STATIC = "static"
    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"
    UNKNOWN = "unknown"


UNNAMED = "?"
"""Symbol of an open size that has no name."""


class PlannedTensor(msgspec.Struct, frozen=True, tag="Tensor"):
    """A tensor of a plan."""

    dtype: NumberType  # type of its elements
    sizes: tuple[int, ...]  # its shape
    # dimensions from the outermost to the innermost in memory; empty where the file does not say
    dim_order: tuple[int, ...]
    dynamism: Dynamism  # whether the sizes are exact or a bound
    data_buffer: int  # number of its initial data, 0 for none
    planned: bool  # whether it has planned memory, unlike constants, inputs from the caller and unplanned tensors
    name: str  # qualified name of the parameter; empty where the file does not say
    external: bool  # its data are in another file, found by name
    # of sizes that a caller chooses, for each dimension: its name, ``?`` without one, empty for a fixed size;
    # empty: no dimension is known to be open
    symbols: tuple[str, ...] = ()

    @property
    def constant(self) -> bool:
        """Return whether it has data and no planned memory. With both it is a state that starts from these data."""
        return not self.planned and (self.data_buffer > 0 or self.external)

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its elements; None when their width is unknown."""
        return self.dtype.bytes_of(self.sizes)


class ListKind(str, enum.Enum):
    """Kind of the members of a list of values."""

    INTEGERS = "integers"
    TENSORS = "tensors"
    OPTIONAL_TENSORS = "optional tensors"


class ValueList(msgspec.Struct, frozen=True, tag=True):
    """A list that names other values of the plan by number; -1 is an absent optional tensor."""

    kind: ListKind
    members: tuple[int, ...]


class UnknownValue(msgspec.Struct, frozen=True, tag=True):
    """A value of a type newer than this version, with the number of that type."""

    number: int


Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = PlannedTensor | Scalar | tuple[bool | float, ...] | ValueList | UnknownValue | None
"""Anything that instructions refer to; a tuple is a list of booleans or of floating-point numbers, None is Python's."""
NamedValue: TypeAlias = tuple[str, Value]
"""An input by its name, which is empty where the program states none."""


class Delegate(msgspec.Struct, frozen=True):
    """A part of a method that was handed to a backend."""

    id: str  # identifier of the backend
    # where its payload stands in the file; None when it has none. Equal payloads may share their place
    data: Span | None


class PlannedStep(msgspec.Struct, frozen=True):
    """One instruction in full."""

    kind: InstructionKind  # what it does
    target: int  # number of the operator, of the delegate, or of the instruction to jump to; -1 for the others
    # numbers of values. A kernel's output is its last argument and is listed twice; a move has source and
    # destination; a jump its condition: it is taken when that is false
    arguments: tuple[int, ...]


class Chain(msgspec.Struct, frozen=True):
    """Instructions that run one after another."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[PlannedStep, ...]


class MethodPlan(msgspec.Struct, frozen=True):
    """A method in full."""

    name: str  # the method's
    values: tuple[Value, ...]  # everything that instructions refer to, by number
    inputs: tuple[int, ...]  # numbers of the values that the caller sets
    outputs: tuple[int, ...]  # numbers of the values that the caller gets
    operators: tuple[str, ...]  # names with overload, as `aten::add.out`
    delegates: tuple[Delegate, ...]  # what backends compute
    chains: tuple[Chain, ...]  # the instructions; every known exporter writes one chain
    planned_buffers: tuple[int, ...]  # bytes of each buffer of planned memory; number 0 is reserved

    def called(self, step: PlannedStep) -> str:
        """Return the operator with overload, or the identifier of the delegate, that a step calls.

        Empty for control flow.
        """
        if step.kind is InstructionKind.KERNEL:
            return self.operators[step.target]
        return self.delegates[step.target].id if step.kind is InstructionKind.DELEGATE else ""

    def callers(self) -> dict[int, tuple[int, ...]]:
        """Return, by delegate that is called, the numbers of the instructions of the first chain that call it."""
        instructions: dict[int, list[int]] = {}
        for number, step in enumerate(self.chains[0].steps if self.chains else ()):
            if step.kind is InstructionKind.DELEGATE:
                instructions.setdefault(step.target, []).append(number)
        return {delegate: tuple(numbers) for delegate, numbers in instructions.items()}

    def tensors(self, step: PlannedStep) -> tuple[int, ...]:
        """Return the numbers of the tensors that a step gets, also through lists, each once, in the order of arguments.

        Empty for a plan that was kept without its values.
        """
        tensors: dict[int, None] = {}
        for number in step.arguments if self.values else ():
            value = self.values[number]
            members = value.members if isinstance(value, ValueList) else (number,)
            tensors.update((n, None) for n in members if n >= 0 and isinstance(self.values[n], PlannedTensor))
        return tuple(tensors)


class Executable(msgspec.Struct, frozen=True):
    """A program file in full, without the bytes of weights and payloads."""

    identifier: str  # of the file, as `ET12`
    version: int  # of the schema, as the file states it
    plans: tuple[MethodPlan, ...]  # its methods
    segments: tuple[Span, ...]  # stretches of the file behind the program
    named_data: dict[str, int]  # keys of data, mostly weights, and the number of the segment that holds them

    @property
    def running(self) -> list[MethodPlan]:
        """The methods that run anything; programs of language models have others, which only state a number."""
        return [plan for plan in self.plans if any(chain.steps for chain in plan.chains)]

    def backends(self) -> list[str]:
        """Return the identifiers of the delegates that are called, each once."""
        identifiers = (plan.delegates[number].id for plan in self.plans for number in plan.callers())
        return list(dict.fromkeys(identifiers))
