"""Attribution of a trace's operators to the program: their nodes, origin, shapes and cost."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.operators.delegates import DelegateCall
from opscope.analysis.operators.operators import GIVEN, LayoutChange, OperatorFacts, with_origin
from opscope.core.parts import part
from opscope.core.table.places import FIRST_INNER, OperatorKey
from opscope.program.cost.cache import cache_use
from opscope.program.cost.call import OperatorCall
from opscope.program.cost.cost import GraphCosts, step_cost
from opscope.program.cost.shapes import Shapes, is_dynamic, propagate, static_inputs
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import classify, classify_node
from opscope.program.partition.partition_reasons import PortableReasons
from opscope.program.partition.sme_rules import eligibility
from opscope.program.phases import population_name, without_population
from opscope.program.structure.plan import InstructionKind, PlannedTensor
from opscope.program.xnnpack.attention import attention_parts
from opscope.program.xnnpack.attribution import match_events
from opscope.program.xnnpack.boundaries import Links, Neighbours, is_added

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from opscope.core.table import EventTable
    from opscope.core.table.places import SelfTimeKey
    from opscope.program.cost.operator_cost import Cost
    from opscope.program.model import ModelMethod, NamedLayer, ProgramModel
    from opscope.program.operators.kinds import AttentionPart
    from opscope.program.origin import OperatorOrigin, Origins
    from opscope.program.partition.verdicts import Eligibility, PortableReason
    from opscope.program.structure.plan import MethodPlan, PlannedStep
    from opscope.program.xnnpack.attribution import EventNodes
    from opscope.program.xnnpack.boundaries import Link
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode

    Shape: TypeAlias = tuple[int, ...]
    _FindLinks: TypeAlias = Callable[[int], list[Link]]


class DelegateNeighbours:
    """Producers and consumers of the inputs and outputs of one delegate call."""

    def __init__(self, method: ModelMethod, links: Links, step: PlannedStep) -> None:
        self._method = method
        self._links = links
        self._step = step

    def producers_of_inputs(self, values: Iterable[int]) -> list[str]:
        """Return what produces the given values of the delegate's graph outside of the delegate."""
        return self._distinct_names(self._links_outside(values, self._links.makers), GIVEN)

    def consumers_of_outputs(self, values: Iterable[int]) -> list[str]:
        """Return what consumes the given values of the delegate's graph outside of the delegate."""
        return self._distinct_names(self._links_outside(values, self._links.readers), "output of the model")

    def producers(self, values: Iterable[int]) -> list[str]:
        """Return what produces the given values of the plan."""
        return self._distinct_names(
            [(value, self._links.makers(value)) for value in values], "a constant or input of the model"
        )

    def consumers(self, values: Iterable[int]) -> list[str]:
        """Return what consumes the given values of the plan."""
        return self._distinct_names([(value, self._links.readers(value)) for value in values], "output of the model")

    def _links_outside(self, values: Iterable[int], ends: _FindLinks) -> list[tuple[int, list[Link]]]:
        """List what produces or consumes each value of the delegate's graph outside the delegate."""
        arguments = ((value, self._links.argument(self._step, value)) for value in values)
        return [(value, [] if argument is None else ends(argument)) for value, argument in arguments]

    def _distinct_names(self, ends: Iterable[tuple[int, list[Link]]], otherwise: str) -> list[str]:
        names = [name for _, links in ends for name in [self._link_name(link) for link in links] or [otherwise]]
        return list(dict.fromkeys(names))

    def _link_name(self, link: Link) -> str:
        plan = self._method.plan
        step = plan.chains[0].steps[link.instruction]
        if step.kind is InstructionKind.DELEGATE:
            graph = self._method.graphs.get(step.target)
            layer = _layer_of_value(graph, link.inside, self._method.origins) if graph else None
            return layer or f"{plan.called(step)} at instruction {link.instruction}"
        return f"{plan.called(step) or step.kind.value} at instruction {link.instruction}"


