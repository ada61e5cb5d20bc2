"""What the program says about each operator of a trace: its nodes, origin, shapes and cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.analyze.graph_view import GraphView
from opscope.analyze.operator_facts import LayoutChange, OperatorFacts, OperatorKey, with_origin
from opscope.analyze.surroundings import Outside
from opscope.program.attribution import Attribution, match_events
from opscope.program.cost import step_cost
from opscope.program.links import Links
from opscope.program.partition_reasons import PortableReason, PortableReasons
from opscope.program.plan import InstructionKind, Tensor
from opscope.program.shapes import Shapes, is_dynamic, propagate, static_inputs
from opscope.program.taxonomy import classify
from opscope.table.places import spent_by_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from opscope.program.model import Model, ModelMethod
    from opscope.program.plan import Plan, Step
    from opscope.table import EventTable
    from opscope.table.places import Place

    Shape: TypeAlias = tuple[int, ...]

_CALLS = {"DELEGATE_CALL": InstructionKind.DELEGATE, "OPERATOR_CALL": InstructionKind.KERNEL}
_KERNEL = "native_call_"


class DelegateCall(NamedTuple):
    """One call of a delegate: which, how many events, and how they were attributed."""

    method: str
    instruction: int
    delegate: int
    backend: str
    nodes: int | None
    events: int
    profile: str | None
    problem: str | None


class Attributions(NamedTuple):
    """What a program says about a trace.

    Attributes:
        operators: facts by operator; operators of unknown methods are absent.
        calls: the delegate calls that ran.
        conflict: why the trace cannot be of this program; None when it can.
        unknown_shapes: methods whose shapes differ between calls, and whose real ones are not known.
        module_types: class of each recorded module, by method and path.
        reasons: why operators were not delegated, by method and instruction.
    """

    operators: dict[OperatorKey, OperatorFacts]
    calls: list[DelegateCall]
    conflict: str | None
    unknown_shapes: list[str]
    module_types: dict[tuple[str, str], str]
    reasons: dict[tuple[str, int], PortableReason]


def method_names(table: EventTable, model: Model) -> dict[str | None, str]:
    """Names for the trace's methods, where exactly one method of the program calls what they call."""
    found = {}
    for method, called in _called(table).items():
        fitting = [name for name, own in model.methods.items() if _misfit(own.plan, called) is None]
        if method not in model.methods and len(fitting) == 1:
            found[method] = fitting[0]
    return found


def attribute(table: EventTable, model: Model, inputs: Mapping[str, Sequence[Shape]] | None = None) -> Attributions:
    """Attribute the measured operators of a table, whose methods have the program's names.

    Args:
        table: one process or more, of one variant.
        model: what was run.
        inputs: real shapes of the input tensors by method; of methods with dynamic shapes that are not in it the
            costs stay unknown.
    """
    operators: dict[OperatorKey, OperatorFacts] = {}
    calls: list[DelegateCall] = []
    reasons: dict[tuple[str, int], PortableReason] = {}
    unknown, conflict = [], None
    for method, called in _called(table).items():
        own = model.methods.get(method or "")
        if own is None:
            conflict = conflict or _stranger(model, called)
            continue
        conflict = conflict or _misfit(own.plan, called)
        if conflict:
            continue
        walk = _MethodWalk(own, (inputs or {}).get(own.plan.name))
        unknown += [own.plan.name] if walk.guessing else []
        conflict = walk.run(called, operators, calls)
        reasons |= _reasons(own.plan, called)
    return Attributions(operators, calls, conflict, unknown, _module_types(model), reasons)


def _reasons(plan: Plan, called: _Calls) -> dict[tuple[str, int], PortableReason]:
    found = PortableReasons(plan)
    known = ((instruction, found.of(instruction)) for instruction in called)
    return {(plan.name, instruction): reason for instruction, reason in known if reason is not None}


def _stranger(model: Model, called: _Calls) -> str:
    """Why the calls are those of no method."""
    problems = {name: _misfit(method.plan, called) for name, method in model.methods.items()}
    if len(problems) == 1 and all(problems.values()):
        return str(next(iter(problems.values())))
    return "its calls fit none, or several, of the program's methods"


def _module_types(model: Model) -> dict[tuple[str, str], str]:
    return {
        (name, path): module_type
        for name, method in model.methods.items()
        if method.origins
        for path, module_type in method.origins.modules.items()
    }


