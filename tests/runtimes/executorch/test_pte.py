"""Programs read: what their methods do, and every way in which the file can be damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from textwrap import dedent

import flatbuffers
import numpy as np
import pytest

from beside import DUMPS, reads_dumps
from opscope.core.errors import NotFoundError, StorageError, TraceFormatError
from opscope.program.structure.plan import Executable, InstructionKind
from opscope.runtimes.executorch.pte import read_executable
from plans import outline
from texts import NO_PROGRAM

# A program as ExecuTorch 1.5.1 exports it: prefill is argmax(relu(linear(x))) with XNNPACK, decode is cumsum(x).
TWO_METHODS = Path(__file__).parents[2] / "data" / "two_methods.pte"
PROGRAM = """
    forward
      kernel aten::add.out
      delegate XnnpackBackend
"""
HEADER = 32
KINDS = {"kernel": 1, "delegate": 2, "move": 3, "jump": 4, "free": 5}


def _tables(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _record(builder: flatbuffers.Builder, fields: dict[int, int]) -> int:
    builder.StartObject(max(fields, default=0) + 1)
    for slot, offset in fields.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return builder.EndObject()


def instruction(builder: flatbuffers.Builder, kind: int, index: int) -> int:
    """An instruction that calls the operator or delegate of this index."""
    builder.StartObject(1)
    builder.PrependInt32Slot(0, index, -1)
    arguments = builder.EndObject()
    builder.StartObject(2)
    builder.PrependUint8Slot(0, kind, 0)
    builder.PrependUOffsetTRelativeSlot(1, arguments, 0)
    return builder.EndObject()


def plan(builder: flatbuffers.Builder, name: str, lines: list[str]) -> int:
    """A method with the instructions of these lines: a kind and what it calls."""
    words = [line.split() for line in lines]
    operators = [called[0] for kind, *called in words if kind == "kernel"]
    delegates = [called[0] for kind, *called in words if kind == "delegate"]
    names = {"kernel": operators, "delegate": delegates}
    steps = [instruction(builder, KINDS[kind], names[kind].index(*called) if called else 0) for kind, *called in words]
    chain = _record(builder, {2: _tables(builder, steps)})
    split = [operator.partition(".") for operator in operators]
    texts = [{0: builder.CreateString(base), 1: builder.CreateString(over)} for base, _, over in split]
    kernels = [_record(builder, text) for text in texts]
    others = [_record(builder, {0: text}) for text in [builder.CreateString(delegate) for delegate in delegates]]
    fields = {5: _tables(builder, [chain]), 6: _tables(builder, kernels), 7: _tables(builder, others)}
    return _record(builder, {0: builder.CreateString(name), **fields})


def _segment(builder: flatbuffers.Builder, offset: int, size: int) -> int:
    builder.StartObject(2)
    builder.PrependUint64Slot(0, offset, 0)
    builder.PrependUint64Slot(1, size, 0)
    return builder.EndObject()


def pte(text: str, segments: tuple[tuple[int, int], ...] = (), data: bytes = b"") -> bytes:
    """A program written as text: methods, and indented below them their instructions; then the segments' data."""
    methods: dict[str, list[str]] = {}
    for line in dedent(text).strip("\n").splitlines():
        if line.startswith(" "):
            methods[list(methods)[-1]].append(line.strip())
        else:
            methods[line] = []
    builder = flatbuffers.Builder(256)
    plans = _tables(builder, [plan(builder, name, lines) for name, lines in methods.items()])
    places = _tables(builder, [_segment(builder, *place) for place in segments])
    builder.Finish(_record(builder, {1: plans, 4: places}), b"ET12")
    flat = bytes(builder.Output())
    size = len(flat) + HEADER
    (root,) = struct.unpack_from("<I", flat)
    header = struct.pack("<4sIQQQ", b"eh00", HEADER, size, size if data else 0, len(data))
    return struct.pack("<I", root + HEADER) + flat[4:8] + header + flat[8:] + data


@pytest.fixture
def read(tmp_path):
    """Reads bytes as a program file."""

    def written_and_read(data: bytes) -> Executable:
        path = tmp_path / "model.pte"
        path.write_bytes(data)
        return read_executable(path)

    return written_and_read


@pytest.fixture
def survives(read):
    """Whether damaged bytes still are a program; anything but a program or a format error is raised."""

    def tried(data: bytes) -> bool:
        try:
            return bool(read(data).plans)
        except TraceFormatError:
            return False

    return tried


ALL_KINDS = "forward\n kernel aten::add.out\n delegate Xnn\n move\n jump\n free\n kernel my::op"
CALLS = "a\n  delegate Xnn\n  kernel x.out\n  delegate Qnn\n  delegate Xnn\nb\n  delegate Vulkan\n  delegate Qnn\nempty"


def test_the_instructions_of_methods(read):
    """Kernels have the operator's name with its overload, if any, delegates their identifier, control flow none."""
    program = read(pte(ALL_KINDS))
    assert outline(program) == {
        "forward": [
            (InstructionKind.KERNEL, "aten::add.out"),
            (InstructionKind.DELEGATE, "Xnn"),
            (InstructionKind.MOVE, ""),
            (InstructionKind.JUMP, ""),
            (InstructionKind.FREE, ""),
            (InstructionKind.KERNEL, "my::op"),
        ]
    }


