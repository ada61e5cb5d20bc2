"""Model Explorer: the graph of a program, and values for its nodes that add up to what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from graphs import graph
from hostile_names import HOSTILE
from layered_model import TRACE, analysed, model, record
from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import Comparison, compare
from opscope.program.model import ProgramModel
from opscope.program.operators.kinds import Attribution
from opscope.program.xnnpack.graph import DelegateGraph
from opscope.reports.formats.model_explorer import model_explorer
from traces import table


class Edge(msgspec.Struct, forbid_unknown_fields=True):
    """As ``graph_builder.IncomingEdge`` of ai-edge-model-explorer 0.1.34."""

    sourceNodeId: str  # noqa: N815 - the format's names, here and below
    sourceNodeOutputId: str  # noqa: N815
    targetNodeInputId: str  # noqa: N815


class Pair(msgspec.Struct, forbid_unknown_fields=True):
    """As ``KeyValue``."""

    key: str
    value: str


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """As ``MetadataItem``."""

    id: str
    attrs: list[Pair]


class Node(msgspec.Struct, forbid_unknown_fields=True):
    """As ``GraphNode``, of which the rest may be absent."""

    id: str
    label: str
    namespace: str
    attrs: list[Pair]
    incomingEdges: list[Edge]  # noqa: N815
    outputsMetadata: list[Metadata]  # noqa: N815
    inputsMetadata: list[Metadata]  # noqa: N815

    def says(self, key: str) -> str | None:
        """The line of the side panel with this key."""
        return next((pair.value for pair in self.attrs if pair.key == key), None)


class Graph(msgspec.Struct, forbid_unknown_fields=True):
    """As ``Graph``."""

    id: str
    nodes: list[Node]
    groupNodeAttributes: dict[str, dict[str, str]]  # noqa: N815

    def node(self, name: str) -> Node:
        """The node with this id, which must be the only one."""
        (found,) = [node for node in self.nodes if node.id == name]
        return found

    def sources(self, name: str) -> list[str]:
        """Ids of the nodes that give a node its inputs."""
        return [edge.sourceNodeId for edge in self.node(name).incomingEdges]


class Collection(msgspec.Struct, forbid_unknown_fields=True):
    """As ``GraphCollection``."""

    label: str
    graphs: list[Graph]


class Result(msgspec.Struct, forbid_unknown_fields=True):
    """As ``node_data_builder.NodeDataResult``."""

    value: float
    bgColor: str | None = None  # noqa: N815


class Step(msgspec.Struct, forbid_unknown_fields=True):
    """As ``GradientItem`` and ``ThresholdItem``, of which each has one of the numbers."""

    bgColor: str  # noqa: N815
    stop: float | None = None
    value: float | None = None


class Data(msgspec.Struct, forbid_unknown_fields=True):
    """As ``GraphNodeData``, of which the rest may be absent."""

    name: str
    results: dict[str, Result]
    gradient: list[Step] = []
    thresholds: list[Step] = []
    hideAggregatedStats: list[str] = []  # noqa: N815
    hideInChildrenStatsTable: bool = False  # noqa: N815


def compared(baseline: str, candidate: str) -> Comparison:
    """The comparison of two traces."""
    sides = [table(text).with_method_names({None: "forward"}) for text in (baseline, candidate)]
    return compare(*sides, labels=(("slow", "s"), ("fast", "f")), paired=False)


def graphs_of(files: Mapping[tuple[str, ...], bytes]) -> dict[str, Graph]:
    """The graphs by name, strictly read, with every edge leading somewhere and every id once."""
    found = msgspec.json.decode(files["graph",], type=Collection).graphs
    for each in found:
        ids = [node.id for node in each.nodes]
        assert len(set(ids)) == len(ids)
        assert {e.sourceNodeId for node in each.nodes for e in node.incomingEdges} <= set(ids)
    return {each.id: each for each in found}


def data_of(files: Mapping[tuple[str, ...], bytes], *key: str) -> dict[str, Data]:
    """The values by graph, strictly read, each of a node that the graph has."""
    graphs = graphs_of(files)
    found = msgspec.json.decode(files[key], type=dict[str, Data])
    for name, data in found.items():
        assert set(data.results) <= {node.id for node in graphs[name].nodes}
    return found


def written(
    of: ProgramModel | None = None, *results: tuple[str, Analysis], **more: Any
) -> dict[tuple[str, ...], bytes]:
    """The files."""
    return model_explorer(of or model(record()), "toy", list(results), **more)


def test_a_program_alone_is_two_graphs_of_the_same_nodes() -> None:
    """Instructions, the nodes of the delegate that can be read, and what goes in and comes out."""
    graphs = graphs_of(written())
    assert list(graphs) == ["forward, by module", "forward, by delegate"]
    for each in graphs.values():
        assert [(node.id, node.label) for node in each.nodes] == [
            ("input0", "input"),
            ("i0", "XnnpackBackend call"),
            ("i0.n0", "StaticTranspose"),
            ("i0.n1", "Conv2d"),
            ("i0.n2", "Add"),
            ("i1", "aten::mean.out"),
            ("i2", "OtherBackend"),
            ("output0", "output"),
        ]


def test_edges_cross_the_borders_of_delegates() -> None:
    """From the node that made a value to each that reads it; weights come from nowhere."""
    each = graphs_of(written())["forward, by delegate"]
    found = {node.id: each.sources(node.id) for node in each.nodes if node.incomingEdges}
    assert found == {
        "i0.n0": ["input0"],
        "i0.n1": ["i0.n0"],
        "i0.n2": ["i0.n1", "i0.n1"],
        "i1": ["i0.n2"],
        "i2": ["i1"],
        "output0": ["i2"],
    }
    convolution = each.node("i0.n1")
    shapes = [[pair.value for pair in item.attrs] for item in convolution.inputsMetadata]
    assert shapes == [["fp32[1,8,8,4]"], ["fp32[16,3,3,4]", "with the program"]]


def test_nodes_are_inside_their_modules_or_inside_their_delegates() -> None:
    """Added nodes belong to the layer they serve; calls, which have no module, are apart."""
    graphs = graphs_of(written())
    found = {name: {node.id: node.namespace for node in each.nodes} for name, each in graphs.items()}
    call, other = "XnnpackBackend, instruction 0", "OtherBackend, instruction 2"
    assert found["forward, by module"] == {
        "input0": "",
        "i0": "delegate calls",
        "i0.n0": "stem (Stem)/conv (Conv)",
        "i0.n1": "stem (Stem)/conv (Conv)",
        "i0.n2": "stem (Stem)",
        "i1": "head (Head)",
        "i2": "module unknown",
        "output0": "",
    }
    assert found["forward, by delegate"] == {
        "input0": "",
        "i0": call,
        "i0.n0": call,
        "i0.n1": call,
        "i0.n2": call,
        "i1": "",
        "i2": other,
        "output0": "",
    }


def test_without_a_record_there_is_one_graph() -> None:
    """By delegate, since modules are not known."""
    assert list(graphs_of(written(model()))) == ["forward, by delegate"]


def test_the_side_panel_says_what_caused_a_node_and_what_ran() -> None:
    """The layer and line from the record, the events and how they are known from the analysis."""
    node = graphs_of(written(None, ("fast", analysed())))["forward, by module"].node("i0.n1")
    assert node.says("aten") == "aten.convolution.default"
    assert node.says("source") == "/home/me/model.py:12"
    assert (node.says("events"), node.says("attribution")) == ("Convolution (NHWC, F32) IGEMM #1", "exact")
    assert node.says("multiply-accumulates") == str(8 * 8 * 16 * 3 * 3 * 4)


def test_every_operator_stands_at_its_node() -> None:
    """An activation that ran by itself is with its layer; what a delegate does not tell is at its call."""
    data = data_of(written(None, ("fast", analysed())), "time")["forward, by module"]
    assert {node: result.value for node, result in data.results.items()} == {
        "i0.n0": 0.05,
        "i0.n1": 0.3,
        "i0.n2": 0.24,
        "i1": 0.09,
        "i2": 0.15,
    }


def test_values_add_up_to_the_operators_and_the_rest_is_said() -> None:
    """Nodes hold all that operators took, and the graph says what the framework took."""
    analysis = analysed()
    files = written(None, ("fast", analysis))
    operators = [o for o in analysis.operators if o.position is not None]
    for name, graph_ in graphs_of(files).items():
        times, shares = data_of(files, "time")[name], data_of(files, "share")[name]
        total = sum(result.value for result in times.results.values())
        assert total == pytest.approx(sum(o.time_ns for o in operators) / 1e6)
        assert sum(r.value for r in shares.results.values()) == pytest.approx(100 * total / 1)
        said = graph_.groupNodeAttributes[""]
        assert said["at the nodes"] == "830 µs of 6 operators"
        assert said["of it at delegate calls, not at single nodes"] == "150 µs"
        assert said["not shown: the framework's own time"] == "170 µs (17.0 %)"
        assert said["not shown: operators without a node"] == "0 ns"


def test_operators_that_fit_several_nodes_are_at_the_call() -> None:
    """Two convolutions and one event: which one ran is not known, so neither node gets the time."""
    payload = """
        input x fp32 1x8x8x4
        const w fp32 4x3x3x4
        a fp32 1x8x8x4 = Conv2d x w handle=1
        b fp32 1x8x8x4 = Conv2d a w handle=1
        output b
    """
    given = model()
    given = ProgramModel(given.executable, [DelegateGraph("forward", 0, (0,), graph(payload))], None)
    text = TRACE.replace("Transpose (ND, X32) #1 50000", "Softmax (NC, F32) #1 50000")
    analysis = analysed(text, given)
    unknown = [o for o in analysis.operators if o.instruction == 0 and o.position is not None]
    assert Attribution.EXACT not in {o.attribution for o in unknown}
    data = data_of(written(given, ("fast", analysis)), "time")["forward, by delegate"]
    assert sum(result.value for result in data.results.values()) == pytest.approx(0.83)
    assert data.results["i0"].value > 0


def test_operators_of_another_method_are_left_out_and_counted() -> None:
    """The program does not have it."""
    analysis = analysed()
    strange = [msgspec.structs.replace(o, instruction=77) if o.instruction == 1 else o for o in analysis.operators]
    files = written(None, ("fast", msgspec.structs.replace(analysis, operators=strange)))
    said = graphs_of(files)["forward, by module"].groupNodeAttributes[""]
    assert (said["at the nodes"], said["not shown: operators without a node"]) == ("740 µs of 5 operators", "90.0 µs")


def test_a_delegate_that_is_called_twice_has_its_nodes_twice() -> None:
    """Each call with ids of its own."""
    each = graphs_of(written(model(calls=2)))["forward, by delegate"]
    assert [node.id for node in each.nodes if ".n" in node.id] == ["i0.n0", "i0.n1", "i0.n2", "i1.n0", "i1.n1", "i1.n2"]
    assert each.sources("i2") == ["i1.n2"]


def test_several_analyses_have_a_file_each_and_one_for_their_comparison() -> None:
    """The speedup of a node is that of its operators' time; a colour needs more processes than one."""
    slow = TRACE.replace("#1 300000", "#1 600000").replace("0 610000", "0 910000").replace("1000000", "1300000")
    files = written(
        None,
        ("fast", analysed()),
        ("slow", analysed(slow, variant="slow")),
        comparisons=[compared(slow, TRACE)],
    )
    assert sorted(files) == [
        ("fast", "against", "slow", "speedup"),
        ("fast", "share"),
        ("fast", "time"),
        ("graph",),
        ("slow", "share"),
        ("slow", "time"),
    ]
    data = data_of(files, "fast", "against", "slow", "speedup")["forward, by module"]
    assert {node: (r.value, r.bgColor) for node, r in data.results.items()} == {
        "i0.n0": (1.0, "transparent"),
        "i0.n1": (2.0, "transparent"),
        "i0.n2": (1.0, "transparent"),
        "i1": (1.0, "transparent"),
        "i2": (1.0, "transparent"),
    }
    assert (data.hideAggregatedStats, data.hideInChildrenStatsTable) == (["sum", "avg"], True)


