"""What a program tells before it runs: shares, parts, reasons and what to do, on models written by hand."""

from __future__ import annotations

import jsonschema
import msgspec
import pytest

import plans
from graphs import graph
from opscope.analysis.findings.message import Severity
from opscope.analysis.preflight.contents import tensors_of
from opscope.analysis.preflight.forecast import BYTES_PER_NS, CALL_NS, CLOCK_GHZ, Part
from opscope.analysis.preflight.preflight import MethodPreflight, Preflight, examine_plan, next_step, preflight
from opscope.machine.named_cpus import cpu_by_name
from opscope.program.cost.operator_cost import DELEGATED_OPERATOR_NS
from opscope.program.kernels.cpu import MACS_PER_CYCLE
from opscope.program.model import ProgramModel
from opscope.program.operators.kinds import Category
from opscope.program.partition.verdicts import Cause, SmeSupport
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import (
    Chain,
    Delegate,
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
from opscope.program.xnnpack.graph import NO_HANDLE, DelegateGraph, XnnGraph

F32 = NumberType("float32", 32)

CONVOLUTION = f"""
    input x fp32 1x4x8x8
    t fp32 1x8x8x4 = StaticTranspose x perm=0,2,3,1 handle={NO_HANDLE}
    const w fp32 16x3x3x4
    y fp32 1x8x8x16 = Conv2d t w
    const d fp32 1x3x3x16
    z fp32 1x8x8x16 = DepthwiseConv2d y d groups=16 in=1 out=1
    output z
"""
CONVOLUTION_MACS = 64 * 16 * 36
DEPTHWISE_MACS = 64 * 16 * 9


def tensor(*sizes: int, dynamism: Dynamism = Dynamism.STATIC, dtype: NumberType = F32) -> PlannedTensor:
    """A tensor in planned memory."""
    order = tuple(range(len(sizes)))
    return PlannedTensor(dtype, sizes, order, dynamism, 0, planned=True, name="", external=False)


def delegate(number: int, *arguments: int) -> PlannedStep:
    """A call of a delegate."""
    return PlannedStep(InstructionKind.DELEGATE, number, arguments)


def kernel(number: int, *arguments: int) -> PlannedStep:
    """A call of a portable operator."""
    return PlannedStep(InstructionKind.KERNEL, number, arguments)


def looked_at(
    values: list[Value],
    steps: list[PlannedStep],
    graphs: dict[int, XnnGraph],
    *,
    operators: tuple[str, ...] = (),
    backends: tuple[str, ...] = ("XnnpackBackend",),
    cpu: str = "apple-m4",
) -> MethodPreflight:
    """Preflight a program with one method, whose first value is its input and whose last is its output."""
    made = tuple(Delegate(backend, None) for backend in backends)
    outer = (0,), (len(values) - 1,)
    plan = MethodPlan("forward", tuple(values), *outer, operators, made, (Chain((), (), tuple(steps)),), ())
    executable = Executable("ET12", 0, (plan,), (), ())
    known = [DelegateGraph("forward", number, (), each) for number, each in graphs.items()]
    found = preflight(ProgramModel(executable, known, None), "model.pte", "00", cpu_by_name(cpu))
    jsonschema.validate(msgspec.to_builtins(found, str_keys=True), msgspec.json.schema(Preflight))
    return found.methods[0]


@pytest.fixture
def image_model() -> MethodPreflight:
    """A delegate with two convolutions, then a softmax over channels that stays portable."""
    values: list[Value] = [
        tensor(1, 4, 8, 8),
        tensor(1, 16, 8, 8),
        1,
        False,
        tensor(1, 16, 8, 8),
    ]
    steps = [delegate(0, 0, 1), kernel(0, 1, 2, 3, 4, 4)]
    return looked_at(values, steps, {0: graph(CONVOLUTION)}, operators=("aten::_softmax.out",))


def test_the_partition(image_model: MethodPreflight) -> None:
    """Operators of delegates, as XNNPACK will run them, and portable ones."""
    partition = image_model.partition
    assert (partition.delegates, partition.calls) == (1, 1)
    assert (partition.delegated_operators, partition.portable_operators) == (3, 1)
    assert (partition.unread, partition.other_backends) == (0, [])


def test_the_share_that_can_be_accelerated(image_model: MethodPreflight) -> None:
    """The convolution can, the depthwise one cannot: 4 of 5 multiply-accumulates."""
    matrix = image_model.matrix
    assert (matrix.macs, matrix.eligible) == (CONVOLUTION_MACS + DEPTHWISE_MACS, CONVOLUTION_MACS)
    assert matrix.share == matrix.highest_share == pytest.approx(0.8)
    verdicts = [(group.form, group.verdict, group.macs) for group in matrix.groups]
    assert verdicts == [
        ("convolution", SmeSupport.ELIGIBLE, CONVOLUTION_MACS),
        ("depthwise convolution", SmeSupport.NOT_ELIGIBLE, DEPTHWISE_MACS),
    ]


def test_work_by_category_on_both_sides(image_model: MethodPreflight) -> None:
    """Multiply-accumulates and bytes of delegated and portable operators; each operator stands once."""
    rows = {row.category: row for row in image_model.work}
    assert set(rows) == {Category.CONVOLUTION, Category.DATA_MOVEMENT, Category.OTHER}
    assert rows[Category.CONVOLUTION].delegated.macs == CONVOLUTION_MACS + DEPTHWISE_MACS
    assert rows[Category.DATA_MOVEMENT].delegated.bytes == 2 * 4 * 256
    assert rows[Category.OTHER].portable.operators == 1
    assert rows[Category.OTHER].portable.bytes == 2 * 4 * 1024


def test_layout_changes(image_model: MethodPreflight) -> None:
    """The transpose that the partitioner added at the delegate's input, with the bytes that it moves."""
    layout = image_model.layout
    assert (layout.transposes, layout.at_border, layout.conversions) == (1, 1, 0)
    assert layout.bytes == 2 * 4 * 256
    whole = sum(row.delegated.bytes + row.portable.bytes for row in image_model.work)
    assert layout.share == pytest.approx(layout.bytes / whole)


def test_borders(image_model: MethodPreflight) -> None:
    """What goes into the delegate is the method's own input; what leaves it goes to a portable operator."""
    passing = image_model.borders
    assert (passing.calls, passing.tensors, passing.inner_tensors) == (1, 2, 1)
    assert (passing.bytes, passing.inner_bytes) == (4 * 256 + 4 * 1024, 4 * 1024)


def test_why_it_stays_portable(image_model: MethodPreflight) -> None:
    """The reason with its evidence."""
    (group,) = image_model.portable
    assert (group.operator, group.work.operators) == ("aten::_softmax.out", 1)
    assert (group.reason.cause, group.reason.evidence) == (Cause.OPTION, "dimension 1 of float32[1, 16, 8, 8]")


def test_findings_say_what_to_do(image_model: MethodPreflight) -> None:
    """What SME cannot run, what stays portable, what moves data; nothing else."""
    rules = {finding.rule for finding in image_model.findings}
    assert rules == {"not_eligible", "portable", "layout_changes"}
    assert all(finding.next_step for finding in image_model.findings)
    assert all(finding.saving_ns is None for finding in image_model.findings)


def test_the_forecast_follows_its_rule(image_model: MethodPreflight) -> None:
    """An operator takes the longer of arithmetic and bytes at the stated rates; a delegate call a fixed time."""
    assert image_model.forecast is not None
    parts = {row.part: row for row in image_model.forecast.parts}
    assert sum(row.share for row in parts.values()) == pytest.approx(1)
    assert sum(row.share_accelerated for row in parts.values()) == pytest.approx(1)
    neon, sme2 = (MACS_PER_CYCLE[kernel][32] * CLOCK_GHZ for kernel in ("NEON", "SME2"))
    moved = 4 * (256 + 1024 + 16 * 36)
    plain, fast = (max(CONVOLUTION_MACS / rate, moved / BYTES_PER_NS) for rate in (neon, sme2))
    calls = CALL_NS + 3 * DELEGATED_OPERATOR_NS
    ratio = parts[Part.ACCELERATED].share / parts[Part.CALLS].share
    assert ratio == pytest.approx(plain / calls)
    accelerated = parts[Part.ACCELERATED].share_accelerated / parts[Part.CALLS].share_accelerated
    assert accelerated == pytest.approx(fast / calls)
    assert image_model.forecast.bottleneck is Part.CALLS
    assert image_model.forecast.parts[0].part is Part.CALLS


def test_a_delegate_that_is_called_twice_counts_twice() -> None:
    """Equal parts of a model can share a delegate."""
    values: list[Value] = [tensor(1, 4, 8, 8), tensor(1, 16, 8, 8), tensor(1, 16, 8, 8)]
    once = looked_at(values, [delegate(0, 0, 1)], {0: graph(CONVOLUTION)})
    twice = looked_at(values, [delegate(0, 0, 1), delegate(0, 0, 2)], {0: graph(CONVOLUTION)})
    assert twice.matrix.macs == 2 * once.matrix.macs
    assert twice.partition.delegated_operators == 2 * once.partition.delegated_operators
    assert twice.layout.bytes == 2 * once.layout.bytes


def test_portable_multiply_accumulates_cannot_be_accelerated() -> None:
    """They count against the share."""
    product = "input x fp32 4x8\nconst w fp32 8x8\ny fp32 4x8 = FullyConnected x w\noutput y"
    values: list[Value] = [tensor(4, 8), tensor(4, 8), tensor(8, 8), tensor(4, 8)]
    steps = [delegate(0, 0, 1), kernel(0, 1, 2, 3, 3)]
    found = looked_at(values, steps, {0: graph(product)}, operators=("aten::mm.out",))
    assert found.matrix.share == pytest.approx(0.5)
    assert found.portable[0].reason.cause is Cause.COMPUTED_WEIGHTS
    severe = [finding for finding in found.findings if finding.severity is Severity.HIGH]
    assert [finding.rule for finding in severe] == ["portable"]
    assert "torch.bmm" in severe[0].next_step


def test_what_is_not_known_widens_the_share() -> None:
    """A number type without a rule is neither counted as accelerated nor as lost."""
    text = "input x fp32 4x8\nconst w bf16 8x8\ny fp32 4x8 = FullyConnected x w\noutput y"
    found = looked_at([tensor(4, 8), tensor(4, 8)], [delegate(0, 0, 1)], {0: graph(text)})
    assert (found.matrix.share, found.matrix.highest_share) == (0.0, 1.0)
    assert "may not run" in found.findings[0].title


def test_a_delegate_without_payload() -> None:
    """It is counted, its work is not known, and nothing is predicted."""
    found = looked_at([tensor(4, 8), tensor(4, 8)], [delegate(0, 0, 1)], {})
    assert (found.partition.delegates, found.partition.unread) == (1, 1)
    assert found.matrix.share is None
    assert found.forecast is None
    assert found.findings[0].rule == "unread"


def test_delegates_of_other_backends() -> None:
    """They are named and not looked into."""
    found = looked_at([tensor(4, 8), tensor(4, 8)], [delegate(0, 0, 1)], {}, backends=("CoreMLBackend",))
    assert [(other.name, other.count) for other in found.partition.other_backends] == [("CoreMLBackend", 1)]
    assert (found.partition.delegates, found.partition.unread) == (0, 0)
    assert [finding.rule for finding in found.findings] == ["other_backend"]


def test_a_program_without_delegates() -> None:
    """The first finding says that nothing is accelerated and how to lower it."""
    values: list[Value] = [tensor(4, 8), tensor(4, 8)]
    found = looked_at(values, [kernel(0, 0, 1, 1)], {}, operators=("aten::relu.out",), backends=())
    assert found.findings[0].rule == "nothing_delegated"
    assert "XnnpackPartitioner" in found.findings[0].next_step
    assert found.portable[0].reason.cause is Cause.NOT_LOWERED
    own = msgspec.structs.replace(found.portable[0].reason, cause=Cause.NUMBER_TYPE, text="int16 is not taken")
    group = msgspec.structs.replace(found.portable[0], operator="CONV_2D", reason=own)
    (told, *_) = examine_plan(msgspec.structs.replace(found, portable=[group]), None)
    assert (told.rule, "CONV_2D: int16 is not taken" in told.evidence) == ("nothing_delegated", True)
    assert "XnnpackPartitioner" not in told.next_step


def test_a_program_that_is_cut_up() -> None:
    """Many calls of delegates: the portable operators between them are named, the most frequent first."""
    activation = "input x fp32 4x8\ny fp32 4x8 = Sigmoid x\noutput y"
    values: list[Value] = [*(tensor(4, 8) for _ in range(18)), None]
    steps = []
    for number in range(0, 16, 2):
        steps += [delegate(0, number, number + 1), kernel(0, number + 1, 18, number + 2, number + 2)]
    found = looked_at(values, steps, {0: graph(activation)}, operators=("aten::native_layer_norm.out",))
    (cut,) = [finding for finding in found.findings if finding.rule == "cut_up"]
    assert cut.title == "the model is split into 8 delegate calls"
    assert "8 x aten::native_layer_norm.out" in cut.evidence
    assert found.borders.inner_tensors == 15


def test_shapes_that_can_differ_and_branches_are_said() -> None:
    """The figures are upper bounds, and every instruction counts once."""
    some = tensor(16, 8, dynamism=Dynamism.BOUNDED)
    steps = [kernel(0, 0, 1, 1), PlannedStep(InstructionKind.JUMP, 0, (2,))]
    found = looked_at([some, some, True, some], steps, {}, operators=("aten::relu.out",))
    assert (found.dynamic, found.branches) == (True, True)
    assert {"dynamic", "branches"} <= {finding.rule for finding in found.findings}
    assert found.portable[0].reason.cause is Cause.NESTED


def test_integers_in_the_model_are_named() -> None:
    """A Python integer becomes a tensor without dimensions that is converted in each inference."""
    integer = tensor(dtype=NumberType("int64", 64))
    steps = [kernel(0, 0, 1, 1)]
    found = looked_at([integer, tensor()], steps, {}, operators=("dim_order_ops::_to_dim_order_copy.out",))
    assert found.portable[0].reason.cause is Cause.NUMBER_TYPE
    assert "floats" in next_step(found.portable[0])


def test_sizes_are_no_operators() -> None:
    """Instructions that compute sizes are counted apart and stand in no table."""
    values: list[Value] = [tensor(4, 8), 0, 0, tensor(4, 8)]
    found = looked_at(values, [kernel(0, 0, 1, 2)], {}, operators=("aten::sym_size.int",))
    assert (found.partition.portable_operators, found.partition.size_operators) == (0, 1)
    assert (found.portable, found.work) == ([], [])


def test_impossible_sizes_are_left_out() -> None:
    """Damaged sizes give no figures."""
    text = f"input x fp32 {2**31}x{2**31}\nconst w fp32 8x{2**31}\ny fp32 {2**31}x8 = FullyConnected x w\noutput y"
    found = looked_at([tensor(4, 8), tensor(4, 8)], [delegate(0, 0, 1)], {0: graph(text)})
    assert (found.matrix.macs, found.matrix.unknown, found.matrix.share) == (0, 1, None)
    assert "unknown_work" in {finding.rule for finding in found.findings}


def test_lists_of_tensors_pass_no_border() -> None:
    """A delegate is given tensors, not lists; what a list holds counts where it is used."""
    values: list[Value] = [tensor(4, 8), ValueList(ListKind.TENSORS, (0,)), tensor(4, 8)]
    found = looked_at(values, [delegate(0, 1, 2)], {})
    assert found.borders.tensors == 1


def test_matrix_work_that_cannot_use_sme_is_named_with_its_types(image_model: MethodPreflight) -> None:
    """The depthwise convolution, a fifth of the work."""
    (told,) = [one for one in image_model.findings if one.rule == "not_eligible"]
    (group,) = [one for one in image_model.matrix.groups if one.verdict is SmeSupport.NOT_ELIGIBLE]
    assert group.types
    assert f"{group.form.value} ({group.types})" in told.title


def test_tensors_among_the_values_are_listed() -> None:
    """From the first value to the last; a number is none, and a damaged program may name what is not there."""
    plan = plans.Method(plans.tensor(2, 3), plans.tensor(4, dtype="int8"), 1.0).plan()
    first, second = Tensor([2, 3], "float32"), Tensor([4], "int8")
    assert tensors_of(plan, [1, 0, 2, -1, 3]) == [second, first]


def product(data: str, weights: str, result: str) -> dict[int, XnnGraph]:
    """A delegate with one matrix product of these number types."""
    return {0: graph(f"input x {data} 4x8\nconst w {weights} 8x8\ny {result} 4x8 = FullyConnected x w\noutput y")}


@pytest.mark.parametrize(
    ("cpu", "types", "kernel", "without"),
    [
        ("x86-64-v2", ("fp32", "fp32", "fp32"), "SSE2", "SSE2"),
        ("x86-64-v3", ("fp32", "fp32", "fp32"), "FMA3", "AVX"),
        ("x86-64-v4", ("fp32", "fp32", "fp32"), "AVX-512", "FMA3"),
        ("x86-64-v4", ("qint8", "qcint8", "qint8"), "AVX-512", "AVX2"),
        ("alderlake", ("qint8", "qcint8", "qint8"), "AVX-VNNI", "AVX"),
        ("cascadelake", ("qint8", "qcint8", "qint8"), "AVX-512 VNNI", "AVX2"),
        ("cascadelake", ("qdint8", "qcint8", "fp32"), "AVX-512 VNNI", "AVX2"),
        ("cascadelake", ("quint8", "quint8", "quint8"), "AVX-512", "AVX2"),
        ("sapphirerapids", ("qdint8", "qcint4", "fp32"), "AMX", "AVX-512 VNNI"),
        ("sapphirerapids", ("fp16", "fp16", "fp16"), "AVX-512 FP16", "AVX2"),
        ("cortex-a53", ("qint8", "qcint8", "qint8"), "NEON", "NEON"),
        ("neoverse-n1", ("qint8", "qcint8", "qint8"), "NEON dotprod", "NEON"),
        ("neoverse-v1", ("qint8", "qcint8", "qint8"), "NEON i8mm", "NEON dotprod"),
        ("apple-m4", ("qint8", "qcint8", "qint8"), "SME2", "NEON i8mm"),
        ("apple-m4", ("qdint8", "qbint4", "fp32"), "NEON i8mm", "NEON i8mm"),
        ("apple-m4", ("fp16", "fp16", "fp16"), "SME2", "NEON fp16"),
        ("cortex-a53", ("fp16", "fp16", "fp16"), None, None),
    ],
)
def test_a_named_processor_chooses_the_kernels(
    cpu: str, types: tuple[str, str, str], kernel: str | None, without: str | None
) -> None:
    """By its features, with and without the group that a profile would switch off."""
    bits = {8} if "int" in types[0] else {16} if types[0] == "fp16" else {32}
    asked = cpu_by_name(cpu, bits)
    program = preflight(ProgramModel(plan_of_product(), delegates(*types), None), "model.pte", "00", asked)
    (group,) = program.methods[0].matrix.groups
    assert (group.kernel, group.kernel_without) == (kernel, without)
    assert program.cpu is not None
    assert (program.cpu.name, program.cpu.ablated) == (cpu, asked.ablated)


def plan_of_product() -> Executable:
    """A program that calls one delegate."""
    made = (Delegate("XnnpackBackend", None),)
    chain = Chain((), (), (delegate(0, 0, 1),))
    plan = MethodPlan("forward", (tensor(4, 8), tensor(4, 8)), (0,), (1,), (), made, (chain,), ())
    return Executable("ET12", 0, (plan,), (), ())


def delegates(data: str, weights: str, result: str) -> list[DelegateGraph]:
    """The graph of the delegate: a matrix product."""
    return [DelegateGraph("forward", 0, (), product(data, weights, result)[0])]


def test_a_type_with_a_weaker_kernel_is_named() -> None:
    """Unsigned data misses the VNNI kernel that signed data gets; without VNNI both get the same."""
    values: list[Value] = [tensor(4, 8), tensor(4, 8)]
    with_vnni, without = (
        looked_at(values, [delegate(0, 0, 1)], product("quint8", "quint8", "quint8"), cpu=cpu)
        for cpu in ("cascadelake", "x86-64-v4")
    )
    (message,) = [message for message in with_vnni.findings if message.rule == "weaker_kernel"]
    assert "AVX-512 VNNI" in message.title
    assert "signed int8" in message.next_step
    assert "weaker_kernel" not in {message.rule for message in without.findings}


def test_rules_of_sme_are_for_processors_with_sme() -> None:
    """A depthwise convolution, which SME cannot run, is no finding elsewhere."""
    values: list[Value] = [tensor(1, 4, 8, 8), tensor(1, 16, 8, 8)]
    rules = {
        cpu: {
            message.rule
            for message in looked_at(values, [delegate(0, 0, 1)], {0: graph(CONVOLUTION)}, cpu=cpu).findings
        }
        for cpu in ("c1-ultra", "neoverse-v2", "znver4")
    }
    assert "not_eligible" in rules["c1-ultra"]
    assert not {"not_eligible", "single_row"} & (rules["neoverse-v2"] | rules["znver4"])


@pytest.mark.parametrize(
    ("backends", "operators", "rule", "purpose"),
    [
        (("QnnBackend",), ("aten::_softmax.out",), "other_backend", "Qualcomm"),
        (("EthosUBackend",), ("cortex_m::quantize_per_tensor.out",), "other_backend", "Ethos-U"),
        ((), ("cortex_m::quantized_add.out",), "other_purpose", "Cortex-M"),
        ((), ("cadence::quantized_linear.out",), "other_purpose", "Cadence"),
    ],
)
def test_a_program_for_something_else_gets_no_advice_for_xnnpack(
    backends: tuple[str, ...], operators: tuple[str, ...], rule: str, purpose: str
) -> None:
    """What it is for is said; nothing asks to delegate it to XNNPACK."""
    values: list[Value] = [tensor(4, 8), tensor(4, 8)]
    calls = [delegate(0, 0, 1)] if backends else []
    looked = looked_at(values, [*calls, kernel(0, 0, 1)], {}, operators=operators, backends=backends)
    rules = {message.rule: message.title for message in looked.findings}
    assert purpose in rules[rule]
    assert not {"nothing_delegated", "portable"} & rules.keys()


def test_a_program_that_trains_is_not_told_to_delegate() -> None:
    """The methods that ExecuTorch writes beside the one that trains tell what it is for."""
    values = (tensor(4, 8), tensor(4, 8))
    plans_by_name = [
        MethodPlan(name, values, (0,), (1,), ("aten::mm.out",), (), (Chain((), (), (kernel(0, 0, 0, 1),)),), ())
        for name in ("forward", "__et_training_gradients_index_forward")
    ]
    executable = Executable("ET12", 0, tuple(plans_by_name), (), ())
    looked = preflight(ProgramModel(executable, [], None), "model.pte", "00", cpu_by_name("znver4")).methods[0]
    assert looked.purpose == "training on the device"
    assert [message.rule for message in looked.findings] == ["other_purpose"]
