"""Files that people give instead of a program or a trace, and the way from there.

Sources of the marks: PyTorch's zip archives (``data.pkl``, ``code/``, ``models/*.json``), the header of
safetensors,
``TFL3`` of LiteRT's schema, GGUF's and HDF5's magic numbers, Git LFS's pointer files, and ExecuTorch's ETDump
(``ED00``).
"""

from __future__ import annotations

import shlex
import zipfile
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import OpscopeError, TraceFormatError
from opscope.core.files import opened

if TYPE_CHECKING:
    from pathlib import Path

_HEAD, _START = 512, 4096
# A header of safetensors is JSON of at most 100 MB, by the package's own limit.
_LARGEST_HEADER = 100_000_000
_FUNCTION = (
    "write a function that returns (model, example inputs) and profile it: opscope profile FILE.py:FUNCTION; "
    "`opscope init --model NAME` writes a starter file"
)
_CODE = f"the file has weights, not the model's code. Build the model, load the weights into it, and {_FUNCTION}"
_RUNS = "opscope profiles models of ExecuTorch (.pte), LiteRT (.tflite), ONNX (.onnx) and OpenVINO (.xml)"
_OTHER_RUNTIME = f"{_RUNS}. If you have the PyTorch model, {_FUNCTION}"


class OtherFile(NamedTuple):
    """Description of a file, with its article, and the way from there.

    Without a hint, the file is what was asked for.
    """

    kind: str
    hint: str


_MARKS = (
    (0, b"version https://git-lfs", OtherFile("a Git LFS pointer", "fetch the file it points to: git lfs pull")),
    (4, b"TFL3", OtherFile("a LiteRT (TensorFlow Lite) model", "profile it with opscope profile FILE")),
    (0, b"GGUF", OtherFile("a GGUF model of llama.cpp", _OTHER_RUNTIME)),
    (0, b"\x89HDF", OtherFile("an HDF5 file (Keras)", _OTHER_RUNTIME)),
    *((offset, b"ED00", OtherFile("a trace (ETDump)", "analyse it with opscope analyze FILE")) for offset in (4, 8)),
    (4, b"ET", OtherFile("an ExecuTorch program", "profile it with opscope profile FILE")),
    (0, b"\x89PNG", OtherFile("a picture", f"give the model: {_RUNS}")),
    (0, b"\xff\xd8\xff", OtherFile("a picture", f"give the model: {_RUNS}")),
    (0, b"%PDF", OtherFile("a PDF document", f"give the model: {_RUNS}")),
)
_MEASURES = "opscope does not read it, and measures the model itself"
_ON_DEVICES = f"{_MEASURES}: the profile of an ONNX Runtime session (enable_profiling) shows devices, too"
_LLAMA = OtherFile("a report of llama-bench (llama.cpp)", f"{_MEASURES}: {_OTHER_RUNTIME}")
_NSIGHT = OtherFile("a report of Nsight (NVIDIA)", _ON_DEVICES)
_TORCH = OtherFile("a trace of PyTorch's profiler", f"{_MEASURES}: {_FUNCTION}")
_CHROME = OtherFile("a trace in Chrome's format by a tool unknown to opscope", f"{_MEASURES}: {_RUNS}")
_TOOLS: tuple[tuple[tuple[bytes, ...], OtherFile], ...] = (
    ((b"| t/s |",), _LLAMA),
    ((b'"n_prompt"', b'"model_filename"'), _LLAMA),
    ((b"build_commit,build_number,",), _LLAMA),
    ((b"llama_print_timings",), OtherFile("a log of llama.cpp", f"{_MEASURES}: {_OTHER_RUNTIME}")),
    ((b"NVIDIA Nsight",), _NSIGHT),
    ((b"NsightSystems",), _NSIGHT),
    ((b"Time (%),Total Time (ns),",), _NSIGHT),
    ((b'"Process Name"', b'"Kernel Name"'), _NSIGHT),
    ((b"trtexec",), OtherFile("a log of trtexec (TensorRT)", _ON_DEVICES)),
    ((b"Msg Timestamp,Message,Time,",), OtherFile("a report of qnn-profile-viewer", "give the ETDump of the run")),
    ((b'"schemaVersion"', b'"deviceProperties"'), _TORCH),
    ((b'"schemaVersion"', b'"traceName"'), _TORCH),
    ((b'"benchmarks"', b'"context"'), OtherFile("a report of Google Benchmark", f"{_MEASURES}: {_RUNS}")),
    ((b'"results"', b'"command"', b'"stddev"'), OtherFile("a report of hyperfine", f"{_MEASURES}: {_RUNS}")),
    (
        (b"Command line parameters", b"Configuration setup"),
        OtherFile("the statistics of OpenVINO's benchmark_app", "give the counters: -report_type average_counters"),
    ),
    ((b"PERFILE2",), OtherFile("a recording of perf", f"{_MEASURES}: {_RUNS}")),
    ((b"SIMPLEPERF",), OtherFile("a recording of simpleperf", f"{_MEASURES}: {_RUNS}")),
    ((b"SQLite format 3",), OtherFile("an SQLite database, as Nsight Systems exports", _ON_DEVICES)),
    ((b'"traceEvents"',), _CHROME),
    ((b'"ph"', b'"ts"'), _CHROME),
)
"""What tools write whose figures opscope does not take over: marks in the first bytes, and what to do instead."""
_AFTER_VERSION = (b"\x12", b"\x3a", b"\x42")
"""What follows the version in an ONNX file of any name: its producer, its graph or its operator sets."""
_TEXTS = {".md": "a text (Markdown)", ".json": "a text (JSON)", ".toml": "a text (TOML)", ".csv": "a text table"}


