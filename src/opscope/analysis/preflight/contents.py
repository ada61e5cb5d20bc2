"""Contents of a file that is no trace: a program, an export record, a log of kernels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import InstructionKind, PlannedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.program.kernels.symbols import KernelLog
    from opscope.program.structure.etrecord import EtRecord
    from opscope.program.structure.plan import Executable, MethodPlan
    from opscope.program.xnnpack.graph import DelegateGraph


class HashedFile(msgspec.Struct, frozen=True):
    """File that was read.

    Attributes:
        path: path of the file; in derived files of a bundle from its directory on.
        sha256: SHA-256 of its content.
    """

    path: str
    sha256: str


class Count(msgspec.Struct, frozen=True):
    """Number of occurrences of a name."""

    name: str
    count: int


class DelegateSummary(msgspec.Struct, frozen=True):
    """Delegate of a method: its backend, the instructions that call it, and its nodes by kind if readable."""

    backend: str
    instructions: list[int]
    nodes: list[Count]


class MethodSummary(msgspec.Struct, frozen=True):
    """Method of a program.

    Attributes:
        name: name of the method.
        inputs: tensors that the caller sets.
        outputs: tensors that the caller gets.
        instructions: number of instructions.
        portable: operators outside of delegates with the number of calls.
        delegates: delegates in the order of the program.
        planned_bytes: bytes of memory planned ahead.
    """

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    instructions: int
    portable: list[Count]
    delegates: list[DelegateSummary]
    planned_bytes: int


class ProgramSummary(HashedFile, frozen=True, tag_field="schema", tag="opscope.program/1"):
    """Content of a .pte, or what LiteRT and its delegate make of a .tflite.

    ``format`` is ``pte`` or ``tflite``; null in summaries of releases that read .pte only.
    """

    methods: list[MethodSummary]
    format: str | None = None


class RecordSummary(HashedFile, frozen=True, tag_field="schema", tag="opscope.etrecord/1"):
    """Content of an .etrecord: nodes by operator, and how many name their source line."""

    methods: list[str]
    nodes: list[Count]
    with_source: int
    handles: int


class KernelSummary(HashedFile, frozen=True, tag_field="schema", tag="opscope.kernels/1"):
    """Kernels that an XNNPACK log names. They were registered; the log does not show which ones ran."""

    evidence: str
    kernels: list[str]
    categories: list[Count]
    unparsed: list[str]


def summarise_program(
    executable: Executable, graphs: Sequence[DelegateGraph], path: str, sha256: str
) -> ProgramSummary:
    """Return the methods, operators and delegates of a program."""
    return ProgramSummary(path, sha256, [_summarise_method(plan, graphs) for plan in executable.plans])


def summarise_record(record: EtRecord, path: str, sha256: str) -> RecordSummary:
    """Return the nodes of an export record."""
    nodes = [node for graph in record.graphs for node in graph.nodes]
    return RecordSummary(
        path=path,
        sha256=sha256,
        methods=[graph.method for graph in record.graphs],
        nodes=count_names(node.target for node in nodes),
        with_source=sum(1 for node in nodes if node.frames),
        handles=len({handle for node in nodes for handle in node.handles}),
    )


def summarise_kernels(log: KernelLog, path: str, sha256: str) -> KernelSummary:
    """Return the kernels of a log, each once, in order of first registration."""
    names = dict.fromkeys(entry.kernel.whole for entry in log.entries)
    return KernelSummary(
        path=path,
        sha256=sha256,
        evidence=log.evidence,
        kernels=list(names),
        categories=count_names(entry.category for entry in log.entries),
        unparsed=list(dict.fromkeys(entry.kernel.whole for entry in log.entries if not entry.kernel.parsed)),
    )


def _summarise_method(plan: MethodPlan, graphs: Sequence[DelegateGraph]) -> MethodSummary:
    steps = plan.chains[0].steps if plan.chains else ()
    portable = [plan.called(step) for step in steps if step.kind is InstructionKind.KERNEL]
    delegate_graphs = {graph.delegate: graph for graph in graphs if graph.method == plan.name}
    callers = plan.callers()
    return MethodSummary(
        name=plan.name,
        inputs=tensors_of(plan, plan.inputs),
        outputs=tensors_of(plan, plan.outputs),
        instructions=len(steps),
        portable=count_names(portable),
        delegates=[
            DelegateSummary(delegate.id, list(callers.get(number, ())), _count_nodes(delegate_graphs.get(number)))
            for number, delegate in enumerate(plan.delegates)
        ],
        planned_bytes=sum(plan.planned_buffers),
    )


def _count_nodes(graph: DelegateGraph | None) -> list[Count]:
    return [] if graph is None else count_names(node.kind for node in graph.graph.nodes)


def tensors_of(plan: MethodPlan, numbers: Iterable[int]) -> list[Tensor]:
    """Return shape and number type of the tensors among these values."""
    values = (plan.values[number] for number in numbers if 0 <= number < len(plan.values))
    return [Tensor(list(value.sizes), value.dtype.name) for value in values if isinstance(value, PlannedTensor)]


def count_names(names: Iterable[str]) -> list[Count]:
    """Return names with their number, most frequent first, ties by name."""
    counts = Counter(names)
    return [Count(name, count) for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
