"""Whole programs: values, arguments, memory and places of data, written by hand and as the exporter writes them."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from beside import DUMPS, reads_dumps
from flat import boolean, f64, flat, i32, i64, u8, u32, u64
from opscope.core.errors import TraceFormatError
from opscope.program.structure.dtypes import NumberType, program_type, xnnpack_type
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
    Span,
    UnknownValue,
    ValueList,
)
from opscope.runtimes.executorch.pte import decode_executable, is_program, read_executable
from plans import outline

TWO_METHODS = Path(__file__).parents[1] / "data" / "two_methods.pte"
FLOAT32 = NumberType("float32", 32)


def value(number: int, content: dict) -> dict:
    """A value of the plan: the type of its union, and its table."""
    return {0: u8(number), 1: content}


def program(plan: dict, **fields: object) -> Executable:
    """A program with one method, read from bytes."""
    slots = {"inline": 3, "segments": 4, "constants": 5, "mutable": 6, "named": 7}
    extra = {slots[name]: content for name, content in fields.items()}
    return decode_executable(flat({1: [plan], **extra}, b"ET12"), "model.pte")


def values(*contents: dict) -> tuple:
    """The values of a method that has these."""
    return program({2: list(contents)}).plans[0].values


def tensor(**fields: object) -> PlannedTensor:
    """A tensor read from a table with these fields."""
    slots = {"dtype": 0, "sizes": 2, "order": 3, "data": 5, "memory": 6, "dynamism": 8, "extra": 9}
    (only,) = values(value(5, {slots[name]: content for name, content in fields.items()}))
    return only


def test_a_tensor_with_planned_memory():
    """Type, shape, order in memory, and that planning gave it a place."""
    channels_last = tensor(
        dtype=u8(6), sizes=i32([1, 8, 4, 4]), order=u8([0, 2, 3, 1]), memory={0: u32(1), 1: u32(64), 2: u32(1)}
    )
    assert channels_last == PlannedTensor(
        dtype=FLOAT32,
        sizes=(1, 8, 4, 4),
        dim_order=(0, 2, 3, 1),
        dynamism=Dynamism.STATIC,
        data_buffer=0,
        planned=True,
        name="",
        external=False,
    )
    assert not channels_last.constant
    assert channels_last.size_bytes == 512


def test_a_tensor_with_data_and_no_memory_is_constant():
    """With memory it is a state that starts from its data; data in another file are found by name."""
    assert tensor(data=u32(3)).constant
    assert not tensor(data=u32(3), memory={0: u32(1)}).constant
    outside = tensor(extra={1: "stem.weight", 2: u8(1)})
    assert (outside.name, outside.external, outside.constant) == ("stem.weight", True, True)


def test_sizes_can_be_a_bound():
    """The dynamism says so; one that is newer than this version is unknown."""
    found = [tensor(dynamism=u8(code)).dynamism for code in (0, 1, 2, 9)]
    assert found == [Dynamism.STATIC, Dynamism.BOUNDED, Dynamism.UNBOUNDED, Dynamism.UNKNOWN]


def test_a_number_without_dimensions_has_one_element():
    """Its shape is empty, its bytes are those of one element."""
    assert tensor(dtype=u8(4)).size_bytes == 8


def test_scalars_and_lists_are_typed():
    """None, integer, boolean, float, text, and lists; lists of integers and tensors name other values."""
    assert values(
        value(1, {}),
        value(2, {0: i64(-(2**40))}),
        value(3, {0: boolean(True)}),  # noqa: FBT003 - the value itself
        value(4, {0: f64(math.inf)}),
        value(6, {0: "same"}),
        value(7, {0: i64([1, 1])}),
        value(8, {0: f64([0.5, -2.0])}),
        value(9, {0: boolean([True, False])}),
        value(10, {0: i32([0])}),
        value(11, {0: i32([-1, 0])}),
        value(12, {}),
    ) == (
        None,
        -(2**40),
        True,
        math.inf,
        "same",
        ValueList(ListKind.INTEGERS, (1, 1)),
        (0.5, -2.0),
        (True, False),
        ValueList(ListKind.TENSORS, (0,)),
        ValueList(ListKind.OPTIONAL_TENSORS, (-1, 0)),
        UnknownValue(12),
    )


def instruction(number: int, content: dict) -> dict:
    """An instruction: the type of its union, and its table."""
    return {0: u8(number), 1: content}


def test_instructions_carry_their_arguments():
    """Kernels and delegates a list of values, moves two, jumps a condition and their destination, frees one."""
    steps = [
        instruction(1, {0: i32(0), 1: i32([0, 1, 1])}),
        instruction(2, {0: i32(0), 1: i32([1, 0])}),
        instruction(3, {0: i32(0), 1: i32(1)}),
        instruction(4, {0: i32(1), 1: i32(5)}),
        instruction(5, {0: i32(1)}),
        instruction(6, {}),
    ]
    plan = {
        0: "forward",
        2: [value(5, {}), value(5, {})],
        3: i32([0]),
        4: i32([1]),
        5: [{2: steps}],
        6: [{0: "aten::relu", 1: "out"}],
        7: [{0: "XnnpackBackend", 2: [{0: "workspace"}]}],
        8: i64([0, 2**33]),
    }
    (read,) = program(plan).plans
    assert (read.inputs, read.outputs, read.planned_buffers) == ((0,), (1,), (0, 2**33))
    assert read.delegates == (Delegate("XnnpackBackend", None),)
    assert read.chains == (
        Chain(
            (),
            (),
            (
                PlannedStep(InstructionKind.KERNEL, 0, (0, 1, 1)),
                PlannedStep(InstructionKind.DELEGATE, 0, (1, 0)),
                PlannedStep(InstructionKind.MOVE, -1, (0, 1)),
                PlannedStep(InstructionKind.JUMP, 5, (1,)),
                PlannedStep(InstructionKind.FREE, -1, (1,)),
                PlannedStep(InstructionKind.UNKNOWN, -1, ()),
            ),
        ),
    )
    assert [read.called(step) for step in read.chains[0].steps] == [
        "aten::relu.out", "XnnpackBackend", "", "", "", "",
    ]  # fmt: skip
    assert read.callers() == {0: (1,)}


def test_an_instruction_says_what_it_calls():
    """By its name."""
    plan = {0: "forward", 5: [{2: [instruction(1, {1: i32([])})]}], 6: [{0: "aten::add"}]}
    assert outline(program(plan)) == {"forward": [(InstructionKind.KERNEL, "aten::add")]}


def test_the_tensors_of_an_instruction():
    """Each once, also those in lists; scalars and absent tensors are none."""
    contents = [
        value(5, {}),
        value(5, {}),
        value(2, {0: i64(1)}),
        value(11, {0: i32([1, -1, 0])}),
        value(7, {0: i64([2])}),
    ]
    plan: MethodPlan = program({2: contents}).plans[0]
    assert plan.tensors(PlannedStep(InstructionKind.KERNEL, 0, (3, 2, 4, 0, 0))) == (1, 0)


def test_payloads_and_weights_have_a_place():
    """Payloads of delegates stand in a segment or inside the program; keys lead to segments."""
    plan = {0: "forward", 7: [{0: "A", 1: {0: u8(1), 1: u32(1)}}, {0: "B", 1: {0: u8(0), 1: u32(0)}}]}
    read = program(
        plan,
        inline=[{0: u8([7, 7, 7])}],
        segments=[{0: u64(0), 1: u64(16)}, {0: u64(16), 1: u64(8)}],
        named=[{0: "weight", 1: u32(1)}],
        mutable=[{0: u32(1), 1: u64([0])}],
    )
    assert read.segments == (Span(0, 16), Span(16, 8))
    assert read.plans[0].delegates[0].data == Span(16, 8)
    assert read.plans[0].delegates[1].data.size == 3
    assert read.named_data == {"weight": 1}


def test_a_program_of_the_first_release_lacks_later_fields():
    """Without segments, named data, plans' buffer sizes and tensors' details it reads all the same."""
    plan = {0: "forward", 2: [value(5, {0: u8(6), 2: i32([2])})], 3: i32([0]), 4: i32([0])}
    read = decode_executable(flat({1: [plan]}, b"ET09"), "old.pte")
    assert (read.identifier, read.version, read.segments, read.named_data) == ("ET09", 0, (), {})
    assert read.plans[0].values == (
        PlannedTensor(FLOAT32, (2,), (), Dynamism.STATIC, 0, planned=False, name="", external=False),
    )


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({2: [value(5, {2: i32([-1])})]}, r"impossible shape \[-1\]"),
        ({2: [value(5, {2: i32([1] * 17)})]}, r"impossible shape \[1, 1, 1, 1, 1, 1, 1, 1, \.\.\.\]"),
        ({2: [value(5, {2: i32([2, 2]), 3: u8([0, 0])})]}, r"\[0, 0\] is not a permutation of the 2 dimensions"),
        ({2: [value(10, {0: i32([1])})]}, "a list refers to a value outside the 1"),
        ({2: [value(1, {})], 3: i32([1])}, "value 1 is used, there are 1"),
        ({2: [{0: u8(5)}]}, "a declared table is missing"),
        ({5: [{2: [instruction(1, {0: i32(2)})]}]}, "calls kernel 2, there are 0"),
        ({7: [{0: "A", 1: {0: u8(1), 1: u32(4)}}]}, r"data is number 4 of 0 \(segments\)"),
        ({7: [{0: "A", 1: {0: u8(7)}}]}, "unknown location kind 7"),
    ],
)
def test_numbers_that_refer_to_nothing_are_refused(plan, problem):
    """A program that contradicts itself is damaged; the file is named."""
    with pytest.raises(TraceFormatError, match=problem) as caught:
        program(plan)
    assert caught.value.where == "model.pte"


def test_named_data_in_no_segment_are_refused():
    """The weights would be missing."""
    with pytest.raises(TraceFormatError, match="a missing segment"):
        program({0: "forward"}, named=[{0: "weight", 1: u32(0)}])


def test_many_methods_cannot_share_one_list_of_values():
    """Methods that all point to the same long list would make a small file take much memory."""
    count = 2_000
    with pytest.raises(TraceFormatError, match="overlap"):
        decode_executable(_shared(count), "m")


def _shared(count: int) -> bytes:
    """As many methods as values, all methods one table, all values one table."""
    import flatbuffers

    builder = flatbuffers.Builder(512)
    builder.StartObject(2)
    builder.PrependUint8Slot(0, 12, 0)
    one = builder.EndObject()

    def same(offset: int) -> int:
        builder.StartVector(4, count, 4)
        for _ in range(count):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()

    listed = same(one)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(2, listed, 0)
    plan = builder.EndObject()
    plans = same(plan)
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, plans, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"ET12")
    return bytes(builder.Output())


def test_programs_are_recognised_by_their_first_bytes():
    """The identifier stands behind the root offset."""
    assert is_program(TWO_METHODS.read_bytes()[:64])
    assert not is_program(b"\x10\0\0\0ED00" + bytes(56))
    assert not is_program(b"\x10\0\0\0ET")
    assert not is_program(b"")


def test_number_types_by_code_of_each_format():
    """The same code means different types; an unknown one keeps its number and has no width."""
    assert [read(6).name for read in (program_type, xnnpack_type)] == ["float32", "qcint8"]
    assert program_type(99) == NumberType("unknown-99", None)
    assert program_type(99).bytes_of((4,)) is None
    assert xnnpack_type(8).bytes_of((3, 5)) == 8  # 15 elements of 4 bits


def flatc_json(path: Path, directory: Path) -> dict:
    """What the reference decoder says about a program."""
    from importlib.util import find_spec

    package = Path(find_spec("executorch").submodule_search_locations[0])
    schema = package / "schema" / "program.fbs"
    command = [package / "data" / "bin" / "flatc", "--json", "--strict-json", "--defaults-json", "--raw-binary"]
    subprocess.run([*command, "-o", directory, schema, "--", path], check=True, capture_output=True)
    return json.loads((directory / f"{path.stem}.json").read_text())


def assert_same_tensor(found: PlannedTensor, expected: dict) -> None:
    """A tensor as read and as flatc prints it."""
    names = {"float32": "FLOAT", "float16": "HALF", "int64": "LONG", "int8": "CHAR", "bool": "BOOL", "int32": "INT"}
    assert names[found.dtype.name] == expected["scalar_type"]
    assert list(found.sizes) == expected.get("sizes", [])
    assert list(found.dim_order) == expected.get("dim_order", [])
    assert found.data_buffer == expected["data_buffer_idx"]
    assert found.planned == ("allocation_info" in expected)


def assert_same_plan(found: MethodPlan, expected: dict) -> int:
    """A method as read and as flatc prints it; the number of tensors compared."""
    assert [found.name, list(found.inputs), list(found.outputs)] == [expected[k] for k in ("name", "inputs", "outputs")]
    assert [d.id for d in found.delegates] == [d["id"] for d in expected["delegates"]]
    assert list(found.planned_buffers) == expected["non_const_buffer_sizes"]
    arguments = [list(step.arguments) for step in found.chains[0].steps]
    assert arguments == [i["instr_args"]["args"] for i in expected["chains"][0]["instructions"]]
    assert len(found.values) == len(expected["values"])
    pairs = zip(found.values, expected["values"], strict=True)
    tensors = [(v, e["val"]) for v, e in pairs if e["val_type"] == "Tensor"]
    for tensor_read, tensor_expected in tensors:
        assert_same_tensor(tensor_read, tensor_expected)
    lists = [(v, e["val"]) for v, e in zip(found.values, expected["values"], strict=True) if "List" in e["val_type"]]
    for list_read, list_expected in lists:
        assert list(list_read.members) == list_expected.get("items", [])
    return len(tensors)


@pytest.mark.runtime
def test_a_program_reads_as_the_reference_decoder_prints_it(toy_program, tmp_path):
    """Every tensor, list and argument of a real program, and its segments."""
    found, expected = read_executable(toy_program), flatc_json(toy_program, tmp_path)
    assert assert_same_plan(found.plans[0], expected["execution_plan"][0]) > 5
    assert [span.size for span in found.segments] == [segment["size"] for segment in expected["segments"]]
    assert list(found.named_data) == [data["key"] for data in expected["named_data"]]


@pytest.mark.runtime
@reads_dumps
@pytest.mark.parametrize("stem", ["fz_f32_122", "fz_f16_214", "fz_q8_302", "fz_dq_400", "fz_dq_413"])
def test_collected_programs_read_as_the_reference_decoder_prints_them(stem, tmp_path):
    """Random graphs in four number types."""
    path = DUMPS / f"{stem}.pte"
    found, expected = read_executable(path), flatc_json(path, tmp_path)
    assert assert_same_plan(found.plans[0], expected["execution_plan"][0]) > 1
