"""Operators: what is known of each besides its time, and time by operator, category and backend.

The times are a split of end-to-end latency that adds up to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from opscope.analysis.operators.headline import TimeShare, headline_scale
from opscope.core.grouping import grouped
from opscope.core.parts import explained
from opscope.core.table.places import OperatorKey
from opscope.program.cost.cache import CacheUse
from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import AttentionPart, Attribution, Category
from opscope.program.operators.taxonomy import COMPILED_REGION, FRAMEWORK, OperatorClass, classify_run
from opscope.program.partition.verdicts import Eligibility

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.operators.headline import HeadlineScale, OutsideTime
    from opscope.core.table import EventTable
    from opscope.core.table.places import SelfTimeKey, SelfTimes
    from opscope.program.origin import OperatorOrigin


GIVEN = "input of the model"
"""Before a layout change, in place of an operator: what is changed is given by the caller."""


class LayoutChange(msgspec.Struct, frozen=True):
    """Why data are moved or converted though the model does not ask for it.

    Attributes:
        cause: ``partitioner`` for what it added to the payload, ``runtime`` for what XNNPACK inserted, ``exporter``
            for copies between memory formats outside of delegates.
        before: the layers whose output is changed, or what the delegate is given.
        after: the layers that want it changed, or who gets it from the delegate.
    """

    cause: str
    before: list[str]
    after: list[str]


class KnownOperator(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an operator besides where it stands and what it takes.

    Attributes:
        attribution: how it is known what the operator is; category and kind follow it.
        handles: debug handles of the nodes it computed; empty when the trace alone was read.
        aten: the aten operator that caused it, null when not known.
        module: path of the nn.Module it belongs to, likewise.
        module_type: class of the module, likewise.
        source: the line of Python that caused it, as ``file:line``, likewise.
        code: text of the source line, likewise.
        computes: kinds of the delegate's nodes that it computed, in their order.
        fused: aten operators that no node carries, fused into it by the exporter.
        candidates: layers that it may be, when there are several.
        dtype: number type of its first input.
        weights: number type of its weights.
        shape: of its output.
        change: why data are moved or converted, for what the model does not ask for.
        activation: it is only the activation of the operator before it, which runs by itself.
        kernel: the microkernel, null when not known.
    """

    attribution: Attribution = Attribution.NAME
    handles: tuple[int, ...] = ()
    aten: str | None = None
    module: str | None = None
    module_type: str | None = None
    source: str | None = None
    code: str | None = None
    computes: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    dtype: str | None = None
    weights: str | None = None
    shape: tuple[int, ...] | None = None
    change: LayoutChange | None = None
    activation: bool = False
    kernel: str | None = None


class OperatorFacts(KnownOperator, frozen=True, kw_only=True):
    """What a program, or a runtime, says of one operator."""

    operator_class: OperatorClass | None = None  # category and kind by the program; None where only the name tells
    cost: Cost | None = None  # of one call; None when not known, and likewise below
    elements: int | None = None  # of its first input, or of its output when that is larger; of one call
    sme: Eligibility | None = None  # whether XNNPACK can run it with SME; None when it is not a product, or not known
    # what it does for an attention as a kernel outside of delegates; None for all others
    attention: AttentionPart | None = None
    cache: CacheUse | None = None  # what it does with keys and values that are kept; None for all others


def with_origin(facts: OperatorFacts, origin: OperatorOrigin, *, aten: bool = True) -> OperatorFacts:
    """The same with what caused it; an operator that was added belongs to a layer but is not its aten operator."""
    frame = origin.frame
    return msgspec.structs.replace(
        facts,
        aten=origin.aten if aten else None,
        module=origin.module,
        module_type=origin.module_type,
        source=f"{frame.file}:{frame.line}" if frame else None,
        code=frame.code or None if frame else None,
    )


UNKNOWN_METHOD = "unknown"
FRAMEWORK_BACKEND, PORTABLE_BACKEND = "framework", "portable"
"""Names of who computed an operator, where no delegate did."""


