"""Time by operator, category and backend: a split of end-to-end latency that adds up to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from opscope.analysis.operators.operator_facts import LayoutChange, OperatorFacts
from opscope.core.parts import explained
from opscope.core.table.places import OperatorKey
from opscope.program.operators.attribution import Attribution
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK, classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.core.table import EventTable
    from opscope.core.table.places import SelfTimeKey, SelfTimes

UNKNOWN_METHOD = "unknown"
FRAMEWORK_BACKEND, PORTABLE_BACKEND = "framework", "portable"
"""Names of who computed an operator, where no delegate did."""


class _Timed(Protocol):
    @property
    def time_ns(self) -> float: ...
    @property
    def share(self) -> float: ...
    @property
    def headline_ns(self) -> float | None: ...
    @property
    def share_of_headline(self) -> float | None: ...


class OnHeadline:
    """Of a row of a split: what a person is shown, which is on the scale of the headline wherever that is known."""

    __slots__ = ()

    @property
    def shown_ns(self: _Timed) -> float:
        """Time on the scale of the headline; the mean of traced inferences where that scale is not known."""
        return self.time_ns if self.headline_ns is None else self.headline_ns

    @property
    def shown_share(self: _Timed) -> float:
        """Share of the headline; of the mean of traced inferences where the headline is not known."""
        return self.share if self.share_of_headline is None else self.share_of_headline


class Operator(msgspec.Struct, OnHeadline, frozen=True):
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
        attribution: how it is known what the operator is; category and kind follow it.
        macs: multiply-accumulates per inference, null when not known.
        bytes: least bytes moved per inference, null when not known.
        kernel: the microkernel, null when not known.
        uncertainty_ns: the true time lies in [time_ns, time_ns + uncertainty_ns): durations may be cut off.
        aten: the aten operator that caused it, null when not known.
        module_type: class of the module, likewise.
        code: text of the source line, likewise.
        computes: kinds of the delegate's nodes that it computed, in their order.
        fused: aten operators that the exporter fused into it.
        candidates: layers that it may be, when there are several.
        dtype: number type of its first input.
        weights: number type of its weights.
        shape: of its output.
        flops: operations on single numbers per inference, two for a multiply-accumulate.
        weight_bytes: the part of ``bytes`` that is weights.
        gmacs: multiply-accumulates per ns, as [least, most] of the times that are possible; null without either.
        gbytes: bytes per ns, likewise.
        change: why data are moved or converted, for what the model does not ask for.
        activation: it is only the activation of the operator before it, which runs by itself.
        headline_ns: time on the scale of the headline (see the analysis' ``headline``); null where that is not known.
        share_of_headline: it as a share of the headline; likewise.
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
    aten: str | None = None
    module_type: str | None = None
    code: str | None = None
    computes: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    dtype: str | None = None
    weights: str | None = None
    shape: tuple[int, ...] | None = None
    flops: int | None = None
    weight_bytes: int | None = None
    gmacs: tuple[float, float | None] | None = None
    gbytes: tuple[float, float | None] | None = None
    change: LayoutChange | None = None
    activation: bool = False
    headline_ns: float | None = None
    share_of_headline: float | None = None


class CategoryTime(msgspec.Struct, OnHeadline, frozen=True):
    """Mean self time per measured inference of all operators of a category.

    ``headline_ns`` and ``share_of_headline`` are on the scale of the headline, null where that is not known; those of
    data movement hold the copies of inputs and outputs.
    """

    category: Category
    time_ns: float
    share: float
    headline_ns: float | None = None
    share_of_headline: float | None = None


class BackendTime(msgspec.Struct, OnHeadline, frozen=True):
    """Mean self time per measured inference of all operators of a backend; on the headline's scale where known."""

    backend: str
    time_ns: float
    share: float
    headline_ns: float | None = None
    share_of_headline: float | None = None


class TypicalTimes(NamedTuple):
    """Time at every place on the scale of the headline, and the headline."""

    times: Mapping[SelfTimeKey, float]
    headline_ns: float


def operators(
    table: EventTable,
    facts: Mapping[OperatorKey, OperatorFacts] | None = None,
    typical: TypicalTimes | None = None,
) -> list[Operator]:
    """Every operator of the measured inferences, in program order; the sum of times is the mean latency.

    Empty when nothing was measured.
    """
    count = int((~table.inference_times().warmup).sum())
    spent: dict[SelfTimeKey, SelfTimes] = {}
    for process in table.self_times:
        for place, own in process.items():
            spent[place] = spent[place].plus(own) if place in spent else own
    total = sum(own.self_time for own in spent.values())
    known = facts or {}
    found = [
        _operator(place, own, count, total, _facts(known, place), _on_headline(place, typical))
        for place, own in spent.items()
    ]
    return sorted(found, key=program_order)


def known_operators(
    table: EventTable, facts: Mapping[OperatorKey, OperatorFacts] | None, typical: TypicalTimes | None
) -> list[Operator]:
    """The same; by their names alone where a bug of ours keeps what the program says from being used."""
    if not facts:
        return operators(table, None, typical)
    what = "what the program says of operators"
    return explained(what, lambda: operators(table, facts, typical), lambda _: operators(table, None, typical))


