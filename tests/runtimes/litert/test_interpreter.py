"""LiteRT's Interpreter: models that the compiled-model API refuses, and the same figures from both ways in."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from installed import needs_litert
from job_variants import run_as
from native_runner import native_cache
from opscope.api import analyze
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import DelegateName, Measurement, Mechanism, PlannedInput, Role, TracingMode
from opscope.core.errors import FeatureError, MissingDependencyError, UsageError
from opscope.core.table import Scope
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import Job
from opscope.experiment.target_names import parse_target
from opscope.machine import isa
from opscope.readers.registry import read_trace
from opscope.runtimes.litert.interpreter.recorder import recorder_library
from opscope.runtimes.litert.target import InterpreterTarget, interpreter_here, interpreter_needed, litert_here
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.registry import runtime_of
from opscope.runtimes.runtime import AskedCalls
from opscope.workflows.measure.profiling import profile
from opscope.workflows.validate.validation import validate

MODELS = Path(__file__).parents[2] / "data" / "litert"
CALLS = 6
pytestmark = needs_litert
DELEGATES: tuple[DelegateName, ...] = ("xnnpack", "none")


@pytest.fixture(autouse=True)
def _compiler() -> None:
    """Operators are timed by a library that is built once for all tests."""
    try:
        recorder_library(native_cache())
    except MissingDependencyError:
        pytest.skip("needs a C++ compiler")


def _job(name: str, delegate: DelegateName = "xnnpack", *, traced: bool = True, values: Path | None = None) -> Job:
    given = None if values is None else str(values)
    program = str(MODELS / f"{name}.tflite")
    return Job(program, run_as(delegate=delegate), CALLS, 7, 120.0, traced=traced, warmup=2, values=given)


def measured(target: InterpreterTarget, asked: Job, directory: Path) -> Measurement:
    """What a run gave; its failure fails the test."""
    directory.mkdir(exist_ok=True)
    outcome = target.execute(asked, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


def named(directory: Path) -> list[tuple[str, str, int, bool]]:
    """Scope, name, place and whether it lies in another operator, of every operator of the last inference."""
    frame = read_trace(directory / TRACE).table.frame
    last = frame.filter(frame["inference"] == frame["inference"].max())
    kept = last.filter(last["scope"].is_in([Scope.DELEGATE_OP.value, Scope.KERNEL.value]))
    return list(zip(kept["scope"].to_list(), kept["name"].to_list(), kept["instruction"].to_list(), strict=True))


NOTHING_ASKED = AskedCalls((), ())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stateful", "the compiled-model API supports no variable tensors, such as t3"),
        (
            "topk",
            "the compiled-model API does not support outputs, such as t4, whose sizes are known only after a call",
        ),
        ("flex", None),
        ("loop", None),
        ("mediapipe", None),
        ("tiny_int8", None),
    ],
)
def test_what_needs_the_interpreter_is_known_before_a_run(name: str, words: str | None) -> None:
    """From the file, else from a call; what neither way runs is left to the one that is usual."""
    assert interpreter_needed(MODELS / f"{name}.tflite", NOTHING_ASKED) == words


def test_what_the_file_leaves_open_is_tried() -> None:
    """Outputs larger than the file says are refused, or written behind their buffers; any size of a batch is not."""
    why = interpreter_needed(MODELS / "detection.tflite", NOTHING_ASKED)
    assert re.search(r"rejects it \(Failed to allocate tensors\)|crashes on it \(SIG\w+\)", str(why))
    given = [PlannedInput([3, 32, 32, 3], "float32")]
    assert interpreter_needed(MODELS / "dynamic.tflite", AskedCalls((), given)) is None


@pytest.mark.parametrize("name", ["choice", "loop", "partial", "tiny_fp32", "tiny_int8", "two_signatures"])
@pytest.mark.parametrize("delegate", DELEGATES)
def test_the_interpreter_computes_and_tells_what_the_compiled_model_does(
    tmp_path: Path, name: str, delegate: DelegateName
) -> None:
    """The same outputs, traced or not, and the same operators in the same places."""
    target, digests = interpreter_here("a test asks for it"), set()
    for traced in (False, True):
        own = measured(target, _job(name, delegate, traced=traced), tmp_path / f"own-{traced}")
        (tmp_path / f"other-{traced}").mkdir()
        other = litert_here().execute(_job(name, delegate, traced=traced), tmp_path / f"other-{traced}").measurement
        digests |= {own.output_sha256, other.output_sha256}
        assert own.inputs == other.inputs
    assert len(digests) == 1
    assert not list(tmp_path.glob(f"*-False/{TRACE}"))
    assert named(tmp_path / "own-True") == named(tmp_path / "other-True")


@pytest.mark.parametrize("name", ["loop", "partial", "stateful", "tiny_int8"])
@pytest.mark.parametrize("delegate", DELEGATES)
def test_times_of_operators_add_up_to_the_call(tmp_path: Path, name: str, delegate: DelegateName) -> None:
    """Nothing is counted twice, and every inference is the call as the stopwatch saw it."""
    done = measured(interpreter_here("a test asks for it"), _job(name, delegate), tmp_path / "run")
    table = read_trace(tmp_path / "run" / TRACE).table
    assert table.inference_times().duration.tolist() == done.wall_ns
    found = analyze(tmp_path / "run" / TRACE, program=MODELS / f"{name}.tflite" if delegate == "xnnpack" else None)
    assert sum(row.time_ns for row in found.operators) == pytest.approx(found.headline_ns)
    assert all(row.time_ns >= 0 for row in found.operators)


def test_a_state_begins_anew_with_each_call(tmp_path: Path) -> None:
    """Outputs do not depend on how many calls came before."""
    target, asked = interpreter_here("a test asks for it"), _job("stateful", traced=False)
    once = measured(target, msgspec.structs.replace(asked, inferences=1, warmup=0), tmp_path / "once")
    assert once.output_sha256 == measured(target, asked, tmp_path / "often").output_sha256


def test_as_many_values_are_found_as_the_input_says(tmp_path: Path) -> None:
    """Outputs have the sizes of the last call, in the order of the file."""
    given = tmp_path / "given.npz"
    rng = np.random.default_rng(3)
    np.savez(given, rng.random((1, 32), np.float32), np.array(5, np.int32))
    for delegate in DELEGATES:
        done = measured(
            interpreter_here("a test asks for it"), _job("topk", delegate, values=given), tmp_path / delegate
        )
        assert [one.shape for one in done.outputs] == [[1, 5], [1, 5]]
        with np.load(tmp_path / delegate / "outputs.npz") as file:
            values, places = (file[name] for name in file.files)
        assert values.tolist() == sorted(values.tolist(), reverse=True)
        assert len(set(places[0].tolist())) == 5


@pytest.mark.everyday("LiteRT's Interpreter")
def test_profiling_a_model_with_state_says_how_it_ran_and_validates(tmp_path: Path) -> None:
    """With the delegate and without, compared; every operator has its place in the file."""
    settings = Settings(delegate="both", rounds=2, runs=3, warmup=1, lock="warn", ceilings=False)
    done = profile(MODELS / "stateful.tflite", settings=settings, out=tmp_path / "out")
    why = "LiteRT's Interpreter ran it from Python: the compiled-model API supports no variable tensors, such as t3"
    assert why in done.notes
    assert why in (tmp_path / "out" / "report.md").read_text(encoding="utf-8").replace("\\", "")
    manifest = Bundle.open(tmp_path / "out").manifest
    assert len({one.measurement.output_sha256 for one in manifest.completed("baseline")}) == 1
    assert len(manifest.completed("baseline", TracingMode.TRACED)) > 0
    variants = {one.variant.role: one.variant.delegate for one in done.content.variants}
    assert variants == {Role.ACCELERATED: "xnnpack", Role.BASELINE: "none"}
    for variant in ("accelerated", "baseline"):
        placed = [one for one in analyze(f"{tmp_path / 'out'}#{variant}").operators if one.instruction is not None]
        assert {one.attribution for one in placed} == {"exact"}
    assert validate(tmp_path / "out").valid


def test_features_are_switched_off_in_its_library_with_a_proof(tmp_path: Path) -> None:
    """Which is another one than that of the compiled-model API."""
    target = interpreter_here("a test asks for it")
    try:
        probe = target.offer(Mechanism.TRAP).probe
    except (FeatureError, MissingDependencyError) as error:
        pytest.skip(str(error))
    fields = frozenset(probe.fields)
    clear = isa.cleared_fields(probe.arch, [isa.default_ablation(probe.arch, fields).name], fields)
    asked = msgspec.structs.replace(_job("stateful"), variant=run_as(clear, switch=Mechanism.TRAP))
    mask = measured(target, asked, tmp_path / "off").mask
    assert (mask.mechanism, mask.cleared, bool(mask.masked)) == (Mechanism.TRAP, clear, True)


def test_custom_operators_that_litert_has_are_run(tmp_path: Path) -> None:
    """Outputs for which the file has no sizes have those of the call."""
    settings = Settings(delegate="both", rounds=2, runs=3, warmup=1, lock="warn", ceilings=False)
    profile(MODELS / "detection.tflite", settings=settings, out=tmp_path / "out")
    manifest = Bundle.open(tmp_path / "out").manifest
    done = manifest.completed("accelerated")[0].measurement
    assert [one.shape for one in done.outputs] == [[1, 4, 4], [1, 4], [1, 4], [1]]
    own = analyze(f"{tmp_path / 'out'}#accelerated").operators
    assert [one.attribution for one in own if one.name == "TFLite_Detection_PostProcess"] == ["exact"]
    assert validate(tmp_path / "out").valid


@pytest.mark.parametrize("name", ["native", "ssh:nowhere"])
def test_runners_without_python_refuse_it_with_the_reason(name: str) -> None:
    """The wheel's library without Python has the compiled-model API alone."""
    program = MODELS / "stateful.tflite"
    with pytest.raises(UsageError, match=r"only LiteRT's Interpreter runs it.*variable tensors") as caught:
        runtime_of(str(program)).target_for(parse_target(name), [program], lambda _: NOTHING_ASKED)
    assert "local run it on this machine" in str(caught.value.hint)


def test_what_is_compared_takes_the_same_way() -> None:
    """One of several models that needs the Interpreter takes the others with it."""
    programs = [MODELS / "tiny_fp32.tflite", MODELS / "stateful.tflite"]
    for own in (programs, programs[:1]):
        found = runtime_of(str(own[0])).target_for(parse_target("local"), own, lambda _: NOTHING_ASKED)
        assert isinstance(found, InterpreterTarget) == (own == programs)


def test_without_a_compiler_it_is_timed_and_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency alone, with the reason."""

    def missing() -> Path:
        raise MissingDependencyError("cannot build the native runner: no C++ compiler")

    monkeypatch.setattr("opscope.runtimes.litert.target.recorder_library", missing)
    settings = Settings(rounds=2, runs=3, warmup=1, lock="warn", ceilings=False, ablate=("none",), target="local")
    done = profile(MODELS / "stateful.tflite", settings=settings, out=tmp_path / "out")
    assert not done.content.has_split
    assert "has no profiler" in str(Bundle.open(tmp_path / "out").manifest.left_out.trace)
    assert validate(tmp_path / "out").valid
