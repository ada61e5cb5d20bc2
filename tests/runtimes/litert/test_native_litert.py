"""LiteRT without Python in the process: the same as from Python, here, on a device and behind an emulator.

The device is a real sshd on the loopback interface, the emulator is QEMU; the library is the wheel's, each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

import sshd
from job_variants import run_as
from native_runner import native_cache
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind, Measurement, Mechanism, PlannedInput, Target
from opscope.core.errors import FeatureError, MissingDependencyError, RunError, UsageError
from opscope.core.table import Scope
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.hosts.device import MARK, OWN, Device
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import isa
from opscope.machine.switch.switch import fields_here
from opscope.readers.registry import read_trace
from opscope.runtimes.litert.native import LitertJobs, NativeLitertTarget
from opscope.runtimes.litert.signatures import read_callable
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.native.building import find_compiler, host_architecture
from opscope.runtimes.native.start import NativeProgram
from opscope.runtimes.native.wheel_runner import WheelTarget
from opscope.workflows.measure.profiling import profile
from opscope.workflows.measure.targets import target_running
from opscope.workflows.validate.validation import validate
from qemu import use_emulator
from texts import NO_COMPILER_FOR, NOT_DOWNLOADED, SME_SELECTED

DATA = Path(__file__).parents[2] / "data"
SMALL, MODELS = DATA / "litert", DATA / "tflite"
CALLS = 6
INT8_BY_SME = {"Convolution (NHWC, PQS8, QS8, QC8W) IGEMM", "Fully Connected (NC, PQS8, QC8W) GEMM"}
pytestmark = pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed")


@pytest.fixture
def here() -> WheelTarget:
    """The runner on this machine, built once for all tests."""
    try:
        find_compiler()
    except MissingDependencyError:
        pytest.skip("needs a C++ compiler")
    return NativeLitertTarget.here(litert_here(), native_cache())


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sshd.Sshd:
    """A device; runtimes are built once for all tests."""
    if host_architecture() is None:
        pytest.skip("cannot download the runtime for a device is built on Linux")
    with sshd.running(tmp_path / "board") as server:
        monkeypatch.setenv(VARIABLE, server.options)
        yield server


def on_device(server: sshd.Sshd) -> WheelTarget:
    """The device as a place where models run."""
    place = parse_address(server.address)
    return NativeLitertTarget.on(Device(SshShell(place), str(server.home)), native_cache())


def job(program: Path, *, traced: bool = True, calls: tuple[str, ...] = (), delegate: str = "xnnpack") -> Job:
    """A short run of a model."""
    return Job(str(program), run_as(delegate=delegate), CALLS, 7, 300.0, traced=traced, warmup=2, calls=calls)  # type: ignore[arg-type]  # one of two words


def measured(target: RunTarget, asked: Job, directory: Path) -> Measurement:
    """What a run gave; its failure fails the test."""
    directory.mkdir(exist_ok=True)
    outcome = target.execute(asked, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


def operators(directory: Path) -> list[tuple[str, str]]:
    """Scope and name of every operator of the last inference."""
    [trace] = directory.glob(f"{TRACE}*")  # a bundle keeps it compressed
    frame = read_trace(trace).table.frame
    last = frame.filter(frame["inference"] == frame["inference"].max())
    kept = last.filter(last["scope"].is_in([Scope.DELEGATE_OP.value, Scope.DELEGATE_CALL.value, Scope.KERNEL.value]))
    return list(zip(kept["scope"].to_list(), kept["name"].to_list(), strict=True))


RUNNABLE = [
    *(
        SMALL / f"{name}.tflite"
        for name in ("choice", "loop", "mediapipe", "partial", "tiny_fp32", "tiny_int8", "two_signatures")
    ),
    *(MODELS / f"{name}.tflite" for name in ("attention", "cnn_int8", "outside", "parts", "wide_dynamic")),
]


@pytest.mark.parametrize("program", RUNNABLE, ids=lambda path: path.stem)
def test_the_runner_computes_and_traces_what_python_does(here: WheelTarget, program: Path, tmp_path: Path) -> None:
    """Inputs, outputs bit by bit, and the operators in their order; every call has the duration that is answered."""
    native = measured(here, job(program), tmp_path / "native")
    python = measured(litert_here(), job(program), tmp_path / "python")
    assert native.output_sha256 == python.output_sha256
    assert (native.inputs, native.outputs) == (python.inputs, python.outputs)
    assert operators(tmp_path / "native") == operators(tmp_path / "python")
    assert read_trace(tmp_path / "native" / TRACE).table.inference_times().duration.tolist() == native.wall_ns
    assert len(native.wall_ns) == CALLS
    assert sorted(path.name for path in (tmp_path / "native").iterdir()) == ["log.txt", "outputs.npz", TRACE]


@pytest.mark.parametrize("delegate", ["xnnpack", "none"])
def test_sizes_that_the_file_leaves_open_are_given(here: WheelTarget, delegate: str, tmp_path: Path) -> None:
    """Of inputs, from which those of the outputs follow; without them the file's own are taken."""
    asked = msgspec.structs.replace(
        job(SMALL / "dynamic.tflite", delegate=delegate), inputs=(PlannedInput([3, 32, 32, 3], "float32"),)
    )
    native, python = measured(here, asked, tmp_path / "n"), measured(litert_here(), asked, tmp_path / "p")
    assert native.outputs == python.outputs
    assert native.outputs[0].shape[0] == 3
    assert native.output_sha256 == python.output_sha256


