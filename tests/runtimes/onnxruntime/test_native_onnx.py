"""ONNX Runtime without Python in the process: the same as from Python, here, on a device and behind an emulator.

The device is a real sshd on the loopback interface, the emulator is QEMU; the library is the wheel's, each time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest

import sshd
from adb_bench import MISSING, adb_server, plugged
from job_variants import run_as
from native_runner import native_cache
from onnx_models import body, model, node
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind, Measurement, Mechanism, PlannedInput
from opscope.core.errors import FeatureError, MissingDependencyError, UsageError
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import AdbDevice
from opscope.hosts.device import Device
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address
from opscope.machine import isa
from opscope.machine.switch.switch import fields_here
from opscope.readers.registry import read_trace
from opscope.runtimes.native.building import find_compiler, host_architecture
from opscope.runtimes.native.wheel_runner import WheelTarget
from opscope.runtimes.onnxruntime.graph import GRAPH, every_node, read_session_graph
from opscope.runtimes.onnxruntime.installed import NEWEST, PACKAGE, native_library
from opscope.runtimes.onnxruntime.target import TRACE, NativeOnnxTarget, onnxruntime_here
from opscope.workflows.measure.profiling import profile
from opscope.workflows.measure.targets import target_running
from opscope.workflows.validate.validation import validate
from qemu import use_emulator

MODELS = Path(__file__).parents[2] / "data" / "onnx"
CALLS = 6
TOKEN = re.compile(r"_token_\d+")
AXIS = {"axis": np.array([0], "i8")}
NUMBERS = (
    *("float16", "float32", "float64", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")


@pytest.fixture
def here() -> WheelTarget:
    """The runner on this machine, built once for all tests."""
    try:
        find_compiler()
    except MissingDependencyError:
        pytest.skip("needs a C++ compiler")
    return NativeOnnxTarget.here(onnxruntime_here(), native_cache())


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sshd.Sshd:
    """A device; runtimes are built once for all tests."""
    if host_architecture() is None:
        pytest.skip("cannot download the runtime for a device is built on Linux")
    with sshd.running(tmp_path / "board") as server:
        monkeypatch.setenv(VARIABLE, server.options)
        yield server


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> WheelTarget:
    """64-bit Arm under QEMU; without a part of it the test is skipped."""
    use_emulator(monkeypatch)
    try:
        target = NativeOnnxTarget.emulated(native_cache())
        target.offer(Mechanism.HWCAP)
    except MissingDependencyError as error:
        pytest.skip(f"needs cannot download the runtime for aarch64: {error}; {error.hint}")
    return target


def on_device(server: sshd.Sshd) -> WheelTarget:
    """The device as a place where models run."""
    return NativeOnnxTarget.on(Device(SshShell(parse_address(server.address)), str(server.home)), native_cache())


def job(program: Path, *, traced: bool = True, sizes: tuple[int, ...] = (), **options: str) -> Job:
    """A short run of a model; its one input has other sizes than it declares where they are given."""
    inputs = (PlannedInput(list(sizes), "float32"),) if sizes else ()
    how = run_as(options={name.replace("__", "."): value for name, value in options.items()})
    return Job(str(program), how, CALLS, 7, 300.0, traced=traced, warmup=2, inputs=inputs)


def measured(target: RunTarget, asked: Job, directory: Path) -> Measurement:
    """What a run gave; its failure fails the test."""
    directory.mkdir(exist_ok=True)
    outcome = target.execute(asked, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


def operators(directory: Path) -> list[tuple[str, int | None]]:
    """Name and instruction of every event of the last inference; numbers in names differ from session to session."""
    frame = read_trace(directory / TRACE).table.frame
    last = frame.filter(frame["inference"] == frame["inference"].max())
    return list(
        zip((TOKEN.sub("", name) for name in last["name"].to_list()), last["instruction"].to_list(), strict=True)
    )


def the_same(native: RunTarget, asked: Job, tmp_path: Path) -> Measurement:
    """The runner's run, once it is seen to be that of Python: bits, tensors, operators, and the graph that ran."""
    ran, python = measured(native, asked, tmp_path / "n"), measured(onnxruntime_here(), asked, tmp_path / "p")
    assert ran.output_sha256 == python.output_sha256
    assert (ran.inputs, ran.outputs) == (python.inputs, python.outputs)
    assert len(ran.wall_ns) == len(python.wall_ns) == CALLS
    if asked.traced:
        assert operators(tmp_path / "n") == operators(tmp_path / "p")
        graphs = [read_session_graph(tmp_path / side / GRAPH) for side in ("n", "p")]
        plain = [TOKEN.sub("", str(msgspec.structs.replace(one, started_ns=0))) for one in graphs]
        assert plain[0] == plain[1]
    return ran


