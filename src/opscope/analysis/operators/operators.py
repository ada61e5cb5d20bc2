"""Operators: their facts besides time, and time by operator, category and backend.

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
"""Name for the caller where a layout change has no operator before it."""


class LayoutChange(msgspec.Struct, frozen=True):
    """Reason why data are moved or converted although the model does not ask for it.

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
    """Facts of an operator besides its place and its time.

    Attributes:
        attribution: how it is known what the operator is; category and kind follow it.
        handles: debug handles of the nodes it computed; empty when the trace alone was read.
        aten: the aten operator that caused it, null if unknown.
        module: path of the nn.Module it belongs to, null if unknown.
        module_type: class of the module, null if unknown.
        source: the line of Python that caused it, as ``file:line``, null if unknown.
        code: text of the source line, null if unknown.
        computes: kinds of the delegate's nodes that it computed, in their order.
        fused: aten operators that no node carries, fused into it by the exporter.
        candidates: layers that it may be, when there are several.
        dtype: number type of its first input.
        weights: number type of its weights.
        shape: shape of its output.
        change: why data are moved or converted, for what the model does not ask for.
        activation: it is only the activation of the operator before it, which runs by itself.
        kernel: the microkernel, null if unknown.
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
    """Facts of one operator by a program or a runtime."""

    operator_class: OperatorClass | None = None  # category and kind by the program; None where only the name tells
    cost: Cost | None = None  # cost of one call; None if unknown
    elements: int | None = None  # elements of its first input, or of its output when that is larger; of one call
    sme: Eligibility | None = None  # whether XNNPACK can run it with SME; None when it is not a product, or not known
    # what it does for an attention as a kernel outside of delegates; None for all others
    attention: AttentionPart | None = None
    cache: CacheUse | None = None  # what it does with keys and values that are kept; None for all others


def with_origin(facts: OperatorFacts, origin: OperatorOrigin, *, aten: bool = True) -> OperatorFacts:
    """Return facts with their origin; an operator that was added belongs to a layer but is not its aten operator."""
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
"""Names of who computed an operator if no delegate did."""


class Operator(KnownOperator, frozen=True):
    """Operator of the program, identified by method, instruction and position, never by its name.

    Attributes:
        method: the program's method.
        instruction: instruction of its chain; null for the framework's own time.
        position: order among the events within the instruction's call; null for framework time.
        name: name as recorded.
        category: upper level of the taxonomy.
        kind: lower level.
        backend: the delegate's name, ``portable``, or ``framework``.
        calls: events per inference; more than one in loops.
        time_ns: self time per inference on the scale of the headline; null where only its share is known.
        share: share of the headline; of the traced call where times are not known.
        traced_ns: mean self time of the traced inferences.
        macs: multiply-accumulates per inference, null if unknown.
        bytes: least bytes moved per inference, null if unknown.
        uncertainty_ns: the true time lies in [traced_ns, traced_ns + uncertainty_ns): durations may be cut off.
        flops: operations on single numbers per inference, two for a multiply-accumulate.
        weight_bytes: the part of ``bytes`` that is weights.
        gmacs: multiply-accumulates per traced ns, as [least, most] of the times that are possible; null without either.
        gbytes: bytes per traced ns, as [least, most] of the times that are possible; null without either.
        p10_ns: a tenth of the inferences that ``time_ns`` is of took less, on its scale; null without times, with fewer
            than ten inferences in which it ran, and where a few inferences dominate the mean of a trace alone.
        p90_ns: a tenth of the inferences took more; null in the cases of ``p10_ns``.
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
        """Range from the 10th to the 90th percentile of its time; None if unknown."""
        return None if self.p10_ns is None or self.p90_ns is None else (self.p10_ns, self.p90_ns)

    @property
    def shown_ns(self) -> float:
        """Time on the scale of the headline; that of the traced runs if only the share is known."""
        return self.traced_ns if self.time_ns is None else self.time_ns


class CategoryTime(TimeShare, frozen=True):
    """Self time of all operators of a category; data movement includes the copies."""

    category: Category


class BackendTime(TimeShare, frozen=True):
    """Self time of all operators of a backend."""

    backend: str


def operators(
    table: EventTable, facts: Mapping[OperatorKey, OperatorFacts] | None = None, scale: HeadlineScale | None = None
) -> list[Operator]:
    """Return every operator of the measured inferences, in program order; times add up as the scale says.

    Without a scale, the scale is that of the trace alone. Empty if nothing was measured.
    """
    count = int((~table.inference_times().warmup).sum())
    if not count:
        return []
    spent: dict[SelfTimeKey, SelfTimes] = {}
    for process in table.self_times:
        for key, self_times in process.items():
            spent[key] = spent[key].plus(self_times) if key in spent else self_times
    known, on_scale = facts or {}, scale or headline_scale(table)
    kernels = {pair.event: pair.kernel for side in table.side for pair in side.kernels}
    rows = [
        _build_operator(
            key, self_times, count, _with_kernel(_facts_of_place(known, key), kernels.get(self_times.name)), on_scale
        )
        for key, self_times in spent.items()
    ]
    return sorted(rows, key=program_order)


def _with_kernel(facts: OperatorFacts, kernel: str | None) -> OperatorFacts:
    """Add the kernel that the trace names, where the program does not tell it."""
    return facts if facts.kernel or not kernel else msgspec.structs.replace(facts, kernel=kernel)


