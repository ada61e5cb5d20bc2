"""From the graph that ran back to the model: fusions, renamed tensors, added nodes, and graphs that differ."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from installed import needs_onnxruntime
from opscope.api import analyze
from opscope.core.errors import MismatchError
from opscope.experiment.planned import Settings
from opscope.program.operators.kinds import Attribution
from opscope.program.origin import NodeOrigin
from opscope.program.structure.dtypes import NumberType
from opscope.runtimes.onnxruntime.attribution import SessionCosts
from opscope.runtimes.onnxruntime.graph import SessionNode, SessionTensor, read_session_graph
from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode, OnnxValue, OnnxWeight, read_onnx
from opscope.runtimes.onnxruntime.origins import SessionOrigins
from opscope.runtimes.onnxruntime.rows import session_nodes
from opscope.workflows.measure.profiling import profile

MODELS = Path(__file__).parents[2] / "data" / "onnx"
FLOAT = NumberType("float32", 32)
IMAGE, FILTER = SessionTensor("float", (1, 8, 8, 8)), SessionTensor("float", (8, 4, 3, 3))


def _node(name: str, op: str, inputs: str, outputs: str) -> OnnxNode:
    return OnnxNode(name, op, "", tuple(inputs.split()), tuple(outputs.split()), {}, {})


def _ran(name: str, op: str, inputs: str, outputs: str) -> SessionNode:
    return SessionNode(name, op, "", tuple(inputs.split()), tuple(outputs.split()))


def model(*nodes: OnnxNode) -> OnnxGraph:
    """A model of one input x, with weights w and v."""
    weights = tuple(OnnxWeight(name, FLOAT, (8, 4, 3, 3), None, None) for name in ("w", "v"))
    return OnnxGraph("g", nodes, (OnnxValue("x", FLOAT, (1, 4, 8, 8)),), (), (), weights)


def _node_origins(given: OnnxGraph, session: Sequence[SessionNode]) -> list[NodeOrigin]:
    return SessionOrigins(given, session).nodes


CONV_RELU = model(
    _node("/a/Conv", "Conv", "x w", "a"),
    _node("/a/Relu", "Relu", "a", "b"),
    _node("/c/Conv", "Conv", "b v", "c"),
)


GELU = model(_node("/s/Sigmoid", "Sigmoid", "x", "s"), _node("/m/Mul", "Mul", "x s", "m"))
SIZES = model(
    _node("/a/Conv", "Conv", "x w", "a"), _node("/s/Shape", "Shape", "a", "s"), _node("/g/Gather", "Gather", "s v", "g")
)
EXACT, ALIGNED, NAME = Attribution.EXACT, Attribution.ALIGNED, Attribution.NAME


@pytest.mark.parametrize(
    ("given", "session", "origins"),
    [
        (
            CONV_RELU,
            [_ran("fused", "FusedConv", "x w", "b"), _ran("/c/Conv", "Conv", "b v", "c")],
            [((0, 1), 0, EXACT, None), ((2,), 2, EXACT, None)],
        ),
        (
            CONV_RELU,
            [
                _ran("b_nchwc", "Conv", "x reorder", "reorder_token_0"),
                _ran("c_nchwc", "Conv", "reorder_token_0 reorder_token_1", "reorder_token_2"),
                _ran("ReorderOutput", "ReorderOutput", "reorder_token_2", "c"),
            ],
            [((0, 1), 0, EXACT, None), ((2,), 2, EXACT, None), ((), None, EXACT, "c")],
        ),
        (
            CONV_RELU,
            [
                _ran("to_last", "Transpose", "x", "x_last"),
                _ran("a_nhwc", "NhwcFusedConv", "x_last w", "b_last"),
                _ran("to_first", "Transpose", "b_last", "b"),
                _ran("/c/Conv", "Conv", "b v", "c"),
            ],
            [((), None, EXACT, "x"), ((0, 1), 0, EXACT, None), ((), None, EXACT, "b"), ((2,), 2, EXACT, None)],
        ),
        (GELU, [_ran("/m/Mul/QuickGeluFusion/", "QuickGelu", "x", "reorder_token_0")], [((0, 1), 1, EXACT, None)]),
        (CONV_RELU, [_ran("mystery", "Mystery", "x", "y")], [((), None, NAME, None)]),
        (
            SIZES,
            [
                _ran("/a/Conv", "Conv", "x w", "a"),
                _ran("sizes", "Shape", "x", "other"),
                _ran("/g/Gather", "Gather", "other v", "g"),
            ],
            [((0,), 0, EXACT, None), ((1,), 1, ALIGNED, None), ((2,), 2, EXACT, None)],
        ),
        (
            CONV_RELU,
            [_ran("b_nchwc", "Conv", "", ""), _ran("/c/Conv", "Conv", "", "")],
            [((0, 1), 0, ALIGNED, None), ((2,), 2, ALIGNED, None)],
        ),
    ],
    ids=[
        "a fusion computes the nodes between its tensors",
        "blocks of channels are followed through new names",
        "transposes around channels last are added",
        "a fusion bears the name of the node that it replaces",
        "a node of nobody is known by its name alone",
        "a tensor in place of another does not make a node compute all before it",
        "names alone, of a profile from elsewhere, make it likely",
    ],
)
def test_nodes_of_a_session_come_from_nodes_of_the_model(
    given: OnnxGraph, session: list[SessionNode], origins: list[tuple[object, ...]]
) -> None:
    """Which nodes each computes, in which the work is, how that is known, and the tensor that it moves."""
    found = _node_origins(given, session)
    assert [(one.nodes, one.main, one.attribution, one.moved) for one in found] == origins


def test_sme_brings_another_graph_of_the_same_model() -> None:
    """As onnxruntime 1.31.1 made both on 64-bit Arm under QEMU: the same nodes computed, and two moves added."""
    given = read_onnx(MODELS / "images.onnx").graph
    origins = {}
    for name in ("sme", "no-sme"):
        graph = read_session_graph(MODELS / "graphs" / f"images-arm64-{name}.json")
        origins[name] = _node_origins(given, graph.nodes)
    assert {one.attribution for side in origins.values() for one in side} == {Attribution.EXACT}
    assert [one.moved for one in origins["sme"] if one.moved] == ["x", "stem.act"]
    computed = {name: [(one.nodes, one.main) for one in side if one.moved is None] for name, side in origins.items()}
    assert computed["sme"] == computed["no-sme"]
    assert sorted(number for nodes, _ in computed["sme"] for number in nodes) == list(range(9))


@pytest.mark.parametrize("op", ["MaxPool", "Slice", "FusedConv"])
def test_a_node_is_never_given_the_work_of_what_it_cannot_compute(op: str) -> None:
    """Its tensors would make it compute two convolutions; a node that is none would be told as the fastest of all."""
    session = [_ran("strange", op, "x w v", "c")]
    (only,) = _node_origins(CONV_RELU, session)
    assert only.attribution is not Attribution.EXACT
    assert len(only.nodes) <= 1
    pooled = SessionNode("strange", "MaxPool", "", ("x",), ("b",), (IMAGE,), (IMAGE,))
    shapes = dict.fromkeys(("x", "a", "b"), IMAGE)
    cost = SessionCosts(CONV_RELU, [pooled], SessionOrigins(CONV_RELU, [pooled]), shapes).of(0, {"x", "b"})
    assert cost.macs == 0


def test_a_product_that_two_nodes_leave_is_counted_once() -> None:
    """As one that is computed again for another reader."""
    twice = [
        SessionNode(name, "Conv", "", ("x", "w"), ("a",), (IMAGE, FILTER), (IMAGE,)) for name in ("first", "again")
    ]
    shapes = dict.fromkeys(("x", "a", "b"), IMAGE)
    costs = SessionCosts(CONV_RELU, twice, SessionOrigins(CONV_RELU, twice), shapes)
    found = [costs.of(place, {"x", "a"}) for place in range(2)]
    assert [one.macs for one in found if one is not None] == [8 * 8 * 8 * 4 * 9, 0]


def test_work_follows_from_the_given_filters_and_the_shapes_of_a_run() -> None:
    """A convolution in blocks of channels multiplies as often as the model asks for, or it would count its padding."""
    session = SessionNode(
        "b_nchwc",
        "Conv",
        "com.microsoft.nchwc",
        ("x", "reorder"),
        ("t",),
        (SessionTensor("float", (1, 4, 8, 8)), SessionTensor("float", (8, 4, 3, 3))),
        (SessionTensor("float", (1, 8, 8, 8)),),
    )
    shapes = {name: SessionTensor("float", shape) for name, shape in (("a", (1, 8, 8, 8)), ("b", (1, 8, 8, 8)))}
    cost = SessionCosts(CONV_RELU, [session], SessionOrigins(CONV_RELU, [session]), shapes).of(0, {"x", "t"})
    assert cost.macs == 8 * 8 * 8 * 4 * 9
    assert (cost.read_bytes, cost.written_bytes, cost.weight_bytes) == (4 * 256, 4 * 512, 4 * 288)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run."""
    out = tmp_path_factory.mktemp("onnx") / "out"
    settings = Settings(rounds=2, runs=3, warmup=1, lock="warn", ceilings=False, ablate=("none",))
    profile(MODELS / "cnn.onnx", settings=settings, out=out)
    return out