@pytest.mark.parametrize(("verdict", "colour"), [("faster", "#81c784"), ("slower", "#e57373")])
def test_a_change_beyond_noise_has_a_colour(verdict: str, colour: str) -> None:
    """Of the operator whose verdict it is, and of no other."""
    comparison = compared(TRACE, TRACE)
    changes = [
        msgspec.structs.replace(c, verdict=type(c.verdict)(verdict)) if c.name.startswith("Convolution") else c
        for c in comparison.operators
    ]
    comparison = msgspec.structs.replace(comparison, operators=changes)
    files = written(None, ("fast", analysed()), ("slow", analysed()), comparisons=[comparison])
    data = data_of(files, "fast", "against", "slow", "speedup")["forward, by module"]
    assert {node for node, result in data.results.items() if result.bgColor == colour} == {"i0.n1"}


def test_operators_that_read_0_on_a_side_have_no_speedup() -> None:
    """Durations are cut off to whole microseconds; nothing divided by nothing is not a ratio."""
    none = TRACE.replace("Transpose (ND, X32) #1 50000", "Transpose (ND, X32) #1 0")
    files = written(None, ("fast", analysed(none)), ("slow", analysed()), comparisons=[compared(TRACE, none)])
    data = data_of(files, "fast", "against", "slow", "speedup")["forward, by module"]
    assert "i0.n0" not in data.results


