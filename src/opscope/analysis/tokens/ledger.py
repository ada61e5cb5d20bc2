"""Ledger of a token: what a call of a language model spends, by layer and part, and what bounds it.

Rows add up to the latency of the call. What an operator must take at least is the longer of its arithmetic at the best
rate of its kernels and of moving each of its bytes once at the bandwidth of its working set, both measured on this
machine: docs/concepts/roofline.md. Weights and the cache are read once for each call, so between two reads the whole
footprint of the call passes through the processor's caches.
"""

from __future__ import annotations

import enum
import math
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.operators.headline import MOST_TRACED
from opscope.analysis.operators.operators import FRAMEWORK_BACKEND
from opscope.analysis.roofline import Bound, Interval, OperatorWork, place_operator
from opscope.analysis.tokens.parts import Place, TokenPart, place_of
from opscope.core.grouping import grouped
from opscope.core.stats.hierarchy import typical
from opscope.core.table.places import operator_key
from opscope.program.ceilings import KernelClass
from opscope.program.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.latency.methods import MethodTime
    from opscope.analysis.operators.operators import Operator, OperatorFacts
    from opscope.core.table.places import OperatorKey
    from opscope.program.ceilings import Ceilings
    from opscope.program.cost.cache import CacheUse

_PLAIN = {"fp32": "float32", "float": "float32", "fp16": "float16", "bf16": "bfloat16"}
_QUANTISED = re.compile(r"q[bc]*u?int(\d)\Z")
_WIDTH = re.compile(r"(?:float|bfloat|u?int)(\d{1,2})\Z")
MOST = 1.05
"""Largest possible share of a measured bandwidth: beyond it the bytes or the ceilings are wrong."""
HALF = 0.5
"""Share of a call from which its largest limit bounds it."""


class ByteUse(str, enum.Enum):
    """Purpose of bytes."""

    WEIGHTS = "weights"
    SCALES = "scales"
    """Scales and zero points of quantised weights, and biases."""
    CACHE = "cache"
    ACTIVATIONS = "activations"


class ByteCount(msgspec.Struct, frozen=True):
    """Bytes that a call moves at least, each once.

    Attributes:
        use: what they are for.
        dtype: number type; null if unknown.
        bytes: how many.
    """

    use: ByteUse
    dtype: str | None
    bytes: int


class TokenLimit(str, enum.Enum):
    """Resource that a call waits for."""

    WEIGHTS = "weights"
    """Reads of weights and their scales from memory."""
    CACHE = "cache"
    """Reads and writes of keys and values."""
    ACTIVATIONS = "activations"
    """Moves of activations between operators."""
    ARITHMETIC = "arithmetic"
    """Multiplications and additions at the best rate of the kernels."""
    FRAMEWORK = "framework"
    """Time of the runtime itself, and the fixed cost of starting operators."""
    REST = "rest"
    """Time that no measured ceiling explains, and operators of unknown work."""


class LimitTime(msgspec.Struct, frozen=True):
    """Time of a call that one limit explains, at most the time that it took."""

    limit: TokenLimit
    time_ns: float
    share: float


class PartCost(msgspec.Struct, frozen=True):
    """Cost of a part of a model in a call.

    Attributes:
        part: part of the model.
        operators: how many.
        time_ns: time of the call; rows add up to it. Null where only shares are known.
        share: share of the call.
        bytes: bytes that are moved at least; null if unknown for one of them.
        macs: multiply-accumulates; null if unknown for one of them.
    """

    part: TokenPart
    operators: int
    time_ns: float | None
    share: float
    bytes: int | None
    macs: int | None


class LedgerRow(PartCost, frozen=True):
    """Cost of one part of one layer in a call.

    Attributes:
        layer: its number; null outside of all layers.
        bandwidth: share of the measured bandwidth of its working set that is reached; null without one, and where the
            bytes are not known.
    """

    layer: int | None
    bandwidth: Interval | None

    @property
    def impossible(self) -> bool:
        """Return whether the operators seem to move more bytes per second than the machine can."""
        return self.bandwidth is not None and self.bandwidth.low > MOST


class TokenLedger(msgspec.Struct, frozen=True):
    """Cost of a call of a phase.

    Attributes:
        method: method that is called.
        phase: what it does.
        time_ns: what is typical of the medians of processes, as in a headline; of untraced calls where there are any.
        factor: how many of these a traced call takes, of which the split is.
        timed: whether rows have times, or only shares of the traced call.
        rows: rows by layer and part, in the order of the layers; the runtime's own time last.
        bytes: bytes that a call moves at least, by use and number type, most first.
        macs: multiply-accumulates of the operators of which they are known.
        limits: what explains the time, longest first; empty where no ceilings were measured, or no times are known.
        bound: limit that explains most of the time; null if ``limits`` is empty, or the limit explains less than half.
        weights_per_s: bandwidth that was measured for a working set of this size, in bytes; null without ceilings.
        unknown: operators whose work is not known.
    """

    method: str
    phase: Phase
    time_ns: float
    factor: float
    timed: bool
    rows: list[LedgerRow]
    bytes: list[ByteCount]
    macs: int
    limits: list[LimitTime]
    bound: TokenLimit | None
    weights_per_s: float | None
    unknown: int