class _Calls(dict[int, dict[int, str]]):
    """Names of events by instruction and position, and the framework's name of the call by instruction."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, str] = {}


def _called(table: EventTable) -> dict[str | None, _Calls]:
    """What each method of a trace calls, from the measured inferences of all processes."""
    found: dict[str | None, _Calls] = {}
    for process in spent_by_place(table):
        for place, spent in process.items():
            if place.instruction is not None:
                _enter(found.setdefault(place.method, _Calls()), place, spent.name)
    return found


def _enter(calls: _Calls, place: Place, name: str) -> None:
    assert place.instruction is not None  # noqa: S101 - the caller has looked
    if place.position is None:
        calls.kinds.setdefault(place.instruction, name)
    else:
        calls.setdefault(place.instruction, {}).setdefault(place.position, name)


def _misfit(plan: Plan, called: _Calls) -> str | None:
    """Why a method cannot have made these calls; None when it can."""
    steps = plan.chains[0].steps if plan.chains else ()
    for instruction in sorted({*called, *called.kinds}):
        if instruction >= len(steps):
            return f"the trace has instruction {instruction}, the method {plan.name!r} ends before it"
        step = steps[instruction]
        wanted = _CALLS.get(called.kinds.get(instruction, ""))
        if wanted is not None and wanted is not step.kind:
            return f"instruction {instruction} was a {wanted.value} call, in the program it is {step.kind.value}"
        kernels = [name for name in called.get(instruction, {}).values() if name.startswith(_KERNEL)]
        if step.kind is InstructionKind.KERNEL and kernels and _kernel_name(plan, step) not in kernels:
            return f"instruction {instruction} ran {kernels[0]}, in the program it is {plan.called(step)}"
    return None


def _kernel_name(plan: Plan, step: Step) -> str:
    return _KERNEL + plan.called(step).rpartition("::")[2]


class _MethodWalk:
    """Goes through the calls of one method.

    Args:
        method: of the model.
        inputs: real shapes of its inputs, when they are known.
    """

    def __init__(self, method: ModelMethod, inputs: Sequence[Shape] | None) -> None:
        self._method = method
        self._links = Links(method.plan, method.graphs)
        given = static_inputs(method.plan) if inputs is None else inputs
        self.guessing = is_dynamic(method.plan) and given is None
        self._known: Shapes | None = None
        if is_dynamic(method.plan):
            self._known = Shapes({}, {}) if given is None else propagate(method.plan, method.graphs, given)

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

    def _kernel(self, instruction: int, step: Step, names: Mapping[int, str]) -> list[OperatorFacts]:
        """Facts of a portable operator; of several kernels within one call only the named one costs."""
        plan = self._method.plan
        handles = self._method.handles.get(instruction, ())
        origins = self._method.origins
        origin = origins.of_handles(handles, plan.called(step)) if origins else None
        cost = step_cost(plan, step, None if self._known is None else self._known.sizes)
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
        )
        if origin:
            known = with_origin(known, origin)
        wanted = _kernel_name(plan, step)
        return [known if name == wanted or len(names) == 1 else OperatorFacts() for _, name in sorted(names.items())]

    def _dtype(self, step: Step) -> str | None:
        first = [self._method.plan.values[number] for number in self._method.plan.tensors(step)[:1]]
        return first[0].dtype.name if first and isinstance(first[0], Tensor) else None

    def _shape(self, step: Step) -> Shape | None:
        """Of the output, which is the last argument."""
        last = self._method.plan.tensors(step)[-1:]
        value = self._method.plan.values[last[0]] if last else None
        if self._known is not None:
            return self._known.sizes.get(last[0]) if last else None
        return value.sizes if isinstance(value, Tensor) else None

    def _delegate(
        self, instruction: int, step: Step, names: Mapping[int, str]
    ) -> tuple[DelegateCall, list[OperatorFacts], bool]:
        plan, number = self._method.plan, step.target
        graph = self._method.graphs.get(number)
        backend = plan.delegates[number].id
        ordered = [name for _, name in sorted(names.items())]
        if graph is None:
            problem = f"payloads of {backend} cannot be read"
            call = DelegateCall(plan.name, instruction, number, backend, None, len(names), None, problem)
            return call, [OperatorFacts() for _ in ordered], False
        match = match_events(graph, ordered)
        listed = self._method.handles.get(instruction, ())
        dims = None if self._known is None else self._known.dims.get(number, {})
        view = GraphView(graph, self._method, listed, dims, Outside(self._method, self._links, step))
        call = DelegateCall(
            plan.name, instruction, number, backend, len(graph.nodes), len(names), match.profile, match.problem
        )
        return call, [view.facts(event) for event in match.events], match.foreign
