"""LiteRT models in the installed wheel: what runs, what is proved, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from installed import needs_litert
from job_variants import run_as
from litert_builder import ABSENT, ModelBuilder
from opscope.analysis.operators.operators import Operator
from opscope.api import analyze
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import DelegateName, FailureKind, Measurement, Role
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.install import install_command
from opscope.core.table import Scope
from opscope.core.table.places import FIRST_INNER
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.readers.registry import read_trace
from opscope.runtimes.litert.c_api import check_events
from opscope.runtimes.litert.installed import installed_litert
from opscope.runtimes.litert.lowering import read_tflite_model
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.trace import TRACE, EventRow
from opscope.workflows.measure.profiling import profile
from opscope.workflows.validate.validation import validate
from texts import ONLY_LITERT

MODELS = Path(__file__).parents[2] / "data" / "litert"
CALLS = 6


def _job(name: str, *, traced: bool = True, delegate: DelegateName | None = None, calls: tuple[str, ...] = ()) -> Job:
    program = str(MODELS / f"{name}.tflite")
    return Job(program, run_as(delegate=delegate), CALLS, 7, 120.0, traced=traced, warmup=2, calls=calls)


def measured(asked: Job, directory: Path) -> Measurement:
    """What a run gave; its failure fails the test."""
    directory.mkdir(exist_ok=True)
    outcome = litert_here().execute(asked, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


@needs_litert
@pytest.mark.parametrize("name", ["tiny_fp32", "tiny_int8", "partial"])
def test_the_delegate_and_the_kernels_of_litert_give_the_same(tmp_path: Path, name: str) -> None:
    """Outputs agree, and each run names its operators as its kernels do."""
    outputs, names = [], []
    for delegate in ("xnnpack", "none"):
        measured(_job(name, delegate=delegate), tmp_path / delegate)  # type: ignore[arg-type]  # one of two words
        with np.load(tmp_path / delegate / "outputs.npz") as file:
            outputs.append(file["arr_0"])
        frame = read_trace(tmp_path / delegate / TRACE).table.frame
        kept = frame.filter(frame["scope"].is_in([Scope.DELEGATE_OP.value, Scope.KERNEL.value]))
        names.append(set(kept["name"].to_list()))
    assert outputs[0].shape == outputs[1].shape
    np.testing.assert_allclose(*outputs, atol=0.05)
    assert any("Convolution (NHWC" in one for one in names[0])
    assert "CONV_2D" in names[1]
    assert not any("NHWC" in one for one in names[1])


@needs_litert
def test_a_traced_inference_is_the_call_as_the_stopwatch_saw_it(tmp_path: Path) -> None:
    """Every inference of the trace has the duration that the answer tells; nested times fit into it."""
    done = measured(_job("partial"), tmp_path)
    table = read_trace(tmp_path / TRACE).table
    assert table.inference_times().duration.tolist() == done.wall_ns
    assert len(done.wall_ns) == CALLS
    frame = table.frame
    total = frame.filter(frame["inference"].is_not_null())["self_time"].sum()
    assert total == sum(done.wall_ns)


@pytest.mark.everyday("LiteRT")
@needs_litert
def test_profiling_compares_the_delegate_and_validates(tmp_path: Path) -> None:
    """A whole bundle: variants, reports, and nothing that contradicts them."""
    settings = Settings(delegate="both", rounds=2, runs=3, warmup=1, lock="warn", ceilings=False)
    done = profile(MODELS / "partial.tflite", settings=settings, out=tmp_path / "out")
    variants = {one.variant.role: one.variant.delegate for one in done.content.variants}
    assert variants == {Role.ACCELERATED: "xnnpack", Role.BASELINE: "none"}
    assert "without XNNPACK" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    own = analyze(f"{tmp_path / 'out'}#baseline")
    placed = [one for one in own.operators if one.instruction is not None]
    assert {one.attribution for one in placed} == {"exact"}
    assert all(one.macs for one in placed if one.name == "CONV_2D")
    assert validate(tmp_path / "out").valid


@needs_litert
@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("flex", Settings(), "FlexMatrixInverse"),
        ("mediapipe", Settings(delegate="both"), "only the XNNPACK delegate runs these operators"),
        ("dynamic", Settings(lock="warn"), r"have dynamic sizes: image float32\["),
        ("tiny_fp32", Settings(target="runner:/bin/true"), "builds of executor_runner do not run LiteRT models"),
        ("tiny_fp32", Settings(data="weights.ptd"), "names its own weights file"),
        ("tiny_fp32", Settings(delegate="both", ablate=("avx2",), lock="warn"), "one comparison at a time"),
        ("tiny_fp32", Settings(delegate="gpu"), '"gpu" is not allowed; expected one of xnnpack, none, both'),  # type: ignore[arg-type]  # a mistake
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(tmp_path: Path, name: str, settings: Settings, word: str) -> None:
    """Nothing is left behind."""
    with pytest.raises(UsageError, match=word):
        profile(MODELS / f"{name}.tflite", settings=settings, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _run_built(model: ModelBuilder, directory: Path) -> tuple[Path, list[Operator]]:
    """Write and run a model: the file, and its operators in the trace."""
    program = directory / "built.tflite"
    program.write_bytes(model.content())
    measured(Job(str(program), AS_IT_IS, CALLS, 7, 120.0, warmup=2), directory / "run")
    return program, analyze(directory / "run" / TRACE, program=program).operators


@needs_litert
@pytest.mark.parametrize("dtype", ["f32", "qs8"])
def test_a_reshape_before_a_dense_layer_is_not_joined_with_its_own(tmp_path: Path, dtype: str) -> None:
    """It makes the data a matrix of as many rows as there are, which XNNPACK joins with nothing."""
    model = ModelBuilder()
    graph = model.graph()
    sizes = graph.numbers((1, 16))
    row = graph.made(dtype, (1, 16))
    graph.add("RESHAPE", (graph.given(dtype, (1, 1, 1, 16)), sizes), row, "ReshapeOptions", {"newShape": [1, 16]})
    bias = graph.bias(8) if dtype == "qs8" else ABSENT
    values = [row, graph.weights(dtype, (8, 16)), bias]
    graph.leaves(graph.add("FULLY_CONNECTED", values, graph.made(dtype, (1, 8)), "FullyConnectedOptions"))
    own = [one for one in _run_built(model, tmp_path)[1] if one.backend == "XNNPACK"]
    assert [one.name.partition(" (")[0] for one in own] == ["Static Reshape", "Static Reshape", "Fully Connected"]
    assert {one.attribution for one in own} == {"exact"}


@needs_litert
def test_integers_are_made_another_type_outside_of_the_delegate(tmp_path: Path) -> None:
    """As a model of int8 does whose inputs and outputs are uint8."""
    model = ModelBuilder()
    graph = model.graph()
    given, row, left = graph.given("qs8", (1, 16)), graph.made("qs8", (1, 16)), graph.made("qs8", (1, 16), zero=128)
    for tensor in (given, left):
        graph.graph.tensors[tensor].type = model.schema.TensorType.UINT8
    graph.add("QUANTIZE", (given,), row, "QuantizeOptions")
    made = graph.add("ADD", (row, row), graph.made("qs8", (1, 16)), "AddOptions")
    graph.leaves(graph.add("QUANTIZE", (made,), left, "QuantizeOptions"))
    program, operators = _run_built(model, tmp_path)
    found = [(one.name.partition(" (")[0], one.backend) for one in operators if one.instruction is not None]
    assert found == [("QUANTIZE", "portable"), ("QUANTIZE", "portable"), ("Add", "XNNPACK")]
    reasons = read_tflite_model(program).methods["0"].reasons or {}
    assert [one.evidence for one in reasons.values()] == ["uint8 to int8", "int8 to uint8"]


@needs_litert
def test_custom_operators_that_the_delegate_has_are_run_and_known(tmp_path: Path) -> None:
    """Those of MediaPipe: every operator is one of the file, with its work."""
    settings = Settings(rounds=2, runs=3, warmup=1, lock="warn", ceilings=False, ablate=("none",))
    profile(MODELS / "mediapipe.tflite", settings=settings, out=tmp_path / "out")
    own = [one for one in analyze(tmp_path / "out").operators if one.backend == "XNNPACK"]
    found = [(one.name.partition(" (")[0], one.attribution, one.macs, one.bytes) for one in own]
    assert found == [
        ("ArgMax Pooling", "exact", 0, 4 * (256 + 2 * 64)),
        ("TanH", "exact", 0, 4 * 2 * 64),
        ("Unpooling", "exact", 0, 4 * (2 * 64 + 256)),
        ("Deconvolution", "exact", 8 * 8 * 4 * 2 * 2 * 3, 4 * (256 + 48 + 3 + 768)),
    ]
    assert validate(tmp_path / "out").valid


@needs_litert
def test_sizes_that_the_model_leaves_open_are_given(tmp_path: Path) -> None:
    """The batch here: outputs have it, too, and the bundle is complete."""
    settings = Settings(
        rounds=2, runs=3, warmup=1, lock="warn", ceilings=False, ablate=("none",), input=("float32[3,32,32,3]",)
    )
    profile(MODELS / "dynamic.tflite", settings=settings, out=tmp_path / "out")
    manifest = Bundle.open(tmp_path / "out").manifest
    measured = next(one.measurement for one in manifest.repetitions if one.measurement)
    assert measured.inputs[0].shape[0] == measured.outputs[0].shape[0] == 3
    assert validate(tmp_path / "out").valid


@needs_litert
def test_a_damaged_model_that_can_be_described_fails_in_its_process(tmp_path: Path) -> None:
    """The process says what the runtime refuses; the parent lives on."""
    broken = tmp_path / "broken.tflite"
    broken.write_bytes((MODELS / "tiny_fp32.tflite").read_bytes()[:-40])
    asked = Job(str(broken), AS_IT_IS, CALLS, 7, 120.0)
    outcome = litert_here().execute(asked, tmp_path)
    assert outcome.failure.kind in {FailureKind.EXIT, FailureKind.SIGNAL}


def test_a_pte_has_no_choice_of_delegate(tmp_path: Path) -> None:
    """The option is for LiteRT."""
    program = Path(__file__).parents[2] / "data/versions/executorch-1.5.1.pte"
    with pytest.raises(UsageError, match=ONLY_LITERT):
        profile(program, settings=Settings(delegate="none"), out=tmp_path / "out")


@needs_litert
@pytest.mark.parametrize(
    ("name", "value", "words", "hint"),
    [
        ("MODULE", "no_such_module", "not installed", install_command("litert")),
        ("KNOWN", ("1.0.0",), r"opscope supports 1\.0\.0", ""),
    ],
)
def test_without_a_known_version_the_way_to_it_is_said(
    name: str, value: object, words: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is absent, or whose structures may be others."""
    monkeypatch.setattr(f"opscope.runtimes.litert.installed.{name}", value)
    with pytest.raises(MissingDependencyError, match=words) as caught:
        installed_litert()
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [EventRow("CONV_2D", 2, 1, 1, 0, 0, 0)],
        [EventRow("Invoke", 1, 1, 5_000, 0, 0, 0)],
        [EventRow("Invoke", 1, 1, 1, 0, 0, 0), EventRow("\x01", 8, 0, 1, 0, 0, 0)],
        [EventRow("Invoke", 1, 1, 1, 0, 0, 0), EventRow("Add", 7_000, 0, 1, 0, 0, 0)],
    ],
)
def test_events_of_another_structure_are_refused(events: list[EventRow]) -> None:
    """No call of the model, times beyond the stopwatch's, or fields that make no sense."""
    with pytest.raises(Exception, match=r"opscope does not know this (LiteRT )?event format"):
        check_events(events, 1_000_000)


