"""What the program says about each operator of a trace: its nodes, origin, shapes and cost."""

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
    _Ends: TypeAlias = Callable[[int], list[Link]]


class Outside:
    """Who is on the other side of the inputs and outputs of one delegate call."""

    def __init__(self, method: ModelMethod, links: Links, step: PlannedStep) -> None:
        self._method = method
        self._links = links
        self._step = step

    def given(self, values: Iterable[int]) -> list[str]:
        """Who makes the values that the delegate is given."""
        return self._names(self._passed(values, self._links.makers), GIVEN)

    def taken(self, values: Iterable[int]) -> list[str]:
        """Who reads the values that the delegate leaves."""
        return self._names(self._passed(values, self._links.readers), "output of the model")

    def makers(self, values: Iterable[int]) -> list[str]:
        """Who makes values of the plan."""
        return self._names([(value, self._links.makers(value)) for value in values], "a constant or input of the model")

    def readers(self, values: Iterable[int]) -> list[str]:
        """Who reads values of the plan."""
        return self._names([(value, self._links.readers(value)) for value in values], "output of the model")

    def _passed(self, values: Iterable[int], ends: _Ends) -> list[tuple[int, list[Link]]]:
        """For values of the delegate's graph, who is on the other side."""
        arguments = ((value, self._links.argument(self._step, value)) for value in values)
        return [(value, [] if argument is None else ends(argument)) for value, argument in arguments]

    def _names(self, ends: Iterable[tuple[int, list[Link]]], otherwise: str) -> list[str]:
        found = [name for _, links in ends for name in [self._name(link) for link in links] or [otherwise]]
        return list(dict.fromkeys(found))

    def _name(self, link: Link) -> str:
        plan = self._method.plan
        step = plan.chains[0].steps[link.instruction]
        if step.kind is InstructionKind.DELEGATE:
            graph = self._method.graphs.get(step.target)
            layer = _layer(graph, link.inside, self._method.origins) if graph else None
            return layer or f"{plan.called(step)} at instruction {link.instruction}"
        return f"{plan.called(step) or step.kind.value} at instruction {link.instruction}"


def node_label(graph: XnnGraph, number: int, origins: Origins | None) -> str:
    """A name for a node: its module and kind, else its aten operator, else its kind and number."""
    node = graph.nodes[number]
    origin = node_origin(graph, number, origins)
    if origin is None:
        return f"{node.kind} {number}"
    return f"{origin.module} ({node.kind})" if origin.module else f"{origin.aten} ({node.kind} {number})"


def node_origin(graph: XnnGraph, number: int, origins: Origins | None) -> OperatorOrigin | None:
    """What caused a node; None without a record."""
    if origins is None:
        return None
    node = graph.nodes[number]
    dims = next((value.dims for value in graph.values if value.id == node.outputs[0]), ())
    return origins.of_node(node, dims)


def _layer(graph: XnnGraph, inside: int | None, origins: Origins | None) -> str | None:
    """The layer of another delegate that makes or reads a value; the added nodes in between are passed."""
    for number, node in enumerate(graph.nodes):
        if inside in node.outputs or inside in node.inputs:
            border = Neighbours(graph).around(number)
            near = border.before if inside in node.outputs else border.after
            numbers = near if is_added(node) else (number,)
            return node_label(graph, numbers[0], origins) if numbers else None
    return None


COSTS = "costs of operators"
"""What operators compute and move: a bug in it costs neither what they are nor where they come from."""


