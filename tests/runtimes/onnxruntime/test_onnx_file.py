"""ONNX programs: what is in them, and every way that a file can be damaged or point elsewhere."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.errors import MemoryLimitError, TraceFormatError, UsageError
from opscope.core.files import place_beside
from opscope.runtimes.onnxruntime.onnx_file import (
    OnnxModel,
    decode_onnx,
    external_paths,
    is_onnx,
    is_onnx_program,
    read_onnx,
)
from opscope.runtimes.registry import runtime_of
from texts import BEYOND_MEMORY

MODELS = Path(__file__).parents[2] / "data" / "onnx"
NAMES = sorted(path.stem for path in MODELS.glob("*.onnx"))


def _decode_model(data: bytes) -> OnnxModel:
    return decode_onnx(memoryview(data), "a.onnx")


def test_nodes_weights_and_sizes() -> None:
    """As the script that makes the models has them."""
    model = read_onnx(MODELS / "cnn.onnx")
    assert model.opsets == {"": 17}
    assert model.producer == "opscope"
    assert [node.op for node in model.graph.nodes] == [
        *("Conv", "Relu", "Conv", "Relu", "Conv", "Conv", "Relu", "Add", "GlobalAveragePool", "Flatten", "Gemm")
    ]
    stem, depthwise = model.graph.nodes[0], model.graph.nodes[2]
    assert stem.name == "/stem/Conv"
    assert stem.attributes["strides"] == (2, 2)
    assert depthwise.attributes["group"] == 16
    assert [(one.name, one.shape) for one in model.graph.weights[:2]] == [
        ("stem.weight", (16, 3, 3, 3)),
        ("stem.bias", (16,)),
    ]
    (image,) = model.graph.inputs
    assert (image.name, image.sizes, image.fixed) == ("image", (1, 3, 64, 64), True)
    assert image.dtype.name == "float32"


def test_graphs_of_nodes_and_names_of_sizes_are_read() -> None:
    """A condition has a graph for each branch; sizes that the caller chooses are no numbers."""
    graph = read_onnx(MODELS / "branch.onnx").graph
    assert [node.op for node in graph.all_nodes()] == ["ReduceSum", "Greater", "If", "Neg", "Exp"]
    assert set(graph.nodes[-1].graphs) == {"then_branch", "else_branch"}
    (given_input,) = read_onnx(MODELS / "open_sizes.onnx").graph.inputs
    assert (given_input.sizes, given_input.fixed) == (("batch", 8), False)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_ends_early_is_refused(name: str) -> None:
    """At every length: what is left is damaged, or lacks the graph."""
    data = (MODELS / f"{name}.onnx").read_bytes()
    for length in range(0, len(data), max(1, len(data) // 400)):
        with pytest.raises(TraceFormatError):
            _decode_model(data[:length])


@settings(max_examples=200)
@given(st.sampled_from(NAMES), st.data())
def test_a_changed_byte_is_an_error_or_a_program(name: str, data: st.DataObject) -> None:
    """Never anything else."""
    content = bytearray((MODELS / f"{name}.onnx").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(TraceFormatError):
        _decode_model(bytes(content))


def test_graphs_in_graphs_end_somewhere() -> None:
    """A file of some kilobytes must not use up the stack."""

    def part(number: int, content: bytes) -> bytes:
        size, head = len(content), bytearray()
        while size > 0x7F:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([number << 3 | 2, *head, size]) + content

    graph = b""
    for _ in range(200):
        graph = part(1, part(5, part(1, b"body") + part(6, graph)))
    with pytest.raises(TraceFormatError, match="more than 32 deep"):
        _decode_model(b"\x08\x09" + part(7, graph) + b"\x42\x02\x10\x11")


def test_a_program_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Whatever it is called; other files are not taken for one."""
    other = tmp_path / "model.bin"
    shutil.copy(MODELS / "cnn.onnx", other)
    assert is_onnx(other)
    assert runtime_of(tmp_path / "absent.onnx").name == "onnxruntime"
    named_otherwise = tmp_path / "model.tflite"
    shutil.copy(MODELS / "cnn.onnx", named_otherwise)
    assert runtime_of(named_otherwise).name == "onnxruntime"
    assert not any(map(is_onnx_program, (b"", b"\x08", b'{"a', b"PK\x03", b"\x08\xff\x12", b"\x1c\0\0")))
    for folder, suffix in (("tflite", ".tflite"), ("versions", ".pte")):
        assert not any(is_onnx(file) for file in (MODELS.parent / folder).glob(f"*{suffix}"))


