"""ONNX models in the installed wheel: what runs, what is proved, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import onnx_models as onnx
from installed import needs_onnxruntime
from job_variants import run_as
from opscope.api import analyze
from opscope.bundle.manifest import FailureKind, Measurement
from opscope.core.errors import (
    InvalidBundleError,
    OpscopeError,
    TraceFormatError,
    UsageError,
)
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.readers.registry import read_trace
from opscope.runtimes.onnxruntime.graph import GRAPH, read_session_graph
from opscope.runtimes.onnxruntime.options import SessionChoice, session_choice
from opscope.runtimes.onnxruntime.target import TRACE, onnxruntime_here
from opscope.workflows.measure.profiling import profile
from opscope.workflows.validate.validation import validate
from texts import NOT_THE_MEASURED_FILE, ONLY_LITERT

MODELS = Path(__file__).parents[2] / "data" / "onnx"
CALLS = 6
AXIS = {"axis": np.array([0], "i8")}


def _job(name: str, *, traced: bool = True, options: dict[str, str] | None = None) -> Job:
    return Job(str(MODELS / f"{name}.onnx"), run_as(options=options), CALLS, 7, 120.0, traced=traced, warmup=2)


def measured(asked: Job, directory: Path) -> Measurement:
    """What a run gave; its failure fails the test."""
    directory.mkdir(exist_ok=True)
    outcome = onnxruntime_here().execute(asked, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


@needs_onnxruntime
@pytest.mark.parametrize("name", ["cnn", "products", "quantised", "branch", "external"])
def test_outputs_are_those_of_a_session_of_its_own(tmp_path: Path, name: str) -> None:
    """For the inputs that the seed gives, which are those of every runtime."""
    import onnxruntime

    from opscope.bundle.manifest import PlannedInput
    from opscope.experiment.tensors import random_inputs

    asked = _job(name, traced=False)
    if name == "external":
        asked = Job(asked.program, AS_IT_IS, CALLS, 7, 120.0, traced=False, inputs=(PlannedInput([3, 8], "float32"),))
    done = measured(asked, tmp_path)
    session = onnxruntime.InferenceSession(asked.program, providers=["CPUExecutionProvider"])
    given = dict(zip([one.name for one in session.get_inputs()], random_inputs(done.inputs, 7), strict=True))
    with np.load(tmp_path / "outputs.npz") as file:
        for number, expected in enumerate(session.run(None, given)):
            np.testing.assert_allclose(file[f"arr_{number}"], expected, atol=1e-4)


@needs_onnxruntime
def test_a_traced_run_leaves_the_profile_and_the_graph_that_ran(tmp_path: Path) -> None:
    """The profile as ONNX Runtime wrote it, and the nodes that its rows are of; nothing else is left."""
    done = measured(_job("cnn"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([GRAPH, TRACE, "log.txt", "outputs.npz"])
    rows = json.loads((tmp_path / TRACE).read_text())
    nodes = {row["name"].removesuffix("_kernel_time") for row in rows if row["cat"] == "Node"}
    graph = read_session_graph(tmp_path / GRAPH)
    assert {node.name for node in graph.nodes} == nodes
    assert graph.providers == ("CPUExecutionProvider",)
    table = read_trace(tmp_path / TRACE).table
    durations = table.inference_times().duration
    assert len(durations) == len(done.wall_ns) == CALLS
    # The profile has whole microseconds.
    assert all(inner <= wall + 1000 for inner, wall in zip(durations.tolist(), done.wall_ns, strict=True))


@needs_onnxruntime
def test_tracing_and_the_level_of_optimisation_change_no_output(tmp_path: Path) -> None:
    """Beyond what another order of sums does."""
    found = {}
    for name, traced, options in [
        ("plain", False, None),
        ("traced", True, None),
        ("none", True, {"graph_optimization_level": "none"}),
    ]:
        measured(_job("cnn", traced=traced, options=options), tmp_path / name)
        with np.load(tmp_path / name / "outputs.npz") as file:
            found[name] = file["arr_0"]
    assert np.array_equal(found["plain"], found["traced"])
    np.testing.assert_allclose(found["plain"], found["none"], atol=1e-4)
    graph = read_session_graph(tmp_path / "none" / GRAPH)
    assert (graph.level, len(graph.nodes)) == ("none", 11)


@needs_onnxruntime
def test_a_bundle_is_complete_and_true(tmp_path: Path) -> None:
    """Sizes that the model leaves open are given, weights in a directory beside it come along."""
    program = tmp_path / "external.onnx"
    program.write_bytes((MODELS / "external.onnx").read_bytes().replace(b"external.bin", b"w/inside.bin"))
    (tmp_path / "w").mkdir()
    shutil.copy(MODELS / "external.bin", tmp_path / "w" / "inside.bin")
    settings = Settings(
        rounds=2, runs=3, warmup=1, lock="warn", ceilings=False, ablate=("none",), input=("float32[2,8]",)
    )
    profile(program, settings=settings, out=tmp_path / "out")
    assert (tmp_path / "out" / "model" / "w" / "inside.bin").exists()
    found = validate(tmp_path / "out")
    assert found.valid
    assert re.findall(r"\d+", found.check("hashes").message)[:2] == ["12", "4"]
    # An edited size would give another count of multiplications; one that is gone, or was added, none or others.
    graph = tmp_path / "out" / "variants" / "accelerated" / "round-00" / "graph.onnxruntime.json"
    whole = graph.read_bytes()
    for damage, told in (
        (lambda: graph.write_bytes(whole.replace(b"[2,", b"[200,")), NOT_THE_MEASURED_FILE),
        (graph.unlink, "the file that was measured is gone"),
    ):
        damage()
        with pytest.raises(InvalidBundleError, match=told):
            analyze(tmp_path / "out")
        assert not validate(tmp_path / "out").valid
        graph.write_bytes(whole)
    assert validate(tmp_path / "out").valid
    (graph.parent / "notes.txt").write_text("mine")
    assert [one.name for one in validate(tmp_path / "out").failed()] == ["hashes"]


@needs_onnxruntime
@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("open_sizes", Settings(lock="warn"), r"have dynamic sizes: x float32\[batch,8\]"),
        ("cnn", Settings(target="runner:/bin/true"), "builds of executor_runner do not run ONNX Runtime models"),
        ("cnn", Settings(data="weights.ptd"), "names its own weights file"),
        ("cnn", Settings(delegate="none"), ONLY_LITERT),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(tmp_path: Path, name: str, settings: Settings, word: str) -> None:
    """Nothing is left behind."""
    with pytest.raises(UsageError, match=word):
        profile(MODELS / f"{name}.onnx", settings=settings, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_onnxruntime
@pytest.mark.parametrize(
    ("program", "options", "word"),
    [
        ("strange", None, "Tank"),
        ("cnn", {"providers": "CUDAExecutionProvider"}, "has no CUDAExecutionProvider"),
    ],
)
def test_what_the_session_refuses_is_told(
    program: str, options: dict[str, str] | None, word: str, tmp_path: Path
) -> None:
    """An operator that nobody defines, a provider that the wheel does not have."""
    shutil.copy(MODELS / "cnn.onnx", tmp_path)
    content = (MODELS / "products.onnx").read_bytes().replace(b"Tanh", b"Tank")
    (tmp_path / "strange.onnx").write_bytes(content)
    asked = Job(str(tmp_path / f"{program}.onnx"), run_as(options=options), 2, 7, 120.0)
    failure = onnxruntime_here().execute(asked, tmp_path).failure
    assert failure.kind is FailureKind.EXIT
    assert word in failure.message


def test_a_model_that_is_not_whole_is_missed_before_anything_runs(tmp_path: Path) -> None:
    """A file that is cut off, and weights beside it that are missing: the sentence names them."""
    cut = tmp_path / "cut.onnx"
    cut.write_bytes((MODELS / "cnn.onnx").read_bytes()[:-100])
    with pytest.raises(TraceFormatError):
        profile(cut, out=tmp_path / "out")
    shutil.copy(MODELS / "external.onnx", tmp_path)
    with pytest.raises(OpscopeError, match=r"external\.bin"):
        profile(tmp_path / "external.onnx", out=tmp_path / "out")


def test_options_of_a_session() -> None:
    """Ours have names without a dot; all others are entries of ONNX Runtime."""
    given = {"graph_optimization_level": "basic", "inter_op_num_threads": "2", "mlas.disable_kleidiai": "1"}
    entries = {"mlas.disable_kleidiai": "1"}
    expected = SessionChoice("basic", 2, parallel=False, providers=("CPUExecutionProvider",), entries=entries)
    assert session_choice(given) == expected
    for wrong in ({"graph_optimization_level": "most"}, {"inter_op_num_threads": "0"}, {"level": "all"}):
        with pytest.raises(UsageError):
            session_choice(wrong)


def test_a_conversion_of_the_model_that_a_pass_moved_is_the_models(tmp_path: Path) -> None:
    """ONNX Runtime pulls the last conversion of a quantised model through a reshape, under another name."""
    scale = {"scale": np.float32(0.05), "zero": np.uint8(128), "weight_scale": np.float32(0.01), "nothing": np.int8(0)}
    weights = {"weight": np.ones((4, 4, 3, 3), np.int8), "sizes": np.array([1, -1], np.int64)}
    nodes = [
        onnx.node("QuantizeLinear", "image scale zero", "q0", name="quantise_image"),
        onnx.node("DequantizeLinear", "q0 scale zero", "d0", name="dequantise_image"),
        onnx.node("DequantizeLinear", "weight weight_scale nothing", "dw", name="dequantise_weight"),
        onnx.node("Conv", "d0 dw", "c", name="conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        onnx.node("QuantizeLinear", "c scale zero", "q1", name="quantise_features"),
        onnx.node("DequantizeLinear", "q1 scale zero", "d1", name="dequantise_features"),
        onnx.node("Reshape", "d1 sizes", "out", name="flatten"),
    ]
    sizes = {"image": ("float32", [1, 4, 16, 16])}
    path = tmp_path / "quantised.onnx"
    path.write_bytes(onnx.model(onnx.body(nodes, sizes, {"out": ("float32", None)}, {**scale, **weights})))
    settings = Settings(rounds=1, runs=3, warmup=1, ablate=("none",), ceilings=False, lock="warn")
    profile(path, settings=settings, out=tmp_path / "out")
    operators = analyze(tmp_path / "out").operators
    conversions = [operator for operator in operators if operator.kind == "quantisation"]
    assert len(conversions) > 1
    assert [operator.name for operator in conversions if operator.change] == []