class _CallEntry(NamedTuple):
    """Operator of the call, or framework time; all counts and times are of one call."""

    place: Place
    spent_ns: float  # time on the scale of the call; of the traced call where times are not known
    work: OperatorWork | None  # work with its time; None if unknown
    bytes: tuple[ByteCount, ...] = ()


def token_ledgers(
    rows: Sequence[Operator],
    methods: Sequence[MethodTime],
    works: Mapping[OperatorKey, OperatorWork],
    facts: Mapping[OperatorKey, OperatorFacts],
    ceilings: Ceilings | None,
) -> list[TokenLedger]:
    """Return the ledger of every phase that reads or makes tokens, in call order; empty if there is none.

    ``rows`` and ``works`` are per call of any method, as an analysis has them; ``facts`` are of one call of each.
    """
    count = sum(method.calls for method in methods)
    ledgers = []
    for method in methods:
        operators = [row for row in rows if row.method == method.method]
        if method.phase is not None and operators:
            call = _PhaseCall(method, method.phase, count / method.calls, works, facts)
            ledgers.append(call.ledger(operators, ceilings))
    return ledgers


class _PhaseCall:
    """Call of a phase; ``times`` is how many calls of any method there are for each of it."""

    def __init__(
        self,
        method: MethodTime,
        phase: Phase,
        times: float,
        works: Mapping[OperatorKey, OperatorWork],
        facts: Mapping[OperatorKey, OperatorFacts],
    ) -> None:
        self._method, self._phase, self._times = method, phase, times
        self._works, self._facts = works, facts
        self._time_ns = typical(method.latency.by_process())

    def ledger(self, rows: Sequence[Operator], ceilings: Ceilings | None) -> TokenLedger:
        """Return the ledger of these operators and framework times."""
        traced = typical((self._method.traced or self._method.latency).by_process())
        total_share = sum(row.share for row in rows) or 1.0
        times = [row.share / total_share * traced for row in rows]
        factor = traced / self._time_ns if self._time_ns else 1.0
        timed = 0 < factor <= MOST_TRACED
        spent = _scale_to_latency(rows, times, self._time_ns) if timed else times
        entries = _assign_layers([self._build_entry(row, time) for row, time in zip(rows, spent, strict=True)])
        if timed and sum(spent) < self._time_ns:
            entries.append(_CallEntry(Place(None, TokenPart.FRAMEWORK), self._time_ns - sum(spent), None))
        moved = _sum_traffic(traffic for entry in entries for traffic in entry.bytes)
        footprint = sum(traffic.bytes for traffic in moved if traffic.use is not ByteUse.ACTIVATIONS)
        limits = _explain_time(entries, ceilings, footprint) if ceilings and timed else []
        bound = next(
            (limit.limit for limit in limits[:1] if limit.share >= HALF and limit.limit is not TokenLimit.REST), None
        )
        return TokenLedger(
            method=self._method.method,
            phase=self._phase,
            time_ns=self._time_ns,
            factor=factor,
            timed=timed,
            rows=_ledger_rows(entries, ceilings if timed else None, footprint, timed=timed),
            bytes=moved,
            macs=sum(entry.work.macs or 0 for entry in entries if entry.work),
            limits=limits,
            bound=bound,
            weights_per_s=ceilings.bandwidth(footprint) if ceilings and footprint else None,
            unknown=sum(entry.work is None and entry.place.part is not TokenPart.FRAMEWORK for entry in entries),
        )

    def _build_entry(self, row: Operator, time: float) -> _CallEntry:
        key = operator_key(row)
        facts = self._facts.get(key) if key else None
        work, moved = self._work_and_traffic(row, self._works.get(key) if key else None, facts, time)
        return _CallEntry(place_of(row, facts.cache if facts else None), time, work, moved)

    def _work_and_traffic(
        self, row: Operator, work: OperatorWork | None, facts: OperatorFacts | None, time: float
    ) -> tuple[OperatorWork | None, tuple[ByteCount, ...]]:
        """Return what an operator does in one call, and the bytes that it moves."""
        if facts is not None and facts.cache is not None and self._phase.position is not None:
            return self._cache_work_and_traffic(row, facts.cache, self._phase.position, time)
        if work is None or facts is None or facts.cost is None:
            return None, ()
        calls, cost = row.calls * self._times, facts.cost
        work_of_call = msgspec.structs.replace(
            work,
            macs=round(cost.macs * calls),
            flops=round(cost.flops * calls),
            elements=None if facts.elements is None else round(facts.elements * calls),
            activation_bytes=round((cost.read_bytes + cost.written_bytes) * calls),
            weight_bytes=round(cost.weight_bytes * calls),
            calls=calls,
            time_ns=time,
            uncertainty_ns=work.uncertainty_ns * self._times,
        )
        weights = _weight_traffic(row, work_of_call)
        return work_of_call, (
            *weights,
            ByteCount(ByteUse.ACTIVATIONS, _plain_type(row.dtype), work_of_call.activation_bytes or 0),
        )

    def _cache_work_and_traffic(
        self, row: Operator, cache: CacheUse, position: int, time: float
    ) -> tuple[OperatorWork, tuple[ByteCount, ...]]:
        """Return what an operator does with the cache places that a call at this position touches."""
        cache_bytes = cache.bytes(position)
        width = (number_bits(row.dtype) or 32) // 8
        output_bytes = 2 * width * math.prod(row.shape or ()) if cache.reads else 0
        macs = cache.macs(position) if cache.reads else 0
        work = OperatorWork(
            method=row.method,
            instruction=row.instruction,
            position=row.position,
            name=row.name,
            dtype="f32" if width == 4 else None,  # noqa: PLR2004 - bytes of a float
            kernel=KernelClass.BMM if macs else None,
            macs=macs,
            flops=2 * macs,
            activation_bytes=output_bytes or cache_bytes,
            weight_bytes=cache_bytes,
            calls=row.calls * self._times,
            time_ns=time,
            uncertainty_ns=row.uncertainty_ns * self._times,
        )
        counts = (
            ByteCount(ByteUse.CACHE, _plain_type(row.dtype), cache_bytes),
            ByteCount(ByteUse.ACTIVATIONS, _plain_type(row.dtype), output_bytes or cache_bytes),
        )
        return work, counts


