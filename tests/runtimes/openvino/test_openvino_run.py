"""Models in the installed OpenVINO: what runs, what is proved, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from installed import needs_openvino
from opscope.api import analyze
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Measurement, Mechanism, PlannedInput, TracingMode
from opscope.core.errors import OpscopeError, TraceFormatError, UsageError
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.machine.switch.switch import fields_here, obstacle
from opscope.readers.registry import read_trace
from opscope.runtimes.openvino.graph import GRAPH, read_graph
from opscope.runtimes.openvino.installed import USUAL
from opscope.runtimes.openvino.runtime import OpenVino
from opscope.runtimes.openvino.trace import TRACE, OpenVinoTrace
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.profiling import profile
from opscope.workflows.measure.running import run
from opscope.workflows.validate.validation import validate

DATA = Path(__file__).parents[2] / "data"
CNN = DATA / "onnx" / "cnn.onnx"
CALLS = 8
needs_avx512 = pytest.mark.skipif(
    obstacle(Mechanism.TRAP) is not None or "avx512f" not in fields_here()[1], reason="nothing to switch off by trap"
)
LAYERS = {
    "stem": ("convolution", 442_368),
    "dw": ("depthwise", 147_456),
    "pw": ("convolution", 262_144),
    "conv": ("convolution", 2_359_296),
    "add": ("arithmetic", 0),
    "pool": ("reduction", 0),
    "logits": ("linear", 128),
}
"""Of the network: kind and multiply-accumulates, counted by hand from its sizes."""


def _job(program: Path, **more: object) -> Job:
    return Job(str(program), AS_IT_IS, CALLS, 7, 120.0, warmup=2, **more)  # type: ignore[arg-type]


def measured(asked: Job, directory: Path) -> Measurement:
    """What a run gave; its failure fails the test."""
    directory.mkdir(exist_ok=True)
    outcome = runtime_of(asked.program, "openvino").target_here().execute(asked, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network, with AVX-512 and without."""
    out = tmp_path_factory.mktemp("openvino") / "out"
    settings = Settings(runtime="openvino", rounds=1, runs=10, warmup=2, ablate=("avx512",), lock="warn")
    profile(CNN, settings=settings, out=out)
    return out


@needs_openvino
@needs_avx512
@pytest.mark.everyday("the one profile in OpenVINO")
def test_every_node_is_attributed_and_the_switch_is_proved(bundle: Path) -> None:
    """By name, to the layers of the model, with their work and kernels; what the plugin added is a change of layout.

    In every process questions were answered with fewer features, and no kernel with AVX-512 is left.
    """
    assert validate(bundle).valid
    found = analyze(f"{bundle}#accelerated")
    own = [one for one in found.operators if one.kind != "framework"]
    assert all(one.kernel for one in own)
    assert {one.attribution for one in own} == {"exact"}
    assert {one.module: (one.kind, one.macs) for one in own if one.change is None} == LAYERS
    assert [one.name for one in own if one.change] == ["Reorder: image_abcd_acdb_/stem/Conv/WithoutBiases"]
    spent = sum(one.traced_ns for one in found.operators)
    assert spent == pytest.approx(found.traced.mean_ns, rel=1e-6)
    manifest = Bundle.open(bundle).manifest
    for variant, masked in (("accelerated", False), ("baseline", True)):
        proofs = [one.measurement.mask for arm in TracingMode for one in manifest.completed(variant, arm)]
        assert len(proofs) == 2
        assert all(bool(one.masked) is masked and one.sites_executed for one in proofs)
        kernels = {str(one.kernel) for one in analyze(f"{bundle}#{variant}").operators if one.kernel}
        assert any("avx512" in name for name in kernels) is not masked
        assert any("avx2" in name for name in kernels) is masked
    assert manifest.environment.versions["openvino"]


