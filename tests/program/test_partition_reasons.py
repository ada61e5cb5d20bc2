"""Why operators stay portable: what the program shows against what XNNPACK's partitioner takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from opscope.program.partition.partition_reasons import RULES, PortableReasons
from opscope.program.partition.verdicts import Cause, PortableReason
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.plan import (
    Chain,
    Delegate,
    Dynamism,
    InstructionKind,
    ListKind,
    MethodPlan,
    PlannedStep,
    PlannedTensor,
    Value,
    ValueList,
)

_BITS = {"int64": 64, "float32": 32, "int32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "uint8": 8, "bool": 8}
FIXED, BOUNDED, UNBOUNDED = Dynamism.STATIC, Dynamism.BOUNDED, Dynamism.UNBOUNDED


def tensor(*sizes: int, dtype: str = "float32", dynamism: Dynamism = FIXED, data: int = 0) -> PlannedTensor:
    """A tensor that is computed, or stored when ``data`` says where."""
    order = tuple(range(len(sizes)))
    kind = NumberType(dtype, _BITS[dtype])
    return PlannedTensor(kind, sizes, order, dynamism, data, planned=not data, name="", external=False)


def plan(name: str, *arguments: Value | list[int] | list[PlannedTensor], backend: str = "XnnpackBackend") -> MethodPlan:
    """A method that calls a delegate, if any, and then an operator; lists become lists of values."""
    values: list[Value] = []
    numbers = []
    for argument in arguments:
        if isinstance(argument, list):
            first = len(values)
            values += argument
            kind = ListKind.TENSORS if argument and isinstance(argument[0], PlannedTensor) else ListKind.INTEGERS
            argument = ValueList(kind, tuple(range(first, len(values))))  # noqa: PLW2901 - a list becomes its value
        numbers.append(len(values))
        values.append(argument)
    steps = [PlannedStep(InstructionKind.DELEGATE, 0, ())] if backend else []
    steps.append(PlannedStep(InstructionKind.KERNEL, 0, (*numbers, numbers[-1])))
    delegates = (Delegate(backend, None),) if backend else ()
    return MethodPlan("forward", tuple(values), (), (), (name,), delegates, (Chain((), (), tuple(steps)),), ())


def reason(
    name: str, *arguments: Value | list[int] | list[PlannedTensor], backend: str = "XnnpackBackend"
) -> PortableReason:
    """Why the operator not delegated."""
    found = PortableReasons(plan(name, *arguments, backend=backend)).of(1 if backend else 0)
    assert found is not None
    return found


IMAGE, MATRIX = tensor(1, 4, 8, 8), tensor(3, 4)
YES, NO, NONE = True, False, None


def test_an_operator_without_a_rule() -> None:
    """Layer norm is not in the partitioner's list."""
    found = reason("aten::native_layer_norm.out", IMAGE, [8], NONE, NONE, 1e-5, IMAGE)
    assert (found.cause, found.evidence) == (Cause.NO_RULE, None)
    assert found.source == "backends/xnnpack/partition/config/__init__.py"


def test_an_overload_without_a_rule() -> None:
    """Only some forms of an operator are taken."""
    assert reason("aten::clamp.Tensor_out", IMAGE, IMAGE, IMAGE).cause is Cause.NO_RULE


@pytest.mark.parametrize("dtype", ["int64", "bool", "bfloat16", "int8"])
def test_number_types(dtype: str) -> None:
    """Only float32 and float16 go to XNNPACK; the tensor is the evidence."""
    found = reason("aten::mul.out", tensor(2, 3, dtype=dtype), tensor(2, 3, dtype=dtype), tensor(2, 3, dtype=dtype))
    assert (found.cause, found.evidence) == (Cause.NUMBER_TYPE, f"{dtype}[2, 3]")
    assert found.text == "XNNPACK supports only float32 and float16"


