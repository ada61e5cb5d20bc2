"""ONNX Runtime and LiteRT without Python in the process: the same as from Python, here, on a device, when emulated.

The device is a real sshd on the loopback interface, the emulator is QEMU; the library is the wheel's, each time.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

import sshd
from adb_bench import ADB_REASON, MISSING, adb_server, plugged
from command_line import opscope
from installed import needs_litert, needs_onnxruntime
from job_variants import run_as
from native_runner import native_cache
from onnx_models import body, model, node
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind, Measurement, Mechanism, PlannedInput, Target
from opscope.core.errors import FeatureError, MissingDependencyError, RunError, UsageError
from opscope.core.table import Scope
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import AdbDevice
from opscope.hosts.device import MARK, OWN, Device
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import isa
from opscope.machine.switch.switch import fields_here
from opscope.readers.registry import read_trace
from opscope.runtimes.litert.native import NativeLitertTarget
from opscope.runtimes.litert.signatures import read_callable
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.trace import TRACE as LITERT_TRACE
from opscope.runtimes.native.building import find_compiler, host_architecture
from opscope.runtimes.native.start import NativeProgram
from opscope.runtimes.native.wheel_runner import WheelTarget
from opscope.runtimes.onnxruntime.graph import GRAPH, every_node, read_session_graph
from opscope.runtimes.onnxruntime.installed import NEWEST, PACKAGE, native_library
from opscope.runtimes.onnxruntime.target import TRACE as ONNX_TRACE
from opscope.runtimes.onnxruntime.target import NativeOnnxTarget, onnxruntime_here
from opscope.workflows.measure.profiling import profile
from opscope.workflows.measure.targets import target_running
from opscope.workflows.validate.validation import validate
from qemu import use_emulator
from texts import NO_COMPILER_FOR, NOT_DOWNLOADED, OUTPUT_OF_ANOTHER_PROGRAM, SME_SELECTED

DATA = Path(__file__).parents[1] / "data"
ONNX_MODELS, SMALL, MODELS = DATA / "onnx", DATA / "litert", DATA / "tflite"
CALLS = 6
TOKEN = re.compile(r"_token_\d+")
AXIS = {"axis": np.array([0], "i8")}
NUMBERS = (
    *("float16", "float32", "float64", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
INT8_BY_SME = {"Convolution (NHWC, PQS8, QS8, QC8W) IGEMM", "Fully Connected (NC, PQS8, QC8W) GEMM"}


def _onnx_operators(directory: Path) -> list[tuple[str, int | None]]:
    """Return name and instruction of every event of the last inference; names differ from session to session."""
    frame = read_trace(directory / ONNX_TRACE).table.frame
    last = frame.filter(frame["inference"] == frame["inference"].max())
    return [(TOKEN.sub("", name), number) for name, number in last.select("name", "instruction").rows()]


def _litert_operators(directory: Path) -> list[tuple[str, str]]:
    """Return scope and name of every operator of the last inference."""
    [trace] = directory.glob(f"{LITERT_TRACE}*")  # a bundle keeps it compressed
    frame = read_trace(trace).table.frame
    last = frame.filter(frame["inference"] == frame["inference"].max())
    kept = last.filter(last["scope"].is_in([Scope.DELEGATE_OP.value, Scope.DELEGATE_CALL.value, Scope.KERNEL.value]))
    return kept.select("scope", "name").rows()


class _Wheel(NamedTuple):
    """A runtime whose library comes in a wheel, and models of it."""

    native: type[WheelTarget]
    python: Callable[[], RunTarget]
    package: str
    product: Path
    int8: Path
    operators: Callable[[Path], list[object]]
    trace: str


ONNX = _Wheel(
    NativeOnnxTarget,
    onnxruntime_here,
    "onnxruntime",
    ONNX_MODELS / "products.onnx",
    ONNX_MODELS / "products.onnx",
    _onnx_operators,
    ONNX_TRACE,
)
LITERT = _Wheel(
    NativeLitertTarget,
    litert_here,
    "ai-edge-litert",
    SMALL / "tiny_fp32.tflite",
    SMALL / "tiny_int8.tflite",
    _litert_operators,
    LITERT_TRACE,
)
of_either = pytest.mark.parametrize(
    "wheel",
    [
        pytest.param(ONNX, id="onnxruntime", marks=needs_onnxruntime),
        pytest.param(LITERT, id="litert", marks=needs_litert),
    ],
)


def _here(wheel: _Wheel) -> WheelTarget:
    """Return the runner on this machine, built once for all tests."""
    try:
        find_compiler()
    except MissingDependencyError:
        pytest.skip("needs a C++ compiler")
    return wheel.native.here(wheel.python(), native_cache())


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """A device; runtimes are built once for all tests."""
    if host_architecture() is None:
        pytest.skip("cannot download the runtime for a device is built on Linux")
    with sshd.running(tmp_path / "board") as server:
        monkeypatch.setenv(VARIABLE, server.options)
        yield server


def _on_device(wheel: _Wheel, server: sshd.Sshd) -> WheelTarget:
    return wheel.native.on(Device(SshShell(parse_address(server.address)), str(server.home)), native_cache())


def _emulated(wheel: _Wheel, monkeypatch: pytest.MonkeyPatch) -> WheelTarget:
    """Return 64-bit Arm under QEMU; without a part of it the test is skipped."""
    use_emulator(monkeypatch)
    try:
        target = wheel.native.emulated(native_cache())
        target.offer(Mechanism.HWCAP)
    except MissingDependencyError as error:
        pytest.skip(f"needs cannot download the runtime for aarch64: {error}; {error.hint}")
    return target


def _job(
    program: Path,
    *,
    traced: bool = True,
    calls: tuple[str, ...] = (),
    sizes: tuple[int, ...] = (),
    delegate: str = "xnnpack",
    **options: str,
) -> Job:
    """A short run of a model; its one input has other sizes than it declares where they are given."""
    inputs = (PlannedInput(list(sizes), "float32"),) if sizes else ()
    how = run_as(delegate=delegate, options={name.replace("__", "."): value for name, value in options.items()})
    return Job(str(program), how, CALLS, 7, 300.0, traced=traced, warmup=2, calls=calls, inputs=inputs)


def _measured(target: RunTarget, asked: Job, directory: Path) -> Measurement:
    """Return what a run gave; its failure fails the test."""
    directory.mkdir(exist_ok=True)
    outcome = target.execute(asked, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


def _same_as_python(wheel: _Wheel, native: RunTarget, asked: Job, tmp_path: Path) -> Measurement:
    """Return the runner's run, once it is seen to be that of Python: bits, tensors, and operators in their order."""
    ran, python = _measured(native, asked, tmp_path / "n"), _measured(wheel.python(), asked, tmp_path / "p")
    assert ran.output_sha256 == python.output_sha256
    assert (ran.inputs, ran.outputs) == (python.inputs, python.outputs)
    assert len(ran.wall_ns) == len(python.wall_ns) == CALLS
    if asked.traced:
        assert wheel.operators(tmp_path / "n") == wheel.operators(tmp_path / "p")
    if asked.traced and wheel is ONNX:
        graphs = [read_session_graph(tmp_path / side / GRAPH) for side in ("n", "p")]
        plain = [TOKEN.sub("", str(msgspec.structs.replace(one, started_ns=0))) for one in graphs]
        assert plain[0] == plain[1], "the graph that ran"
    return ran