def test_signatures_are_called_in_turn(here: WheelTarget, tmp_path: Path) -> None:
    """Each on inputs of its own, and each call is told with its name."""
    done = measured(here, job(SMALL / "two_signatures.tflite", calls=("decode", "encode")), tmp_path)
    assert [one.shape for one in done.inputs] == [[2, 8], [2, 8], [2, 16]]
    methods = read_trace(tmp_path / TRACE).table.inference_times().method
    assert [methods[row] for row in range(CALLS)] == ["decode", "encode"] * 3


def test_what_goes_wrong_is_told_in_the_words_of_the_runtime(here: WheelTarget, tmp_path: Path) -> None:
    """A file that LiteRT refuses, one that is gone, and a signature that is not there.

    LiteRT reads beyond the end of a file that was cut, which need not end the process; what it leaves is refused then.
    """
    cut, other = tmp_path / "cut.tflite", tmp_path / "other.tflite"
    other.write_bytes(b"TFL3" * 500)
    cut.write_bytes((SMALL / "tiny_fp32.tflite").read_bytes()[:2000])
    for program, calls, words in (
        (other, (), "LiteRT rejected the model: LiteRtCreateModelFromFile returned"),
        (cut, (), ("the process was killed by SIGSEGV", "an offset points outside the file")),
        (tmp_path / "none.tflite", (), "No such file"),
        (SMALL / "two_signatures.tflite", ("absent",), "has no signature 'absent'; it has: decode, encode"),
        (SMALL / "flex.tflite", (), "LiteRT rejected the model"),
    ):
        failure = here.execute(job(program, calls=calls), tmp_path).failure
        assert failure is not None
        assert any(one in failure.message for one in ([words] if isinstance(words, str) else words))
        assert failure.kind in (FailureKind.EXIT, FailureKind.STORAGE, FailureKind.SIGNAL)


def switched(target: WheelTarget, program: Path, tmp_path: Path, mechanism: Mechanism, group: str) -> None:
    """The mechanism alone changes nothing, and with features off the proof has answers that were masked."""
    probe = target.offer(mechanism).probe
    clear = isa.cleared_fields(probe.arch, [group], frozenset(probe.fields))
    assert clear
    found = {}
    for name, off in (("untouched", None), ("all", []), ("off", clear)):
        base = job(program, traced=False)
        asked = msgspec.structs.replace(base, variant=run_as(off, switch=mechanism))
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
    switched(here, SMALL / "tiny_fp32.tflite", tmp_path, Mechanism.TRAP, strongest())


def test_features_are_switched_off_on_a_device(board: sshd.Sshd, tmp_path: Path) -> None:
    """The library that does it goes with the runner, and what it counted comes back."""
    target = on_device(board)
    trap_or_skip(target)
    switched(target, SMALL / "tiny_fp32.tflite", tmp_path, Mechanism.TRAP, strongest())
    with pytest.raises(FeatureError, match="hwcap needs Linux on aarch64, this is x86_64"):
        target.offer(Mechanism.HWCAP)


def test_a_model_is_profiled_on_a_device(board: sshd.Sshd, tmp_path: Path) -> None:
    """A whole bundle with nothing that contradicts it; on the device nothing of the runs is left."""
    target = on_device(board)
    settings = Settings(rounds=2, runs=3, warmup=1, ceilings=False, lock="warn", delegate="both")
    profile(str(MODELS / "cnn_int8.tflite"), settings=settings, out=tmp_path / "out", target=target)
    kept = Bundle.open(tmp_path / "out").manifest
    assert (kept.target.kind, kept.target.address) == ("ssh", board.address)
    assert {"ai-edge-litert", "compiler"} <= kept.environment.versions.keys()
    assert validate(tmp_path / "out").valid
    assert {path.name for path in board.home.iterdir()} == {OWN}
    sent = {path.name for path in (board.home / OWN).iterdir()}
    assert {"programs", "runtimes", MARK} <= sent <= {"programs", "runtimes", "inputs", "switch", MARK}


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> WheelTarget:
    """64-bit Arm under QEMU; without a part of it the test is skipped."""
    use_emulator(monkeypatch)
    try:
        target = NativeLitertTarget.emulated(native_cache())
        target.offer(Mechanism.HWCAP)
    except MissingDependencyError as error:
        pytest.skip(f"needs cannot download the runtime for aarch64: {error}; {error.hint}")
    return target


