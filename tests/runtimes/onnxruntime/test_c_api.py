"""The places of functions that the native runner calls: each is called, and does what the runner takes it for."""

from __future__ import annotations

import ctypes
import re
import time
from pathlib import Path

import numpy as np
import pytest

from installed import needs_onnxruntime
from opscope.runtimes.onnxruntime.installed import native_library
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.target import NativeOnnxTarget

MODEL = Path(__file__).parents[2] / "data" / "onnx" / "cnn.onnx"
SHAPE = [1, 3, 64, 64]
SOURCE = NativeOnnxTarget.runner.source.read_text(encoding="utf-8")
PLACES = {name: int(place) for name, place in re.findall(r"^  k(\w+) = (\d+),$", SOURCE, re.MULTILINE)}
TABLE = int(re.search(r"kTable = (\d+);", SOURCE)[1])  # type: ignore[index]  # it is there
INFORMATION, ONLY_ERRORS, PARALLEL, PLAIN = 1, 3, 1, 0
pytestmark = needs_onnxruntime


class _Base(ctypes.Structure):
    """What the library exports."""

    _fields_ = (
        ("table", ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)),
        ("version", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    )


class _Api:
    """The table of functions, by the names that the runner gives their places."""

    def __init__(self) -> None:
        self.package, path = native_library()
        exported = ctypes.CDLL(str(path)).OrtGetApiBase
        exported.restype = ctypes.POINTER(_Base)
        self.base = exported().contents
        self.table = self.base.table(TABLE)
        self.called: set[str] = set()

    def function(self, name: str, result: type = ctypes.c_void_p) -> ctypes._FuncPointer:
        self.called.add(name)
        return ctypes.CFUNCTYPE(result)(self.table[PLACES[name]])  # type: ignore[arg-type]  # an address

    def status(self, name: str, *arguments: object) -> str | None:
        function = self.function(name)
        function.argtypes = [
            type(one) if isinstance(one, ctypes._SimpleCData) else ctypes.c_void_p for one in arguments
        ]
        status = function(*arguments)
        if not status:
            return None
        message = self.function("GetErrorMessage", ctypes.c_char_p)
        message.argtypes = [ctypes.c_void_p]
        return message(status).decode()  # type: ignore[no-any-return]  # of C

    def call(self, name: str, *arguments: object) -> None:
        assert self.status(name, *arguments) is None

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(found))
        assert found.value
        return found

    def number(self, name: str, *arguments: object) -> int:
        found = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(found))
        return found.value

    def described(self, tensor: ctypes.c_void_p) -> tuple[int, list[int]]:
        rank = self.number("GetDimensionsCount", tensor)
        sizes = (ctypes.c_int64 * rank)()
        self.call("GetDimensions", tensor, sizes, ctypes.c_size_t(rank))
        return self.number("GetTensorElementType", tensor), list(sizes)


@pytest.fixture
def api() -> _Api:
    """Of the installed library."""
    return _Api()


def session_options(api: _Api, directory: Path) -> ctypes.c_void_p:
    """Options that no session has unless they are set, each by its function."""
    options = api.made("CreateSessionOptions")
    for name, value in (
        ("SetIntraOpNumThreads", 3),
        ("SetInterOpNumThreads", 2),
        ("SetSessionExecutionMode", PARALLEL),
        ("SetSessionLogSeverityLevel", INFORMATION),
        ("SetSessionGraphOptimizationLevel", PLAIN),
    ):
        api.call(name, options, ctypes.c_int(value))
    api.call("SetOptimizedModelFilePath", options, ctypes.c_char_p(str(directory / "saved.onnx").encode()))
    api.call("EnableProfiling", options, ctypes.c_char_p(str(directory / "profile").encode()))
    entry = b"session.optimized_model_external_initializers_file_name", b"saved.weights"
    api.call("AddSessionConfigEntry", options, *map(ctypes.c_char_p, entry))
    return options


