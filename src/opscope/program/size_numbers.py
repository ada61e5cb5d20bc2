"""Arithmetic of programs on sizes: what the runtime's own operators compute from integers and shapes.

Source: ``kernels/prim_ops/register_prim_ops.cpp`` of ExecuTorch 1.5. Operators whose result is no integer are left out.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from opscope.program.dimensions import NotKnownError, elements

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.call import Call

_LARGEST = 2**63 - 1


def size_number(call: Call) -> int:
    """The integer that a call computes.

    Raises:
        NotKnownError: it computes something else, from something unknown, or a number beyond 64 bits.
    """
    rule = _RULES.get(call.name)
    if rule is None:
        raise NotKnownError
    found = rule(call)
    if abs(found) > _LARGEST:
        raise NotKnownError
    return found


def _size(call: Call) -> int:
    data = call.shape(0)
    return data[call.axis(1, data)]


def _count(call: Call) -> int:
    return elements(call.shape(0))


def _of_two(compute: Callable[[int, int], int]) -> Callable[[Call], int]:
    return lambda call: compute(call.number(0), call.number(1))


def _divided(compute: Callable[[int, int], int]) -> Callable[[Call], int]:
    def rule(call: Call) -> int:
        if not call.number(1):
            raise NotKnownError
        return compute(call.number(0), call.number(1))

    return rule


def _negative(call: Call) -> int:
    return -call.number(0)


_RULES: dict[str, Callable[[Call], int]] = {
    "aten::sym_size.int": _size,
    "aten::sym_numel": _count,
    "executorch_prim::add.Scalar": _of_two(operator.add),
    "executorch_prim::sub.Scalar": _of_two(operator.sub),
    "executorch_prim::mul.Scalar": _of_two(operator.mul),
    "executorch_prim::sym_max.Scalar": _of_two(max),
    "executorch_prim::sym_min.Scalar": _of_two(min),
    "executorch_prim::floordiv.Scalar": _divided(operator.floordiv),
    "executorch_prim::floordiv.int": _divided(operator.floordiv),
    "executorch_prim::mod.Scalar": _divided(operator.mod),
    "executorch_prim::mod.int": _divided(operator.mod),
    "executorch_prim::neg.Scalar": _negative,
}