@needs_openvino
def test_outputs_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    """For the same inputs, a quantised model included."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from opscope.experiment.tensors import random_inputs

    for name in ("cnn", "quantised", "branch"):
        asked = _job(DATA / "onnx" / f"{name}.onnx", traced=False)
        done = measured(asked, tmp_path / name)
        session = onnxruntime.InferenceSession(asked.program, providers=["CPUExecutionProvider"])
        given = dict(zip([one.name for one in session.get_inputs()], random_inputs(done.inputs, 7), strict=True))
        with np.load(tmp_path / name / "outputs.npz") as file:
            for number, expected in enumerate(session.run(None, given)):
                np.testing.assert_allclose(file[f"arr_{number}"], expected, atol=1e-3 * np.abs(expected).max())


@needs_openvino
def test_a_traced_run_leaves_every_call_and_what_it_was_compiled_with(tmp_path: Path) -> None:
    """Nodes lie in their calls, in nanoseconds; the properties are those that were asked for."""
    done = measured(_job(CNN), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([GRAPH, TRACE, "log.txt", "outputs.npz"])
    trace = msgspec.json.decode((tmp_path / TRACE).read_bytes(), type=OpenVinoTrace)
    assert trace.unit_ns == 1
    assert [call.wall_ns for call in trace.calls] == done.wall_ns
    times = read_trace(tmp_path / TRACE).table.inference_times()
    assert times.duration.tolist() == done.wall_ns
    graph = read_graph(tmp_path / GRAPH)
    assert graph.properties["PERFORMANCE_HINT"] == USUAL["PERFORMANCE_HINT"]
    assert graph.properties["NUM_STREAMS"] == "1"
    assert "float32" in graph.properties["INFERENCE_PRECISION_HINT"]
    assert done.threads == 1


def _plugin_convolution_types(options: dict[str, str]) -> set[str]:
    """Return the output types that the plugin gives convolutions of the network where OpenVINO alone compiles it."""
    import openvino

    compiled = openvino.Core().compile_model(str(CNN), "CPU", options)
    infos = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    return {info["outputPrecisions"].astype(str) for info in infos if info["layerType"].astype(str) == "Convolution"}


@needs_openvino
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_number_of_threads_and_options_are_those_asked_for(tmp_path: Path, precision: str) -> None:
    """Two threads; and the types in which the plugin itself computes on this CPU with that hint.

    Which CPUs compute in bfloat16 is the plugin's decision: some do without instructions for it.
    """
    options = {"INFERENCE_PRECISION_HINT": precision}
    variant = msgspec.structs.replace(AS_IT_IS, threads=2, options=options)
    asked = msgspec.structs.replace(_job(CNN), variant=variant)
    assert measured(asked, tmp_path).threads == 2
    graph = read_graph(tmp_path / GRAPH)
    outputs = {node.node.outputs[0].dtype for node in graph.ran if node.node.type == "Convolution"}
    assert outputs == _plugin_convolution_types(options)


@needs_openvino
def test_open_sizes_are_run_as_they_are_and_costed_as_they_were_given(tmp_path: Path) -> None:
    """The model keeps its open sizes; work is that of the inputs of the run."""
    measured(_job(DATA / "onnx" / "external.onnx", inputs=(PlannedInput([3, 8], "float32"),)), tmp_path)
    product = next(one for one in read_graph(tmp_path / GRAPH).given if one.type == "MatMul")
    assert product.outputs[0].shape == (3, 4)


@needs_openvino
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"NUM_STREAM": "2"}, "unknown property 'NUM_STREAM' of OpenVINO"),
        ({"INFERENCE_PRECISION_HINT": "fp32"}, "'fp32' is not allowed; expected f32, bf16, f16, dynamic"),
    ],
)
def test_options_that_are_not_known_are_refused(tmp_path: Path, options: dict[str, str], said: str) -> None:
    """Before anything runs."""
    settings = Settings(runtime="openvino", session_options=options)
    with pytest.raises(UsageError, match=said):
        profile(CNN, settings=settings, out=tmp_path / "out")


TWO = """
rounds = 2
runs = 6
warmup = 1
out = "out"
ceilings = false
model = "{model}"

[[variants]]
name = "own"