class GraphView:
    """Facts of the events of one delegate.

    Args:
        graph: its payload.
        method: with the origins of its nodes.
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
        outside: Outside,
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
        """Facts of one event."""
        if event.main is None:
            names = tuple(dict.fromkeys(self.label(number) for number in event.candidates))
            return OperatorFacts(attribution=event.attribution, candidates=names)
        node = self._graph.nodes[event.main]
        known = self._own(event, node)
        carrier = self._neighbours.carrier(event.main) if is_added(node) else event.main
        origin = self._origin(carrier)
        if origin is None:
            layer = None if carrier is None else self._layers.get(self._graph.nodes[carrier].debug_handle)
            return known if layer is None else _in_layer(known, layer)
        return with_origin(known, origin, aten=not is_added(node) and not event.inserted)

    def _own(self, event: EventNodes, node: XnnNode) -> OperatorFacts:
        handles = tuple(dict.fromkeys(self._handles(event.nodes)))
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
            fused=() if event.inserted or event.activation else self._fused_into(handles),
            cost=self._cost(event),
            change=self._change(event, node),
            activation=event.activation,
            dtype=self._type_of(node.inputs[:1]),
            weights=self._type_of([name for name in node.inputs[1:2] if self._values[name].is_constant]),
            shape=self._shape_of(node.outputs[0]),
            elements=None if None in shapes else max(math.prod(shape or ()) for shape in shapes),
            sme=self._eligibility(event, node),
        )

    def _handles(self, nodes: Iterable[int]) -> list[int]:
        return [self._graph.nodes[number].debug_handle for number in nodes if not is_added(self._graph.nodes[number])]

    def _fused_into(self, handles: Iterable[int]) -> tuple[str, ...]:
        """Operators fused into these handles; each is shown once, with the first event of its handle."""
        new = [handle for handle in handles if handle in self._fused and handle not in self._shown]
        self._shown.update(new)
        return tuple(target for handle in new for target in self._fused[handle])

    def _cost(self, event: EventNodes) -> Cost | None:
        if event.inserted or event.main is None:
            return None
        main = event.main
        return part(
            COSTS,
            lambda: self._costs.activation(main) if event.activation else self._costs.nodes(event.nodes),
            None,
        )

    def _eligibility(self, event: EventNodes, node: XnnNode) -> Eligibility | None:
        if event.inserted or event.activation:
            return None
        return part("operators that SME can take", lambda: eligibility(node, self._values), None)

    def _change(self, event: EventNodes, node: XnnNode) -> LayoutChange | None:
        if event.main is None or not (event.inserted or is_added(node)):
            return None
        border = self._neighbours.around(event.main)
        if event.inserted and not is_added(node):
            return LayoutChange("runtime", [], [self.label(event.main)])
        before = [self.label(n) for n in border.before] + self._outside.given(border.inputs)
        after = [self.label(n) for n in border.after] + self._outside.taken(border.outputs)
        return LayoutChange("runtime" if event.inserted else "partitioner", before, after)

    def label(self, number: int) -> str:
        """A name for a node that a person finds in the model."""
        node = self._graph.nodes[number]
        layer = self._layers.get(node.debug_handle)
        return f"{layer.path} ({node.kind})" if layer else node_label(self._graph, number, self._origins)

    def _origin(self, number: int | None) -> OperatorOrigin | None:
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
    """What a program says about a trace."""

    operators: dict[OperatorKey, OperatorFacts]  # facts by operator; operators of unknown methods are absent
    calls: list[DelegateCall]  # the delegate calls that ran
    conflict: str | None  # why the trace cannot be of this program; None when it can
    unknown_shapes: list[str]  # methods whose shapes differ between calls, and whose real ones are not known
    module_types: dict[tuple[str, str], str]  # class of each recorded module, by method and path
    reasons: dict[tuple[str, int], PortableReason]  # why operators were not delegated, by method and instruction
    # methods of the trace that several methods of the program may have been, in words; nothing is known of their layers
    undecided: Sequence[str] = ()


def method_names(table: EventTable, model: ProgramModel) -> dict[str | None, str]:
    """Return names for the methods of a trace, where exactly one method of the program calls what they call."""
    names = {}
    for method, called in _called(table).items():
        fitting = _fitting_methods(model, called)
        _, label = without_population(method or "")
        if model.called(method or "") is None and len(fitting) == 1:
            names[method] = population_name(fitting[0], label) if label else fitting[0]
    return names


def _fitting_methods(model: ProgramModel, trace_calls: _Calls) -> list[str]:
    """Return the methods of a program that can have made these calls.

    Of several the ones count whose delegates are foretold to report the operators that the trace has.
    """
    fitting = [name for name, method in model.methods.items() if _misfit(method.plan, trace_calls) is None]
    if len(fitting) < 2:  # noqa: PLR2004 - there is nothing to choose from
        return fitting
    return [name for name in fitting if _reports_operators(model.methods[name], trace_calls)] or fitting


def _reports_operators(method: ModelMethod, trace_calls: _Calls) -> bool:
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
    """What the tensors among the inputs of a call were, in their order."""

    shapes: Sequence[Shape]
    numbers: Sequence[int | None] = ()  # the only elements of those that have one; None where they are not known


def attribute(table: EventTable, model: ProgramModel, inputs: Mapping[str, GivenInputs] | None = None) -> Attributions:
    """Attribute the measured operators of a table, whose methods have the program's names."""
    operators: dict[OperatorKey, OperatorFacts] = {}
    calls: list[DelegateCall] = []
    reasons: dict[tuple[str, int], PortableReason] = {}
    unknown_reasons: dict[tuple[str, int], PortableReason] = {}
    unknown, undecided, conflict = [], [], None
    for method, called in _called(table).items():
        model_method = model.called(method or "")
        if model_method is None:
            fitting = _fitting_methods(model, called)
            if len(fitting) > 1:
                listed = " or ".join(map(repr, fitting[:_MOST_NAMED]))
                undecided.append(f"the calls of {method or 'the trace'} may be those of {listed}")
            else:
                conflict = conflict or _stranger(model, called)
            continue
        conflict = conflict or _misfit(model_method.plan, called)
        if conflict:
            continue
        walk = _MethodWalk(model_method, (inputs or {}).get(model_method.plan.name))
        unknown += [model_method.plan.name] if walk.guessing else []
        conflict = walk.run(called, operators, calls)
        reasons |= part("why operators are not delegated", partial(_reasons, model_method, called), unknown_reasons)
    types = _module_types(model, _called(table))
    return Attributions(operators, calls, conflict, unknown, types, reasons, undecided)