@needs_onnxruntime
def test_every_operator_of_a_real_run_is_known(bundle: Path) -> None:
    """With its layer; all nodes of the model are accounted for."""
    analysis = analyze(bundle)
    own = [one for one in analysis.operators if one.kind != "framework"]
    assert {one.attribution for one in own} == {Attribution.EXACT}
    assert Counter(number for one in own for number in one.handles) == Counter(range(11))
    stem = next(one for one in own if one.module == "stem")
    assert stem.macs == 32 * 32 * 16 * 3 * 9
    assert stem.category.value == "Convolution"


@needs_onnxruntime
def test_a_profile_from_elsewhere_is_attributed_with_its_program(bundle: Path, tmp_path: Path) -> None:
    """Without the graph that ran it is likely, and a program that is another one is refused."""
    trace = next(bundle.rglob("trace.onnxruntime.json.zst"))
    alone = tmp_path / "profile.json"
    alone.write_bytes(trace.read_bytes())
    found = analyze(alone, program=MODELS / "cnn.onnx")
    assert any(one.module == "stem" and one.attribution is Attribution.ALIGNED for one in found.operators)
    with pytest.raises(MismatchError, match="has none of the nodes"):
        analyze(alone, program=MODELS / "products.onnx")


def test_weights_that_a_kernel_packed_are_put_in_their_places(tmp_path: Path) -> None:
    """A profile leaves them out; a bias of the same shape as a computed input stays what it is."""
    graph = OnnxGraph(
        "g",
        (_node("g", "Gemm", "x w b", "y"),),
        (OnnxValue("x", None, None),),
        (),
        (),
        tuple(OnnxWeight(name, FLOAT, shape, None, None) for name, shape in (("w", (3, 4)), ("b", (4,)))),
    )
    told = [{"float": [2, 3]}, {"float": [4]}]
    row = {
        "cat": "Node",
        "name": "g_kernel_time",
        "ts": 0,
        "args": {"op_name": "Gemm", "input_type_shape": told, "output_type_shape": [{"float": [2, 4]}]},
    }
    file = tmp_path / "profile.json"
    file.write_text(json.dumps([row]), encoding="utf-8")
    (only,) = session_nodes(graph, file, graph)
    assert [one.shape for one in only.read] == [(2, 3), (3, 4), (4,)]
    cost = SessionCosts(graph, [only], SessionOrigins(graph, [only]), {}).of(0, {"x", "y"})
    assert (cost.macs, cost.weight_bytes) == (2 * 3 * 4, 4 * (12 + 4))