@pytest.mark.parametrize("beside", ["external.bin", "w/inside.bin"])
def test_weights_beside_the_model_come_along(tmp_path: Path, beside: str) -> None:
    """The bundle has them in the same place, where the session looks for them."""
    path, weights = tmp_path / "model.onnx", tmp_path / beside
    path.write_bytes((MODELS / "external.onnx").read_bytes().replace(b"external.bin", beside.encode()))
    weights.parent.mkdir(exist_ok=True)
    shutil.copy(MODELS / "external.bin", weights)
    assert external_paths(read_onnx(path), path) == [weights]
    assert [place_beside(file, path) for file in (path, weights)] == ["model.onnx", beside]
    assert place_beside(tmp_path / "elsewhere.bin", tmp_path / "deep" / "model.onnx") == "elsewhere.bin"


def test_a_model_in_the_format_of_the_runtime_is_told(tmp_path: Path) -> None:
    """By its identifier, whatever its name is."""
    for name in ("model.ort", "model.onnx"):
        path = tmp_path / name
        path.write_bytes(b"\x18\0\0\0ORTM" + bytes(32))
        with pytest.raises(UsageError, match=r"ONNX Runtime's own format \(\.ort\)"):
            runtime_of(path).check(path)


@pytest.mark.parametrize(
    ("name", "linked", "words"),
    [
        ("/etc/passwd.bin"[:12], False, "not a file next to it"),
        ("../outer.bin", False, "not a file next to it"),
        ("a/../../o.bi", False, "not a file next to it"),
        ("..\\outer.bi", False, "not a file next to it"),
        ("external.bin", True, "not a file next to it"),
        ("external.bin", False, r"external\.bin, which is not next to it"),
    ],
    ids=["absolute", "above", "below and above", "backslash", "link", "missing"],
)
def test_weights_elsewhere_are_refused(tmp_path: Path, name: str, linked: bool, words: str) -> None:
    """A model that somebody sent must not make us read other files, nor by a link; missing ones are named."""
    path = tmp_path / "model.onnx"
    path.write_bytes((MODELS / "external.onnx").read_bytes().replace(b"external.bin", name.ljust(12, "x").encode()))
    if linked:
        (tmp_path / name).symlink_to(MODELS / "external.bin")
    with pytest.raises(UsageError, match=words):
        external_paths(read_onnx(path), path)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes, shorter than 2 MiB."""
    size = len(content)
    return bytes([number << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content


def _with_weight(sizes: bytes) -> bytes:
    """A model with one stored tensor of these sizes, and nothing else."""
    weight = _field(5, _field(1, sizes) + b"\x10\x07" + _field(8, b"w"))
    return b"\x08\x09" + _field(7, weight) + _field(8, b"\x10\x11")


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (b"\x7f" * 900_000, "a stored tensor has 900,000 dimensions"),
        (b"\x7f" * 60, "a stored tensor has impossibly many elements"),
    ],
)
def test_sizes_that_no_tensor_has_are_refused_at_once(sizes: bytes, told: str) -> None:
    """Their product has millions of digits, which take longer than all else, and are no float."""
    assert decode_onnx(memoryview(_with_weight(b"\x02" * 8)), "m").graph.weights[0].shape == (2,) * 8
    with pytest.raises(TraceFormatError, match=told):
        decode_onnx(memoryview(_with_weight(sizes)), "m")


def test_what_a_model_takes_in_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny fields take a hundred times their size; the limit of traces holds for programs."""
    file = tmp_path / "tiny.onnx"
    file.write_bytes(b"\x08\x09" + _field(7, b"\x78\x01" * 600_000) + _field(8, b"\x10\x11"))
    monkeypatch.setenv("OPSCOPE_MAX_MEMORY", "64MiB")
    with pytest.raises(MemoryLimitError, match=rf"tiny\.onnx: reading it needs {BEYOND_MEMORY}"):
        read_onnx(file)
