"""A call of a portable kernel with its arguments: tensors with their shapes, numbers, lists."""

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

    ``sizes`` are real shapes by value number; None: those of the file. If given, a dynamic tensor that is not
    listed has an unknown shape. ``integers`` are integers by value number; None: those of the file, where computed
    ones are 0.

    Methods raise NotKnownError for an argument that is missing, of another type or of unknown value.
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
        self.outputs = tuple(self._tensor_numbers(step.arguments[-1:]))
        self.inputs = tuple(
            dict.fromkeys(
                value_number
                for value_number in self._tensor_numbers(step.arguments)
                if value_number not in self.outputs
            )
        )

    @property
    def overload(self) -> str:
        """Name of the operator's schema, such as ``out``."""
        return self.name.partition(".")[2]

    @property
    def in_place(self) -> bool:
        """Return whether it changes its first argument; the operator's name ends in an underscore."""
        return self.name.partition(".")[0].endswith("_")

    def has(self, position: int) -> bool:
        """Return whether there is an argument that is not Python's None."""
        return self.argument(position) is not None

    def argument(self, position: int) -> Value:
        """Return the argument at a position; None if there is none, or if it is None."""
        return self._value_of(self._arguments[position]) if 0 <= position < len(self._arguments) else None

    def tensor(self, number: int) -> PlannedTensor:
        """Return the tensor with a value number of the plan."""
        value = self._value_of(number)
        if not isinstance(value, PlannedTensor):
            raise NotKnownError
        return value

    def shape_of(self, number: int) -> Shape:
        """Return the shape of a tensor by its value number."""
        value = self.tensor(number)
        listed = value.sizes if self._sizes is None else self._sizes.get(number)
        if listed is None and value.dynamism is Dynamism.STATIC:
            return value.sizes
        if listed is None:
            raise NotKnownError
        return listed

    def bytes_of(self, number: int) -> int:
        """Return the bytes of a tensor by its value number."""
        size = self.tensor(number).dtype.bytes_of(self.shape_of(number))
        if size is None:
            raise NotKnownError
        return size

    def shape(self, position: int) -> Shape:
        """Return the shape of the tensor at a position."""
        return self.shape_of(self._arguments[position]) if position < len(self._arguments) else self.shape_of(-1)

    def shapes(self, position: int) -> tuple[Shape, ...]:
        """Return the shapes of the tensors in a list."""
        return tuple(map(self.shape_of, self.tensors_at(position)))

    def output(self) -> Shape:
        """Return the shape of the first output."""
        return self.shape_of(self.outputs[0] if self.outputs else -1)

    def tensors_at(self, position: int) -> tuple[int, ...]:
        """Return the value numbers of the tensors that an argument is or lists."""
        return tuple(self._tensor_numbers(self._arguments[position : position + 1]))

    def places(self, position: int) -> tuple[int, ...]:
        """Return the indices of a list of optional tensors at which there are tensors."""
        value = self.argument(position)
        members = value.members if isinstance(value, ValueList) else ()
        return tuple(index for index, number in enumerate(members) if isinstance(self._value_of(number), PlannedTensor))

    def number(self, position: int) -> int:
        """Return an integer argument."""
        return self._integer_of(self._arguments[position] if position < len(self._arguments) else -1)

    def numbers(self, position: int) -> tuple[int, ...]:
        """Return a list of integers."""
        value = self.argument(position)
        if not isinstance(value, ValueList):
            raise NotKnownError
        return tuple(map(self._integer_of, value.members))

    def listed(self, position: int) -> tuple[int, ...]:
        """Return integers that are given as a list, as one number, or not at all."""
        if not self.has(position):
            return ()
        return (self.number(position),) if isinstance(self.argument(position), Scalar) else self.numbers(position)

    def axis(self, position: int, data: Shape) -> int:
        """Return a dimension of data of this shape, counted from the first."""
        return place_in(self.number(position), len(data))

    def is_set(self, position: int) -> bool:
        """Return a boolean argument."""
        value = self.argument(position)
        if not isinstance(value, bool):
            raise NotKnownError
        return value

    def _value_of(self, number: int) -> Value:
        return self._values[number] if 0 <= number < len(self._values) else None

    def _integer_of(self, number: int) -> int:
        known = integer_in(self._value_of(number)) if self._integers is None else self._integers.get(number)
        if known is None:
            raise NotKnownError
        return known

    def _tensor_numbers(self, arguments: Sequence[int]) -> Iterator[int]:
        for number in arguments:
            value = self._value_of(number)
            members = value.members if isinstance(value, ValueList) else (number,)
            yield from (member for member in members if isinstance(self._value_of(member), PlannedTensor))


def integer_in(value: Value) -> int | None:
    """Return the integer that a value is; None for other values, including booleans."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def operator_of(name: str) -> str:
    """Return the operator in ``aten::view_copy.out``: ``view``."""
    base = name.rpartition("::")[2].partition(".")[0].strip("_")
    return base.removesuffix("_copy")
