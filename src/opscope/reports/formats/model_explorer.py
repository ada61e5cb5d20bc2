"""Program and its times for Model Explorer: the graph, and values to colour its nodes by.

The graph is one file with two graphs a method: by module, where an ETRecord tells the modules, and by delegate. Ids of
nodes are the same in both, so that each file of values fits both. Model Explorer shows one column a file of values:
mean milliseconds and share of every analysis, and the speedup of every comparison.

The values are those of operators. Time of operators that no single node can claim stands at the call of their delegate.
The framework's own time belongs to no node; how much that is stands in the graph's attributes.

Source of the format: ``graph_builder.py`` and ``node_data_builder.py`` of ai-edge-model-explorer 0.1.34.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.stats.effect import Verdict
from opscope.core.table import Clock
from opscope.core.table.places import by_operator
from opscope.core.units import share_text, time_text
from opscope.program.structure.plan import InstructionKind
from opscope.program.xnnpack.attribution import match_events
from opscope.reports.document.text import distinct, plain
from opscope.reports.formats.model_explorer_graph import (
    ExplorerNode,
    KeyValue,
    attributes,
    group_by_delegate,
    group_by_module,
    instruction_id,
    layer,
    method_nodes,
    payload_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.operators.operators import Operator
    from opscope.core.table.places import OperatorKey
    from opscope.program.model import ModelMethod, ProgramModel
    from opscope.program.structure.plan import PlannedStep
    from opscope.reports.formats.model_explorer_graph import NodeLocation

_MILLI = 1e6
_FRAMEWORK = "framework"
_LONGEST = 120
_NAMES = 8
_DIGITS = 9


class ExplorerGraph(msgspec.Struct, frozen=True, rename="camel"):
    """Graph of a method; attributes under the empty name are the graph's, others those of a layer."""

    id: str
    nodes: list[ExplorerNode]
    group_node_attributes: dict[str, dict[str, str]]


class NodeValue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Value of a node, with a colour if the scale does not decide it; as a threshold, the largest value of a band."""

    value: float
    bg_color: str | None = None


class Stop(msgspec.Struct, frozen=True, rename="camel"):
    """Colour at a position between the smallest value (0) and the largest (1)."""

    stop: float
    bg_color: str


class NodeData(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Values of the nodes of one graph, their colours, and the sums of them that would mean nothing."""

    name: str
    results: dict[str, NodeValue]
    gradient: list[Stop] = []
    thresholds: list[NodeValue] = []
    hide_aggregated_stats: list[str] = []
    hide_in_children_stats_table: bool = False


class PlacedOperators(NamedTuple):
    """Operators of an analysis at the nodes of the graph."""

    nodes: Mapping[str, Mapping[str, list[Operator]]]  # operators by method and id of the node
    without_node: list[Operator]  # operators that the graph has no node for


_HEAT = [Stop(0.0, "#ffffff"), Stop(0.25, "#ffe0b2"), Stop(1.0, "#e65100")]
_SHARES = [
    NodeValue(1.0, "#ffffff"),
    NodeValue(5.0, "#ffe0b2"),
    NodeValue(10.0, "#ffb74d"),
    NodeValue(100.0, "#e65100"),
]
_GREEN, _RED, _NONE = "#81c784", "#e57373", "transparent"


def model_explorer(
    model: ProgramModel, label: str, results: Sequence[tuple[str, Analysis]], comparisons: Sequence[Comparison] = ()
) -> dict[tuple[str, ...], bytes]:
    """Return every file, by the parts of its name, such as ``graph`` or ``accelerated``, ``time``.

    ``results`` are analyses with their names; the first one fills the graph's attributes. ``comparisons`` are between
    these analyses.
    """
    graphs = _Graphs(model)
    placed = [(name, analysis, place_operators(model, analysis)) for name, analysis in results]
    main = placed[0] if placed else None
    files: dict[tuple[str, ...], bytes] = {}
    files[("graph",)] = graphs.collection(label, main[1] if main else None, main[2] if main else None)
    for name, analysis, operators in placed:
        key = (name,) if len(placed) > 1 else ()
        data = {"time": _time_data(name, analysis, operators), "share": _share_data(name, operators)}
        files |= {(*key, metric): graphs.data(values) for metric, values in data.items()}
    known = {name: operators for name, _, operators in placed}
    for comparison in comparisons:
        candidate, baseline = comparison.candidate.label, comparison.baseline.label
        if candidate in known and baseline in known:
            values = _speedup_data(comparison, known[baseline], known[candidate])
            files[candidate, "against", baseline, "speedup"] = graphs.data(values)
    return files


