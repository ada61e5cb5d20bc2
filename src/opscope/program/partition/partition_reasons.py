"""Find why an operator stayed with the runtime's portable kernels and did not go to XNNPACK, where that can be known.

The program shows number types, shapes and options; the partitioner's rules say which of them it takes. A reason
is given if a rule refuses what the program shows. If every known rule is met, the reason is unknown: the
exporter may have had other settings, another release, or a pattern that it did not recognise.

Source of what the partitioner takes: ``backends/xnnpack/partition/config`` of the release in ``RULES_OF``: its
list of operators, the checks that all of them share, and those of each. A program names the form of an operator
that writes to a given output; the partitioner saw ``add.Tensor`` where the program has ``aten::add.out``.
Conditions on what a program does not keep, as which results are used, are left out.

A condition on options and shapes looks at one call in a program, at the positions of ATen's schemas, and
returns what is refused; it raises NotKnownError if the program does not show what it needs. Source:
``check_constraints`` in the same place.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.cost.call import OperatorCall, integer_in
from opscope.program.cost.dimensions import NotKnownError, elements
from opscope.program.partition.verdicts import Cause, PortableReason
from opscope.program.structure.plan import Dynamism, InstructionKind, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from opscope.program.structure.plan import MethodPlan, PlannedStep

    Condition: TypeAlias = Callable[[OperatorCall], "PortableReason | None"]


_IMAGE = 4
_SQUARE = 2


def _unmet_condition(text: str, evidence: str, cause: Cause = Cause.OPTION) -> PortableReason:
    """Return the reason of a condition that a call does not meet: the rule, and the evidence in the program."""
    return PortableReason(cause, text, evidence)


def described(call: OperatorCall, number: int) -> str:
    """Return a short description of a tensor: ``float32[1, 64]``."""
    value = call.tensor(number)
    shape = ", ".join(map(str, value.sizes))
    return f"{value.dtype.name}[{shape}]"


def _describe_first_tensor(call: OperatorCall) -> str:
    numbers = call.tensors_at(0)
    return described(call, numbers[0]) if numbers else "nothing"


def whole_scale(call: OperatorCall) -> PortableReason | None:
    """Refuse a second operand that is scaled."""
    value = call.argument(2)
    if not isinstance(value, bool | int | float):
        raise NotKnownError
    if value == 1:
        return None
    return _unmet_condition("XNNPACK supports it only if the second operand is not scaled", f"alpha is {value}")


def last_dimension(call: OperatorCall) -> PortableReason | None:
    """Refuse all but the last dimension."""
    rank, axis = len(call.shape(0)), call.number(1)
    if axis in {-1, rank - 1}:
        return None
    return _unmet_condition(
        "XNNPACK supports it only along the last dimension", f"dimension {axis} of {_describe_first_tensor(call)}"
    )


def trailing(call: OperatorCall) -> PortableReason | None:
    """Refuse to add a dimension other than after the last one."""
    axis = call.number(1)
    if axis in {-1, len(call.shape(0))}:
        return None
    return _unmet_condition(
        "XNNPACK adds a dimension only after the last one", f"dimension {axis} of {_describe_first_tensor(call)}"
    )


def image_mean(call: OperatorCall) -> PortableReason | None:
    """Refuse all means but that of an image whose dimensions are kept."""
    rank = len(call.shape(0))
    if rank != _IMAGE:
        return _unmet_condition(
            "XNNPACK supports mean only with four dimensions", f"it has {rank}: {_describe_first_tensor(call)}"
        )
    if call.has(3):
        return _unmet_condition("XNNPACK supports mean only without dtype", "dtype is given")
    dims = sorted(axis % rank for axis in call.numbers(1)) if call.has(1) else list(range(rank))
    if dims != [2, 3]:
        return _unmet_condition("XNNPACK supports mean only over the last two dimensions", f"dimensions {dims}")
    if not call.is_set(2):
        return _unmet_condition("XNNPACK supports mean only with keepdim=True", "keepdim is False")
    return None


def square(call: OperatorCall) -> PortableReason | None:
    """Refuse exponents other than the integer 2."""
    value = call.argument(1)
    if not isinstance(value, Scalar):
        raise NotKnownError
    if isinstance(value, int) and value == _SQUARE:
        return None
    return _unmet_condition("XNNPACK supports pow only with the integer exponent 2", f"the exponent is {value!r}")


def several(call: OperatorCall) -> PortableReason | None:
    """Refuse fewer than two tensors."""
    count = len(set(call.tensors_at(0)))
    return _unmet_condition("XNNPACK concatenates only two or more tensors", f"it has {count}") if count < 2 else None  # noqa: PLR2004 - a pair


def no_cropping(call: OperatorCall) -> PortableReason | None:
    """Refuse negative padding."""
    padding = call.numbers(1)
    if min(padding, default=0) >= 0:
        return None
    return _unmet_condition("XNNPACK supports only non-negative padding", f"{list(padding)}")


def plain_slice(call: OperatorCall) -> PortableReason | None:
    """Refuse slices with steps or open shapes."""
    step = call.number(4)
    if step != 1:
        return _unmet_condition("XNNPACK supports slice only with step 1", f"the step is {step}")
    reason = _refuse_dynamic_shapes(call, "XNNPACK supports slice only with fixed shapes")
    if reason is None and not all(elements(call.shape_of(n)) for n in (*call.inputs[:1], *call.outputs)):
        return _unmet_condition("XNNPACK supports slice only without empty tensors", _describe_first_tensor(call))
    return reason


def fixed_shapes(call: OperatorCall) -> PortableReason | None:
    """Refuse shapes that can differ between calls."""
    return _refuse_dynamic_shapes(call, "XNNPACK supports it only with fixed shapes")


def _refuse_dynamic_shapes(call: OperatorCall, text: str) -> PortableReason | None:
    for number in (*call.inputs[:1], *call.outputs):
        if call.tensor(number).dynamism is not Dynamism.STATIC:
            return _unmet_condition(text, f"{described(call, number)} is an upper bound", Cause.DYNAMIC_SHAPE)
    return None


def fixed_view(call: OperatorCall) -> PortableReason | None:
    """Refuse a reshape whose sizes are computed."""
    try:
        call.numbers(1)
    except NotKnownError:
        text = "XNNPACK supports reshape only with constant sizes"
        return _unmet_condition(text, "a size is computed at run time", Cause.DYNAMIC_SHAPE)
    return None


def same_order(call: OperatorCall) -> PortableReason | None:
    """Refuse copies that change the order of dimensions in memory."""
    orders = [call.tensor(number).dim_order for number in (*call.inputs[:1], *call.outputs[:1])]
    if len(orders) < 2 or not all(orders) or orders[0] == orders[1]:  # noqa: PLR2004 - the input's and the output's
        return None
    return _unmet_condition(
        "XNNPACK supports copies only with unchanged memory order", f"from {orders[0]} to {orders[1]}"
    )


def same_type(call: OperatorCall) -> PortableReason | None:
    """Refuse conversions of number types."""
    source, target = (call.tensor(n).dtype.name for n in (*call.inputs[:1], *call.outputs[:1]))
    if source == target:
        return None
    return _unmet_condition("XNNPACK does not support number type conversion", f"from {source} to {target}")


def not_half(call: OperatorCall) -> PortableReason | None:
    """Refuse half precision."""
    kinds = {call.tensor(number).dtype.name for number in call.outputs}
    return (
        _unmet_condition("XNNPACK does not support GELU in half precision", "float16") if "float16" in kinds else None
    )


def average(call: OperatorCall) -> PortableReason | None:
    """Refuse average pooling with options that XNNPACK lacks."""
    if call.is_set(4):
        return _unmet_condition("XNNPACK supports pooling only without ceil_mode", "ceil_mode is True")
    if call.is_set(5) and any(call.listed(3)):
        return _unmet_condition(
            "XNNPACK supports average pooling only with count_include_pad=False", "count_include_pad is True"
        )
    kernel = _to_pair(call.listed(1))
    if call.has(6) and call.number(6) != kernel[0] * kernel[1]:
        return _unmet_condition("XNNPACK does not support divisor_override", f"divisor_override is {call.number(6)}")
    return None


def maximum(call: OperatorCall) -> PortableReason | None:
    """Refuse pooling windows that skip elements."""
    kernel = _to_pair(call.listed(1))
    stride = _to_pair(call.listed(2) or kernel)
    if stride[0] > kernel[0] or stride[1] > kernel[1]:
        return _unmet_condition(
            "XNNPACK supports pooling only if the stride is at most the window", f"{stride} and {kernel}"
        )
    return (
        _refuse_dynamic_shapes(call, "XNNPACK supports pooling with ceil_mode only with fixed shapes")
        if call.is_set(5)
        else None
    )


def _to_pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    if not sizes:
        raise NotKnownError
    return sizes[0], sizes[-1]


def batch_norm(call: OperatorCall) -> PortableReason | None:
    """Refuse data of fewer than two or more than four dimensions."""
    rank = len(call.shape(0))
    if rank in {2, 3, 4}:
        return None
    return _unmet_condition("XNNPACK supports batch normalisation only with two to four dimensions", f"it has {rank}")


def maximum_of_image(call: OperatorCall) -> PortableReason | None:
    """Refuse data without four dimensions."""
    rank = len(call.shape(0))
    return (
        None if rank == _IMAGE else _unmet_condition("XNNPACK supports max only with four dimensions", f"it has {rank}")
    )


def stored(weight: int, bias: int | None = None) -> Condition:
    """Return the condition that weights, and the bias if there is one, are stored with the model."""

    def condition(call: OperatorCall) -> PortableReason | None:
        for position, name in ((weight, "weights"), (bias, "bias")):
            for number in call.tensors_at(position) if position is not None else ():
                value = call.tensor(number)
                if value.data_buffer <= 0 and not value.external:
                    text = f"XNNPACK supports it only if its {name} are stored with the model"
                    return _unmet_condition(
                        text, f"{described(call, number)} is computed or given", Cause.COMPUTED_WEIGHTS
                    )
        return None

    return condition


def convolution(call: OperatorCall) -> PortableReason | None:
    """Refuse filters that are not stored, or that have more than two dimensions."""
    rank = len(call.shape(1))
    if rank > _IMAGE:
        return _unmet_condition("XNNPACK supports only 1D and 2D convolutions", f"the filter has {rank} dimensions")
    return stored(1, 2)(call)


RULES_OF = "executorch 1.5.1"
"""Release whose partitioner has these rules. A program does not state which release exported it."""

_GEMM = "gemm_configs.py"
_GENERIC = "generic_node_configs.py"
_NODE = "node_configs.py"
_FLOATS = frozenset({"float32", "float16"})
_QUANTISED = _FLOATS | {"int8", "qint8", "quint8", "qint32"}


class OperatorRule(NamedTuple):
    """Conditions under which the partitioner takes an operator."""

    target: str  # the operator's name there
    file: str = _GENERIC  # of the partitioner's configuration that holds the rule
    condition: Condition | None = None  # of its own
    dtypes: frozenset[str] = _FLOATS  # number types that its tensors may have
    results: bool = True  # whether that goes for its results too
    inferred: str | None = None  # a form that the program has only when the operator that is taken was not used


_PLAIN = """
abs bmm ceil clamp div exp floor hardtanh hardswish leaky_relu log maximum minimum mul neg permute_copy rsqrt relu
tanh sigmoid sin cos sqrt
"""
_OVERLOADED = {"div": "div.Tensor", "mul": "mul.Tensor"}

RULES: dict[str, OperatorRule] = {
    **{f"aten::{name}.out": OperatorRule(_OVERLOADED.get(name, f"{name}.default")) for name in _PLAIN.split()},
    "aten::add.out": OperatorRule("add.Tensor", condition=whole_scale),
    "aten::sub.out": OperatorRule("sub.Tensor", condition=whole_scale),
    "aten::addmm.out": OperatorRule("addmm.default", _GEMM, stored(2, 0)),
    "aten::mm.out": OperatorRule("mm.default", _GEMM, stored(1)),
    "aten::linear.out": OperatorRule("linear.default", _GEMM, stored(1, 2)),
    "aten::convolution.out": OperatorRule("convolution.default", _GEMM, convolution),
    "aten::avg_pool2d.out": OperatorRule("avg_pool2d.default", condition=average),
    "aten::max_pool2d_with_indices.out": OperatorRule(
        "max_pool2d.default",
        condition=maximum,
        results=False,
        inferred="XNNPACK does not support pooling that returns indices",
    ),
    "aten::_native_batch_norm_legit_no_training.out": OperatorRule(
        "_native_batch_norm_legit_no_training.default", _NODE, batch_norm
    ),
    "aten::cat.out": OperatorRule("cat.default", condition=several),
    "aten::clone.out": OperatorRule("clone.default", condition=same_order),
    "dim_order_ops::_clone_dim_order.out": OperatorRule("_clone_dim_order.default", condition=same_order),
    "dim_order_ops::_to_dim_order_copy.out": OperatorRule("_to_dim_order_copy.default", condition=same_type),
    "aten::constant_pad_nd.out": OperatorRule("constant_pad_nd.default", condition=no_cropping),
    "aten::gelu.out": OperatorRule("gelu.default", condition=not_half),
    "aten::max.dim_max": OperatorRule(
        "max.dim", _NODE, maximum_of_image, frozenset({*_FLOATS, "int8", "qint8"}), results=False
    ),
    "aten::mean.out": OperatorRule("mean.dim", condition=image_mean),
    "aten::pow.Tensor_Scalar_out": OperatorRule("pow.Tensor_Scalar", condition=square),
    "aten::slice_copy.Tensor_out": OperatorRule("slice_copy.Tensor", condition=plain_slice),
    "aten::_softmax.out": OperatorRule("_softmax.default", condition=last_dimension),
    "aten::unsqueeze_copy.out": OperatorRule("unsqueeze_copy.default", condition=trailing),
    "aten::upsample_bilinear2d.vec_out": OperatorRule("upsample_bilinear2d.vec", condition=fixed_shapes),
    "aten::view_copy.out": OperatorRule("view_copy.default", condition=fixed_view),
    "executorch_prim::et_view.default": OperatorRule("view_copy.default", condition=fixed_view),
    "quantized_decomposed::quantize_per_tensor.out": OperatorRule("quantize_per_tensor.default", dtypes=_QUANTISED),
    "quantized_decomposed::dequantize_per_tensor.out": OperatorRule("dequantize_per_tensor.default", dtypes=_QUANTISED),
}
"""Rules by the operator's name in a program; an operator that is not listed is never taken."""