def node_label(graph: XnnGraph, number: int, origins: Origins | None) -> str:
    """Return a name for a node: its module and kind, else its aten operator, else its kind and number."""
    node = graph.nodes[number]
    origin = node_origin(graph, number, origins)
    if origin is None:
        return f"{node.kind} {number}"
    return f"{origin.module} ({node.kind})" if origin.module else f"{origin.aten} ({node.kind} {number})"


def node_origin(graph: XnnGraph, number: int, origins: Origins | None) -> OperatorOrigin | None:
    """Return what a node was exported from; None without a record."""
    if origins is None:
        return None
    node = graph.nodes[number]
    dims = next((value.dims for value in graph.values if value.id == node.outputs[0]), ())
    return origins.of_node(node, dims)


def _layer_of_value(graph: XnnGraph, value: int | None, origins: Origins | None) -> str | None:
    """Return the layer in another delegate that makes or reads a value, past the nodes that were added."""
    for number, node in enumerate(graph.nodes):
        if value in node.outputs or value in node.inputs:
            neighbours = Neighbours(graph).around(number)
            near = neighbours.before if value in node.outputs else neighbours.after
            numbers = near if is_added(node) else (number,)
            return node_label(graph, numbers[0], origins) if numbers else None
    return None


COSTS = "costs of operators"
"""Name of the part that computes operators' work; a bug in it loses neither their class nor their origin."""


class GraphView:
    """Facts of the events of one delegate.

    Args:
        graph: its payload.
        method: method with the origins of its nodes.
        listed: debug handles of the instruction.
        dims: real shapes by value; None where those of the file hold.
        outside: who is on the other side of the delegate's inputs and outputs.
    """

    def __init__(
        self,
        graph: XnnGraph,
        method: ModelMethod,
        listed: Sequence[int],
        dims: Mapping[int, Shape] | None,
        outside: DelegateNeighbours,
    ) -> None:
        self._outside = outside
        self._graph = graph
        self._origins, self._layers = method.origins, method.layers
        self._values = graph.by_id()
        self._neighbours = Neighbours(graph)
        self._costs = GraphCosts(graph, dims)
        self._dims = dims
        carried = {node.debug_handle for node in graph.nodes}
        self._fused = method.origins.fused(carried, listed) if method.origins else {}
        self._shown: set[int] = set()

    def facts(self, event: EventNodes) -> OperatorFacts:
        """Return the facts of one event."""
        if event.main is None:
            names = tuple(dict.fromkeys(self.label(number) for number in event.candidates))
            return OperatorFacts(attribution=event.attribution, candidates=names)
        node = self._graph.nodes[event.main]
        known = self._event_facts(event, node)
        carrier = self._neighbours.carrier(event.main) if is_added(node) else event.main
        origin = self._node_origin(carrier)
        if origin is None:
            layer = None if carrier is None else self._layers.get(self._graph.nodes[carrier].debug_handle)
            return known if layer is None else _with_layer(known, layer)
        return with_origin(known, origin, aten=not is_added(node) and not event.inserted)

    def _event_facts(self, event: EventNodes, node: XnnNode) -> OperatorFacts:
        handles = tuple(dict.fromkeys(self._node_handles(event.nodes)))
        operator_class = classify_node(node.kind)
        if event.inserted:
            operator_class = classify("Convert (NC)")
        elif event.activation:
            operator_class = classify_node("Clamp")
        shapes = [self._shape_of(name) for name in (*node.inputs[:1], node.outputs[0])]
        return OperatorFacts(
            operator_class=operator_class,
            attribution=event.attribution,
            handles=handles,
            computes=tuple(self._graph.nodes[number].kind for number in event.nodes),
            fused=() if event.inserted or event.activation else self._fused_operators(handles),
            cost=self._operator_cost(event),
            change=self._layout_change(event, node),
            activation=event.activation,
            dtype=self._type_of(node.inputs[:1]),
            weights=self._type_of([name for name in node.inputs[1:2] if self._values[name].is_constant]),
            shape=self._shape_of(node.outputs[0]),
            elements=None if None in shapes else max(math.prod(shape or ()) for shape in shapes),
            sme=self._sme_eligibility(event, node),
        )

    def _node_handles(self, nodes: Iterable[int]) -> list[int]:
        return [self._graph.nodes[number].debug_handle for number in nodes if not is_added(self._graph.nodes[number])]

    def _fused_operators(self, handles: Iterable[int]) -> tuple[str, ...]:
        """Return the operators fused into these handles; each is shown once, with the first event of its handle."""
        new = [handle for handle in handles if handle in self._fused and handle not in self._shown]
        self._shown.update(new)
        return tuple(target for handle in new for target in self._fused[handle])

    def _operator_cost(self, event: EventNodes) -> Cost | None:
        if event.inserted or event.main is None:
            return None
        main = event.main
        return part(
            COSTS,
            lambda: self._costs.activation(main) if event.activation else self._costs.nodes(event.nodes),
            None,
        )

    def _sme_eligibility(self, event: EventNodes, node: XnnNode) -> Eligibility | None:
        if event.inserted or event.activation:
            return None
        return part("operators that SME can take", lambda: eligibility(node, self._values), None)

    def _layout_change(self, event: EventNodes, node: XnnNode) -> LayoutChange | None:
        if event.main is None or not (event.inserted or is_added(node)):
            return None
        neighbours = self._neighbours.around(event.main)
        if event.inserted and not is_added(node):
            return LayoutChange("runtime", [], [self.label(event.main)])
        before = [self.label(number) for number in neighbours.before] + self._outside.producers_of_inputs(
            neighbours.inputs
        )
        after = [self.label(number) for number in neighbours.after] + self._outside.consumers_of_outputs(
            neighbours.outputs
        )
        return LayoutChange("runtime" if event.inserted else "partitioner", before, after)

    def label(self, number: int) -> str:
        """Return a name for a node by which a person finds it in the model."""
        node = self._graph.nodes[number]
        layer = self._layers.get(node.debug_handle)
        return f"{layer.path} ({node.kind})" if layer else node_label(self._graph, number, self._origins)

    def _node_origin(self, number: int | None) -> OperatorOrigin | None:
        return None if number is None else node_origin(self._graph, number, self._origins)

    def _type_of(self, names: Sequence[int]) -> str | None:
        return self._values[names[0]].dtype.name if names else None

    def _shape_of(self, name: int) -> Shape | None:
        return self._values[name].dims if self._dims is None else self._dims.get(name)