class Operator(KnownOperator, frozen=True):
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
        time_ns: self time per inference on the scale of the headline; null where only its share is known.
        share: of the headline; of the traced call where times are not known.
        traced_ns: mean self time of the traced inferences.
        macs: multiply-accumulates per inference, null when not known.
        bytes: least bytes moved per inference, null when not known.
        uncertainty_ns: the true time lies in [traced_ns, traced_ns + uncertainty_ns): durations may be cut off.
        flops: operations on single numbers per inference, two for a multiply-accumulate.
        weight_bytes: the part of ``bytes`` that is weights.
        gmacs: multiply-accumulates per traced ns, as [least, most] of the times that are possible; null without either.
        gbytes: bytes per traced ns, likewise.
        p10_ns: a tenth of the inferences that ``time_ns`` is of took less, on its scale; null without times, with fewer
            than ten inferences in which it ran, and where a few inferences dominate the mean of a trace alone.
        p90_ns: a tenth took more, likewise.
    """

    method: str
    instruction: int | None
    position: int | None
    name: str
    category: Category
    kind: str
    backend: str
    calls: float
    time_ns: float | None
    share: float
    traced_ns: float
    macs: int | None
    bytes: int | None
    uncertainty_ns: float
    flops: int | None = None
    weight_bytes: int | None = None
    gmacs: tuple[float, float | None] | None = None
    gbytes: tuple[float, float | None] | None = None
    p10_ns: float | None = None
    p90_ns: float | None = None

    @property
    def spread_ns(self) -> tuple[float, float] | None:
        """From the 10th to the 90th percentile of its time; None where that is not known."""
        return None if self.p10_ns is None or self.p90_ns is None else (self.p10_ns, self.p90_ns)

    @property
    def shown_ns(self) -> float:
        """Its time; that of the traced runs where only its share of the headline is known."""
        return self.traced_ns if self.time_ns is None else self.time_ns


class CategoryTime(TimeShare, frozen=True):
    """Self time of all operators of a category; of data movement with the copies."""

    category: Category


class BackendTime(TimeShare, frozen=True):
    """Self time of all operators of a backend."""

    backend: str


def operators(
    table: EventTable, facts: Mapping[OperatorKey, OperatorFacts] | None = None, scale: HeadlineScale | None = None
) -> list[Operator]:
    """Every operator of the measured inferences, in program order; times and shares add up as the scale says.

    Without a scale it is that of the trace alone. Empty when nothing was measured.
    """
    count = int((~table.inference_times().warmup).sum())
    if not count:
        return []
    spent: dict[SelfTimeKey, SelfTimes] = {}
    for process in table.self_times:
        for place, self_times in process.items():
            spent[place] = spent[place].plus(self_times) if place in spent else self_times
    known, on_scale = facts or {}, scale or headline_scale(table)
    kernels = {pair.event: pair.kernel for side in table.side for pair in side.kernels}
    found = [
        _operator(place, self_times, count, _with_kernel(_facts(known, place), kernels.get(self_times.name)), on_scale)
        for place, self_times in spent.items()
    ]
    return sorted(found, key=program_order)


def _with_kernel(facts: OperatorFacts, kernel: str | None) -> OperatorFacts:
    """Add the kernel that the trace names, where the program does not tell it."""
    return facts if facts.kernel or not kernel else msgspec.structs.replace(facts, kernel=kernel)


def known_operators(
    table: EventTable, facts: Mapping[OperatorKey, OperatorFacts] | None, scale: HeadlineScale
) -> list[Operator]:
    """The same; by their names alone where a bug of ours keeps what the program says from being used."""
    if not facts:
        return operators(table, None, scale)
    what = "what the program says of operators"
    return explained(what, lambda: operators(table, facts, scale), lambda _: operators(table, None, scale))


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


def _operator(place: SelfTimeKey, spent: SelfTimes, count: int, facts: OperatorFacts, scale: HeadlineScale) -> Operator:
    named = FRAMEWORK if place.framework is not None else classify_run(spent.name, spent.backend)
    operator_class = facts.operator_class or named
    calls, traced_ns, uncertainty = spent.events / count, spent.self_time / count, spent.unresolved / count
    on_scale = scale.times.get(place, 0.0)  # other inferences than the typical ones may be all that ran it
    macs, flops, moved, weights = _costs(facts, calls)
    p10_ns, p90_ns = scale.spreads.get(place, (None, None)) if scale.split.timed else (None, None)
    return Operator(
        method=place.method or UNKNOWN_METHOD,
        instruction=place.instruction,
        position=place.position,
        name=spent.name,
        category=operator_class.category,
        kind=operator_class.kind,
        backend=spent.backend or FRAMEWORK_BACKEND,
        calls=calls,
        time_ns=on_scale if scale.split.timed else None,
        share=on_scale / scale.split.whole_ns if scale.split.whole_ns else 0.0,
        traced_ns=traced_ns,
        macs=macs,
        bytes=moved,
        uncertainty_ns=uncertainty,
        flops=flops,
        weight_bytes=weights,
        gmacs=_rate(macs, traced_ns, uncertainty),
        gbytes=_rate(moved, traced_ns, uncertainty),
        p10_ns=p10_ns,
        p90_ns=p90_ns,
        **{field: getattr(facts, field) for field in KnownOperator.__struct_fields__},
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


def categories(rows: Iterable[Operator], copies: OutsideTime | None = None) -> list[CategoryTime]:
    """Time by category, all five of them, in the taxonomy's order; copies of inputs and outputs move data."""
    listed = list(rows)
    category_times = [_category(category, [row for row in listed if row.category is category]) for category in Category]
    if any(row.time_ns is None for row in listed):
        category_times = [msgspec.structs.replace(row, time_ns=None) for row in category_times]
    return [_with_copies(row, copies) for row in category_times] if copies else category_times