_PLACE = "backends/xnnpack/partition"
_LIST = f"{_PLACE}/config/__init__.py"
_COMMON = f"{_PLACE}/config/xnnpack_config.py"
_BACKEND = "XnnpackBackend"
_WRITES_NUMBERS = ("executorch_prim::", "aten::sym_")
_MOVES_TENSORS = ("executorch_prim::et_view", "executorch_prim::et_copy_index")


class PortableReasons:
    """Reasons of the operators of one method."""

    def __init__(self, plan: MethodPlan) -> None:
        self._plan = plan
        self._steps = plan.chains[0].steps if plan.chains else ()
        computed = _find_computed_scalars(plan, self._steps)
        self._integers = {
            number: integer
            for number, value in enumerate(plan.values)
            if number not in computed and (integer := integer_in(value)) is not None
        }
        self._nested = _find_nested(self._steps)
        self._lowered = any(plan.called(step) == _BACKEND for step in self._steps)

    def of(self, instruction: int) -> PortableReason | None:
        """Return why an instruction of the first chain was not delegated; None if it calls no portable operator."""
        step = self._steps[instruction]
        if step.kind is not InstructionKind.KERNEL:
            return None
        name = self._plan.called(step)
        if name.startswith(_WRITES_NUMBERS) and not name.startswith(_MOVES_TENSORS):
            return PortableReason(Cause.SIZES, "it computes sizes, not tensors", None, _LIST)
        rule = RULES.get(name)
        if rule is None:
            return PortableReason(Cause.NO_RULE, "not supported by XNNPACK", None, _LIST)
        call = OperatorCall(self._plan, step, None, self._integers)
        return self._find_refusal(call, rule) or self._find_nesting_reason(instruction) or self._remaining_reason(rule)

    def _find_refusal(self, call: OperatorCall, rule: OperatorRule) -> PortableReason | None:
        """Return the reason that a rule refuses what the program shows; None if no rule does."""
        common = _tensors_refused(call, rule)
        if common is not None or rule.condition is None:
            return common
        try:
            broken = rule.condition(call)
        except NotKnownError:
            return None
        if broken is None:
            return None
        return msgspec.structs.replace(broken, source=f"{_PLACE}/config/{rule.file}")

    def _find_nesting_reason(self, instruction: int) -> PortableReason | None:
        """Return the reason that the partitioner never saw an instruction: it skips branches, loops and maps."""
        if instruction not in self._nested:
            return None
        text = "the partitioner skips operators inside branches, loops and maps"
        source = "exir/backend/canonical_partitioners/config_partitioner.py"
        return PortableReason(Cause.NESTED, text, f"a jump passes over instruction {instruction} or repeats it", source)

    def _remaining_reason(self, rule: OperatorRule) -> PortableReason:
        if not self._lowered:
            text = "nothing in this method is delegated to XNNPACK: it was probably exported without the partitioner"
            return PortableReason(Cause.NOT_LOWERED, text)
        if rule.inferred:
            return PortableReason(Cause.NO_RULE, rule.inferred, None, f"{_PLACE}/config/{rule.file}")
        return PortableReason(Cause.NOT_KNOWN, "all known rules are met")


