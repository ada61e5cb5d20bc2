"""Files that are given where a program or a trace is wanted are recognised, and the way from there is told."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from opscope.api import analyze
from opscope.core.errors import TraceFormatError
from opscope.readers.other_files import not_recognised, other_file
from texts import NO_PROGRAM


def _zip(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(f"{path.stem}/{name}", "x")


@pytest.mark.parametrize(
    ("name", "content", "what", "way"),
    [
        ("m.pth", b"\x80\x02\x8a\nl\xfc\x9cF", "a PyTorch checkpoint", "opscope init --model"),
        ("m.safetensors", (2).to_bytes(8, "little") + b"{}", "a safetensors file", "load the weights into it"),
        ("m.onnx", b"\x08\x08\x12\x07pytorch", "an ONNX model", "opscope profile"),
        ("m.tflite", b"\x08\x08\x12\x07pytorch", "an ONNX model", "opscope profile"),
        ("m.onnx", b"\x1c\x00\x00\x00TFL3", "a LiteRT (TensorFlow Lite) model", "opscope profile"),
        ("any", b"\x1c\0\0\0TFL3....", "a LiteRT (TensorFlow Lite) model", "opscope profile /"),
        ("any", b"GGUF\x03", "a GGUF model of llama.cpp", "FILE.py:FUNCTION"),
        ("m.h5", b"\x89HDF\r\n", "an HDF5 file (Keras)", "FILE.py:FUNCTION"),
        ("m.pte", b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer", "git lfs pull"),
        ("m.pte", b"\n<!DOCTYPE html><html>", "a web page", "browser"),
        ("m.pte", b"", "an empty file", "download"),
        ("run.etdump", b"\x08\0\0\0ED00", "a trace (ETDump)", "opscope analyze"),
        ("m.pte", b"PK\x03\x04 cut", "a damaged zip archive", "download"),
        ("README.md", "# Größe".encode(), "a text (Markdown)", ""),
        ("m.onnx", b"no model", "a text", ""),
        ("m.onnx", b"\x89PNG\r\n\x1a\n", "a picture", "give the model"),
        ("net.py", b"import torch", "Python code", "FILE.py:FUNCTION"),
    ],
)
def test_a_file_is_recognised_by_its_content_or_its_name(
    tmp_path: Path, name: str, content: bytes, what: str, way: str
) -> None:
    """What it is stands in the message, and what to do in the hint."""
    (tmp_path / name).write_bytes(content)
    error = not_recognised(tmp_path / name)
    assert str(error).endswith(f"{NO_PROGRAM}: it is {what}")
    assert way in (error.hint or "")


@pytest.mark.parametrize(
    ("members", "what", "way"),
    [
        (("data.pkl", "data/0", "version"), "a PyTorch checkpoint", "weights"),
        (("data.pkl", "constants.pkl", "code/__torch__/net.py"), "a TorchScript archive", "TorchScript"),
        (("models/model.json", "archive_format", "data/weights/weight_0"), "a torch.export program", "export.load"),
        (("readme",), "a zip archive", "unpack"),
    ],
)
def test_archives_of_pytorch_are_told_apart(tmp_path: Path, members: tuple[str, ...], what: str, way: str) -> None:
    """By the names in them, as torch 2.13 writes them."""
    _zip(tmp_path / "m.pt", *members)
    found = other_file(tmp_path / "m.pt")
    assert found is not None
    assert found.kind == what
    assert way in found.hint


def test_what_is_not_known_is_said_as_before(tmp_path: Path) -> None:
    """Random bytes, a missing file, and a directory have no name; the caller's hint stands."""
    (tmp_path / "x").write_bytes(bytes(range(1, 90)))
    for path in (tmp_path / "x", tmp_path / "missing", tmp_path):
        assert other_file(path) is None
        error = not_recognised(path, "no trace", "look")
        assert isinstance(error, TraceFormatError)
        assert (str(error).endswith("no trace"), error.hint) == (True, "look")


_BENCH = b'[{"build_commit": "a1", "model_filename": "m.gguf", "n_prompt": 512, "avg_ts": 100.1}]'
_TORCH = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X", "name": "aten::conv2d", "ts": 1}]}'
_CHROME = b'{"traceEvents": [{"ph": "X", "name": "f", "ts": 1, "dur": 2}], "displayTimeUnit": "ms"}'
_HYPERFINE = b'{"results": [{"command": "x", "mean": 1.0, "stddev": 0.1, "times": [1.0]}]}'
_GOOGLE = b'{"context": {"date": "x", "num_cpus": 2}, "benchmarks": [{"name": "BM", "real_time": 1.0}]}'


@pytest.mark.parametrize(
    ("name", "content", "tool", "way"),
    [
        ("b.json", _BENCH, "llama-bench", "measures the model itself"),
        ("b.csv", b"build_commit,build_number,cpu_info,gpu_info\n", "llama-bench", "measures the model itself"),
        ("t.json", _TORCH, "PyTorch's profiler", "FILE.py:FUNCTION"),
        ("t.json", _CHROME, "Chrome's format", "opscope profiles models"),
        ("t.json", b'[{"ph": "X", "name": "f", "ts": 1, "dur": 2, "pid": 1}]', "Chrome's format", "opscope profiles"),
        ("h.json", _HYPERFINE, "hyperfine", "measures the model itself"),
        ("g.json", _GOOGLE, "Google Benchmark", "measures the model itself"),
        ("n.csv", b"Time (%),Total Time (ns),Instances,Avg (ns)\n", "Nsight", "enable_profiling"),
        ("n.csv", b'"ID","Process ID","Process Name","Host Name","Kernel Name"\n', "Nsight", "enable_profiling"),
        ("n.nsys-rep", b"NsightSystems\0\1\2", "Nsight", "enable_profiling"),
        ("n.sqlite", b"SQLite format 3\0" + bytes(100), "SQLite", "enable_profiling"),
        ("l.txt", b"&&&& RUNNING TensorRT.trtexec # trtexec --onnx=m.onnx\n", "trtexec", "enable_profiling"),
        ("p.data", b"PERFILE2" + bytes(100), "perf", "measures the model itself"),
        ("o.csv", b"Command line parameters\n-m;x\n\nConfiguration setup\n", "benchmark_app", "average_counters"),
        ("m.xml", b'<?xml version="1.0"?>\n<net name="m" version="11">\n', "OpenVINO model", "opscope profile /"),
    ],
)
def test_files_of_other_tools_are_named_with_what_to_do_instead(
    name: str, content: bytes, tool: str, way: str, tmp_path: Path
) -> None:
    """None is taken for a trace of AI Engine tiles, nor called edited."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceFormatError) as caught:
        analyze(tmp_path / name)
    assert tool in caught.value.problem
    assert way in str(caught.value.hint)


def test_supported_formats_are_listed_the_shortest_first(tmp_path: Path) -> None:
    """Of a tool that is known too, behind what to do instead."""
    for content in (b'{"a": 1, "b": "no trace of anything, but long enough to be more than a bracket"}', _CHROME):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(TraceFormatError) as caught:
            analyze(tmp_path / "x.json")
        names = str(caught.value.hint).partition("supported formats: ")[2].split(", ")
        assert names[0] == "etdump"
        assert names == sorted(names, key=len)