_WHOLE_CALL = "DELEGATE_CALL"
_CALLS = {_WHOLE_CALL: InstructionKind.DELEGATE, "OPERATOR_CALL": InstructionKind.KERNEL}
_KERNEL = "native_call_"
_MOST_NAMED = 4


class Attributions(NamedTuple):
    """Facts of a trace that a program provides."""

    operators: dict[OperatorKey, OperatorFacts]  # facts by operator; operators of unknown methods are absent
    calls: list[DelegateCall]  # the delegate calls that ran
    conflict: str | None  # why the trace cannot be of this program; None when it can
    unknown_shapes: list[str]  # methods whose shapes differ between calls, and whose real ones are not known
    module_types: dict[tuple[str, str], str]  # class of each recorded module, by method and path
    reasons: dict[tuple[str, int], PortableReason]  # why operators were not delegated, by method and instruction
    # methods of the trace that several methods of the program may have been, in words; nothing is known of their layers
    undecided: Sequence[str] = ()


def method_names(table: EventTable, model: ProgramModel) -> dict[str | None, str]:
    """Return names for the methods of a trace if exactly one method of the program makes their calls."""
    names = {}
    for method, calls in _collect_calls(table).items():
        fitting = _fitting_methods(model, calls)
        _, label = without_population(method or "")
        if model.called(method or "") is None and len(fitting) == 1:
            names[method] = population_name(fitting[0], label) if label else fitting[0]
    return names


def _fitting_methods(model: ProgramModel, trace_calls: _TraceCalls) -> list[str]:
    """Return the methods of a program that can have made these calls.

    Of several the ones count whose delegates are foretold to report the operators that the trace has.
    """
    fitting = [name for name, method in model.methods.items() if _mismatch_reason(method.plan, trace_calls) is None]
    if len(fitting) < 2:  # noqa: PLR2004 - there is nothing to choose from
        return fitting
    return [name for name in fitting if _reports_operators(model.methods[name], trace_calls)] or fitting