def _tensors_refused(call: OperatorCall, rule: OperatorRule) -> PortableReason | None:
    """Check number types and sizes, which the rules of all operators share."""
    inputs = call.inputs
    for number in (*inputs, *(call.outputs if rule.results else ())):
        if call.tensor(number).dtype.name not in rule.dtypes:
            text = f"XNNPACK supports only {' and '.join(sorted(rule.dtypes, reverse=True))}"
            return PortableReason(Cause.NUMBER_TYPE, text, described(call, number), _COMMON)
    different = next((n for n in inputs if call.tensor(n).dtype != call.tensor(inputs[0]).dtype), None)
    if different is not None:
        evidence = f"{described(call, inputs[0])} and {described(call, different)}"
        return PortableReason(Cause.MIXED_TYPES, "XNNPACK requires inputs of one number type", evidence, _COMMON)
    for number in inputs:
        if not elements(call.tensor(number).sizes):
            return PortableReason(Cause.EMPTY, "XNNPACK rejects empty tensors", described(call, number), _COMMON)
        if call.tensor(number).dynamism is Dynamism.UNBOUNDED:
            text = "XNNPACK does not support data-dependent sizes"
            return PortableReason(Cause.DYNAMIC_SHAPE, text, described(call, number), _COMMON)
    return None


def _find_computed_scalars(plan: MethodPlan, steps: Sequence[PlannedStep]) -> set[int]:
    """Return the numbers of values that are no tensors and are written by an instruction."""
    scalars = {number for number, value in enumerate(plan.values) if isinstance(value, Scalar)}
    written = (
        step.arguments[-1]
        for step in steps
        if step.kind is InstructionKind.KERNEL and step.arguments and plan.called(step).startswith(_WRITES_NUMBERS)
    )
    return scalars.intersection(written)


def _find_nested(steps: Sequence[PlannedStep]) -> set[int]:
    """Return the instructions that a jump passes over or repeats."""
    depth = [0] * (len(steps) + 1)
    for number, step in enumerate(steps):
        if step.kind is InstructionKind.JUMP:
            first, last = sorted((number, min(max(step.target, 0), len(steps))))
            depth[first] += 1
            depth[last] -= 1
    return {number for number, open_jumps in enumerate(accumulate(depth)) if open_jumps}
