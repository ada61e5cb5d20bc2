"""Why an operator stayed with the runtime's portable kernels and did not go to XNNPACK, where that can be known.

The program shows number types, shapes and options; the partitioner's rules
say what it takes of them. A reason is given when a rule
refuses what the program shows. When every known rule is met, the reason is not known: the exporter may have had other
settings, another release, or a pattern that it did not recognise.

Source of what the partitioner takes: ``backends/xnnpack/partition/config`` of the release in ``RULES_OF``: its list of
operators, the checks that all of them share, and those of each. A program names the form of an operator that writes to
a given output; the partitioner saw ``add.Tensor`` where the program has ``aten::add.out``. Conditions on what a program
does not keep, as which results are used, are left out.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.call import OperatorCall, integer_in
from opscope.program.cost.dimensions import NotKnownError, elements
from opscope.program.partition import partition_conditions as conditions
from opscope.program.partition.partition_conditions import described
from opscope.program.partition.portable_reason import Cause, PortableReason
from opscope.program.structure.plan import Dynamism, InstructionKind, Scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.program.partition.partition_conditions import Condition
    from opscope.program.structure.plan import MethodPlan, PlannedStep


RULES_OF = "executorch 1.5.1"
"""The release whose partitioner the rules are of. A program does not say which release exported it."""

_GEMM = "gemm_configs.py"
_GENERIC = "generic_node_configs.py"
_NODE = "node_configs.py"
_FLOATS = frozenset({"float32", "float16"})
_QUANTISED = _FLOATS | {"int8", "qint8", "quint8", "qint32"}


class OperatorRule(NamedTuple):
    """How the partitioner takes an operator."""

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
    "aten::add.out": OperatorRule("add.Tensor", condition=conditions.whole_scale),
    "aten::sub.out": OperatorRule("sub.Tensor", condition=conditions.whole_scale),
    "aten::addmm.out": OperatorRule("addmm.default", _GEMM, conditions.stored(2, 0)),
    "aten::mm.out": OperatorRule("mm.default", _GEMM, conditions.stored(1)),
    "aten::linear.out": OperatorRule("linear.default", _GEMM, conditions.stored(1, 2)),
    "aten::convolution.out": OperatorRule("convolution.default", _GEMM, conditions.convolution),
    "aten::avg_pool2d.out": OperatorRule("avg_pool2d.default", condition=conditions.average),
    "aten::max_pool2d_with_indices.out": OperatorRule(
        "max_pool2d.default",
        condition=conditions.maximum,
        results=False,
        inferred="XNNPACK does not support pooling that returns indices",
    ),
    "aten::_native_batch_norm_legit_no_training.out": OperatorRule(
        "_native_batch_norm_legit_no_training.default", _NODE, conditions.batch_norm
    ),
    "aten::cat.out": OperatorRule("cat.default", condition=conditions.several),
    "aten::clone.out": OperatorRule("clone.default", condition=conditions.same_order),
    "dim_order_ops::_clone_dim_order.out": OperatorRule("_clone_dim_order.default", condition=conditions.same_order),
    "dim_order_ops::_to_dim_order_copy.out": OperatorRule("_to_dim_order_copy.default", condition=conditions.same_type),
    "aten::constant_pad_nd.out": OperatorRule("constant_pad_nd.default", condition=conditions.no_cropping),
    "aten::gelu.out": OperatorRule("gelu.default", condition=conditions.not_half),
    "aten::max.dim_max": OperatorRule(
        "max.dim", _NODE, conditions.maximum_of_image, frozenset({*_FLOATS, "int8", "qint8"}), results=False
    ),
    "aten::mean.out": OperatorRule("mean.dim", condition=conditions.image_mean),
    "aten::pow.Tensor_Scalar_out": OperatorRule("pow.Tensor_Scalar", condition=conditions.square),
    "aten::slice_copy.Tensor_out": OperatorRule("slice_copy.Tensor", condition=conditions.plain_slice),
    "aten::_softmax.out": OperatorRule("_softmax.default", condition=conditions.last_dimension),
    "aten::unsqueeze_copy.out": OperatorRule("unsqueeze_copy.default", condition=conditions.trailing),
    "aten::upsample_bilinear2d.vec_out": OperatorRule("upsample_bilinear2d.vec", condition=conditions.fixed_shapes),
    "aten::view_copy.out": OperatorRule("view_copy.default", condition=conditions.fixed_view),
    "executorch_prim::et_view.default": OperatorRule("view_copy.default", condition=conditions.fixed_view),
    "quantized_decomposed::quantize_per_tensor.out": OperatorRule("quantize_per_tensor.default", dtypes=_QUANTISED),
    "quantized_decomposed::dequantize_per_tensor.out": OperatorRule("dequantize_per_tensor.default", dtypes=_QUANTISED),
}
"""By the name that a program has; an operator that is not listed is never taken."""


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
        computed = _computed(plan, self._steps)
        self._integers = {
            number: integer
            for number, value in enumerate(plan.values)
            if number not in computed and (integer := integer_in(value)) is not None
        }
        self._nested = _nested(self._steps)
        self._lowered = any(plan.called(step) == _BACKEND for step in self._steps)

    def of(self, instruction: int) -> PortableReason | None:
        """Why an instruction of the first chain was not delegated; None when it calls no portable operator."""
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
        return self._refused(call, rule) or self._elsewhere(instruction) or self._left(rule)

    def _refused(self, call: OperatorCall, rule: OperatorRule) -> PortableReason | None:
        """What the rules refuse of what the program shows."""
        common = _tensors_refused(call, rule)
        if common is not None or rule.condition is None:
            return common
        try:
            broken = rule.condition(call)
        except NotKnownError:
            return None
        if broken is None:
            return None
        return PortableReason(broken.cause, broken.text, broken.evidence, f"{_PLACE}/config/{rule.file}")

    def _elsewhere(self, instruction: int) -> PortableReason | None:
        """Whether the partitioner never saw it: it looks at the operators of the method itself."""
        if instruction not in self._nested:
            return None
        text = "the partitioner skips operators inside branches, loops and maps"
        source = "exir/backend/canonical_partitioners/config_partitioner.py"
        return PortableReason(Cause.NESTED, text, f"a jump passes over instruction {instruction} or repeats it", source)

    def _left(self, rule: OperatorRule) -> PortableReason:
        if not self._lowered:
            text = "nothing in this method is delegated to XNNPACK: it was probably exported without the partitioner"
            return PortableReason(Cause.NOT_LOWERED, text)
        if rule.inferred:
            return PortableReason(Cause.NO_RULE, rule.inferred, None, f"{_PLACE}/config/{rule.file}")
        return PortableReason(Cause.NOT_KNOWN, "all known rules are met")


def _tensors_refused(call: OperatorCall, rule: OperatorRule) -> PortableReason | None:
    """The checks that all operators share: number types, the same for all inputs, and nothing empty."""
    inputs = call.inputs
    for number in (*inputs, *(call.outputs if rule.results else ())):
        if call.tensor(number).dtype.name not in rule.dtypes:
            text = f"XNNPACK supports only {' and '.join(sorted(rule.dtypes, reverse=True))}"
            return PortableReason(Cause.NUMBER_TYPE, text, described(call, number), _COMMON)
    other = next((n for n in inputs if call.tensor(n).dtype != call.tensor(inputs[0]).dtype), None)
    if other is not None:
        evidence = f"{described(call, inputs[0])} and {described(call, other)}"
        return PortableReason(Cause.MIXED_TYPES, "XNNPACK requires inputs of one number type", evidence, _COMMON)
    for number in inputs:
        if not elements(call.tensor(number).sizes):
            return PortableReason(Cause.EMPTY, "XNNPACK rejects empty tensors", described(call, number), _COMMON)
        if call.tensor(number).dynamism is Dynamism.UNBOUNDED:
            text = "XNNPACK does not support data-dependent sizes"
            return PortableReason(Cause.DYNAMIC_SHAPE, text, described(call, number), _COMMON)
    return None


def _computed(plan: MethodPlan, steps: Sequence[PlannedStep]) -> set[int]:
    """Numbers of values that are no tensors and are written by an instruction."""
    scalars = {number for number, value in enumerate(plan.values) if isinstance(value, Scalar)}
    written = (
        step.arguments[-1]
        for step in steps
        if step.kind is InstructionKind.KERNEL and step.arguments and plan.called(step).startswith(_WRITES_NUMBERS)
    )
    return scalars.intersection(written)


def _nested(steps: Sequence[PlannedStep]) -> set[int]:
    """Instructions that a jump passes over or repeats."""
    depth = [0] * (len(steps) + 1)
    for number, step in enumerate(steps):
        if step.kind is InstructionKind.JUMP:
            first, last = sorted((number, min(max(step.target, 0), len(steps))))
            depth[first] += 1
            depth[last] -= 1
    return {number for number, open_jumps in enumerate(accumulate(depth)) if open_jumps}