def _reports_operators(method: ModelMethod, trace_calls: _TraceCalls) -> bool:
    """Return whether a replay of every delegate of a method gives the operators of the trace."""
    steps = method.plan.chains[0].steps
    for instruction, names in trace_calls.items():
        graph = method.graphs.get(steps[instruction].target)
        if steps[instruction].kind is not InstructionKind.DELEGATE or graph is None:
            continue
        if match_events(graph, [name for _, name in sorted(names.items())]).profile is None:
            return False
    return True


class GivenInputs(NamedTuple):
    """Shapes and values of the tensors among the inputs of a call, in their order."""

    shapes: Sequence[Shape]
    numbers: Sequence[int | None] = ()  # the only elements of those that have one; None if unknown


def attribute(table: EventTable, model: ProgramModel, inputs: Mapping[str, GivenInputs] | None = None) -> Attributions:
    """Attribute the measured operators of a table, whose methods have the program's names."""
    operators: dict[OperatorKey, OperatorFacts] = {}
    calls: list[DelegateCall] = []
    reasons: dict[tuple[str, int], PortableReason] = {}
    unknown_reasons: dict[tuple[str, int], PortableReason] = {}
    unknown, undecided, conflict = [], [], None
    for method, trace_calls in _collect_calls(table).items():
        model_method = model.called(method or "")
        if model_method is None:
            fitting = _fitting_methods(model, trace_calls)
            if len(fitting) > 1:
                listed = " or ".join(map(repr, fitting[:_MOST_NAMED]))
                undecided.append(f"the calls of {method or 'the trace'} may be those of {listed}")
            else:
                conflict = conflict or _no_match_reason(model, trace_calls)
            continue
        conflict = conflict or _mismatch_reason(model_method.plan, trace_calls)
        if conflict:
            continue
        walk = _MethodWalk(model_method, (inputs or {}).get(model_method.plan.name))
        unknown += [model_method.plan.name] if walk.guessing else []
        conflict = walk.run(trace_calls, operators, calls)
        reasons |= part(
            "why operators are not delegated", partial(_portable_reasons, model_method, trace_calls), unknown_reasons
        )
    types = _module_types(model, _collect_calls(table))
    return Attributions(operators, calls, conflict, unknown, types, reasons, undecided)


def _portable_reasons(method: ModelMethod, trace_calls: _TraceCalls) -> dict[tuple[str, int], PortableReason]:
    reason_of = PortableReasons(method.plan).of if method.reasons is None else method.reasons.get
    known = ((instruction, reason_of(instruction)) for instruction in trace_calls)
    return {(method.plan.name, instruction): reason for instruction, reason in known if reason is not None}


def _no_match_reason(model: ProgramModel, trace_calls: _TraceCalls) -> str:
    """Return why no method of the program can have made these calls."""
    problems = {name: _mismatch_reason(method.plan, trace_calls) for name, method in model.methods.items()}
    if len(problems) == 1 and all(problems.values()):
        return str(next(iter(problems.values())))
    return "its calls match no method of the program"


def _module_types(model: ProgramModel, trace_methods: Iterable[str | None]) -> dict[tuple[str, str], str]:
    """Return the class of each module by method and path, for the calls of a trace, which may be phases."""
    phases = {
        name: method for name in trace_methods if name and name not in model.methods and (method := model.called(name))
    }
    types = {
        (method, path): module_type
        for (method, _), layer in model.layers.items()
        for path, module_type in layer.modules().items()
    }
    return types | {
        (name, path): module_type
        for name, method in (*model.methods.items(), *phases.items())
        if method.origins
        for path, module_type in method.origins.modules.items()
    }


def _with_layer(known: OperatorFacts, layer: NamedLayer) -> OperatorFacts:
    return msgspec.structs.replace(known, module=layer.path, module_type=layer.types[-1] if layer.types else None)