def place_operators(model: ProgramModel, analysis: Analysis) -> PlacedOperators:
    """Place each operator of an analysis at its node; framework time is at none."""
    calls: dict[tuple[str, int], list[Operator]] = {}
    without_node = []
    for operator in analysis.operators:
        if operator.kind == _FRAMEWORK and operator.position is None:
            continue
        if _find_step(model, operator) is None or operator.instruction is None:
            without_node.append(operator)
        else:
            calls.setdefault((operator.method, operator.instruction), []).append(operator)
    nodes: dict[str, dict[str, list[Operator]]] = {}
    for (method, instruction), operators in calls.items():
        for name, operator in _place_call(model.methods[method], instruction, operators):
            nodes.setdefault(method, {}).setdefault(name, []).append(operator)
    return PlacedOperators(nodes, without_node)


def _find_step(model: ProgramModel, operator: Operator) -> PlannedStep | None:
    method = model.methods.get(operator.method)
    steps = method.plan.chains[0].steps if method and method.plan.chains else ()
    number = operator.instruction
    return steps[number] if number is not None and number < len(steps) else None


def _place_call(method: ModelMethod, instruction: int, operators: list[Operator]) -> Iterator[tuple[str, Operator]]:
    """Yield the node of each operator of one call: a node of the payload if it is known, else the call."""
    step = method.plan.chains[0].steps[instruction]
    graph = method.graphs.get(step.target) if step.kind is InstructionKind.DELEGATE else None
    ordered = sorted(operators, key=lambda operator: operator.position or 0)
    mains = (
        [event.main for event in match_events(graph, [operator.name for operator in ordered]).events] if graph else []
    )
    for number, operator in enumerate(ordered):
        main = mains[number] if mains else None
        yield (instruction_id(instruction) if main is None else payload_id(instruction, main)), operator


class _Graphs:
    """Graphs of all methods of a model."""

    def __init__(self, model: ProgramModel) -> None:
        self._model = model
        self._places = {name: method_nodes(method) for name, method in model.methods.items()}
        self._names = dict(zip(model.methods, distinct([plain(name, _LONGEST) for name in model.methods]), strict=True))

    def collection(self, label: str, analysis: Analysis | None, placed: PlacedOperators | None) -> bytes:
        """Return the file of the graphs."""
        graphs = []
        for method, locations in self._places.items():
            for name, view in self._graph_views(method):
                nodes = [_describe_node(node, method, placed) for node in view(locations)]
                graphs.append(ExplorerGraph(name, nodes, _graph_attributes(method, analysis, placed)))
        return _encode_file({"label": plain(label, _LONGEST), "graphs": graphs})

    def data(self, values: Mapping[str, NodeData]) -> bytes:
        """Return the file of values by method, for every graph."""
        return _encode_file({name: values[method] for method in values for name, _ in self._graph_views(method)})

    def _graph_views(self, method: str) -> list[tuple[str, Callable[[Iterable[NodeLocation]], list[ExplorerNode]]]]:
        """Return the name of each graph of a method, and the function that groups its nodes."""
        delegates = (f"{self._names[method]}, by delegate", group_by_delegate)
        modules = (f"{self._names[method]}, by module", group_by_module)
        return [modules, delegates] if self._model.methods[method].origins else [delegates]


def _describe_node(node: ExplorerNode, method: str, placed: PlacedOperators | None) -> ExplorerNode:
    """Return a node with what the analysis says about its operators."""
    operators = placed.nodes.get(method, {}).get(node.id, []) if placed else []
    return msgspec.structs.replace(node, attrs=[*node.attrs, *_operator_lines(operators)]) if operators else node


def _operator_lines(operators: Sequence[Operator]) -> list[KeyValue]:
    first = operators[0]
    names = ", ".join(plain(operator.name, _LONGEST) for operator in operators[:_NAMES])
    more = f" and {len(operators) - _NAMES} more" if len(operators) > _NAMES else ""
    return attributes(
        [
            ("events", names + more),
            ("category", first.category),
            ("kind", first.kind),
            ("attribution", ", ".join(dict.fromkeys(operator.attribution.value for operator in operators))),
            ("multiply-accumulates", _sum_known(operator.macs for operator in operators)),
            ("minimum bytes moved", _sum_known(operator.bytes for operator in operators)),
            ("fused", ", ".join(name for operator in operators for name in operator.fused)),
        ]
    )


def _sum_known(numbers: Iterable[int | None]) -> int | None:
    listed = list(numbers)
    return None if None in listed else sum(number or 0 for number in listed)