def _assign_layers(entries: Sequence[_CallEntry]) -> list[_CallEntry]:
    """Assign cache entries without a path to the layer whose operators surround them."""
    before: int | None = None
    assigned = list(entries)
    open_places: list[int] = []
    for number, entry in enumerate(entries):
        if entry.place.part is TokenPart.CACHE and entry.place.layer is None:
            open_places.append(number)
        elif entry.place.layer is not None:
            if entry.place.layer == before:
                for place_number in open_places:
                    assigned[place_number] = assigned[place_number]._replace(place=Place(before, TokenPart.CACHE))
            before, open_places = entry.place.layer, []
    return assigned


def _scale_to_latency(rows: Sequence[Operator], times: Sequence[float], latency: float) -> list[float]:
    """Scale times of a traced call to the untraced latency; tracing's cost is first taken from the framework."""
    is_operator = [row.backend != FRAMEWORK_BACKEND for row in rows]
    operators = sum(time for time, counts in zip(times, is_operator, strict=True) if counts)
    framework = sum(times) - operators
    more = sum(times) - latency
    if more <= 0:
        return list(times)
    framework_left = max(0.0, framework - more)
    scales = (
        framework_left / framework if framework else 0.0,
        (latency - framework_left) / operators if operators else 0.0,
    )
    return [time * scales[counts] for time, counts in zip(times, is_operator, strict=True)]


def _plain_type(dtype: str | None) -> str | None:
    """Return one name for a number type, whichever runtime wrote it."""
    quantised = _QUANTISED.match(dtype or "")
    return f"int{quantised.group(1)}" if quantised else _PLAIN.get(dtype or "", dtype)


def number_bits(dtype: str | None) -> int | None:
    """Return the width of a number type in bits; None if unknown."""
    form = _WIDTH.match(_plain_type(dtype) or "")
    return int(form.group(1)) if form else None