def test_ids_and_files_are_the_same_every_time() -> None:
    """So that views that somebody saved keep fitting."""
    assert written(None, ("fast", analysed())) == written(None, ("fast", analysed()))


@pytest.mark.parametrize("name", [*HOSTILE, "a/b/c", "\ud800"])
def test_hostile_names_add_no_layers_and_break_no_line(name: str) -> None:
    """Names of modules, backends, operators and variants."""
    safe = name.replace(".", "") or "x"
    given = model(record((f"stem.{safe}", safe, "head")), name=name)
    files = written(given, (name, analysed(of=given, variant=name)), (f"{name}2", analysed(of=given)))
    for each in graphs_of(files).values():
        for node in each.nodes:
            assert node.namespace.count("/") <= 1
            assert max(map(len, [node.label, *node.namespace.split("/")])) <= 200
            assert not any(ord(c) < 32 for c in node.label + node.namespace)
    times = msgspec.json.decode(next(v for k, v in files.items() if k[-1] == "time"), type=dict[str, Data])
    assert all(len(data.name) < 200 for data in times.values())


def test_a_method_without_instructions_is_a_graph_of_its_inputs_and_outputs() -> None:
    """And one without values has not even their shapes."""
    given = model()
    plan = msgspec.structs.replace(given.executable.plans[0], chains=(), values=())
    bare = ProgramModel(msgspec.structs.replace(given.executable, plans=(plan,)), [], None)
    each = graphs_of(written(bare))["forward, by delegate"]
    assert [node.id for node in each.nodes] == ["input0", "output0"]
    assert json.loads(written(bare)["graph",])["graphs"][0]["nodes"][0]["outputsMetadata"] == [{"id": "0", "attrs": []}]