def _program(path: Path, sizes: tuple[int, ...] = ()) -> object:
    """A model as a parameter, with its runtime and the sizes that it leaves open."""
    wheel, needs = (ONNX, needs_onnxruntime) if path.suffix == ".onnx" else (LITERT, needs_litert)
    return pytest.param(wheel, path, sizes, id=path.stem, marks=needs)


@pytest.mark.parametrize(
    ("wheel", "program", "sizes"),
    [
        *(_program(ONNX_MODELS / f"{name}.onnx") for name in ("branch", "cnn", "images", "products", "quantised")),
        _program(ONNX_MODELS / "external.onnx", (3, 8)),
        _program(ONNX_MODELS / "open_sizes.onnx", (5, 8)),
        *(_program(SMALL / f"{name}.tflite") for name in ("choice", "loop", "mediapipe", "partial", "tiny_fp32")),
        *(_program(SMALL / f"{name}.tflite") for name in ("tiny_int8", "two_signatures")),
        *(
            _program(MODELS / f"{name}.tflite")
            for name in ("attention", "cnn_int8", "outside", "parts", "wide_dynamic")
        ),
    ],
)
def test_the_runner_computes_and_traces_what_python_does(
    wheel: _Wheel, program: Path, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    """Bit by bit; every call of the trace lies within the call that was timed, and nothing else is left."""
    ran = _same_as_python(wheel, _here(wheel), _job(program, sizes=sizes), tmp_path)
    durations = read_trace(tmp_path / "n" / wheel.trace).table.inference_times().duration.tolist()
    most = [wall + (1000 if wheel is ONNX else 0) for wall in ran.wall_ns]
    assert all(inner <= wall for inner, wall in zip(durations, most, strict=True))
    assert wheel is ONNX or durations == ran.wall_ns
    graphs = {GRAPH} if wheel is ONNX else set()
    assert {path.name for path in (tmp_path / "n").iterdir()} == {wheel.trace, "log.txt", "outputs.npz"} | graphs


@of_either
@pytest.mark.parametrize("runner", [_here, lambda wheel: wheel.python()], ids=["native", "python"])
def test_features_are_switched_off_here(wheel: _Wheel, runner: Callable[[_Wheel], RunTarget], tmp_path: Path) -> None:
    """By the trap, in both runners."""
    _switched_by_trap(wheel, runner(wheel), tmp_path)


@pytest.mark.nightly  # compiles for a device
@of_either
def test_features_are_switched_off_on_a_device(wheel: _Wheel, board: sshd.Sshd, tmp_path: Path) -> None:
    """The library that does it goes with the runner, and what it counted comes back."""
    target = _on_device(wheel, board)
    _switched_by_trap(wheel, target, tmp_path)
    with pytest.raises(FeatureError, match="hwcap needs Linux on aarch64, this is x86_64"):
        target.offer(Mechanism.HWCAP)


@pytest.mark.nightly  # an emulator
@of_either
def test_features_are_switched_off_under_an_emulator(
    wheel: _Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the hardware capabilities, which the C library tells; the trap is for another processor."""
    target = _emulated(wheel, monkeypatch)
    _switched(target, wheel.int8, tmp_path, Mechanism.HWCAP, "sme")
    assert target.environment().machine == "aarch64"
    assert wheel is ONNX or "sme2" in target.environment().features
    with pytest.raises(FeatureError, match="trap does not work under an emulator"):
        target.offer(Mechanism.TRAP)


def _switched_by_trap(wheel: _Wheel, target: RunTarget, tmp_path: Path) -> None:
    """Switch off the group that is the default here; without the trap the test is skipped."""
    try:
        target.offer(Mechanism.TRAP)
    except (FeatureError, MissingDependencyError) as error:
        pytest.skip(str(error))
    arch, fields = fields_here()
    _switched(target, wheel.product, tmp_path, Mechanism.TRAP, isa.default_ablation(arch, frozenset(fields)).name)


def _switched(target: RunTarget, program: Path, tmp_path: Path, mechanism: Mechanism, group: str) -> None:
    """The mechanism alone changes nothing, and with features off the proof has answers that were masked."""
    probe = target.offer(mechanism).probe
    clear = isa.cleared_fields(probe.arch, [group], frozenset(probe.fields))
    assert clear
    found = {}
    for name, off in (("untouched", None), ("all", []), ("off", clear)):
        asked = msgspec.structs.replace(_job(program, traced=False), variant=run_as(off, switch=mechanism))
        found[name] = _measured(target, asked, tmp_path / name)
    assert found["untouched"].output_sha256 == found["all"].output_sha256
    assert found["untouched"].mask is None
    for name, off in (("all", []), ("off", clear)):
        mask = found[name].mask
        assert (mask.mechanism, mask.cleared, bool(mask.masked)) == (mechanism, off, bool(off))
        assert mask.executions


@of_either
def test_no_ceilings_are_measured_where_only_the_runner_is(wheel: _Wheel, board: sshd.Sshd) -> None:
    """There is none, and it is said."""
    target = _on_device(wheel, board)
    assert (target.ceilings(run_as()), target.identity()) == (None, None)
    with pytest.raises(FeatureError, match="no symbol cpuinfo_isa"):
        target.probe()


@of_either
@pytest.mark.parametrize("name", ["ssh:board?python=python3", "ssh:board?runner=/bin/true", "runner:/bin/true"])
def test_targets_that_cannot_run_such_models_are_refused(wheel: _Wheel, name: str) -> None:
    """With what to do instead."""
    words = "a device's Python cannot run" if "python" in name else "builds of executor_runner do not run"
    runtime = "ONNX Runtime" if wheel is ONNX else "LiteRT"
    with pytest.raises(UsageError, match=f"{words} {runtime} models") as caught:
        target_running(str(wheel.product), name)
    assert caught.value.hint


@pytest.mark.nightly  # compiles for a device
@of_either
def test_a_model_is_profiled_on_a_device(wheel: _Wheel, board: sshd.Sshd, tmp_path: Path) -> None:
    """A whole bundle that nothing contradicts, weights in a directory beside the model; the runs leave nothing."""
    if wheel is ONNX:
        program, more = tmp_path / "external.onnx", {"input": ("float32[2,8]",)}
        program.write_bytes((ONNX_MODELS / "external.onnx").read_bytes().replace(b"external.bin", b"w/inside.bin"))
        (tmp_path / "w").mkdir()
        shutil.copy(ONNX_MODELS / "external.bin", tmp_path / "w" / "inside.bin")
    else:
        program, more = MODELS / "cnn_int8.tflite", {"delegate": "both"}
    settings = Settings(rounds=2, runs=3, warmup=1, ceilings=False, lock="warn", **more)
    profile(str(program), settings=settings, out=tmp_path / "out", target=_on_device(wheel, board))
    kept = Bundle.open(tmp_path / "out").manifest
    assert (kept.target.kind, kept.target.address) == ("ssh", board.address)
    assert {wheel.package, "compiler"} <= kept.environment.versions.keys()
    assert validate(tmp_path / "out").valid
    assert {path.name for path in board.home.iterdir()} == {OWN}
    sent = {path.name for path in (board.home / OWN).iterdir()}
    assert {"programs", "runtimes", MARK} <= sent <= {"programs", "runtimes", "inputs", "switch", MARK}


@needs_onnxruntime
@pytest.mark.parametrize(
    "options",
    [
        {"graph_optimization_level": "none"},
        {"graph_optimization_level": "basic", "execution_mode": "parallel", "inter_op_num_threads": "2"},
        {"session__disable_prepacking": "1", "session__intra_op__allow_spinning": "0"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_session_has_the_options_that_are_asked_for(options: dict[str, str], tmp_path: Path) -> None:
    """As that of Python has them."""
    _same_as_python(ONNX, _here(ONNX), _job(ONNX_MODELS / "cnn.onnx", **options), tmp_path)


@needs_onnxruntime
def test_an_entry_that_the_session_refuses_is_refused(tmp_path: Path) -> None:
    """So entries arrive, values with blanks, commas and signs of equality included."""
    entries = {"session__x": "a b,c=d;'e'", "session__intra_op_thread_affinities": "9,9=9"}
    asked = _job(ONNX_MODELS / "cnn.onnx", traced=False, **entries)
    asked = msgspec.structs.replace(asked, variant=msgspec.structs.replace(asked.variant, threads=2))
    for target in (_here(ONNX), onnxruntime_here()):
        assert "must consist of only digits: 9=9" in target.execute(asked, tmp_path).failure.message


@needs_onnxruntime
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_type_of_number_is_given_and_read(dtype: str, tmp_path: Path) -> None:
    """A tensor, and a number alone."""
    graph = body(
        [node("Identity", "x", "y"), node("Identity", "one", "same")],
        {"x": (dtype, (2, 3)), "one": (dtype, ())},
        {"y": (dtype, (2, 3)), "same": (dtype, ())},
    )
    (tmp_path / "same.onnx").write_bytes(model(graph))
    ran = _same_as_python(ONNX, _here(ONNX), _job(tmp_path / "same.onnx", traced=False), tmp_path)
    assert [(one.dtype, one.shape) for one in ran.outputs] == [(dtype, [2, 3]), (dtype, [])]


@needs_onnxruntime
def test_an_output_may_have_other_dimensions_than_the_model_says(tmp_path: Path) -> None:
    """A session would refuse to fill that output again."""
    graph = body([node("Unsqueeze", "x axis", "y")], {"x": ("float32", (2, 3))}, {"y": ("float32", (2, 3))}, AXIS)
    (tmp_path / "wrong.onnx").write_bytes(model(graph))
    _same_as_python(ONNX, _here(ONNX), _job(tmp_path / "wrong.onnx"), tmp_path)


@needs_onnxruntime
def test_what_goes_wrong_is_told_in_the_words_of_onnx_runtime(tmp_path: Path) -> None:
    """An operator that nobody defines, a provider that the library does not have, a file that is gone, texts."""
    strange, text = tmp_path / "strange.onnx", tmp_path / "text.onnx"
    strange.write_bytes((ONNX_MODELS / "products.onnx").read_bytes().replace(b"Tanh", b"Tank"))
    text.write_bytes(model(body([node("Cast", "x", "y", to=8)], {"x": ("float32", (2,))}, {"y": ("string", (2,))})))
    for program, options, words in (
        (strange, {}, "Tank"),
        (ONNX_MODELS / "cnn.onnx", {"providers": "CUDAExecutionProvider"}, "CPUExecutionProvider alone, not CUDA"),
        (tmp_path / "none.onnx", {}, "none.onnx"),
        (text, {}, "output 0 is of type 8 of ONNX, which cannot be given or read"),
    ):
        failure = _here(ONNX).execute(_job(program, **options), tmp_path).failure
        assert words in failure.message
        assert failure.kind in (FailureKind.EXIT, FailureKind.STORAGE)


@needs_litert
@pytest.mark.parametrize(
    ("program", "calls", "words"),
    [
        ("other", (), "LiteRT rejected the model: LiteRtCreateModelFromFile returned"),
        ("cut", (), "the process was killed by SIGSEGV|an offset points outside the file"),
        ("none", (), "No such file"),
        ("two_signatures", ("absent",), "has no signature 'absent'; it has: decode, encode"),
        ("flex", (), "LiteRT rejected the model"),
    ],
)
def test_what_goes_wrong_is_told_in_the_words_of_litert(
    program: str, calls: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """A file that LiteRT refuses, one that is gone, and a signature that is not there.

    LiteRT reads beyond the end of a file that was cut, which need not end the process; what it leaves is refused then.
    """
    shutil.copytree(SMALL, tmp_path / "models")
    (tmp_path / "models" / "other.tflite").write_bytes(b"TFL3" * 500)
    (tmp_path / "models" / "cut.tflite").write_bytes((SMALL / "tiny_fp32.tflite").read_bytes()[:2000])
    failure = _here(LITERT).execute(_job(tmp_path / "models" / f"{program}.tflite", calls=calls), tmp_path).failure
    assert re.search(words, failure.message)
    assert failure.kind in (FailureKind.EXIT, FailureKind.STORAGE, FailureKind.SIGNAL)


@needs_onnxruntime
def test_another_library_than_that_of_the_wheel_is_refused(tmp_path: Path) -> None:
    """By the version that it states; and one that is none."""
    command, answer = list(_here(ONNX).program.command), tmp_path / "answer.json"
    version, library = native_library()
    for words, told in (
        ([f"--library={library}", "--library_version=0.9.0"], f"says that it is version {version}, not 0.9.0"),
        (["--library=libm.so.6"], "does not export OrtGetApiBase"),
        (["--library=/absent.so"], "/absent.so"),
    ):
        asked = [*command, *words, f"--model_path={ONNX_MODELS / 'cnn.onnx'}", f"--answer_path={answer}"]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 1
        assert told in msgspec.json.decode(answer.read_bytes())["error"]


@needs_onnxruntime
@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.9.0", r"onnxruntime 0\.9\.0 is installed; its C API is supported for 1\.19 and later 1\.x"),
        ("2.0.0", r"onnxruntime 2\.0\.0 is installed"),
        (NEWEST, "has no library with the C API"),
    ],
)
def test_a_package_that_the_runner_does_not_know_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, words: str
) -> None:
    """An installed one of that version, whose library has no C API beside it."""
    place = tmp_path / PACKAGE / "capi"
    place.mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").touch()
    (place / "onnxruntime_pybind11_state.so").touch()
    (tmp_path / f"{PACKAGE}-{version}.dist-info").mkdir()
    about = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n"
    (tmp_path / f"{PACKAGE}-{version}.dist-info" / "METADATA").write_text(about)
    for name in [one for one in sys.modules if one.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=words) as caught:
        target_running(str(ONNX_MODELS / "cnn.onnx"), "native")
    assert "--target local" in (caught.value.hint or "")


@pytest.mark.nightly  # an emulator
@needs_onnxruntime
@pytest.mark.parametrize("name", ["cnn", "quantised", "branch"])
def test_the_library_for_arm_computes_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under QEMU, beyond what another order of sums does; its profile tells the nodes that ran."""
    _measured(_emulated(ONNX, monkeypatch), _job(ONNX_MODELS / f"{name}.onnx"), tmp_path / "arm")
    _measured(onnxruntime_here(), _job(ONNX_MODELS / f"{name}.onnx"), tmp_path / "here")
    found = [np.load(tmp_path / side / "outputs.npz")["arr_0"] for side in ("arm", "here")]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
    ran = {TOKEN.sub("", one.name) for one in every_node(read_session_graph(tmp_path / "arm" / GRAPH).nodes)}
    numbered = (name for name, number in _onnx_operators(tmp_path / "arm") if number is not None)
    told = {name.partition(": ")[2] for name in numbered} - {""}
    assert told
    assert told <= ran


@needs_onnxruntime
def test_a_model_runs_on_a_phone(tmp_path: Path) -> None:
    """Over the real adb, as on this machine; entries of a session with blanks and a line each arrive."""
    if MISSING:
        pytest.skip(ADB_REASON)
    (tmp_path / "home").mkdir()
    with adb_server(tmp_path / "home"), plugged(tmp_path / "phone") as phone:
        target = NativeOnnxTarget.on(AdbDevice(AdbShell(phone.address)), native_cache())
        entries = {"session__disable_prepacking": "1", "session__x": "a b;'c'"}
        _same_as_python(ONNX, target, _job(ONNX_MODELS / "cnn.onnx", **entries), tmp_path)


@needs_litert
@pytest.mark.parametrize("delegate", ["xnnpack", "none"])
def test_sizes_that_the_file_leaves_open_are_given(delegate: str, tmp_path: Path) -> None:
    """Of inputs, from which those of the outputs follow; without them the file's own are taken."""
    asked = _job(SMALL / "dynamic.tflite", delegate=delegate, traced=False, sizes=(3, 32, 32, 3))
    assert _same_as_python(LITERT, _here(LITERT), asked, tmp_path).outputs[0].shape[0] == 3


@needs_litert
@pytest.mark.parametrize("runner", [_here, lambda wheel: wheel.python()], ids=["native", "python"])
def test_signatures_are_called_in_turn(runner: Callable[[_Wheel], RunTarget], tmp_path: Path) -> None:
    """Each on inputs of its own, and each call is told with its name."""
    asked = _job(SMALL / "two_signatures.tflite", calls=("decode", "encode"))
    assert [one.shape for one in _measured(runner(LITERT), asked, tmp_path).inputs] == [[2, 8], [2, 8], [2, 16]]
    methods = read_trace(tmp_path / LITERT_TRACE).table.inference_times().method
    assert [methods[row] for row in range(CALLS)] == ["decode", "encode"] * 3


@pytest.mark.nightly  # an emulator
@needs_litert
def test_sme_runs_under_an_emulator_and_not_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the kernels say it: those with packed int8 inputs are SME's. The report says so of each variant."""
    settings, target = (
        Settings(rounds=1, runs=2, warmup=1, ablate=("sme",), lock="warn"),
        _emulated(LITERT, monkeypatch),
    )
    profile(str(MODELS / "cnn_int8.tflite"), settings=settings, out=tmp_path / "out", target=target)
    found = {
        one: {name for path in (tmp_path / "out/variants" / one).rglob(f"{LITERT_TRACE}*")
              for _, name in _litert_operators(path.parent)}
        for one in ("accelerated", "baseline")
    }  # fmt: skip
    assert found["accelerated"] >= INT8_BY_SME
    assert found["baseline"]
    assert not any("PQS8" in name for name in found["baseline"])
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert f"{SME_SELECTED} 3 of 4 convolutions and products" in report
    assert "calls cannot be counted in this runtime's library" in report
    assert "--count" not in report
    assert validate(tmp_path / "out").valid


@needs_litert
def test_a_runtime_that_cannot_be_had_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wheel to download, no compiler, no such architecture: before anything is sent."""
    other = "x86_64" if host_architecture() == "aarch64" else "aarch64"
    monkeypatch.setenv(f"OPSCOPE_CXX_{other.upper()}", str(tmp_path / "none"))
    with pytest.raises(MissingDependencyError, match=f"{NO_COMPILER_FOR} {other}"):
        NativeLitertTarget.runner.folder(other, tmp_path)
    with pytest.raises(FeatureError, match="no prebuilt runtime for Linux on riscv64"):
        NativeLitertTarget.runner.folder("riscv64", tmp_path)
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho fake 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv(f"OPSCOPE_CXX_{other.upper()}", str(compiler))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=f"{NOT_DOWNLOADED} for {other}") as caught:
        NativeLitertTarget.runner.folder(other, tmp_path)
    assert "PIP_FIND_LINKS" in str(caught.value.hint)


def _litert_target(command: str) -> NativeLitertTarget:
    program = NativeProgram("x86_64", {"ai-edge-litert": "2.3.0"}, command=[command])
    return NativeLitertTarget(ThisMachine(Target("native", "")), lambda: program, {})


@needs_litert
def test_a_runner_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    """Of the features, too."""
    target = _litert_target("/bin/true")
    with pytest.raises(RunError, match="cannot read the CPU's features"):
        _ = target.probed
    assert target.execute(_job(SMALL / "tiny_fp32.tflite"), tmp_path).failure


RUNNER = """#!/bin/sh
case "$*" in
  *--describe=1*)
    echo '{"signatures":[{"name":"serving_default","inputs":["image"],"outputs":["output_0"]}]}' >answer.json ;;
  *)
    echo '{"outputs":[null],"wall_ns":[1000]}' >answer.json
    printf abc >out-0.bin
    echo 'DAMAGE' >calls.json ;;