[[variants]]
name = "openvino"
runtime = "openvino"
"""


@needs_openvino
@pytest.mark.parametrize("file", ["onnx/images.onnx", "tflite/images.tflite"])
def test_one_file_in_two_runtimes_is_one_bundle(tmp_path: Path, file: str) -> None:
    """Measured in turns, compared end to end and by layer, with outputs that agree."""
    pytest.importorskip("onnxruntime" if file.endswith("onnx") else "ai_edge_litert")
    shutil.copy(DATA / file, tmp_path)
    (tmp_path / "two.toml").write_text(TWO.format(model=Path(file).name))
    (result,) = run(tmp_path / "two.toml", means=Means(lock="warn")).experiments
    assert result.error is None, result.error
    assert validate(Path(result.path)).valid
    manifest = Bundle.open(Path(result.path)).manifest
    own = "onnxruntime" if file.endswith("onnx") else "litert"
    assert [one.runtime for one in manifest.variants] == [own, "openvino"]
    assert [manifest.title(one) for one in manifest.models.values()] == [f"images in {own}", "images in openvino"]
    outputs = []
    for name in ("own", "openvino"):
        place = Path(result.path) / manifest.completed(name, TracingMode.TIMED)[0].directory
        with np.load(place / "outputs.npz") as kept:
            outputs.append(kept["arr_0"])
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-3 * np.abs(outputs[0]).max())
    found = analyze(f"{result.path}#openvino")
    products = {one.kind: one.macs for one in found.operators if one.macs}
    other = {one.kind: one.macs for one in analyze(f"{result.path}#own").operators if one.macs}
    assert {products[kind] for kind in ("depthwise", "convolution")} <= set(products.values()) & set(other.values())
    assert all(one.kernel for one in found.operators if one.kind != "framework")


@pytest.fixture
def ir(tmp_path: Path) -> Path:
    """The small network as an IR."""
    openvino = pytest.importorskip("openvino")
    path = tmp_path / "cnn.xml"
    openvino.save_model(openvino.Core().read_model(CNN), path, compress_to_fp16=False)
    return path


def test_an_ir_runs_with_its_weights(ir: Path, tmp_path: Path) -> None:
    """By its suffix and content, and both files come along."""
    settings = Settings(rounds=1, runs=5, warmup=1, ablate=("none",), lock="warn")
    profile(ir, settings=settings, out=tmp_path / "out")
    manifest = Bundle.open(tmp_path / "out").manifest
    assert manifest.model.data is not None
    assert validate(tmp_path / "out").valid
    own = [one for one in analyze(tmp_path / "out").operators if one.kind != "framework"]
    assert {one.module: (one.kind, one.macs) for one in own if one.change is None} == LAYERS


def _replace_in(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda ir: ir.with_suffix(".bin").unlink(), "its weights are in cnn.bin, which is not next to it"),
        (lambda ir: ir.with_suffix(".bin").write_bytes(bytes(10)), "its weights need .* bytes, and cnn.bin has 10"),
        (lambda ir: ir.write_bytes(ir.read_bytes()[: ir.stat().st_size // 2]), "the XML is damaged"),
        (lambda ir: _replace_in(ir, 'version="11"', 'version="7"'), "its IR version is 7; 10 and 11 are supported"),
        (lambda ir: _replace_in(ir, "<net", '<!DOCTYPE x [<!ENTITY a "b">]><net'), "it is not an OpenVINO IR"),
    ],
    ids=["no bin", "short bin", "cut", "version", "entities"],
)
def test_a_damaged_ir_is_refused(ir: Path, damage: Callable[[Path], object], said: str) -> None:
    """With what is wrong, before anything runs."""
    damage(ir)
    with pytest.raises(OpscopeError, match=said):
        OpenVino().check(ir)


def test_a_damaged_trace_is_refused(tmp_path: Path) -> None:
    """Whatever is wrong with it is said."""
    head = '{"schema":"opscope.openvino-trace/1","runtime":"1","method":"main","unit_ns":1,'
    for rest, said in (
        ('"nodes":[["a","Relu","jit"]],"calls":[{"start_ns":0,"wall_ns":9,"averages":[]}]}', "another number of nodes"),
        ('"nodes":[],"calls":[{"start_ns":-1,"wall_ns":9,"averages":[]}]}', "impossible time"),
        ('"nodes":[],"calls":[', "not an OpenVINO trace"),
    ):
        (tmp_path / TRACE).write_text(head + rest)
        with pytest.raises(TraceFormatError, match=said):
            read_trace(tmp_path / TRACE)


def test_averages_are_all_that_a_trace_without_a_fine_clock_has(tmp_path: Path) -> None:
    """The first call is apart; all others have one time, and the file says so."""
    calls = [
        {"start_ns": 1_000_000 * number, "wall_ns": 90_000, "averages": [one]}
        for number, one in enumerate((60, 40, 33, 30))
    ]
    trace = {
        "schema": "opscope.openvino-trace/1",
        "runtime": "1",
        "method": "main",
        "unit_ns": 1000,
        "nodes": [["a", "Relu", "jit_avx2_f32"]],
        "calls": calls,
    }
    (tmp_path / TRACE).write_bytes(msgspec.json.encode(trace))
    table = read_trace(tmp_path / TRACE).table
    kept = table.frame.filter(table.frame["name"] == "Relu: a")
    assert kept["duration"].to_list() == [60_000, 20_000, 20_000, 20_000]
    assert "averages_only" in {one.code for one in table.warnings}