def _graph_attributes(
    method: str, analysis: Analysis | None, placed: PlacedOperators | None
) -> dict[str, dict[str, str]]:
    """Return the attributes of the whole graph: what its values are, and what they leave out."""
    if analysis is None or placed is None:
        return {"": {"values": "none: the program was not measured"}}
    rows = [operator for operator in analysis.operators if operator.method == method]
    at_nodes = [operator for operators in placed.nodes.get(method, {}).values() for operator in operators]
    calls = [
        operator
        for name, operators in placed.nodes.get(method, {}).items()
        if "." not in name
        for operator in operators
    ]
    delegated = [operator for operator in calls if operator.backend != "portable"]
    framework = [operator for operator in rows if operator.kind == _FRAMEWORK and operator.position is None]
    without_node = [operator for operator in placed.without_node if operator.method == method]
    unit = time_text if analysis.trace.clock is Clock.NS else _cycles_text
    return {
        "": {
            "measured": layer(analysis.variant or analysis.trace.path),
            "latency": unit(analysis.headline_ns),
            "at the nodes": f"{unit(_total_time(at_nodes))} of {len(at_nodes)} operators",
            "of it at delegate calls, not at single nodes": unit(_total_time(delegated)),
            "not shown: the framework's own time": (
                f"{unit(_total_time(framework))} ({share_text(_total_share(framework))})"
            ),
            "not shown: operators without a node": unit(_total_time(without_node)),
        }
    }


def _total_time(operators: Iterable[Operator]) -> float:
    return sum(operator.shown_ns for operator in operators)


def _total_share(operators: Iterable[Operator]) -> float:
    return sum(operator.share for operator in operators)


def _cycles_text(count: float) -> str:
    return f"{count:.0f} cycles"


def _time_data(name: str, analysis: Analysis, placed: PlacedOperators) -> dict[str, NodeData]:
    """Return mean milliseconds per inference as data of nodes; cycles if the trace is in cycles."""
    scale, unit = (_MILLI, "ms") if analysis.trace.clock is Clock.NS else (1.0, "cycles")
    title = f"{plain(name, _LONGEST)}: mean {unit}"
    values = _values_by_node(placed, lambda operators: _total_time(operators) / scale)
    return {method: NodeData(title, node_values, gradient=_HEAT) for method, node_values in values.items()}


def _share_data(name: str, placed: PlacedOperators) -> dict[str, NodeData]:
    title = f"{plain(name, _LONGEST)}: % of end-to-end"
    values = _values_by_node(placed, lambda operators: _total_share(operators) * 100)
    return {method: NodeData(title, node_values, thresholds=_SHARES) for method, node_values in values.items()}


def _values_by_node(
    placed: PlacedOperators, value: Callable[[list[Operator]], float]
) -> dict[str, dict[str, NodeValue]]:
    """Return a value of the operators at each node, by method."""
    return {
        method: {node: NodeValue(round(value(operators), _DIGITS)) for node, operators in nodes.items()}
        for method, nodes in placed.nodes.items()
    }


def _speedup_data(comparison: Comparison, baseline: PlacedOperators, candidate: PlacedOperators) -> dict[str, NodeData]:
    """Return baseline over candidate time of nodes that took any on both sides; coloured if a change was shown."""
    verdicts = {key: change.verdict for key, change in by_operator(comparison.operators).items()}
    datas = {}
    for method, nodes in candidate.nodes.items():
        before = {node: _total_time(operators) for node, operators in baseline.nodes.get(method, {}).items()}
        values = {
            node: NodeValue(round(before[node] / _total_time(operators), _DIGITS), _change_colour(operators, verdicts))
            for node, operators in nodes.items()
            if before.get(node) and _total_time(operators)
        }
        datas[method] = NodeData(
            _speedup_title(comparison), values, hide_aggregated_stats=["sum", "avg"], hide_in_children_stats_table=True
        )
    return datas


def _speedup_title(comparison: Comparison) -> str:
    sides = [plain(side.label, _LONGEST) for side in (comparison.candidate, comparison.baseline)]
    return f"speedup of {sides[0]} over {sides[1]}"


def _change_colour(operators: Iterable[Operator], verdicts: Mapping[OperatorKey, Verdict]) -> str:
    """Return green or red if a node's operators changed in one direction only, beyond noise."""
    verdicts_shown = {verdicts.get(key) for key in by_operator(operators)} & {Verdict.FASTER, Verdict.SLOWER}
    if len(verdicts_shown) != 1:
        return _NONE
    return _GREEN if Verdict.FASTER in verdicts_shown else _RED


def _encode_file(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"