def other_file(path: Path) -> OtherFile | None:
    """Return a description of a file that is no program; None where it is not known, or cannot be read."""
    try:
        with opened(path) as stream:
            start = stream.read(_START)
    except OpscopeError:
        return None
    if not start:
        return OtherFile("an empty file", "copy or download it again")
    if path.suffix == ".bin" and path.with_suffix(".xml").is_file():
        return OtherFile("the weights of an OpenVINO model", f"give the model: {path.with_suffix('.xml')}")
    if start.startswith(b"PK\x03\x04"):
        return _by_members(path)
    head = start[:_HEAD]
    return _by_bytes(head) or _by_name(path, head) or _tool_by_marks(start) or _by_text(path, head)


def not_recognised(path: Path, problem: str = "not an ExecuTorch program", hint: str = "") -> TraceFormatError:
    """Return the error that says what a file is instead of what was asked for, and the way from there."""
    description = other_file(path)
    if description is None:
        return TraceFormatError(problem, where=path, hint=hint)
    # A hint that ends with a command on the file is one to copy.
    is_command = description.hint.endswith("FILE")
    way = f"{description.hint.removesuffix('FILE')}{shlex.quote(str(path))}" if is_command else description.hint
    is_of_tool = any(description is tool for _, tool in _TOOLS)
    advice = f"{way}; {hint}" if is_of_tool and hint else way or hint
    return TraceFormatError(f"{problem}: it is {description.kind}", where=path, hint=advice)


def _tool_by_marks(start: bytes) -> OtherFile | None:
    """Return the tool whose marks the first bytes have, if any."""
    return next((tool for marks, tool in _TOOLS if all(mark in start for mark in marks)), None)


def _by_bytes(head: bytes) -> OtherFile | None:
    """Return the file whose mark the first bytes have, if any."""
    for offset, mark, description in _MARKS:
        if head[offset : offset + len(mark)] == mark:
            return description
    if b"<net name=" in head:
        return OtherFile("an OpenVINO model", "profile it with opscope profile FILE")
    if head.lstrip()[:9].lower() in {b"<!doctype", b"<html>"}:
        return OtherFile("a web page", "the download saved a web page instead of the file: open it in a browser")
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _LARGEST_HEADER:
        return OtherFile("a safetensors file", _CODE)
    return None


def _by_name(path: Path, head: bytes) -> OtherFile | None:
    """Return the file by its suffix, for formats without a mark: old checkpoints are pickles, ONNX is protobuf."""
    suffix = path.suffix.lower()
    if head[:1] == b"\x08" and (suffix == ".onnx" or head[2:3] in _AFTER_VERSION):
        return OtherFile("an ONNX model", "profile it with opscope profile FILE")
    if suffix in {".pt", ".pth", ".bin", ".ckpt"} and head[:1] == b"\x80":
        return OtherFile("a PyTorch checkpoint", _CODE)
    if suffix in {".mlmodel", ".pb"}:
        names = {".mlmodel": "a Core ML model", ".pb": "a TensorFlow graph"}
        return OtherFile(names[suffix], _OTHER_RUNTIME)
    if suffix in {".py", ".ipynb"}:
        return OtherFile("Python code", f"to profile a model that it builds, {_FUNCTION}")
    return None


def _by_text(path: Path, head: bytes) -> OtherFile | None:
    """Return the file as a text, by all characters at its start; a cut one at the end is left out."""
    text = head.decode("utf-8", "ignore")
    if len(text.encode()) < len(head) - 3 or not all(
        character.isprintable() or character.isspace() for character in text
    ):
        return None
    return OtherFile(_TEXTS.get(path.suffix.lower(), "a text"), "")


def _by_members(path: Path) -> OtherFile:
    """Return the archive by the names of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RecursionError):
        return OtherFile("a damaged zip archive", "copy or download it again")
    if any(name.startswith("code/") for name in names):
        hint = f"the exporter needs the original module, not TorchScript: {_FUNCTION}"
        return OtherFile("a TorchScript archive", hint)
    if any(name.startswith("models/") for name in names) or path.suffix == ".pt2":
        hint = f"load it in a function with torch.export.load(FILE).module(): {_FUNCTION}"
        return OtherFile("a torch.export program", hint)
    if "data.pkl" in names:
        return OtherFile("a PyTorch checkpoint", _CODE)
    return OtherFile("a zip archive", "unpack it and name the .pte in it")