def test_every_method_is_read_with_its_backends(read):
    """In the order of the file, each with its own operators; backends once, in the order of their first calls."""
    program = read(pte(CALLS))
    assert [(method, [name for _, name in called]) for method, called in outline(program).items()] == [
        ("a", ["Xnn", "x.out", "Qnn", "Xnn"]),
        ("b", ["Vulkan", "Qnn"]),
        ("empty", []),
    ]
    assert program.backends() == ["Xnn", "Qnn", "Vulkan"]
    assert read(pte("forward\n  kernel aten::add.out")).backends() == []


def test_a_program_of_the_exporter():
    """Two methods, one of them with a delegate."""
    assert outline(read_executable(TWO_METHODS)) == {
        "decode": [(InstructionKind.KERNEL, "aten::cumsum.out")],
        "prefill": [(InstructionKind.DELEGATE, "XnnpackBackend"), (InstructionKind.KERNEL, "aten::argmax.out")],
    }


def test_a_program_without_methods_is_refused(read):
    """There is nothing that could be run."""
    with pytest.raises(TraceFormatError, match="no method"):
        read(pte(""))


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"", "download it again"),
        (b"ET12", "export or copy it again"),
        (b"\x10\0\0\0ED00", "opscope analyze"),
        (b"PK\x03\x04" * 20, "download it again"),
    ],
)
def test_another_file_is_no_program(read, data, hint):
    """The identifier stands behind the root offset or nowhere."""
    with pytest.raises(TraceFormatError, match=NO_PROGRAM) as caught:
        read(data)
    assert caught.value.where.endswith("model.pte")
    assert hint in caught.value.hint


def test_a_missing_program_is_not_found(tmp_path):
    """It is named; a directory cannot be read."""
    with pytest.raises(NotFoundError, match="no such file"):
        read_executable(tmp_path / "absent.pte")
    with pytest.raises(StorageError, match="cannot be read"):
        read_executable(tmp_path)


def test_segments_inside_the_file_are_accepted(read):
    """The last one may end where the file ends."""
    assert read(pte(PROGRAM, ((0, 16), (16, 16)), b"x" * 32)).plans[0].name == "forward"


@pytest.mark.parametrize("place", [(0, 33), (32, 1), (2**40, 1), (2**64 - 1, 2), (2**63, 2**63)])
def test_a_segment_beyond_the_end_is_refused(read, place):
    """Weights are missing: the program would crash, or compute nonsense; ends beyond 64 bits are beyond this file."""
    with pytest.raises(TraceFormatError, match="a segment extends past the end"):
        read(pte(PROGRAM, (place,), b"x" * 32))


def test_a_program_without_its_segments_is_truncated(read):
    """The header says how long the file was; the message says so too."""
    data = pte(PROGRAM, ((0, 32),), b"x" * 32)
    with pytest.raises(TraceFormatError, match=rf"truncated: {len(data):,} bytes were written, {len(data) - 1:,} are"):
        read(data[:-1])


@pytest.mark.parametrize(
    "source", [pte(PROGRAM, ((0, 32),), b"x" * 32), TWO_METHODS.read_bytes()], ids=["ours", "real"]
)
def test_every_truncation_is_refused(read, source):
    """Wherever the copy stopped."""
    for size in range(0, len(source), max(1, len(source) // 400)):
        with pytest.raises(TraceFormatError):
            read(source[:size])


def test_flipped_bytes_are_an_error_or_a_program(survives):
    """800 files with one to six random bytes changed: never another exception."""
    rng = np.random.default_rng(21)
    data = np.frombuffer(TWO_METHODS.read_bytes(), np.uint8)
    outcomes = []
    for _ in range(800):
        damaged = data.copy()
        count = rng.integers(1, 7)
        damaged[rng.integers(0, 2_000, count)] = rng.integers(0, 256, count)
        outcomes.append(survives(damaged.tobytes()))
    assert 0 < sum(outcomes) < 800


@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1], ids=hex)
def test_no_offset_or_length_is_trusted(survives, value):
    """Every word of the program replaced, one at a time: an error or a program, and an error for many of them."""
    data = pte(PROGRAM)
    damaged = [data[:at] + struct.pack("<I", value) + data[at + 4 :] for at in range(0, len(data) - 3, 4)]
    outcomes = [survives(each) for each in damaged]
    assert outcomes.count(False) > len(outcomes) // 10


@reads_dumps
@pytest.mark.parametrize("path", sorted(DUMPS.glob("*.pte")) or [DUMPS], ids=lambda path: path.stem)
def test_a_real_program_has_named_methods_and_a_delegate(path):
    """Every instruction of it is known, and calls something that has a name."""
    program = read_executable(path)
    assert list(outline(program)) == ["forward"]
    assert program.backends() == ["XnnpackBackend"]
    names = outline(program)["forward"]
    for step, name in zip(program.plans[0].chains[0].steps, names, strict=True):
        assert step.kind in {InstructionKind.KERNEL, InstructionKind.DELEGATE}
        assert name
