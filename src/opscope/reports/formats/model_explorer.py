"""A program and its times for Model Explorer: the graph, and values to colour its nodes by.

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
    by_delegate,
    by_module,
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
    """A graph; the attributes under the empty name are its own, others those of a layer."""

    id: str
    nodes: list[ExplorerNode]
    group_node_attributes: dict[str, dict[str, str]]


class NodeValue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The value of a node with its colour where the scale does not decide it; as a threshold, of values up to it."""

    value: float
    bg_color: str | None = None


class Stop(msgspec.Struct, frozen=True, rename="camel"):
    """A colour at a place between the smallest value (0) and the largest (1)."""

    stop: float
    bg_color: str


class NodeData(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Values of the nodes of one graph, how they are coloured, and which sums of them would mean nothing."""

    name: str
    results: dict[str, NodeValue]
    gradient: list[Stop] = []
    thresholds: list[NodeValue] = []
    hide_aggregated_stats: list[str] = []
    hide_in_children_stats_table: bool = False


class Placed(NamedTuple):
    """The operators of an analysis at the nodes of the graph."""

    nodes: Mapping[str, Mapping[str, list[Operator]]]  # operators by method and id of the node
    left: list[Operator]  # operators that the graph has no node for


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
    """Every file, by the parts of its name: ``graph``; ``accelerated``, ``time``; and so on.

    ``results`` are analyses with their names, the one that the graph's attributes tell of first; ``comparisons`` are
    between them.
    """
    graphs = _Graphs(model)
    placed = [(name, analysis, place(model, analysis)) for name, analysis in results]
    shown = placed[0] if placed else None
    files: dict[tuple[str, ...], bytes] = {}
    files[("graph",)] = graphs.collection(label, shown[1] if shown else None, shown[2] if shown else None)
    for name, analysis, own in placed:
        key = (name,) if len(placed) > 1 else ()
        data = {"time": _times(name, analysis, own), "share": _shares(name, own)}
        files |= {(*key, what): graphs.data(values) for what, values in data.items()}
    known = {name: own for name, _, own in placed}
    for comparison in comparisons:
        candidate, baseline = comparison.candidate.label, comparison.baseline.label
        if candidate in known and baseline in known:
            values = _speedups(comparison, known[baseline], known[candidate])
            files[candidate, "against", baseline, "speedup"] = graphs.data(values)
    return files


def place(model: ProgramModel, analysis: Analysis) -> Placed:
    """Each operator of an analysis at its node; framework time is at none."""
    calls: dict[tuple[str, int], list[Operator]] = {}
    left = []
    for operator in analysis.operators:
        if operator.kind == _FRAMEWORK and operator.position is None:
            continue
        if _step(model, operator) is None or operator.instruction is None:
            left.append(operator)
        else:
            calls.setdefault((operator.method, operator.instruction), []).append(operator)
    nodes: dict[str, dict[str, list[Operator]]] = {}
    for (method, instruction), operators in calls.items():
        for name, operator in _placed_call(model.methods[method], instruction, operators):
            nodes.setdefault(method, {}).setdefault(name, []).append(operator)
    return Placed(nodes, left)


def _step(model: ProgramModel, operator: Operator) -> PlannedStep | None:
    method = model.methods.get(operator.method)
    steps = method.plan.chains[0].steps if method and method.plan.chains else ()
    number = operator.instruction
    return steps[number] if number is not None and number < len(steps) else None


def _placed_call(method: ModelMethod, instruction: int, operators: list[Operator]) -> Iterator[tuple[str, Operator]]:
    """The node of each operator of one call: of the payload where it is known, else of the call."""
    step = method.plan.chains[0].steps[instruction]
    graph = method.graphs.get(step.target) if step.kind is InstructionKind.DELEGATE else None
    ordered = sorted(operators, key=lambda operator: operator.position or 0)
    mains = [event.main for event in match_events(graph, [o.name for o in ordered]).events] if graph else []
    for number, operator in enumerate(ordered):
        main = mains[number] if mains else None
        yield (instruction_id(instruction) if main is None else payload_id(instruction, main)), operator


class _Graphs:
    """The graphs of a model."""

    def __init__(self, model: ProgramModel) -> None:
        self._model = model
        self._places = {name: method_nodes(method) for name, method in model.methods.items()}
        self._names = dict(zip(model.methods, distinct([plain(name, _LONGEST) for name in model.methods]), strict=True))

    def collection(self, label: str, analysis: Analysis | None, placed: Placed | None) -> bytes:
        """The file of the graphs."""
        graphs = []
        for method, places in self._places.items():
            for name, view in self._views(method):
                nodes = [_described(node, method, placed) for node in view(places)]
                graphs.append(ExplorerGraph(name, nodes, _facts(method, analysis, placed)))
        return _json({"label": plain(label, _LONGEST), "graphs": graphs})

    def data(self, values: Mapping[str, NodeData]) -> bytes:
        """The file of values by method, for every graph."""
        return _json({name: values[method] for method in values for name, _ in self._views(method)})

    def _views(self, method: str) -> list[tuple[str, Callable[[Iterable[NodeLocation]], list[ExplorerNode]]]]:
        """Name of each graph of a method, and how its nodes are grouped."""
        delegates = (f"{self._names[method]}, by delegate", by_delegate)
        modules = (f"{self._names[method]}, by module", by_module)
        return [modules, delegates] if self._model.methods[method].origins else [delegates]


def _described(node: ExplorerNode, method: str, placed: Placed | None) -> ExplorerNode:
    """A node with what the analysis says about its operators."""
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
            ("multiply-accumulates", _sum(operator.macs for operator in operators)),
            ("minimum bytes moved", _sum(operator.bytes for operator in operators)),
            ("fused", ", ".join(name for operator in operators for name in operator.fused)),
        ]
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    listed = list(numbers)
    return None if None in listed else sum(number or 0 for number in listed)


def _facts(method: str, analysis: Analysis | None, placed: Placed | None) -> dict[str, dict[str, str]]:
    """What stands beside the whole graph: what its values are, and what they leave out."""
    if analysis is None or placed is None:
        return {"": {"values": "none: the program was not measured"}}
    rows = [operator for operator in analysis.operators if operator.method == method]
    shown = [operator for operators in placed.nodes.get(method, {}).values() for operator in operators]
    calls = [
        operator
        for name, operators in placed.nodes.get(method, {}).items()
        if "." not in name
        for operator in operators
    ]
    inside = [operator for operator in calls if operator.backend != "portable"]
    framework = [o for o in rows if o.kind == _FRAMEWORK and o.position is None]
    left = [operator for operator in placed.left if operator.method == method]
    unit = time_text if analysis.trace.clock is Clock.NS else _cycles
    return {
        "": {
            "measured": layer(analysis.variant or analysis.trace.path),
            "latency": unit(analysis.headline_ns),
            "at the nodes": f"{unit(_time(shown))} of {len(shown)} operators",
            "of it at delegate calls, not at single nodes": unit(_time(inside)),
            "not shown: the framework's own time": f"{unit(_time(framework))} ({share_text(_share(framework))})",
            "not shown: operators without a node": unit(_time(left)),
        }
    }


def _time(operators: Iterable[Operator]) -> float:
    return sum(operator.shown_ns for operator in operators)


def _share(operators: Iterable[Operator]) -> float:
    return sum(operator.share for operator in operators)


def _cycles(count: float) -> str:
    return f"{count:.0f} cycles"


def _times(name: str, analysis: Analysis, placed: Placed) -> dict[str, NodeData]:
    """Mean milliseconds per inference; of a trace in cycles, cycles."""
    scale, unit = (_MILLI, "ms") if analysis.trace.clock is Clock.NS else (1.0, "cycles")
    title = f"{plain(name, _LONGEST)}: mean {unit}"
    values = _values(placed, lambda own: _time(own) / scale)
    return {method: NodeData(title, own, gradient=_HEAT) for method, own in values.items()}


def _shares(name: str, placed: Placed) -> dict[str, NodeData]:
    title = f"{plain(name, _LONGEST)}: % of end-to-end"
    values = _values(placed, lambda own: _share(own) * 100)
    return {method: NodeData(title, own, thresholds=_SHARES) for method, own in values.items()}


def _values(placed: Placed, value: Callable[[list[Operator]], float]) -> dict[str, dict[str, NodeValue]]:
    """A value of the operators at each node, by method."""
    return {
        method: {node: NodeValue(round(value(operators), _DIGITS)) for node, operators in nodes.items()}
        for method, nodes in placed.nodes.items()
    }


def _speedups(comparison: Comparison, baseline: Placed, candidate: Placed) -> dict[str, NodeData]:
    """Time of the baseline over that of the candidate, where both took any; a colour only where a change was shown."""
    verdicts = {key: change.verdict for key, change in by_operator(comparison.operators).items()}
    datas = {}
    for method, nodes in candidate.nodes.items():
        before = {node: _time(operators) for node, operators in baseline.nodes.get(method, {}).items()}
        values = {
            node: NodeValue(round(before[node] / _time(operators), _DIGITS), _colour(operators, verdicts))
            for node, operators in nodes.items()
            if before.get(node) and _time(operators)
        }
        datas[method] = NodeData(
            _title(comparison), values, hide_aggregated_stats=["sum", "avg"], hide_in_children_stats_table=True
        )
    return datas


def _title(comparison: Comparison) -> str:
    sides = [plain(side.label, _LONGEST) for side in (comparison.candidate, comparison.baseline)]
    return f"speedup of {sides[0]} over {sides[1]}"


def _colour(operators: Iterable[Operator], verdicts: Mapping[OperatorKey, Verdict]) -> str:
    """Green or red where its operators changed one way only, beyond noise."""
    shown = {verdicts.get(key) for key in by_operator(operators)} & {Verdict.FASTER, Verdict.SLOWER}
    if len(shown) != 1:
        return _NONE
    return _GREEN if Verdict.FASTER in shown else _RED


def _json(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"