def test_features_are_switched_off_under_an_emulator(arm: WheelTarget, tmp_path: Path) -> None:
    """By the hardware capabilities, which the C library tells; the trap is for another processor."""
    switched(arm, SMALL / "tiny_int8.tflite", tmp_path, Mechanism.HWCAP, "sme")
    assert arm.environment().machine == "aarch64"
    assert "sme2" in (arm.environment().features or [])
    with pytest.raises(FeatureError, match="trap does not work under an emulator"):
        arm.offer(Mechanism.TRAP)


def test_sme_runs_under_an_emulator_and_not_without(arm: WheelTarget, tmp_path: Path) -> None:
    """The names of the kernels say it: those with packed int8 inputs are SME's. The report says so of each variant."""
    settings = Settings(rounds=1, runs=2, warmup=1, ablate=("sme",), lock="warn")
    profile(str(MODELS / "cnn_int8.tflite"), settings=settings, out=tmp_path / "out", target=arm)
    variants = tmp_path / "out" / "variants"
    found = {one: {name for path in (variants / one).rglob(f"{TRACE}*") for _, name in operators(path.parent)}
             for one in ("accelerated", "baseline")}  # fmt: skip
    assert found["accelerated"] >= INT8_BY_SME
    assert found["baseline"]
    assert not any("PQS8" in name for name in found["baseline"])
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert f"{SME_SELECTED} 3 of 4 convolutions and products" in report
    assert "calls cannot be counted in this runtime's library" in report
    assert "--count" not in report
    assert validate(tmp_path / "out").valid


def test_no_ceilings_are_measured_where_only_the_runner_is(board: sshd.Sshd) -> None:
    """There is none, and it is said."""
    target = on_device(board)
    assert (target.ceilings(run_as()), target.identity()) == (None, None)
    with pytest.raises(FeatureError, match="no symbol cpuinfo_isa"):
        target.probe()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ssh:board?python=python3", "a device's Python cannot run LiteRT models"),
        ("ssh:board?runner=/bin/true", "builds of executor_runner do not run LiteRT models"),
        ("runner:/bin/true", "builds of executor_runner do not run LiteRT models"),
    ],
)
def test_targets_that_cannot_run_such_models_are_refused(name: str, words: str) -> None:
    """With what to do instead."""
    with pytest.raises(UsageError, match=words.replace("?", r"\?")) as caught:
        target_running("model.tflite", name)
    assert caught.value.hint


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
    for variable, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(variable, value)
    with pytest.raises(MissingDependencyError, match=f"{NOT_DOWNLOADED} for {other}") as caught:
        NativeLitertTarget.runner.folder(other, tmp_path)
    assert "PIP_FIND_LINKS" in str(caught.value.hint)


def test_a_runner_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    """Of the features, too."""
    jobs = LitertJobs(ThisMachine(Target("native", "")), NativeProgram("x86_64", {}, command=["/bin/true"]))
    with pytest.raises(RunError, match="cannot read the CPU's features"):
        _ = jobs.probed
    assert jobs.execute(job(SMALL / "tiny_fp32.tflite"), tmp_path).failure


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


@pytest.mark.parametrize("traced", [True, False])
def test_what_a_runner_leaves_is_not_believed(tmp_path: Path, traced: bool) -> None:
    """A damaged trace, and an output of another size: a failed repetition, and no more than that."""
    runner = tmp_path / "runner"
    runner.write_text(RUNNER)
    runner.chmod(0o755)
    program = SMALL / "tiny_fp32.tflite"
    own = read_callable(program).signatures[0]
    script = RUNNER.replace("image", own.inputs[0].name).replace("output_0", own.outputs[0].name)
    runner.write_text(script.replace("serving_default", own.name))
    versions = {"ai-edge-litert": "2.3.0"}
    jobs = LitertJobs(ThisMachine(Target("native", "")), NativeProgram("x86_64", versions, command=[str(runner)]))
    failure = jobs.execute(job(program, traced=traced), tmp_path).failure
    assert failure is not None
    assert failure.kind is FailureKind.EXIT
    assert "the runner's output does not match the model" in failure.message
    assert not (tmp_path / ".native").exists()


def test_the_command_line_runs_it_on_a_device(board: sshd.Sshd, tmp_path: Path) -> None:
    """One command from the model to the report, and the features that were off are told with their proof."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "opscope").symlink_to(native_cache())
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = ["profile", str(SMALL / "tiny_fp32.tflite"), "--target", f"ssh:{board.address}"]
    words += ["--rounds", "2", "--runs", "3", "--no-ceilings", "--lock", "warn", "--out", "out", "--json", "told.json"]
    done = subprocess.run(
        [sys.executable, "-m", "opscope", *words],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert told["schema"] == "opscope.profile/2"
    assert (tmp_path / "out" / "report.html").exists()
