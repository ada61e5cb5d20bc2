"""Methods of programs written by hand: calls of portable kernels with their arguments.

    plan, step = call("aten::mm.out", tensor(2, 3), tensor(3, 4), out=tensor(2, 4))

Numbers, booleans, None and lists are what they are in ATen's schema. One tensor given twice is one value.
"""

from __future__ import annotations

from typing import Any

from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.plan import (
    Chain,
    Dynamism,
    Executable,
    InstructionKind,
    ListKind,
    MethodPlan,
    PlannedStep,
    PlannedTensor,
    Value,
    ValueList,
)

_BITS = {"float32": 32, "float16": 16, "int64": 64, "int8": 8, "uint8": 8, "bool": 8}


class Given:
    """A tensor to be; each is a value of its own, even where two are alike."""

    def __init__(self, sizes: tuple[int, ...], dtype: str, *, weight: bool, dynamic: bool) -> None:
        bound = Dynamism.BOUNDED if dynamic else Dynamism.STATIC
        order = tuple(range(len(sizes)))
        self.value = PlannedTensor(
            NumberType(dtype, _BITS.get(dtype)),
            sizes,
            order,
            bound,
            int(weight),
            planned=False,
            name="",
            external=False,
        )


class Computed:
    """An integer that an instruction computes; it stands in the file as 0."""


def tensor(*sizes: int, dtype: str = "float32", weight: bool = False, dynamic: bool = False) -> Given:
    """A tensor; of a dynamic one the sizes are the upper bound."""
    return Given(sizes, dtype, weight=weight, dynamic=dynamic)


class Method:
    """A method that grows call by call."""

    def __init__(self, *inputs: Given) -> None:
        self._values: list[Value] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self._steps: list[PlannedStep] = []
        self._operators: list[str] = []
        self._inputs = tuple(self.number(each) for each in inputs)

    def number(self, argument: Any) -> int:
        """The number of the value that an argument becomes."""
        known = self._numbers.get(id(argument)) if isinstance(argument, Given | Computed) else None
        if known is not None:
            return known
        value = self._value(argument)
        self._values.append(value)
        self._kept.append(argument)
        self._numbers[id(argument)] = len(self._values) - 1
        return len(self._values) - 1

    def _value(self, argument: Any) -> Value:
        if isinstance(argument, Given):
            return argument.value
        if isinstance(argument, Computed):
            return 0
        if isinstance(argument, list):
            members = tuple(-1 if each is None else self.number(each) for each in argument)
            kinds = {type(each) for each in argument}
            optional = ListKind.OPTIONAL_TENSORS if type(None) in kinds else ListKind.TENSORS
            return ValueList(optional if Given in kinds else ListKind.INTEGERS, members)
        return argument

    def call(self, operator: str, *arguments: Any, out: Given | list[Given] | None = None) -> PlannedStep:
        """An instruction that calls a kernel; several outputs are listed one by one, and then as a list."""
        numbers = [self.number(each) for each in arguments]
        if isinstance(out, list):
            numbers += [*map(self.number, out), self.number(out)]
        elif out is not None:
            numbers += [self.number(out)] * 2
        return self.step(InstructionKind.KERNEL, tuple(numbers), operator)

    def step(
        self, kind: InstructionKind, arguments: tuple[int, ...], operator: str = "", target: int = 0
    ) -> PlannedStep:
        """An instruction of any kind."""
        if kind is InstructionKind.KERNEL:
            target = len(self._operators)
            self._operators.append(operator)
        self._steps.append(PlannedStep(kind, target, arguments))
        return self._steps[-1]

    def plan(self) -> MethodPlan:
        """The method as it is by now."""
        chain = Chain(self._inputs, (), tuple(self._steps))
        return MethodPlan("forward", tuple(self._values), self._inputs, (), tuple(self._operators), (), (chain,), ())


def call(operator: str, *arguments: Any, out: Given | list[Given] | None = None) -> tuple[MethodPlan, PlannedStep]:
    """A method of one call, and that call."""
    method = Method()
    step = method.call(operator, *arguments, out=out)
    return method.plan(), step


def outline(program: Executable) -> dict[str, list[tuple[InstructionKind, str]]]:
    """The methods of a program, and for each instruction its kind and what it calls."""
    return {
        plan.name: [(step.kind, plan.called(step)) for chain in plan.chains[:1] for step in chain.steps]
        for plan in program.plans
    }