def known_operators(
    table: EventTable, facts: Mapping[OperatorKey, OperatorFacts] | None, scale: HeadlineScale
) -> list[Operator]:
    """Return every operator, known by name only if a bug in opscope keeps the program from being used."""
    if not facts:
        return operators(table, None, scale)
    part = "what the program says of operators"
    return explained(part, lambda: operators(table, facts, scale), lambda _: operators(table, None, scale))


def program_order(operator: Operator) -> tuple[str, bool, int, bool, int, str]:
    """Return a sort key by method, instruction and position; framework time follows its operators."""
    instruction, position = operator.instruction, operator.position
    sort_key = instruction is None, instruction or 0, position is None, position or 0
    return operator.method, *sort_key, operator.name


def _facts_of_place(known: Mapping[OperatorKey, OperatorFacts], key: SelfTimeKey) -> OperatorFacts:
    if key.instruction is None or key.position is None:
        return _NO_FACTS
    return known.get(OperatorKey(key.method or UNKNOWN_METHOD, key.instruction, key.position), _NO_FACTS)


_NO_FACTS = OperatorFacts()


def _build_operator(
    key: SelfTimeKey, spent: SelfTimes, count: int, facts: OperatorFacts, scale: HeadlineScale
) -> Operator:
    class_by_name = FRAMEWORK if key.framework is not None else classify_run(spent.name, spent.backend)
    operator_class = facts.operator_class or class_by_name
    calls, traced_ns, uncertainty = spent.events / count, spent.self_time / count, spent.unresolved / count
    on_scale = scale.times.get(key, 0.0)  # other inferences than the typical ones may be all that ran it
    macs, flops, moved, weights = _costs_per_inference(facts, calls)
    p10_ns, p90_ns = scale.spreads.get(key, (None, None)) if scale.split.timed else (None, None)
    return Operator(
        method=key.method or UNKNOWN_METHOD,
        instruction=key.instruction,
        position=key.position,
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
        gmacs=_rate_range(macs, traced_ns, uncertainty),
        gbytes=_rate_range(moved, traced_ns, uncertainty),
        p10_ns=p10_ns,
        p90_ns=p90_ns,
        **{field: getattr(facts, field) for field in KnownOperator.__struct_fields__},
    )


def _costs_per_inference(facts: OperatorFacts, calls: float) -> tuple[int | None, int | None, int | None, int | None]:
    """Return multiply-accumulates, operations, bytes and weight bytes of an inference; None if unknown."""
    cost = facts.cost
    if cost is None:
        return None, None, None, None
    costs_per_call = cost.macs, cost.flops, cost.bytes, cost.weight_bytes
    macs, flops, moved, weights = (round(number * calls) for number in costs_per_call)
    return macs, flops, moved, weights


def _rate_range(amount: int | None, time_ns: float, uncertainty_ns: float) -> tuple[float, float | None] | None:
    """Return the amount per ns for the longest and the shortest possible time; no upper end if that may be 0."""
    longest = time_ns + uncertainty_ns
    if not amount or not longest:
        return None
    return amount / longest, amount / time_ns if time_ns else None


def categories(rows: Iterable[Operator], copies: OutsideTime | None = None) -> list[CategoryTime]:
    """Return the time by category, all five, in the taxonomy's order; copies of inputs and outputs move data."""
    listed = list(rows)
    category_times = [
        _category_time(category, [row for row in listed if row.category is category]) for category in Category
    ]
    if any(row.time_ns is None for row in listed):
        category_times = [msgspec.structs.replace(row, time_ns=None) for row in category_times]
    return [_with_copies(row, copies) for row in category_times] if copies else category_times


def _category_time(category: Category, rows: Sequence[Operator]) -> CategoryTime:
    return CategoryTime(category, **msgspec.structs.asdict(sums(rows)))


_MOST = 0.9
"""Share of the latency up to which a limit means something: the rest of more is mostly the framework's own."""


def limit_without(share: float, speedup: float = 1.0) -> float | None:
    """Return how many times as fast an inference would be if this share of it took no time (Amdahl's law).

    ``share``: of its latency; ``speedup``: of the inference as it is, over the one that the limit is over.

    Returns the limit; None where less than a tenth of the latency would be left.
    """
    return speedup / (1 - share) if share <= _MOST else None


def longest_first(rows: Iterable[Operator]) -> list[Operator]:
    """Sort operators by their share of the headline, which all have, then by their traced time."""
    return sorted(rows, key=lambda row: (-row.share, -row.traced_ns))


def dominant(rows: Sequence[Operator], copies: OutsideTime | None = None) -> CategoryTime | None:
    """Return the category whose operators take longest, as its row of the split; None without operators."""
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
    """Return the time by backend, longest first."""
    listed = list(rows)
    by_backend = grouped(listed, lambda operator: operator.backend)
    backend_times = [
        BackendTime(name, **msgspec.structs.asdict(sums(rows_of_backend)))
        for name, rows_of_backend in by_backend.items()
    ]
    return sorted(backend_times, key=lambda backend: -backend.share)


class _Timed(Protocol):
    @property
    def time_ns(self) -> float | None: ...
    @property
    def share(self) -> float: ...


def sums(rows: Iterable[_Timed]) -> TimeShare:
    """Return time and share of operators together; no time if only shares are known."""
    listed = list(rows)
    times = [row.time_ns for row in listed if row.time_ns is not None]
    time_ns = sum(times, 0.0) if len(times) == len(listed) else None
    return TimeShare(time_ns=time_ns, share=sum((row.share for row in listed), 0.0))