def test_every_place_holds_the_function_that_the_runner_takes_it_for(
    api: _Api, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A session says of itself what its options are; it runs, and leaves what the package's own session computes."""
    path = ctypes.c_char_p(str(MODEL).encode())
    environment = api.made("CreateEnv", ctypes.c_int(ONLY_ERRORS), ctypes.c_char_p(b"opscope"))
    options = session_options(api, tmp_path)
    absent = ctypes.c_char_p(b"/absent.onnx")
    assert "/absent.onnx" in (api.status("CreateSession", environment, absent, options, ctypes.byref(absent)) or "")
    capfd.readouterr()
    began = time.time_ns()
    session = api.made("CreateSession", environment, path, options)
    said = capfd.readouterr().err
    for words in (
        "execution_mode:1 ",
        "enable_profiling:1 ",
        "session_log_severity_level:1 ",
        "graph_optimization_level:0 ",
        r"intra_op_param:OrtThreadPoolParams \{\s*thread_pool_size: 3 ",
        r"inter_op_param:OrtThreadPoolParams \{\s*thread_pool_size: 2 ",
    ):
        assert re.search(words, said)
    assert len(read_onnx(tmp_path / "saved.onnx").graph.nodes) == len(read_onnx(MODEL).graph.nodes)
    assert (tmp_path / "saved.weights").exists()
    started = api.number("SessionGetProfilingStartTimeNs", session)
    assert began - 1_000_000_000 < started <= time.time_ns()
    allocator = api.made("GetAllocatorWithDefaultOptions")
    names = []
    for side, kind, sizes in (("Input", 1, SHAPE), ("Output", 1, [1, 8])):
        assert api.number(f"SessionGet{side}Count", session) == 1
        first = ctypes.c_size_t(0)
        names.append(ctypes.string_at(api.made(f"SessionGet{side}Name", session, first, allocator).value or 0))
        info = api.made(f"SessionGet{side}TypeInfo", session, first)
        assert api.described(api.made("CastTypeInfoToTensorInfo", info)) == (kind, sizes)
    assert names == [b"image", b"logits"]
    image = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    left = called(api, session, allocator, names, image)
    written = ctypes.string_at(api.made("SessionEndProfiling", session, allocator).value or 0).decode()
    assert Path(written).parent == tmp_path
    assert "model_run" in Path(written).read_text()
    assert np.array_equal(left, _run_package_session(image))
    assert api.called == set(PLACES)


def called(
    api: _Api, session: ctypes.c_void_p, allocator: ctypes.c_void_p, names: list[bytes], image: np.ndarray
) -> np.ndarray:
    """What a session leaves of its input, through a binding."""
    memory = api.made("CreateCpuMemoryInfo", ctypes.c_int(0), ctypes.c_int(0))
    sizes, data = (ctypes.c_int64 * 4)(*SHAPE), ctypes.c_void_p(image.ctypes.data)
    tensor = [memory, data, ctypes.c_size_t(image.nbytes), sizes, ctypes.c_size_t(4), ctypes.c_int(1)]
    value = api.made("CreateTensorWithDataAsOrtValue", *tensor)
    assert api.made("GetTensorMutableData", value).value == image.ctypes.data
    binding, run_options = api.made("CreateIoBinding", session), api.made("CreateRunOptions")
    given, wanted = map(ctypes.c_char_p, names)
    api.call("BindInput", binding, given, value)
    api.call("BindOutputToDevice", binding, wanted, memory)
    clear = api.function("ClearBoundOutputs", None)  # type: ignore[arg-type]  # it returns nothing
    clear.argtypes = [ctypes.c_void_p]
    clear(binding)
    values, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
    told = [ctypes.byref(values), ctypes.byref(count)]
    api.call("GetBoundOutputValues", binding, allocator, *told)
    assert count.value == 0
    api.call("BindOutputToDevice", binding, wanted, memory)
    api.call("RunWithBinding", session, run_options, binding)
    api.call("GetBoundOutputValues", binding, allocator, *told)
    assert count.value == 1
    output = ctypes.c_void_p(values[0])
    assert api.number("IsTensor", output) == 1
    assert api.described(api.made("GetTensorTypeAndShape", output)) == (1, [1, 8])
    place = api.made("GetTensorMutableData", output).value
    return np.frombuffer(ctypes.string_at(place or 0, 8 * 4), np.float32).reshape(1, 8)


def _run_package_session(image: np.ndarray) -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"image": image})[0]
    return found


def test_the_library_states_the_version_of_its_package(api: _Api) -> None:
    """And refuses a table that it does not have yet."""
    assert api.base.version().decode() == api.package
    assert not api.base.table(TABLE + 1000)