RUNNABLE = dict.fromkeys(("branch", "cnn", "images", "products", "quantised"), ())
RUNNABLE |= {"external": (3, 8), "open_sizes": (5, 8)}


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_runner_computes_and_traces_what_python_does(here: WheelTarget, name: str, tmp_path: Path) -> None:
    """Bit by bit; every call of the profile lies within the call that was timed, and nothing else is left."""
    ran = the_same(here, job(MODELS / f"{name}.onnx", sizes=RUNNABLE[name]), tmp_path)
    durations = read_trace(tmp_path / "n" / TRACE).table.inference_times().duration.tolist()
    assert all(inner <= wall + 1000 for inner, wall in zip(durations, ran.wall_ns, strict=True))
    assert sorted(path.name for path in (tmp_path / "n").iterdir()) == sorted([GRAPH, TRACE, "log.txt", "outputs.npz"])


@pytest.mark.parametrize(
    "options",
    [
        {"graph_optimization_level": "none"},
        {"graph_optimization_level": "basic", "execution_mode": "parallel", "inter_op_num_threads": "2"},
        {"session__disable_prepacking": "1", "session__intra_op__allow_spinning": "0"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_session_has_the_options_that_are_asked_for(
    here: WheelTarget, options: dict[str, str], tmp_path: Path
) -> None:
    """As that of Python has them."""
    the_same(here, job(MODELS / "cnn.onnx", **options), tmp_path)


def test_an_entry_that_the_session_refuses_is_refused(here: WheelTarget, tmp_path: Path) -> None:
    """So entries arrive, values with blanks, commas and signs of equality included."""
    asked = job(
        MODELS / "cnn.onnx", traced=False, session__x="a b,c=d;'e'", session__intra_op_thread_affinities="9,9=9"
    )
    asked = msgspec.structs.replace(asked, variant=msgspec.structs.replace(asked.variant, threads=2))
    failures = [target.execute(asked, tmp_path).failure for target in (here, onnxruntime_here())]
    for failure in failures:
        assert failure is not None
        assert "must consist of only digits: 9=9" in failure.message


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_type_of_number_is_given_and_read(here: WheelTarget, dtype: str, tmp_path: Path) -> None:
    """A tensor, and a number alone."""
    graph = body(
        [node("Identity", "x", "y"), node("Identity", "one", "same")],
        {"x": (dtype, (2, 3)), "one": (dtype, ())},
        {"y": (dtype, (2, 3)), "same": (dtype, ())},
    )
    (tmp_path / "same.onnx").write_bytes(model(graph))
    ran = the_same(here, job(tmp_path / "same.onnx", traced=False), tmp_path)
    assert [one.dtype for one in ran.outputs] == [dtype] * 2
    assert [one.shape for one in ran.outputs] == [[2, 3], []]


def test_text_cannot_be_read(here: WheelTarget, tmp_path: Path) -> None:
    """Of an output."""
    graph = body([node("Cast", "x", "y", to=8)], {"x": ("float32", (2,))}, {"y": ("string", (2,))})
    (tmp_path / "text.onnx").write_bytes(model(graph))
    failure = here.execute(job(tmp_path / "text.onnx", traced=False), tmp_path).failure
    assert failure is not None
    assert "output 0 is of type 8 of ONNX, which cannot be given or read" in failure.message


def test_an_output_may_have_other_dimensions_than_the_model_says(here: WheelTarget, tmp_path: Path) -> None:
    """A session would refuse to fill that output again."""
    graph = body([node("Unsqueeze", "x axis", "y")], {"x": ("float32", (2, 3))}, {"y": ("float32", (2, 3))}, AXIS)
    (tmp_path / "wrong.onnx").write_bytes(model(graph))
    the_same(here, job(tmp_path / "wrong.onnx"), tmp_path)


def test_what_goes_wrong_is_told_in_the_words_of_the_runtime(here: WheelTarget, tmp_path: Path) -> None:
    """An operator that nobody defines, a provider that the library does not have, a file that is gone."""
    strange = tmp_path / "strange.onnx"
    strange.write_bytes((MODELS / "products.onnx").read_bytes().replace(b"Tanh", b"Tank"))
    for program, options, words in (
        (strange, {}, "Tank"),
        (MODELS / "cnn.onnx", {"providers": "CUDAExecutionProvider"}, "CPUExecutionProvider alone, not CUDA"),
        (tmp_path / "none.onnx", {}, "none.onnx"),
    ):
        failure = here.execute(job(program, **options), tmp_path).failure
        assert failure is not None
        assert words in failure.message
        assert failure.kind in (FailureKind.EXIT, FailureKind.STORAGE)


def test_another_library_than_that_of_the_wheel_is_refused(here: WheelTarget, tmp_path: Path) -> None:
    """By the version that it states; and one that is none."""
    command, answer = list(here.program.command), tmp_path / "answer.json"
    version, library = native_library()
    for words, told in (
        ([f"--library={library}", "--library_version=0.9.0"], f"says that it is version {version}, not 0.9.0"),
        (["--library=libm.so.6"], "does not export OrtGetApiBase"),
        (["--library=/absent.so"], "/absent.so"),
    ):
        asked = [*command, *words, f"--model_path={MODELS / 'cnn.onnx'}", f"--answer_path={answer}"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert told in msgspec.json.decode(answer.read_bytes())["error"]


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
        target_running(str(MODELS / "cnn.onnx"), "native")
    assert "--target local" in (caught.value.hint or "")


def switched(target: WheelTarget, tmp_path: Path, mechanism: Mechanism, group: str) -> None:
    """The mechanism alone changes nothing, and with features off the proof has answers that were masked."""
    probe = target.offer(mechanism).probe
    clear = isa.cleared_fields(probe.arch, [group], frozenset(probe.fields))
    assert clear
    found = {}
    for name, off in (("untouched", None), ("all", []), ("off", clear)):
        asked = msgspec.structs.replace(
            job(MODELS / "products.onnx", traced=False), variant=run_as(off, switch=mechanism)
        )
        found[name] = measured(target, asked, tmp_path / name)
    assert found["untouched"].output_sha256 == found["all"].output_sha256
    assert found["untouched"].mask is None
    for name, off in (("all", []), ("off", clear)):
        mask = found[name].mask
        assert mask is not None
        assert (mask.mechanism, mask.cleared, bool(mask.masked)) == (mechanism, off, bool(off))
        assert mask.executions


def strongest() -> str:
    """The group that is switched off here when nothing else is asked."""
    arch, fields = fields_here()
    return isa.default_ablation(arch, frozenset(fields)).name


def trap_or_skip(target: WheelTarget) -> None:
    """Without the trap the test is skipped."""
    try:
        target.offer(Mechanism.TRAP)
    except (FeatureError, MissingDependencyError) as error:
        pytest.skip(str(error))


def test_features_are_switched_off_here(here: WheelTarget, tmp_path: Path) -> None:
    """By the trap, as for Python."""
    trap_or_skip(here)
    switched(here, tmp_path, Mechanism.TRAP, strongest())


def test_features_are_switched_off_on_a_device(board: sshd.Sshd, tmp_path: Path) -> None:
    """The library that does it goes with the runner, and what it counted comes back."""
    target = on_device(board)
    trap_or_skip(target)
    switched(target, tmp_path, Mechanism.TRAP, strongest())


def test_features_are_switched_off_under_an_emulator(arm: WheelTarget, tmp_path: Path) -> None:
    """By the hardware capabilities, which the C library tells."""
    switched(arm, tmp_path, Mechanism.HWCAP, "sme")
    assert arm.environment().machine == "aarch64"
    with pytest.raises(FeatureError, match="trap does not work under an emulator"):
        arm.offer(Mechanism.TRAP)


@pytest.mark.parametrize("name", ["cnn", "quantised", "branch"])
def test_the_library_for_arm_computes_the_same(arm: WheelTarget, name: str, tmp_path: Path) -> None:
    """Under QEMU, beyond what another order of sums does; its profile tells the nodes that ran."""
    measured(arm, job(MODELS / f"{name}.onnx"), tmp_path / "arm")
    measured(onnxruntime_here(), job(MODELS / f"{name}.onnx"), tmp_path / "here")
    found = [np.load(tmp_path / side / "outputs.npz")["arr_0"] for side in ("arm", "here")]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
    nodes = every_node(read_session_graph(tmp_path / "arm" / GRAPH).nodes)
    ran = {TOKEN.sub("", one.name) for one in nodes}
    told = {name.partition(": ")[2] for name, number in operators(tmp_path / "arm") if number is not None}
    assert told - {""}
    assert told - {""} <= ran


def test_a_model_is_profiled_on_a_device(board: sshd.Sshd, tmp_path: Path) -> None:
    """A whole bundle with nothing that contradicts it, of a model whose weights lie in a directory beside it."""
    program = tmp_path / "external.onnx"
    program.write_bytes((MODELS / "external.onnx").read_bytes().replace(b"external.bin", b"w/inside.bin"))
    (tmp_path / "w").mkdir()
    shutil.copy(MODELS / "external.bin", tmp_path / "w" / "inside.bin")
    settings = Settings(rounds=2, runs=3, warmup=1, ceilings=False, lock="warn", input=("float32[2,8]",))
    profile(str(program), settings=settings, out=tmp_path / "out", target=on_device(board))
    kept = Bundle.open(tmp_path / "out").manifest
    assert (kept.target.kind, kept.target.address) == ("ssh", board.address)
    assert {"onnxruntime", "compiler"} <= kept.environment.versions.keys()
    assert validate(tmp_path / "out").valid


def test_a_model_runs_on_a_phone(tmp_path: Path) -> None:
    """Over the real adb, as on this machine; entries of a session with blanks and a line each arrive."""
    if MISSING:
        pytest.skip(f"needs {', '.join(MISSING)}")
    (tmp_path / "home").mkdir()
    with adb_server(tmp_path / "home"), plugged(tmp_path / "phone") as phone:
        target = NativeOnnxTarget.on(AdbDevice(AdbShell(phone.address)), native_cache())
        entries = {"session__disable_prepacking": "1", "session__x": "a b;'c'"}
        the_same(target, job(MODELS / "cnn.onnx", **entries), tmp_path)


def test_no_ceilings_are_measured_where_only_the_runner_is(board: sshd.Sshd) -> None:
    """There is none, and it is said."""
    target = on_device(board)
    assert (target.ceilings(run_as()), target.identity()) == (None, None)
    with pytest.raises(FeatureError, match="no symbol cpuinfo_isa"):
        target.probe()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ssh:board?python=python3", "a device's Python cannot run ONNX Runtime models"),
        ("ssh:board?runner=/bin/true", "builds of executor_runner do not run ONNX Runtime models"),
        ("runner:/bin/true", "builds of executor_runner do not run ONNX Runtime models"),
    ],
)
def test_targets_that_cannot_run_such_models_are_refused(name: str, words: str) -> None:
    """With what to do instead."""
    with pytest.raises(UsageError, match=words.replace("?", r"\?")) as caught:
        target_running(str(MODELS / "cnn.onnx"), name)
    assert caught.value.hint


def test_the_command_line_runs_it(tmp_path: Path) -> None:
    """As a user calls it: the bundle has no mistake, and operators that add up."""
    words = ["profile", str(MODELS / "images.onnx"), "--target", "native", "--rounds", "2", "--runs", "3"]
    words += ["--no-ceilings", "--lock", "warn", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "opscope", *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert Bundle.open(tmp_path / "out").manifest.target.kind == "native"
    assert validate(tmp_path / "out").valid
