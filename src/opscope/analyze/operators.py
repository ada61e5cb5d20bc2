"""Time by operator, category and backend: a split of end-to-end latency that adds up to it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from opscope.program.taxonomy import FRAMEWORK, Category, classify
from opscope.table.places import spent_by_place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.table import EventTable
    from opscope.table.places import Place, Spent

UNKNOWN_METHOD = "unknown"
FRAMEWORK_BACKEND = "framework"


class Attribution(str, enum.Enum):
    """How it is known what an operator is."""

    EXACT = "exact"
    ALIGNED = "aligned"
    AMBIGUOUS = "ambiguous"
    NAME = "name"


class Operator(msgspec.Struct, frozen=True):
    """One operator of the program: (method, instruction, position), never its name.

    Attributes:
        method: the program's method.
        instruction: instruction of its chain; null for the framework's own time.
        position: order among the events within the instruction's call; null for framework time.
        name: as recorded.
        category: upper level of the taxonomy.
        kind: lower level.
        backend: the delegate's name, ``portable``, or ``framework``.
        calls: events per inference; more than one in loops.
        time_ns: mean self time per measured inference.
        share: of end-to-end latency.
        handles: debug handles of the nodes it computed; empty when the trace alone was read.
        module: the nn.Module it belongs to, null when not known.
        source: the line of Python that caused it, null when not known.
        attribution: how it is known what the operator is.
        macs: multiply-accumulates per inference, null when not known.
        bytes: least bytes moved per inference, null when not known.
        kernel: the microkernel, null when not known.
        uncertainty_ns: the true time lies in [time_ns, time_ns + uncertainty_ns): durations may be cut off.
    """

    method: str
    instruction: int | None
    position: int | None
    name: str
    category: Category
    kind: str
    backend: str
    calls: float
    time_ns: float
    share: float
    handles: list[int]
    module: str | None
    source: str | None
    attribution: Attribution
    macs: int | None
    bytes: int | None
    kernel: str | None
    uncertainty_ns: float


class CategoryTime(msgspec.Struct, frozen=True):
    """Mean self time per measured inference of all operators of a category."""

    category: Category
    time_ns: float
    share: float


class BackendTime(msgspec.Struct, frozen=True):
    """Mean self time per measured inference of all operators of a backend."""

    backend: str
    time_ns: float
    share: float


def operators(table: EventTable) -> list[Operator]:
    """Every operator of the measured inferences, in program order; the sum of times is the mean latency.

    Empty when nothing was measured.
    """
    count = int((~table.inference_times().warmup).sum())
    spent: dict[Place, Spent] = {}
    for process in spent_by_place(table):
        for place, own in process.items():
            spent[place] = spent[place].plus(own) if place in spent else own
    total = sum(own.self_time for own in spent.values())
    found = [_operator(place, own, count, total) for place, own in spent.items()]
    return sorted(found, key=program_order)


def program_order(operator: Operator) -> tuple[str, bool, int, bool, int, str]:
    """Method, instruction and position; framework time behind the operators it belongs to."""
    instruction, position = operator.instruction, operator.position
    place = instruction is None, instruction or 0, position is None, position or 0
    return operator.method, *place, operator.name


def _operator(place: Place, spent: Spent, count: int, total: int) -> Operator:
    operator_class = FRAMEWORK if place.framework is not None else classify(spent.name)
    return Operator(
        method=place.method or UNKNOWN_METHOD,
        instruction=place.instruction,
        position=place.position,
        name=spent.name,
        category=operator_class.category,
        kind=operator_class.kind,
        backend=spent.backend or FRAMEWORK_BACKEND,
        calls=spent.events / count,
        time_ns=spent.self_time / count,
        share=spent.self_time / total if total else 0.0,
        handles=[],
        module=None,
        source=None,
        attribution=Attribution.NAME,
        macs=None,
        bytes=None,
        kernel=None,
        uncertainty_ns=spent.unresolved / count,
    )


def categories(rows: Iterable[Operator]) -> list[CategoryTime]:
    """Time by category, all five of them, in the taxonomy's order."""
    listed = list(rows)
    return [CategoryTime(category, *_sums(o for o in listed if o.category is category)) for category in Category]


def backends(rows: Iterable[Operator]) -> list[BackendTime]:
    """Time by backend, longest first."""
    listed = list(rows)
    names = dict.fromkeys(operator.backend for operator in listed)
    found = [BackendTime(name, *_sums(o for o in listed if o.backend == name)) for name in names]
    return sorted(found, key=lambda backend: -backend.time_ns)


def _sums(rows: Iterable[Operator]) -> tuple[float, float]:
    listed = list(rows)
    return sum(o.time_ns for o in listed), sum(o.share for o in listed)