class _TraceCalls(dict[int, dict[int, str]]):
    """Names of events by instruction and position, and the framework's name of the call by instruction."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, str] = {}


def _collect_calls(table: EventTable) -> dict[str | None, _TraceCalls]:
    """Collect what each method of a trace calls, from the measured inferences of all processes."""
    calls: dict[str | None, _TraceCalls] = {}
    for process in table.self_times:
        for key, spent in process.items():
            if key.instruction is not None and key.instruction < FIRST_INNER:
                _add_event(calls.setdefault(key.method, _TraceCalls()), key, spent.name)
    return calls


def _add_event(calls: _TraceCalls, key: SelfTimeKey, name: str) -> None:
    assert key.instruction is not None  # noqa: S101 - the caller has looked
    if key.position is None:
        calls.kinds.setdefault(key.instruction, name)
    else:
        calls.setdefault(key.instruction, {}).setdefault(key.position, name)


def _mismatch_reason(plan: MethodPlan, trace_calls: _TraceCalls) -> str | None:
    """Return why a method cannot have made these calls; None if it can."""
    steps = plan.chains[0].steps if plan.chains else ()
    for instruction in sorted({*trace_calls, *trace_calls.kinds}):
        if instruction >= len(steps):
            return f"the trace has instruction {instruction}, but method {plan.name!r} ends before it"
        step = steps[instruction]
        expected_kind = _CALLS.get(trace_calls.kinds.get(instruction, ""))
        if expected_kind is not None and expected_kind is not step.kind:
            return f"instruction {instruction} was a {expected_kind.value} call, in the program it is {step.kind.value}"
        kernels = [name for name in trace_calls.get(instruction, {}).values() if name.startswith(_KERNEL)]
        if step.kind is InstructionKind.KERNEL and kernels and _kernel_name(plan, step) not in kernels:
            return f"instruction {instruction} ran {kernels[0]}, in the program it is {plan.called(step)}"
    return None


def _kernel_name(plan: MethodPlan, step: PlannedStep) -> str:
    return _KERNEL + plan.called(step).rpartition("::")[2]


_SHAPES = "the shapes of tensors"


class _MethodWalk:
    """Walk over the calls of one method that collects the facts of their operators.

    ``method``: of the model; ``inputs``: what they were, when that is known.
    """

    def __init__(self, method: ModelMethod, inputs: GivenInputs | None) -> None:
        self._method = method
        self._links = Links(method.plan, method.graphs)
        unknown_parts: dict[int, AttentionPart] = {}
        parts = partial(attention_parts, method.plan, method.graphs)
        self._attention = part("operators of attention", parts, unknown_parts)
        static = static_inputs(method.plan)
        known_inputs = inputs or (None if static is None else GivenInputs(static))
        self.guessing = is_dynamic(method.plan) and known_inputs is None
        self._known: Shapes | None = None
        if is_dynamic(method.plan):
            unknown = Shapes({}, {})
            self._known = (
                unknown
                if known_inputs is None
                else part(_SHAPES, lambda: self._propagate_shapes(known_inputs), unknown)
            )

    def _propagate_shapes(self, inputs: GivenInputs) -> Shapes:
        return propagate(self._method.plan, self._method.graphs, *inputs)

    def run(
        self, trace_calls: _TraceCalls, operators: dict[OperatorKey, OperatorFacts], calls: list[DelegateCall]
    ) -> str | None:
        """Attribute every call; return why the program cannot be the one that ran, None if it can."""
        plan, conflict = self._method.plan, None
        for instruction, names in sorted(trace_calls.items()):
            step = plan.chains[0].steps[instruction]
            if step.kind is InstructionKind.KERNEL:
                facts: Iterable[OperatorFacts] = self._kernel_facts(instruction, step, names)
            elif step.kind is InstructionKind.DELEGATE:
                call, facts, foreign = self._delegate_facts(instruction, step, names)
                calls.append(call)
                conflict = conflict or (f"instruction {instruction}: {call.problem}" if foreign else None)
            else:
                continue
            for position, fact in zip(sorted(names), facts, strict=True):
                operators[OperatorKey(plan.name, instruction, position)] = fact
        return conflict

    def _kernel_facts(self, instruction: int, step: PlannedStep, names: Mapping[int, str]) -> list[OperatorFacts]:
        """Return the facts of a portable operator; of several kernels in one call only the named one has a cost."""
        plan = self._method.plan
        handles = self._method.handles.get(instruction, ())
        origins = self._method.origins
        origin = origins.of_handles(handles, plan.called(step)) if origins else None
        cost = part(COSTS, lambda: self._operator_cost(instruction, step), None)
        operator_class = classify(plan.called(step))
        change = None
        if operator_class.kind == "layout" and "to_dim_order" in plan.called(step):
            inputs, outputs = plan.tensors(step)[:-1], plan.tensors(step)[-1:]
            neighbours = DelegateNeighbours(self._method, self._links, step)
            change = LayoutChange("exporter", neighbours.producers(inputs), neighbours.consumers(outputs))
        shape = self._output_shape(step)
        known = OperatorFacts(
            operator_class=operator_class,
            attribution=Attribution.EXACT,
            handles=tuple(handles),
            cost=cost,
            change=change,
            dtype=self._input_type(step),
            shape=shape,
            elements=None if shape is None else math.prod(shape),
            attention=self._attention.get(instruction),
            cache=part(COSTS, lambda: cache_use(OperatorCall(plan, step, self._dynamic_sizes)), None),
        )
        if origin:
            known = with_origin(known, origin)
        elif instruction in self._method.layers:
            known = _with_layer(known, self._method.layers[instruction])
        expected_name = _kernel_name(plan, step)
        return [
            known if name == expected_name or len(names) == 1 else OperatorFacts() for _, name in sorted(names.items())
        ]

    @property
    def _dynamic_sizes(self) -> Mapping[int, Shape] | None:
        """Shapes of values if they differ between calls; None if those of the file hold."""
        return None if self._known is None else self._known.sizes

    def _operator_cost(self, instruction: int, step: PlannedStep) -> Cost | None:
        """Return the cost of a portable operator; the file's costs do not hold if shapes differ between calls."""
        if self._method.costs is None:
            return step_cost(self._method.plan, step, self._dynamic_sizes)
        cost_of_file = self._method.costs.get(instruction)
        return cost_of_file() if cost_of_file is not None and self._known is None else None

    def _input_type(self, step: PlannedStep) -> str | None:
        first = [self._method.plan.values[number] for number in self._method.plan.tensors(step)[:1]]
        return first[0].dtype.name if first and isinstance(first[0], PlannedTensor) else None

    def _output_shape(self, step: PlannedStep) -> Shape | None:
        """Return the shape of the output, which is the last argument."""
        last = self._method.plan.tensors(step)[-1:]
        value = self._method.plan.values[last[0]] if last else None
        if self._known is not None:
            return self._known.sizes.get(last[0]) if last else None
        return value.sizes if isinstance(value, PlannedTensor) else None

    def _delegate_facts(
        self, instruction: int, step: PlannedStep, names: Mapping[int, str]
    ) -> tuple[DelegateCall, list[OperatorFacts], bool]:
        plan, number = self._method.plan, step.target
        graph = self._method.graphs.get(number)
        backend = plan.delegates[number].id
        ordered = [name for _, name in sorted(names.items())]
        if graph is None:
            problem = f"payloads of {backend} cannot be read"
            call = DelegateCall(plan.name, instruction, number, backend, len(names), None, None, problem)
            return call, [OperatorFacts() for _ in ordered], False
        if ordered == [_WHOLE_CALL]:  # the delegate reported no operators
            call = DelegateCall(plan.name, instruction, number, backend, 0, len(graph.nodes), None, None)
            return call, [OperatorFacts()], False
        match = match_events(graph, ordered)
        listed = self._method.handles.get(instruction, ())
        dims = None if self._known is None else self._known.dims.get(number, {})
        view = GraphView(graph, self._method, listed, dims, DelegateNeighbours(self._method, self._links, step))
        call = DelegateCall(
            plan.name, instruction, number, backend, len(names), len(graph.nodes), match.profile, match.problem
        )
        return call, [view.facts(event) for event in match.events], match.foreign
