"""One typed model of a program: the program itself, the graphs of its delegates, and the exporter's record."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from opscope.program.origin import Origins
from opscope.program.phases import phase_of, without_population
from opscope.program.structure.plan import InstructionKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.program.cost.operator_cost import Cost
    from opscope.program.partition.verdicts import PortableReason
    from opscope.program.structure.etrecord import EtRecord
    from opscope.program.structure.plan import Executable, MethodPlan
    from opscope.program.xnnpack.graph import DelegateGraph, XnnGraph


class StayedOutside(NamedTuple):
    """Reasons why operators were not delegated, for runtimes that decide that when they load a model."""

    rules: str  # the release that the rules are of
    reasons: Mapping[tuple[str, int], PortableReason]  # by method and instruction


class NamedLayer(NamedTuple):
    """A layer that the name of a tensor states."""

    path: str  # empty for the model itself
    types: tuple[str, ...] = ()  # class of each module on the path; empty where none is told

    def modules(self) -> dict[str, str]:
        """Return class names by path, including those of the modules around it."""
        steps = self.path.split(".")
        return {".".join(steps[: count + 1]): class_name for count, class_name in enumerate(self.types)}


class ProgramModel:
    """A model as its files describe it.

    Args:
        executable: the .pte.
        graphs: of its XNNPACK delegates.
        record: the ETRecord; None without one. A record of another model is not used, see ``conflict``.
        outside: why operators were not delegated; None if the exporter decided that.
        own_costs: functions that return the cost of an operator of the runtime's own kernels, or None if it is
            unknown, by method and instruction; None if all operators are ATen's, whose costs are known.
        layers: by method and operator, if the file itself states them.
    """

    def __init__(
        self,
        executable: Executable,
        graphs: Sequence[DelegateGraph],
        record: EtRecord | None,
        outside: StayedOutside | None = None,
        own_costs: Mapping[tuple[str, int], Callable[[], Cost | None]] | None = None,
        layers: Mapping[tuple[str, int], NamedLayer] | None = None,
    ) -> None:
        self.executable = executable
        self.outside = outside
        self.own_costs = own_costs
        self.layers = layers or {}
        self.graphs = tuple(graphs)
        self.conflict = None if record is None else _find_conflict(executable, self.graphs, record)
        self.record = record if self.conflict is None else None

    @cached_property
    def methods(self) -> Mapping[str, ModelMethod]:
        """The methods by name, in the order of the file."""
        return {plan.name: ModelMethod(self, plan) for plan in self.executable.plans}

    def called(self, name: str) -> ModelMethod | None:
        """Return the method of a call: that of its name, or the only one that runs anything.

        None if there is no such method.
        """
        if name in self.methods:
            return self.methods[name]
        method, label = without_population(name)
        if label and method in self.methods:
            return ModelMethod(self, self.methods[method].plan, name)
        running = self.executable.running
        return ModelMethod(self, running[0], name) if len(running) == 1 and (label or phase_of(name)) else None


class ModelMethod:
    """One method of a model, under the name of a call if several calls of it stand for phases."""

    def __init__(self, model: ProgramModel, plan: MethodPlan, call_name: str | None = None) -> None:
        self.plan = replace(plan, name=call_name) if call_name else plan
        self.graphs: dict[int, XnnGraph] = {g.delegate: g.graph for g in model.graphs if g.method == plan.name}
        record = model.record
        graphs = [graph for graph in record.graphs if graph.method == plan.name] if record else []
        self.origins = Origins(graphs[0]) if graphs else None
        handles = record.instruction_handles if record else {}
        self.handles = {number: value for (name, number), value in handles.items() if name == plan.name}
        model_reasons = None if model.outside is None else model.outside.reasons
        self.reasons = (
            None
            if model_reasons is None
            else {number: reason for (name, number), reason in model_reasons.items() if name == plan.name}
        )
        self.layers = {number: layer for (name, number), layer in model.layers.items() if name == plan.name}
        known = model.own_costs
        self.costs = (
            None if known is None else {number: cost for (name, number), cost in known.items() if name == plan.name}
        )


AFTER_LOWERING = (
    "the record was made after lowering: it has delegate calls but not their operators; give ExecuTorch's "
    "generate_etrecord the edge program from before to_backend"
)
_DELEGATE_CALL = "executorch_call_delegate"


def _find_conflict(executable: Executable, graphs: Sequence[DelegateGraph], record: EtRecord) -> str | None:
    """Return why a record does not apply to this program, as a sentence; None if it does."""
    if any(node.target.endswith(_DELEGATE_CALL) for graph in record.graphs for node in graph.nodes):
        return AFTER_LOWERING
    problem = _find_difference(executable, graphs, record)
    return f"the record belongs to another model: {problem}" if problem else None


def _find_difference(executable: Executable, graphs: Sequence[DelegateGraph], record: EtRecord) -> str | None:
    """Return the first statement of a record that this program contradicts; None if there is none."""
    plans = {plan.name: plan for plan in executable.plans}
    for edge in record.graphs:
        if edge.method not in plans:
            return f"the program has no method {edge.method!r}"
        origins = Origins(edge)
        for graph in graphs:
            problem = origins.conflict(graph.graph) if graph.method == edge.method else None
            if problem:
                return problem
    for method, instruction in record.instruction_handles:
        problem = _handle_conflict(plans.get(method), instruction)
        if problem:
            return problem
    return _call_conflict(plans, record)


def _handle_conflict(plan: MethodPlan | None, instruction: int) -> str | None:
    steps = plan.chains[0].steps if plan and plan.chains else ()
    if plan and instruction >= len(steps):
        return f"it records instruction {instruction} of {plan.name!r}, which has {len(steps)}"
    return None


def _call_conflict(plans: Mapping[str, MethodPlan], record: EtRecord) -> str | None:
    """Return where the calls of delegates differ from the recorded ones; None if they agree."""
    for (method, instruction), backend in record.delegates.items():
        plan = plans.get(method)
        steps = plan.chains[0].steps if plan and plan.chains else ()
        if plan is None or instruction >= len(steps):
            return f"it records a call to {backend} that the program does not have"
        step = steps[instruction]
        if step.kind is not InstructionKind.DELEGATE or plan.called(step) != backend:
            return f"it records a call to {backend} at instruction {instruction}, which has none"
    return None