def test_the_type_of_the_result_counts() -> None:
    """A tensor of another type that is written is as bad as one that is read."""
    assert reason("aten::abs.out", MATRIX, tensor(3, 4, dtype="int64")).cause is Cause.NUMBER_TYPE


def test_mixed_number_types() -> None:
    """Each is taken alone, but not together."""
    found = reason("aten::mul.out", MATRIX, tensor(3, 4, dtype="float16"), MATRIX)
    assert (found.cause, found.evidence) == (Cause.MIXED_TYPES, "float32[3, 4] and float16[3, 4]")


def test_empty_tensors() -> None:
    """XNNPACK takes none."""
    assert reason("aten::abs.out", tensor(0, 3), tensor(0, 3)).cause is Cause.EMPTY


def test_sizes_that_depend_on_data() -> None:
    """What is not even bounded is not taken."""
    some = tensor(5, dynamism=UNBOUNDED)
    assert reason("aten::abs.out", some, some).cause is Cause.DYNAMIC_SHAPE


OPTIONS: list[tuple[str, list[Value | list[int] | list[PlannedTensor]], str]] = [
    ("aten::add.out", [IMAGE, IMAGE, 2, IMAGE], "alpha is 2"),
    ("aten::sub.out", [IMAGE, IMAGE, 0.5, IMAGE], "alpha is 0.5"),
    ("aten::_softmax.out", [IMAGE, 1, NO, IMAGE], "dimension 1 of float32[1, 4, 8, 8]"),
    ("aten::mean.out", [IMAGE, [2, 3], NO, NONE, IMAGE], "keepdim is False"),
    ("aten::mean.out", [IMAGE, [1], YES, NONE, IMAGE], "dimensions [1]"),
    ("aten::mean.out", [MATRIX, [1], YES, NONE, MATRIX], "it has 2: float32[3, 4]"),
    ("aten::mean.out", [IMAGE, [-1, -2], YES, 6, IMAGE], "dtype is given"),
    ("aten::pow.Tensor_Scalar_out", [IMAGE, 3, IMAGE], "the exponent is 3"),
    ("aten::pow.Tensor_Scalar_out", [IMAGE, 2.0, IMAGE], "the exponent is 2.0"),
    ("aten::constant_pad_nd.out", [IMAGE, [-1, 0], 0, IMAGE], "[-1, 0]"),
    ("aten::slice_copy.Tensor_out", [MATRIX, 0, 0, 3, 2, MATRIX], "the step is 2"),
    ("aten::unsqueeze_copy.out", [MATRIX, 1, MATRIX], "dimension 1 of float32[3, 4]"),
    ("aten::cat.out", [[MATRIX], 0, MATRIX], "it has 1"),
    ("aten::avg_pool2d.out", [IMAGE, [3], [2], [0], YES, NO, NONE, IMAGE], "ceil_mode is True"),
    ("aten::avg_pool2d.out", [IMAGE, [3], [2], [1], NO, YES, NONE, IMAGE], "count_include_pad is True"),
    ("aten::avg_pool2d.out", [IMAGE, [3], [2], [0], NO, YES, 4, IMAGE], "divisor_override is 4"),
    ("aten::max_pool2d_with_indices.out", [IMAGE, [2], [3], [0], [1], NO, [IMAGE, IMAGE]], "(3, 3) and (2, 2)"),
    ("aten::convolution.out", [tensor(1, 2, 5, 5, 5), tensor(2, 2, 3, 3, 3, data=1), NONE, IMAGE], "5 dimensions"),
    ("aten::_native_batch_norm_legit_no_training.out", [tensor(1, 2, 3, 3, 3), NONE, IMAGE], "it has 5"),
    ("dim_order_ops::_to_dim_order_copy.out", [IMAGE, tensor(1, dtype="float16")], "from float32 to float16"),
    ("aten::max.dim_max", [MATRIX, 0, NO, [MATRIX, tensor(3, dtype="int64")]], "it has 2"),
]


