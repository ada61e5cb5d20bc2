"""Operators that a method will run, as its program lists them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.cost import GraphCosts, step_cost
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify, classify_node
from opscope.program.partition.partition_reasons import PortableReasons
from opscope.program.partition.sme_rules import GraphEligibility
from opscope.program.partition.verdicts import Cause
from opscope.program.partition.xnnpack_kernels import xnnpack_kernels
from opscope.program.xnnpack.attribution import predict_events
from opscope.program.xnnpack.boundaries import Neighbours, is_added

if TYPE_CHECKING:
    from opscope.program.cost.operator_cost import Cost
    from opscope.program.kernels.cpu import Cpu, KernelChoice
    from opscope.program.model import ModelMethod
    from opscope.program.origin import OperatorOrigin, Origins
    from opscope.program.partition.verdicts import Eligibility, PortableReason
    from opscope.program.xnnpack.attribution import PredictedEvent
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode

_CONVERT, _LINEAR = "Convert", "FullyConnected"


_LARGEST = 1 << 60  # no operator computes or moves so much; sizes that lead there are damaged


class PlannedOperator(NamedTuple):
    """Operator that will run."""

    name: str  # XNNPACK's name of it, or the portable kernel's
    calls: int  # how often in one inference without loops; a delegate may be called by several instructions
    category: Category  # what it is
    cost: Cost | None  # None when its kind, a number type or a shape is not known
    bits: int | None  # width of its data; None if unknown
    eligibility: Eligibility | None = None  # for delegated operators that multiply and accumulate
    added: bool = False  # a layout change that the partitioner added
    converts: bool = False  # it converts number types
    at_border: bool = False  # it is added, and no layer of the delegate stands before it, or none behind
    reason: PortableReason | None = None  # why it is portable; None when it is delegated
    kernels: KernelChoice | None = None  # that the CPU gets for it; None where no rule tells, and for other operators
    line: str | None = None  # `file:line` of the model's code that caused it; None without an export record
    rows: int | None = None  # rows of a product of a delegate; None for others, and where they are not known

    @property
    def delegated(self) -> bool:
        """Return whether XNNPACK runs the operator."""
        return self.reason is None

    @property
    def only_sizes(self) -> bool:
        """Return whether the operator computes with sizes and touches no tensor's data."""
        return self.reason is not None and self.reason.cause is Cause.SIZES

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of all calls; None if unknown."""
        return None if self.cost is None else self.cost.macs * self.calls

    @property
    def bytes(self) -> int | None:
        """Least bytes that all calls move; None if unknown."""
        return None if self.cost is None else self.cost.bytes * self.calls


def planned_operators(method: ModelMethod, cpu: Cpu | None) -> list[PlannedOperator]:
    """Return the operators of the first chain: portable ones in order, then those of each delegate that can be read.

    Shapes that can differ between calls are taken at their upper bound. Kernels are those that XNNPACK gives the
    processor.
    """
    reason_of = PortableReasons(method.plan).of if method.reasons is None else method.reasons.get
    steps = method.plan.chains[0].steps if method.plan.chains else ()
    operators = [
        _portable_operator(method, number, reason) for number in range(len(steps)) if (reason := reason_of(number))
    ]
    callers = method.plan.callers()
    for number, graph in method.graphs.items():
        operators += _delegated_operators(graph, len(callers.get(number, ())), method.origins, cpu)
    return operators


def _portable_operator(method: ModelMethod, instruction: int, reason: PortableReason) -> PlannedOperator:
    plan, step = method.plan, method.plan.chains[0].steps[instruction]
    name = plan.called(step)
    cost, origin = _plausible_cost(step_cost(plan, step)), None
    if method.origins:
        origin = method.origins.of_handles(method.handles.get(instruction, ()), name)
    return PlannedOperator(name, 1, classify(name).category, cost, None, reason=reason, line=_source_line(origin))


def _source_line(origin: OperatorOrigin | None) -> str | None:
    frame = origin.frame if origin else None
    return f"{frame.file}:{frame.line}" if frame else None


def _delegated_operators(
    graph: XnnGraph, calls: int, origins: Origins | None, cpu: Cpu | None
) -> list[PlannedOperator]:
    """Return what XNNPACK runs natively; the nodes as they stand if its rewrites cannot be followed."""
    view = _DelegateGraph(graph, calls, origins, cpu)
    events = predict_events(graph)
    if not events:
        return [view.operator_of_node(number) for number in range(len(graph.nodes))]
    return [view.operator_of_event(event) for event in events]


class _DelegateGraph:
    """Facts of the nodes of one delegate."""

    def __init__(self, graph: XnnGraph, calls: int, origins: Origins | None, cpu: Cpu | None) -> None:
        self._calls = calls
        self._cpu = cpu
        self._origins = origins
        self._nodes = graph.nodes
        self._values = graph.by_id()
        self._costs = GraphCosts(graph)
        self._eligibility = GraphEligibility(graph)
        self._neighbours = Neighbours(graph)

    def operator_of_event(self, event: PredictedEvent) -> PlannedOperator:
        """Return the operator that XNNPACK runs for one node or several."""
        if event.activation:
            cost = _plausible_cost(self._costs.activation(event.main))
            return PlannedOperator(event.operator, self._calls, Category.ELEMENTWISE, cost, self._data_bits(event.main))
        operator = self.operator_of_node(event.main)
        if event.inserted:
            return operator._replace(name=event.operator, cost=None, eligibility=None, kernels=None, converts=True)
        return operator._replace(name=event.operator, cost=_plausible_cost(self._costs.nodes(event.nodes)))

    def operator_of_node(self, number: int) -> PlannedOperator:
        """Return the operator of a node by itself."""
        node = self._nodes[number]
        added = is_added(node)
        neighbours = self._neighbours.around(number) if added else None
        eligibility = self._eligibility.of(number)
        return PlannedOperator(
            name=node.kind,
            calls=self._calls,
            category=classify_node(node.kind).category,
            cost=_plausible_cost(self._costs.nodes([number])),
            bits=self._data_bits(number),
            eligibility=eligibility,
            kernels=self._choose_kernels(node, eligibility),
            added=added,
            converts=node.kind == _CONVERT,
            at_border=neighbours is not None and not (neighbours.before and neighbours.after),
            line=self._source_line(node),
            rows=self._count_rows(node),
        )

    def _choose_kernels(self, node: XnnNode, eligibility: Eligibility | None) -> KernelChoice | None:
        if eligibility is None or self._cpu is None:
            return None
        types = [self._values[name].dtype.name for name in node.inputs[:2] if name in self._values]
        return xnnpack_kernels(eligibility, types, self._cpu)

    def _count_rows(self, node: XnnNode) -> int | None:
        output = self._values.get(node.outputs[0]) if node.kind == _LINEAR and node.outputs else None
        return math.prod(output.dims[:-1]) if output else None

    def _source_line(self, node: XnnNode) -> str | None:
        if self._origins is None:
            return None
        output = self._values.get(node.outputs[0]) if node.outputs else None
        return _source_line(self._origins.of_node(node, output.dims if output else ()))

    def _data_bits(self, number: int) -> int | None:
        """Return the narrower width of first input and result: integers are multiplied as integers."""
        node = self._nodes[number]
        names = (*node.inputs[:1], *node.outputs[:1])
        widths = [self._values[name].dtype.bits for name in names if name in self._values]
        return min((bits for bits in widths if bits is not None), default=None)


def _plausible_cost(cost: Cost | None) -> Cost | None:
    """Return a cost, or None if no model can have it."""
    return None if cost is None or max(cost.macs, cost.flops, cost.bytes) > _LARGEST else cost