@needs_onnxruntime
def test_bytes_of_a_real_run_include_all_weights(tmp_path: Path) -> None:
    """Of products too, whose kernels pack them."""
    settings = Settings(rounds=2, runs=3, warmup=1, lock="warn", ceilings=False, ablate=("none",))
    profile(MODELS / "products.onnx", settings=settings, out=tmp_path / "out")
    stored = sum(4 * math.prod(one.shape) for one in read_onnx(MODELS / "products.onnx").graph.weights)
    found = sum(one.weight_bytes or 0 for one in analyze(tmp_path / "out").operators)
    assert stored <= found <= 1.01 * stored


@needs_onnxruntime
def test_nodes_of_a_branch_are_those_of_the_model(tmp_path: Path) -> None:
    """The branch that ran, with its shapes; its time is in the node that chose it and nowhere else."""
    settings = Settings(rounds=2, runs=3, warmup=1, lock="warn", ceilings=False, ablate=("none",))
    profile(MODELS / "branch.onnx", settings=settings, out=tmp_path / "out")
    analysis = analyze(tmp_path / "out")
    own = [one for one in analysis.operators if not one.name.startswith(("model_run", "SequentialExecutor"))]
    assert {one.attribution for one in own} == {Attribution.EXACT}
    assert {"Exp", "Neg"} & {one.name.partition(":")[0] for one in own}
    assert sum(one.traced_ns for one in analysis.operators) == pytest.approx(analysis.traced.mean_ns)