def _weight_traffic(row: Operator, work: OperatorWork) -> tuple[ByteCount, ...]:
    """Return weights and their scales; a product has as many weights as it multiplies per row of its output."""
    stored, bits = work.weight_bytes or 0, number_bits(row.weights)
    if not stored:
        return ()
    lines = math.prod(row.shape[:-1]) if row.shape else 0
    if not (bits and work.macs and lines and work.macs % lines == 0):
        return (ByteCount(ByteUse.WEIGHTS, _plain_type(row.weights or row.dtype), stored),)
    weight_bytes = min(stored, work.macs // lines * bits // 8)
    scales = ByteCount(ByteUse.SCALES, None, stored - weight_bytes)
    return (
        ByteCount(ByteUse.WEIGHTS, _plain_type(row.weights), weight_bytes),
        *((scales,) if stored > weight_bytes else ()),
    )


def _sum_traffic(counts: Iterable[ByteCount]) -> list[ByteCount]:
    totals: dict[tuple[ByteUse, str | None], int] = {}
    for traffic in counts:
        totals[traffic.use, traffic.dtype] = totals.get((traffic.use, traffic.dtype), 0) + traffic.bytes
    listed = [ByteCount(use, dtype, count) for (use, dtype), count in totals.items() if count]
    return sorted(listed, key=lambda traffic: -traffic.bytes)


def _ledger_rows(
    entries: Sequence[_CallEntry], ceilings: Ceilings | None, footprint: int, *, timed: bool
) -> list[LedgerRow]:
    """Return a row for the entries of each layer and part."""
    total_ns = sum(entry.spent_ns for entry in entries) or 1.0
    order = list(TokenPart)
    rows = []
    for place, entries_of_place in sorted(
        grouped(entries, lambda entry: entry.place).items(), key=lambda item: _row_order(item[0], order)
    ):
        spent = sum(entry.spent_ns for entry in entries_of_place)
        known = [entry.work for entry in entries_of_place if entry.work is not None]
        is_known = len(known) == len(entries_of_place)
        rows.append(
            LedgerRow(
                layer=place.layer,
                part=place.part,
                operators=len(entries_of_place) if place.part is not TokenPart.FRAMEWORK else 0,
                time_ns=spent if timed else None,
                share=spent / total_ns,
                bytes=sum(traffic.bytes for entry in entries_of_place for traffic in entry.bytes) if is_known else None,
                macs=sum(work.macs or 0 for work in known) if is_known else None,
                bandwidth=_reached_bandwidth(known, ceilings, footprint) if ceilings and is_known else None,
            )
        )
    return rows


def _row_order(place: Place, parts: Sequence[TokenPart]) -> tuple[int, int, int]:
    """Return a sort key: the embedding, the layers in turn, operators outside of layers, the framework."""
    group = 0 if place.part is TokenPart.EMBEDDING else 1 if place.layer is not None else 2
    return group, place.layer or 0, parts.index(place.part)


def _reached_bandwidth(works: Sequence[OperatorWork], ceilings: Ceilings, footprint: int) -> Interval | None:
    """Return the share of the measured bandwidth that these operators reach together; None if unknown."""
    needed = [place_operator(work, ceilings, footprint).memory_ns for work in works]
    least = sum(work.time_ns for work in works)
    most = least + sum(work.uncertainty_ns for work in works)
    if None in needed or not most:
        return None
    total = sum(needed_ns or 0.0 for needed_ns in needed)
    return Interval(total / most, total / least if least else None)


def _explain_time(entries: Sequence[_CallEntry], ceilings: Ceilings, footprint: int) -> list[LimitTime]:
    """Return the limits that explain the time of each operator; what is left is explained by nothing measured."""
    times = dict.fromkeys(TokenLimit, 0.0)
    dispatch = ceilings.dispatch_ns() or 0.0
    for entry in entries:
        if entry.place.part is TokenPart.FRAMEWORK:
            times[TokenLimit.FRAMEWORK] += entry.spent_ns
            continue
        remaining = entry.spent_ns
        for limit, time in _minimum_times(entry, ceilings, footprint):
            times[limit] += min(time, remaining)
            remaining -= min(time, remaining)
        started = min(remaining, dispatch * entry.work.calls) if entry.work else 0.0
        times[TokenLimit.FRAMEWORK] += started
        times[TokenLimit.REST] += remaining - started
    total_ns = sum(entry.spent_ns for entry in entries) or 1.0
    listed = [LimitTime(limit, time, time / total_ns) for limit, time in times.items() if time]
    return sorted(listed, key=lambda row: -row.time_ns)


def _minimum_times(entry: _CallEntry, ceilings: Ceilings, footprint: int) -> list[tuple[TokenLimit, float]]:
    """Return the least time of an operator by its limit: its arithmetic, or moving its bytes."""
    if entry.work is None:
        return []
    placement = place_operator(entry.work, ceilings, footprint)
    compute, memory = placement.compute_ns or 0.0, placement.memory_ns or 0.0
    if compute > memory and placement.bound is not Bound.MEMORY:
        return [(TokenLimit.ARITHMETIC, compute)]
    moved = sum(traffic.bytes for traffic in entry.bytes)
    uses = {ByteUse.CACHE: TokenLimit.CACHE, ByteUse.ACTIVATIONS: TokenLimit.ACTIVATIONS}
    needed = max(compute, memory)
    return [
        (uses.get(traffic.use, TokenLimit.WEIGHTS), needed * traffic.bytes / moved) for traffic in entry.bytes if moved
    ]