def _on_headline(place: SelfTimeKey, typical: TypicalTimes | None) -> tuple[float | None, float | None]:
    """Time and share of a place on the scale of the headline; 0 where only other inferences than the typical ran it."""
    if typical is None:
        return None, None
    time_ns = typical.times.get(place, 0.0)
    return time_ns, time_ns / typical.headline_ns


def program_order(operator: Operator) -> tuple[str, bool, int, bool, int, str]:
    """Method, instruction and position; framework time behind the operators it belongs to."""
    instruction, position = operator.instruction, operator.position
    place = instruction is None, instruction or 0, position is None, position or 0
    return operator.method, *place, operator.name


def _facts(known: Mapping[OperatorKey, OperatorFacts], place: SelfTimeKey) -> OperatorFacts:
    if place.instruction is None or place.position is None:
        return _NOTHING
    return known.get(OperatorKey(place.method or UNKNOWN_METHOD, place.instruction, place.position), _NOTHING)


_NOTHING = OperatorFacts()


def _operator(
    place: SelfTimeKey,
    spent: SelfTimes,
    count: int,
    total: int,
    facts: OperatorFacts,
    on_headline: tuple[float | None, float | None],
) -> Operator:
    named = FRAMEWORK if place.framework is not None else classify(spent.name)
    operator_class = facts.operator_class or named
    calls, time_ns, uncertainty = spent.events / count, spent.self_time / count, spent.unresolved / count
    macs, flops, moved, weights = _costs(facts, calls)
    return Operator(
        method=place.method or UNKNOWN_METHOD,
        instruction=place.instruction,
        position=place.position,
        name=spent.name,
        category=operator_class.category,
        kind=operator_class.kind,
        backend=spent.backend or FRAMEWORK_BACKEND,
        calls=calls,
        time_ns=time_ns,
        share=spent.self_time / total if total else 0.0,
        handles=list(facts.handles),
        module=facts.module,
        source=facts.source,
        attribution=facts.attribution,
        macs=macs,
        bytes=moved,
        kernel=None,
        uncertainty_ns=uncertainty,
        aten=facts.aten,
        module_type=facts.module_type,
        code=facts.code,
        computes=facts.computes,
        fused=facts.fused,
        candidates=facts.candidates,
        dtype=facts.dtype,
        weights=facts.weights,
        shape=facts.shape,
        flops=flops,
        weight_bytes=weights,
        gmacs=_rate(macs, time_ns, uncertainty),
        gbytes=_rate(moved, time_ns, uncertainty),
        change=facts.change,
        activation=facts.activation,
        headline_ns=on_headline[0],
        share_of_headline=on_headline[1],
    )


def _costs(facts: OperatorFacts, calls: float) -> tuple[int | None, int | None, int | None, int | None]:
    """Multiply-accumulates, operations, bytes and bytes of weights of an inference, None where not known."""
    cost = facts.cost
    if cost is None:
        return None, None, None, None
    each = cost.macs, cost.flops, cost.bytes, cost.weight_bytes
    macs, flops, moved, weights = (round(number * calls) for number in each)
    return macs, flops, moved, weights


def _rate(amount: int | None, time_ns: float, uncertainty_ns: float) -> tuple[float, float | None] | None:
    """Amount per ns, from the longest to the shortest time that is possible; no upper end where that may be zero."""
    longest = time_ns + uncertainty_ns
    if not amount or not longest:
        return None
    return amount / longest, amount / time_ns if time_ns else None


def categories(rows: Iterable[Operator], copies_ns: float = 0.0, headline_ns: float = 0.0) -> list[CategoryTime]:
    """Time by category, all five of them, in the taxonomy's order."""
    listed = list(rows)
    found = [CategoryTime(category, *_sums(o for o in listed if o.category is category)) for category in Category]
    return [_with_copies(row, copies_ns, headline_ns) for row in found] if copies_ns and headline_ns else found


def _with_copies(row: CategoryTime, copies_ns: float, headline_ns: float) -> CategoryTime:
    if row.category is not Category.DATA_MOVEMENT:
        return row
    time_ns = (row.headline_ns or 0.0) + copies_ns
    return msgspec.structs.replace(row, headline_ns=time_ns, share_of_headline=time_ns / headline_ns)


def backends(rows: Iterable[Operator]) -> list[BackendTime]:
    """Time by backend, longest first."""
    listed = list(rows)
    names = dict.fromkeys(operator.backend for operator in listed)
    found = [BackendTime(name, *_sums(o for o in listed if o.backend == name)) for name in names]
    return sorted(found, key=lambda backend: -backend.shown_ns)


def _sums(rows: Iterable[Operator]) -> tuple[float, float, float | None, float | None]:
    listed = list(rows)
    return sum(o.time_ns for o in listed), sum(o.share for o in listed), *headline_sums(listed)


def headline_sums(rows: Sequence[Operator]) -> tuple[float | None, float | None]:
    """Time and share of operators together on the scale of the headline; None where it is not known."""
    if any(row.headline_ns is None for row in rows):
        return None, None
    return sum((o.headline_ns or 0.0 for o in rows), 0.0), sum((o.share_of_headline or 0.0 for o in rows), 0.0)