def _category(category: Category, rows: Sequence[Operator]) -> CategoryTime:
    return CategoryTime(category, **msgspec.structs.asdict(sums(rows)))


_MOST = 0.9
"""Share of the latency up to which a limit says something: what is left of more is mostly the framework's own."""


def limit_without(share: float, speedup: float = 1.0) -> float | None:
    """How many times as fast an inference would be at most if this share of it took no time (Amdahl's law).

    ``share``: of its latency; ``speedup``: of the inference as it is, over the one that the limit is over.

    Returns the limit; None where less than a tenth of the latency would be left.
    """
    return speedup / (1 - share) if share <= _MOST else None


def longest_first(rows: Iterable[Operator]) -> list[Operator]:
    """Operators by their share of the headline, which is known of all; those of one share by their traced time."""
    return sorted(rows, key=lambda row: (-row.share, -row.traced_ns))


def dominant(rows: Sequence[Operator], copies: OutsideTime | None = None) -> CategoryTime | None:
    """The category whose operators take most, as its row of the split has it; None without any operator."""
    work = [row for row in rows if row.kind not in {FRAMEWORK.kind, COMPILED_REGION.kind}]
    if not work:
        return None
    largest = max(categories(work, copies), key=lambda row: row.share).category
    return next(row for row in categories(rows, copies) if row.category is largest)


def _with_copies(row: CategoryTime, copies: OutsideTime) -> CategoryTime:
    if row.category is not copies.category:
        return row
    time_ns = None if row.time_ns is None or copies.time_ns is None else row.time_ns + copies.time_ns
    return CategoryTime(row.category, time_ns=time_ns, share=row.share + copies.share)


def backends(rows: Iterable[Operator]) -> list[BackendTime]:
    """Time by backend, longest first."""
    listed = list(rows)
    by_backend = grouped(listed, lambda operator: operator.backend)
    backend_times = [BackendTime(name, **msgspec.structs.asdict(sums(own))) for name, own in by_backend.items()]
    return sorted(backend_times, key=lambda backend: -backend.share)


class _Timed(Protocol):
    @property
    def time_ns(self) -> float | None: ...
    @property
    def share(self) -> float: ...


def sums(rows: Iterable[_Timed]) -> TimeShare:
    """Time and share of operators together; no time where only shares are known."""
    listed = list(rows)
    times = [row.time_ns for row in listed if row.time_ns is not None]
    time_ns = sum(times, 0.0) if len(times) == len(listed) else None
    return TimeShare(time_ns=time_ns, share=sum((row.share for row in listed), 0.0))