def _reasons(method: ModelMethod, called: _Calls) -> dict[tuple[str, int], PortableReason]:
    told = PortableReasons(method.plan).of if method.reasons is None else method.reasons.get
    known = ((instruction, told(instruction)) for instruction in called)
    return {(method.plan.name, instruction): reason for instruction, reason in known if reason is not None}


def _stranger(model: ProgramModel, called: _Calls) -> str:
    """Why the calls are those of no method."""
    problems = {name: _misfit(method.plan, called) for name, method in model.methods.items()}
    if len(problems) == 1 and all(problems.values()):
        return str(next(iter(problems.values())))
    return "its calls match no method of the program"


def _module_types(model: ProgramModel, called: Iterable[str | None]) -> dict[tuple[str, str], str]:
    """By method and path; of the calls of a trace, which may be phases of one method."""
    phases = {name: method for name in called if name and name not in model.methods and (method := model.called(name))}
    named = {
        (method, path): module_type
        for (method, _), layer in model.layers.items()
        for path, module_type in layer.modules().items()
    }
    return named | {
        (name, path): module_type
        for name, method in (*model.methods.items(), *phases.items())
        if method.origins
        for path, module_type in method.origins.modules.items()
    }


def _in_layer(known: OperatorFacts, layer: NamedLayer) -> OperatorFacts:
    return msgspec.structs.replace(known, module=layer.path, module_type=layer.types[-1] if layer.types else None)