@pytest.mark.parametrize(("name", "arguments", "evidence"), OPTIONS)
def test_options(name: str, arguments: list[Value | list[int] | list[PlannedTensor]], evidence: str) -> None:
    """Options that the partitioner refuses, with what the program shows of them."""
    found = reason(name, *arguments)
    assert found.cause is Cause.OPTION
    assert found.evidence is not None
    assert evidence in found.evidence
    assert found.source is not None
    assert found.source.startswith("backends/xnnpack/partition/config/")


def test_gelu_in_half_precision() -> None:
    """GELU alone is refused in float16."""
    half = tensor(2, 3, dtype="float16")
    assert reason("aten::gelu.out", half, "none", half).cause is Cause.OPTION
    assert reason("aten::gelu.out", MATRIX, "none", MATRIX).cause is Cause.NOT_KNOWN


def test_weights_that_are_computed() -> None:
    """Matrix products and convolutions need weights, and a bias, that are stored with the model."""
    assert reason("aten::mm.out", MATRIX, tensor(4, 5), tensor(3, 5)).cause is Cause.COMPUTED_WEIGHTS
    assert reason("aten::mm.out", MATRIX, tensor(4, 5, data=1), tensor(3, 5)).cause is Cause.NOT_KNOWN
    found = reason("aten::addmm.out", tensor(5), MATRIX, tensor(4, 5, data=1), 1, 1, tensor(3, 5))
    assert (found.cause, found.evidence) == (Cause.COMPUTED_WEIGHTS, "float32[5] is computed or given")
    assert "bias" in found.text


def test_shapes_that_can_differ() -> None:
    """Slices, resizes and pooling with ceil_mode need fixed shapes; most other operators do not."""
    some = tensor(16, 8, dynamism=BOUNDED)
    numbers = 1, 0, 3, 1
    found = reason("aten::slice_copy.Tensor_out", some, *numbers, some)
    assert (found.cause, found.evidence) == (Cause.DYNAMIC_SHAPE, "float32[16, 8] is an upper bound")
    assert reason("aten::upsample_bilinear2d.vec_out", some, NONE, NO, NONE, some).cause is Cause.DYNAMIC_SHAPE
    assert reason("aten::relu.out", some, some).cause is Cause.NOT_KNOWN


def test_a_reshape_to_a_computed_size() -> None:
    """The size is written by an instruction, so it is not a number of the program."""
    made = plan("aten::view_copy.out", MATRIX, [0, 6], tensor(2, 6))
    chain = made.chains[0]
    size = PlannedStep(InstructionKind.KERNEL, 1, (0, 1))  # writes the first member of the list
    operators = (*made.operators, "aten::sym_size.int")
    steps = (chain.steps[0], size, chain.steps[1])
    computed = msgspec.structs.replace(made, operators=operators, chains=(Chain((), (), steps),))
    reasons = PortableReasons(computed)
    found = [reasons.of(number) for number in (1, 2)]
    assert [each.cause for each in found if each] == [Cause.SIZES, Cause.DYNAMIC_SHAPE]
    assert reason("aten::view_copy.out", MATRIX, [2, 6], tensor(2, 6)).cause is Cause.NOT_KNOWN


def test_branches_and_loops_are_not_looked_at() -> None:
    """What a jump passes over or repeats was never offered to XNNPACK; its own reason comes first."""
    made = plan("aten::relu.out", MATRIX, MATRIX)
    steps = made.chains[0].steps
    forward = (PlannedStep(InstructionKind.JUMP, 3, (0,)), *steps)
    backward = (*steps, PlannedStep(InstructionKind.JUMP, 0, (0,)))
    for chain, number in ((forward, 2), (backward, 1)):
        found = PortableReasons(msgspec.structs.replace(made, chains=(Chain((), (), chain),))).of(number)
        assert found is not None
        assert found.cause is Cause.NESTED
    behind = (*steps, PlannedStep(InstructionKind.JUMP, 9, (0,)))
    after = PortableReasons(msgspec.structs.replace(made, chains=(Chain((), (), behind),))).of(1)
    assert after is not None
    assert after.cause is Cause.NOT_KNOWN