esac
"""


@needs_litert
@pytest.mark.parametrize("traced", [True, False])
def test_what_a_runner_leaves_is_not_believed(tmp_path: Path, traced: bool) -> None:
    """A damaged trace, and an output of another size: a failed repetition, and no more than that."""
    runner, program = tmp_path / "runner", SMALL / "tiny_fp32.tflite"
    own = read_callable(program).signatures[0]
    script = RUNNER.replace("image", own.inputs[0].name).replace("output_0", own.outputs[0].name)
    runner.write_text(script.replace("serving_default", own.name))
    runner.chmod(0o755)
    failure = _litert_target(str(runner)).execute(_job(program, traced=traced), tmp_path).failure
    assert failure.kind is FailureKind.EXIT
    assert OUTPUT_OF_ANOTHER_PROGRAM in failure.message
    assert not (tmp_path / ".native").exists()


@pytest.mark.nightly  # compiles for a device
@of_either
def test_the_command_line_runs_it(
    wheel: _Wheel, board: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command from the model to a bundle without mistakes and its report, here and on a device."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "opscope").symlink_to(native_cache())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = "native" if wheel is ONNX else f"ssh:{board.address}"
    words = ["--rounds", "2", "--runs", "3", "--no-ceilings", "--lock", "warn", "--out", "out", "--json", "told.json"]
    done = opscope("profile", wheel.product, "--target", target, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))["schema"] == "opscope.profile/2"
    assert Bundle.open(tmp_path / "out").manifest.target.kind == target.partition(":")[0]
    assert validate(tmp_path / "out").valid
    assert (tmp_path / "out" / "report.html").exists()