@needs_litert
@pytest.mark.filterwarnings("ignore")
def test_the_stopwatch_agrees_with_another_one(tmp_path: Path) -> None:
    """The shortest call is of the size of the interpreter's, which is another way into LiteRT, timed here.

    All calls together fit into what the process took, by the clock of the one that waited for it.
    """
    from ai_edge_litert.interpreter import Interpreter

    began = time.perf_counter_ns()
    done = measured(msgspec.structs.replace(_job("tiny_fp32", traced=False), inferences=300), tmp_path)
    assert sum(done.wall_ns) < time.perf_counter_ns() - began
    other = Interpreter(str(MODELS / "tiny_fp32.tflite"), num_threads=1)
    other.allocate_tensors()
    times = []
    for _ in range(300):
        before = time.perf_counter_ns()
        other.invoke()
        times.append(time.perf_counter_ns() - before)
    assert 0.1 < min(done.wall_ns) / min(times) < 10


@needs_litert
@pytest.mark.parametrize("delegate", ["xnnpack", "none"])
@pytest.mark.parametrize(("name", "calls"), [("loop", 5.0), ("choice", 1.0)])
def test_graphs_that_operators_run_lie_in_their_time(
    tmp_path: Path, delegate: DelegateName, name: str, calls: float
) -> None:
    """A loop and a branch: nothing is counted twice, the body as often as it ran, the outer graph as ever."""
    measured(_job(name, delegate=delegate), tmp_path / "run")
    program = MODELS / f"{name}.tflite" if delegate == "xnnpack" else None
    found = analyze(tmp_path / "run" / TRACE, program=program)
    assert sum(row.time_ns for row in found.operators) == pytest.approx(found.headline_ns)
    numbered = [row for row in found.operators if row.instruction is not None]
    inner = {row.name: row.calls for row in numbered if (row.instruction or 0) >= FIRST_INNER}
    assert {inner[one] for one in ("CUMSUM", "EXP", "Exp (NC)") if one in inner} == {calls}
    outer = [row for row in numbered if (row.instruction or 0) < FIRST_INNER]
    assert outer
    assert delegate == "none" or {row.attribution.value for row in outer} == {"exact"}