def test_a_program_that_was_not_lowered() -> None:
    """Without any delegate, what XNNPACK would take says that it was not asked; the rest keeps its own reason."""
    assert reason("aten::relu.out", MATRIX, MATRIX, backend="").cause is Cause.NOT_LOWERED
    assert reason("aten::relu.out", MATRIX, MATRIX, backend="CoreMLBackend").cause is Cause.NOT_LOWERED
    assert reason("aten::embedding.out", MATRIX, MATRIX, MATRIX, backend="").cause is Cause.NO_RULE


def test_pooling_that_returns_indices() -> None:
    """It has the name that refused pooling gets, so the options decide; with good ones the indices are the reason."""
    assert reason("aten::max_pool2d_with_indices.out", IMAGE, [2], [2], [0], [1], NO, [IMAGE]).cause is Cause.NO_RULE


def test_what_the_program_does_not_show_gives_no_reason() -> None:
    """Missing options and a method without values refuse nothing."""
    assert reason("aten::_softmax.out", IMAGE, IMAGE, NO, IMAGE).cause is Cause.NOT_KNOWN
    assert reason("aten::relu.out", MATRIX, MATRIX).source is None
    bare = msgspec.structs.replace(plan("aten::relu.out", MATRIX, MATRIX), values=())
    found = PortableReasons(bare).of(1)
    assert found is not None
    assert found.cause is Cause.NOT_KNOWN


def test_delegates_have_no_reason() -> None:
    """Only kernels are portable operators."""
    assert PortableReasons(plan("aten::relu.out", MATRIX, MATRIX)).of(0) is None


_PARTITIONER = """
import logging, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.nn import functional as F
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

class Refused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.taken = torch.nn.Linear(8, 8)

    def forward(self, x, rows, whole):
        y = self.taken(x)
        return (
            F.layer_norm(y, (8,)), whole + whole, torch.add(y, x, alpha=2), F.softmax(y, 1), y.mean((2, 3)),
            y.mean((1,), keepdim=True), rows.mean((-1,), keepdim=True), y**3, torch.pow(y, 2.0), F.pad(y, (-1, 0)),
            y[:, :, ::2], rows.unsqueeze(1), F.avg_pool2d(y, 3, 2, ceil_mode=True), F.avg_pool2d(y, 3, 2, 1),
            F.max_pool2d(y, 2, 3), rows @ rows, y.to(torch.float16), F.gelu(y.to(torch.float16)), torch.cat([y]),
        )

inputs = torch.randn(1, 4, 8, 8), torch.randn(4, 4), torch.ones(3, dtype=torch.int64)
exported = torch.export.export(Refused().eval(), inputs)
to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch().save(sys.argv[1])
print(*(config.target_name for config in ALL_PARTITIONER_CONFIGS))
"""


@pytest.mark.runtime
def test_the_rules_are_those_of_the_installed_partitioner(tmp_path: Path) -> None:
    """Every operator that it refuses has a reason that is known, and every rule is one of its own."""
    from opscope.runtimes.executorch.pte import read_executable

    program = tmp_path / "refused.pte"
    command = [sys.executable, "-c", _PARTITIONER, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = set(done.stdout.split())
    assert {rule.target for rule in RULES.values()} <= taken
    without_kernel = {"prelu.default", "quantize_affine.default", "dequantize_affine.default"}
    assert taken - {rule.target for rule in RULES.values()} == without_kernel | {"choose_qparams_affine.default"}
    made = read_executable(program).plans[0]
    reasons = PortableReasons(made)
    found = [reason for number in range(len(made.chains[0].steps)) if (reason := reasons.of(number))]
    assert len(found) >= 19
    assert not {each.cause for each in found} & {Cause.NOT_KNOWN, Cause.NOT_LOWERED, Cause.NESTED}