class _Calls(dict[int, dict[int, str]]):
    """Names of events by instruction and position, and the framework's name of the call by instruction."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, str] = {}


def _called(table: EventTable) -> dict[str | None, _Calls]:
    """What each method of a trace calls, from the measured inferences of all processes."""
    calls: dict[str | None, _Calls] = {}
    for process in table.self_times:
        for place, spent in process.items():
            if place.instruction is not None and place.instruction < FIRST_INNER:
                _enter(calls.setdefault(place.method, _Calls()), place, spent.name)
    return calls


def _enter(calls: _Calls, place: SelfTimeKey, name: str) -> None:
    assert place.instruction is not None  # noqa: S101 - the caller has looked
    if place.position is None:
        calls.kinds.setdefault(place.instruction, name)
    else:
        calls.setdefault(place.instruction, {}).setdefault(place.position, name)


def _misfit(plan: MethodPlan, called: _Calls) -> str | None:
    """Why a method cannot have made these calls; None when it can."""
    steps = plan.chains[0].steps if plan.chains else ()
    for instruction in sorted({*called, *called.kinds}):
        if instruction >= len(steps):
            return f"the trace has instruction {instruction}, but method {plan.name!r} ends before it"
        step = steps[instruction]
        wanted = _CALLS.get(called.kinds.get(instruction, ""))
        if wanted is not None and wanted is not step.kind:
            return f"instruction {instruction} was a {wanted.value} call, in the program it is {step.kind.value}"
        kernels = [name for name in called.get(instruction, {}).values() if name.startswith(_KERNEL)]
        if step.kind is InstructionKind.KERNEL and kernels and _kernel_name(plan, step) not in kernels:
            return f"instruction {instruction} ran {kernels[0]}, in the program it is {plan.called(step)}"
    return None


def _kernel_name(plan: MethodPlan, step: PlannedStep) -> str:
    return _KERNEL + plan.called(step).rpartition("::")[2]


_SHAPES = "the shapes of tensors"


class _MethodWalk:
    """Goes through the calls of one method.

    ``method``: of the model; ``inputs``: what they were, when that is known.
    """

    def __init__(self, method: ModelMethod, inputs: GivenInputs | None) -> None:
        self._method = method
        self._links = Links(method.plan, method.graphs)
        unknown_parts: dict[int, AttentionPart] = {}
        parts = partial(attention_parts, method.plan, method.graphs)
        self._attention = part("operators of attention", parts, unknown_parts)
        static = static_inputs(method.plan)
        given = inputs or (None if static is None else GivenInputs(static))
        self.guessing = is_dynamic(method.plan) and given is None
        self._known: Shapes | None = None
        if is_dynamic(method.plan):
            unknown = Shapes({}, {})
            self._known = unknown if given is None else part(_SHAPES, lambda: self._propagated(given), unknown)

    def _propagated(self, inputs: GivenInputs) -> Shapes:
        return propagate(self._method.plan, self._method.graphs, *inputs)

    def run(self, called: _Calls, operators: dict[OperatorKey, OperatorFacts], calls: list[DelegateCall]) -> str | None:
        """Attribute every call; why the program cannot be the one that was run, None when it can."""
        plan, conflict = self._method.plan, None
        for instruction, names in sorted(called.items()):
            step = plan.chains[0].steps[instruction]
            if step.kind is InstructionKind.KERNEL:
                facts: Iterable[OperatorFacts] = self._kernel(instruction, step, names)
            elif step.kind is InstructionKind.DELEGATE:
                call, facts, foreign = self._delegate(instruction, step, names)
                calls.append(call)
                conflict = conflict or (f"instruction {instruction}: {call.problem}" if foreign else None)
            else:
                continue
            for position, fact in zip(sorted(names), facts, strict=True):
                operators[OperatorKey(plan.name, instruction, position)] = fact
        return conflict

    def _kernel(self, instruction: int, step: PlannedStep, names: Mapping[int, str]) -> list[OperatorFacts]:
        """Facts of a portable operator; of several kernels within one call only the named one costs."""
        plan = self._method.plan
        handles = self._method.handles.get(instruction, ())
        origins = self._method.origins
        origin = origins.of_handles(handles, plan.called(step)) if origins else None
        cost = part(COSTS, lambda: self._cost(instruction, step), None)
        operator_class = classify(plan.called(step))
        change = None
        if operator_class.kind == "layout" and "to_dim_order" in plan.called(step):
            read, made = plan.tensors(step)[:-1], plan.tensors(step)[-1:]
            outside = Outside(self._method, self._links, step)
            change = LayoutChange("exporter", outside.makers(read), outside.readers(made))
        shape = self._shape(step)
        known = OperatorFacts(
            operator_class=operator_class,
            attribution=Attribution.EXACT,
            handles=tuple(handles),
            cost=cost,
            change=change,
            dtype=self._dtype(step),
            shape=shape,
            elements=None if shape is None else math.prod(shape),
            attention=self._attention.get(instruction),
            cache=part(COSTS, lambda: cache_use(OperatorCall(plan, step, self._sizes)), None),
        )
        if origin:
            known = with_origin(known, origin)
        elif instruction in self._method.layers:
            known = _in_layer(known, self._method.layers[instruction])
        wanted = _kernel_name(plan, step)
        return [known if name == wanted or len(names) == 1 else OperatorFacts() for _, name in sorted(names.items())]

    @property
    def _sizes(self) -> Mapping[int, Shape] | None:
        """Shapes of values where those of the file do not hold."""
        return None if self._known is None else self._known.sizes

    def _cost(self, instruction: int, step: PlannedStep) -> Cost | None:
        """Of a portable operator; those of the file do not hold where shapes differ between calls."""
        if self._method.costs is None:
            return step_cost(self._method.plan, step, self._sizes)
        own = self._method.costs.get(instruction)
        return own() if own is not None and self._known is None else None

    def _dtype(self, step: PlannedStep) -> str | None:
        first = [self._method.plan.values[number] for number in self._method.plan.tensors(step)[:1]]
        return first[0].dtype.name if first and isinstance(first[0], PlannedTensor) else None

    def _shape(self, step: PlannedStep) -> Shape | None:
        """Of the output, which is the last argument."""
        last = self._method.plan.tensors(step)[-1:]
        value = self._method.plan.values[last[0]] if last else None
        if self._known is not None:
            return self._known.sizes.get(last[0]) if last else None
        return value.sizes if isinstance(value, PlannedTensor) else None

    def _delegate(
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
        view = GraphView(graph, self._method, listed, dims, Outside(self._method, self._links, step))
        call = DelegateCall(
            plan.name, instruction, number, backend, len(names), len(graph.nodes), match.profile, match.problem
        )
        return call, [view.facts(event) for event in match.events], match.foreign
