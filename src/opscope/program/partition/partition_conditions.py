"""Conditions of XNNPACK's partitioner on the options and shapes of an operator.

Each looks at one call in a program, at the positions of ATen's schemas, and tells what is refused; NotKnownError when
the program does not show what it needs. Source: ``check_constraints`` in ``backends/xnnpack/partition/config`` of
ExecuTorch 1.5.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.dimensions import NotKnownError, elements
from opscope.program.partition.portable_reason import Cause
from opscope.program.structure.plan import Dynamism, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from opscope.program.cost.call import OperatorCall

    Condition: TypeAlias = Callable[[OperatorCall], "Broken | None"]

_IMAGE = 4
_SQUARE = 2


class Broken(NamedTuple):
    """A condition that a call does not meet."""

    text: str  # what the partitioner takes, or does not
    evidence: str  # what the program shows
    cause: Cause = Cause.OPTION  # sort of the reason


def described(call: OperatorCall, number: int) -> str:
    """A tensor in short: ``float32[1, 64]``."""
    value = call.tensor(number)
    shape = ", ".join(map(str, value.sizes))
    return f"{value.dtype.name}[{shape}]"


def _first(call: OperatorCall) -> str:
    numbers = call.tensors_at(0)
    return described(call, numbers[0]) if numbers else "nothing"


def whole_scale(call: OperatorCall) -> Broken | None:
    """A second operand that is not scaled."""
    value = call.argument(2)
    if not isinstance(value, bool | int | float):
        raise NotKnownError
    if value == 1:
        return None
    return Broken("XNNPACK supports it only if the second operand is not scaled", f"alpha is {value}")


def last_dimension(call: OperatorCall) -> Broken | None:
    """Along the last dimension."""
    rank, place = len(call.shape(0)), call.number(1)
    if place in {-1, rank - 1}:
        return None
    return Broken("XNNPACK supports it only along the last dimension", f"dimension {place} of {_first(call)}")


def trailing(call: OperatorCall) -> Broken | None:
    """A dimension added behind the last one."""
    place = call.number(1)
    if place in {-1, len(call.shape(0))}:
        return None
    return Broken("XNNPACK adds a dimension only after the last one", f"dimension {place} of {_first(call)}")


def image_mean(call: OperatorCall) -> Broken | None:
    """The mean of an image, its dimensions kept."""
    rank = len(call.shape(0))
    if rank != _IMAGE:
        return Broken("XNNPACK supports mean only with four dimensions", f"it has {rank}: {_first(call)}")
    if call.has(3):
        return Broken("XNNPACK supports mean only without dtype", "dtype is given")
    dims = sorted(place % rank for place in call.numbers(1)) if call.has(1) else list(range(rank))
    if dims != [2, 3]:
        return Broken("XNNPACK supports mean only over the last two dimensions", f"dimensions {dims}")
    if not call.is_set(2):
        return Broken("XNNPACK supports mean only with keepdim=True", "keepdim is False")
    return None


def square(call: OperatorCall) -> Broken | None:
    """The integer 2 as exponent."""
    value = call.argument(1)
    if not isinstance(value, Scalar):
        raise NotKnownError
    if isinstance(value, int) and value == _SQUARE:
        return None
    return Broken("XNNPACK supports pow only with the integer exponent 2", f"the exponent is {value!r}")


def several(call: OperatorCall) -> Broken | None:
    """Two tensors or more."""
    count = len(set(call.tensors_at(0)))
    return Broken("XNNPACK concatenates only two or more tensors", f"it has {count}") if count < 2 else None  # noqa: PLR2004 - a pair


def no_cropping(call: OperatorCall) -> Broken | None:
    """No negative padding."""
    padding = call.numbers(1)
    if min(padding, default=0) >= 0:
        return None
    return Broken("XNNPACK supports only non-negative padding", f"{list(padding)}")


def plain_slice(call: OperatorCall) -> Broken | None:
    """A slice without steps, of fixed shapes."""
    step = call.number(4)
    if step != 1:
        return Broken("XNNPACK supports slice only with step 1", f"the step is {step}")
    found = _dynamic(call, "XNNPACK supports slice only with fixed shapes")
    if found is None and not all(elements(call.shape_of(n)) for n in (*call.inputs[:1], *call.outputs)):
        return Broken("XNNPACK supports slice only without empty tensors", _first(call))
    return found


def fixed_shapes(call: OperatorCall) -> Broken | None:
    """Shapes that cannot differ between calls."""
    return _dynamic(call, "XNNPACK supports it only with fixed shapes")


def _dynamic(call: OperatorCall, text: str) -> Broken | None:
    for number in (*call.inputs[:1], *call.outputs):
        if call.tensor(number).dynamism is not Dynamism.STATIC:
            return Broken(text, f"{described(call, number)} is an upper bound", Cause.DYNAMIC_SHAPE)
    return None


def fixed_view(call: OperatorCall) -> Broken | None:
    """A reshape whose sizes are numbers, not computed."""
    try:
        call.numbers(1)
    except NotKnownError:
        text = "XNNPACK supports reshape only with constant sizes"
        return Broken(text, "a size is computed at run time", Cause.DYNAMIC_SHAPE)
    return None


def same_order(call: OperatorCall) -> Broken | None:
    """The same order of dimensions in memory."""
    orders = [call.tensor(number).dim_order for number in (*call.inputs[:1], *call.outputs[:1])]
    if len(orders) < 2 or not all(orders) or orders[0] == orders[1]:  # noqa: PLR2004 - the input's and the output's
        return None
    return Broken("XNNPACK supports copies only with unchanged memory order", f"from {orders[0]} to {orders[1]}")


def same_type(call: OperatorCall) -> Broken | None:
    """The same number type."""
    source, target = (call.tensor(n).dtype.name for n in (*call.inputs[:1], *call.outputs[:1]))
    if source == target:
        return None
    return Broken("XNNPACK does not support number type conversion", f"from {source} to {target}")


def not_half(call: OperatorCall) -> Broken | None:
    """Another number type than fp16."""
    kinds = {call.tensor(number).dtype.name for number in call.outputs}
    return Broken("XNNPACK does not support GELU in half precision", "float16") if "float16" in kinds else None


def average(call: OperatorCall) -> Broken | None:
    """Average pooling as XNNPACK computes it."""
    if call.is_set(4):
        return Broken("XNNPACK supports pooling only without ceil_mode", "ceil_mode is True")
    if call.is_set(5) and any(call.listed(3)):
        return Broken("XNNPACK supports average pooling only with count_include_pad=False", "count_include_pad is True")
    kernel = _pair(call.listed(1))
    if call.has(6) and call.number(6) != kernel[0] * kernel[1]:
        return Broken("XNNPACK does not support divisor_override", f"divisor_override is {call.number(6)}")
    return None


def maximum(call: OperatorCall) -> Broken | None:
    """A window that leaves nothing out."""
    kernel = _pair(call.listed(1))
    stride = _pair(call.listed(2) or kernel)
    if stride[0] > kernel[0] or stride[1] > kernel[1]:
        return Broken("XNNPACK supports pooling only if the stride is at most the window", f"{stride} and {kernel}")
    return _dynamic(call, "XNNPACK supports pooling with ceil_mode only with fixed shapes") if call.is_set(5) else None


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    if not sizes:
        raise NotKnownError
    return sizes[0], sizes[-1]


def batch_norm(call: OperatorCall) -> Broken | None:
    """Data of two to four dimensions."""
    rank = len(call.shape(0))
    if rank in {2, 3, 4}:
        return None
    return Broken("XNNPACK supports batch normalisation only with two to four dimensions", f"it has {rank}")


def maximum_of_image(call: OperatorCall) -> Broken | None:
    """Data of four dimensions."""
    rank = len(call.shape(0))
    return None if rank == _IMAGE else Broken("XNNPACK supports max only with four dimensions", f"it has {rank}")


def stored(weight: int, bias: int | None = None) -> Condition:
    """Weights, and the bias where there is one, that are stored with the model."""

    def condition(call: OperatorCall) -> Broken | None:
        for place, name in ((weight, "weights"), (bias, "bias")):
            for number in call.tensors_at(place) if place is not None else ():
                value = call.tensor(number)
                if value.data_buffer <= 0 and not value.external:
                    text = f"XNNPACK supports it only if its {name} are stored with the model"
                    return Broken(text, f"{described(call, number)} is computed or given", Cause.COMPUTED_WEIGHTS)
        return None

    return condition


def convolution(call: OperatorCall) -> Broken | None:
    """A filter of one or two dimensions that is stored."""
    rank = len(call.shape(1))
    if rank > _IMAGE:
        return Broken("XNNPACK supports only 1D and 2D convolutions", f"the filter has {rank} dimensions")
    return stored(1, 2)(call)
