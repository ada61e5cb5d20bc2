"""A call of a portable kernel with what its arguments are: tensors with their shapes, numbers, lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.cost.dimensions import NotKnownError, place_in
from opscope.program.structure.plan import Dynamism, PlannedTensor, Scalar, ValueList

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.program.cost.dimensions import Shape
    from opscope.program.structure.plan import MethodPlan, PlannedStep, Value


class OperatorCall:
    """One instruction that calls a kernel; positions are those of the operator's schema.

    ``sizes`` are real shapes by value number; None: those of the file. When given, a dynamic tensor that is not listed
    has an unknown shape. ``integers`` are those by value number; None: those of the file, where those that a step
    computes stand as 0.
    """

    def __init__(
        self,
        plan: MethodPlan,
        step: PlannedStep,
        sizes: Mapping[int, Shape] | None = None,
        integers: Mapping[int, int] | None = None,
    ) -> None:
        self._values = plan.values
        self._arguments = step.arguments
        self._sizes = sizes
        self._integers = integers
        self.name = plan.called(step)
        self.operator = operator_of(self.name)
        self.outputs = tuple(self._tensors(step.arguments[-1:]))
        self.inputs = tuple(dict.fromkeys(each for each in self._tensors(step.arguments) if each not in self.outputs))

    @property
    def overload(self) -> str:
        """Which of the operator's schemas, as ``out``."""
        return self.name.partition(".")[2]

    @property
    def in_place(self) -> bool:
        """It changes its first argument; the operator's name ends in an underscore."""
        return self.name.partition(".")[0].endswith("_")

    def has(self, position: int) -> bool:
        """Whether there is an argument and it is not Python's None."""
        return self.argument(position) is not None

    def argument(self, position: int) -> Value:
        """The argument at a position; None where there is none, or that is it."""
        return self._value(self._arguments[position]) if 0 <= position < len(self._arguments) else None

    def tensor(self, number: int) -> PlannedTensor:
        """The tensor that is a value of the plan."""
        value = self._value(number)
        if not isinstance(value, PlannedTensor):
            raise NotKnownError
        return value

    def shape_of(self, number: int) -> Shape:
        """The shape of a tensor by its number."""
        value = self.tensor(number)
        listed = value.sizes if self._sizes is None else self._sizes.get(number)
        if listed is None and value.dynamism is Dynamism.STATIC:
            return value.sizes
        if listed is None:
            raise NotKnownError
        return listed

    def bytes_of(self, number: int) -> int:
        """Bytes of a tensor by its number."""
        size = self.tensor(number).dtype.bytes_of(self.shape_of(number))
        if size is None:
            raise NotKnownError
        return size

    def shape(self, position: int) -> Shape:
        """The shape of the tensor at a position."""
        return self.shape_of(self._arguments[position]) if position < len(self._arguments) else self.shape_of(-1)

    def shapes(self, position: int) -> tuple[Shape, ...]:
        """The shapes of the tensors in a list."""
        return tuple(map(self.shape_of, self.tensors_at(position)))

    def output(self) -> Shape:
        """The shape of the first output."""
        return self.shape_of(self.outputs[0] if self.outputs else -1)

    def tensors_at(self, position: int) -> tuple[int, ...]:
        """Numbers of the tensors that an argument is or lists."""
        return tuple(self._tensors(self._arguments[position : position + 1]))

    def places(self, position: int) -> tuple[int, ...]:
        """Where in a list of optional tensors there are tensors."""
        value = self.argument(position)
        members = value.members if isinstance(value, ValueList) else ()
        return tuple(place for place, number in enumerate(members) if isinstance(self._value(number), PlannedTensor))

    def number(self, position: int) -> int:
        """An integer."""
        return self._integer(self._arguments[position] if position < len(self._arguments) else -1)

    def numbers(self, position: int) -> tuple[int, ...]:
        """A list of integers."""
        value = self.argument(position)
        if not isinstance(value, ValueList):
            raise NotKnownError
        return tuple(map(self._integer, value.members))

    def listed(self, position: int) -> tuple[int, ...]:
        """Integers that stand as a list, as one number, or not at all."""
        if not self.has(position):
            return ()
        return (self.number(position),) if isinstance(self.argument(position), Scalar) else self.numbers(position)

    def axis(self, position: int, data: Shape) -> int:
        """A dimension of data of this shape, counted from the first."""
        return place_in(self.number(position), len(data))

    def is_set(self, position: int) -> bool:
        """A boolean."""
        value = self.argument(position)
        if not isinstance(value, bool):
            raise NotKnownError
        return value

    def _value(self, number: int) -> Value:
        return self._values[number] if 0 <= number < len(self._values) else None

    def _integer(self, number: int) -> int:
        known = integer_in(self._value(number)) if self._integers is None else self._integers.get(number)
        if known is None:
            raise NotKnownError
        return known

    def _tensors(self, arguments: Sequence[int]) -> Iterator[int]:
        for number in arguments:
            value = self._value(number)
            members = value.members if isinstance(value, ValueList) else (number,)
            yield from (each for each in members if isinstance(self._value(each), PlannedTensor))


def integer_in(value: Value) -> int | None:
    """The integer that a value is; a boolean is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def operator_of(name: str) -> str:
    """The operator in ``aten::view_copy.out``: ``view``."""
    base = name.rpartition("::")[2].partition(".")[0].strip("_")
    return base.removesuffix("_copy")
