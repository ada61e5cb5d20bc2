"""Forecast of where the time will go, from a model's work and the peak rates of the processor's kernels.

Each operator takes the longer of its arithmetic and its bytes, as under a roofline. That tells which part of a model
becomes the bottleneck, never how long an inference takes: real kernels stay below these rates, each by its own factor.
Method and sources of the rates: ``docs/how-to/check-a-model-before-running-it.md``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.cost.operator_cost import DELEGATED_OPERATOR_NS
from opscope.program.kernels.cpu import macs_per_cycle, vector_kernel
from opscope.program.operators.kinds import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opscope.analysis.preflight.operators import PlannedOperator
    from opscope.program.cost.operator_cost import Cost
    from opscope.program.kernels.cpu import Cpu


CLOCK_GHZ = 4.0
"""Nominal clock of every processor: shares depend on it only against memory and calls."""
BYTES_PER_NS = 50.0
"""Bytes per ns that memory moves: most of a phone's memory bandwidth."""
PORTABLE_MACS = 0.2
"""Multiply-accumulates per ns of portable kernels: a naive convolution reached 0.15, a matrix product 0.26."""
PORTABLE_OPERATIONS = 2.0
"""Other operations per ns of portable kernels."""
PORTABLE_BYTES = 20.0
"""Bytes per ns that portable kernels move."""
CALL_NS = 3200.0
"""Time of calling a delegate in ns. Portable rates and calls: measured with executorch 1.5.1 on x86-64."""


class Part(str, enum.Enum):
    """Part of a model that takes time in its own way."""

    ACCELERATED = "accelerated matrix work"
    OTHER_MATRIX = "other matrix work"
    MOVEMENT = "data movement"
    REST = "other operators"
    PORTABLE = "portable operators"
    CALLS = "starting operators"


class PartTime(msgspec.Struct, frozen=True):
    """Share of one part of a model.

    Attributes:
        part: which.
        share: share of the nominal time with the ablated features off.
        share_accelerated: share of the nominal time with all features of the processor.
    """

    part: Part
    share: float
    share_accelerated: float


class Forecast(msgspec.Struct, frozen=True):
    """Distribution of the time, by nominal rates.

    Attributes:
        parts: every part that takes time, the longest with all features first.
        bottleneck: the first of them.
        memory_bound: share of the accelerated matrix work's nominal time in operators that wait for memory.
        left_out: operators whose work is not known.
    """

    parts: list[PartTime]
    bottleneck: Part
    memory_bound: float
    left_out: int


def forecast_parts(operators: Iterable[PlannedOperator], calls: int, cpu: Cpu) -> Forecast | None:
    """Return the shares of the parts on a processor; None when no work is known. ``calls`` are those of delegates."""
    listed = list(operators)
    rates = _NominalRates(cpu)
    rows = [row for operator in listed for row in rates.rows(operator)]
    rows.append(_NominalTime(Part.CALLS, CALL_NS * calls, CALL_NS * calls))
    without, fast = _shares_by_part(rows, lambda row: row.without), _shares_by_part(rows, lambda row: row.accelerated)
    if not fast:
        return None
    parts = [PartTime(part, without[part], fast[part]) for part in Part if without.get(part)]
    parts.sort(key=lambda row: -row.share_accelerated)
    accelerated = [row for row in rows if row.part is Part.ACCELERATED]
    accelerated_ns = sum(row.accelerated for row in accelerated)
    waiting = sum(row.accelerated for row in accelerated if row.waits)
    left_out = sum(operator.cost is None for operator in listed)
    return Forecast(parts, parts[0].part, waiting / accelerated_ns if accelerated_ns else 0.0, left_out)


def part_of(operator: PlannedOperator) -> Part:
    """Return the part that an operator belongs to."""
    if not operator.delegated:
        return Part.PORTABLE
    kernels = operator.kernels
    if operator.eligibility is not None or kernels is not None:
        is_accelerated = kernels is not None and kernels.kernel != kernels.without
        return Part.ACCELERATED if is_accelerated else Part.OTHER_MATRIX
    return Part.MOVEMENT if operator.category is Category.DATA_MOVEMENT else Part.REST


class _NominalTime(NamedTuple):
    """Nominal time of all calls of an operator in ns, without and with the ablated features."""

    part: Part
    without: float
    accelerated: float
    waits: bool = False  # memory sets the time with them


class _NominalRates:
    """Nominal times of operators on a processor, with its ablated features off and on."""

    def __init__(self, cpu: Cpu) -> None:
        self._vectors = [vector_kernel(cpu.arch, fields) for fields in (cpu.fields - cpu.ablated_fields, cpu.fields)]

    def rows(self, operator: PlannedOperator) -> Iterator[_NominalTime]:
        """Yield an operator and, in a delegate, the start of it; nothing when its work is not known."""
        if operator.cost is None:
            return
        memory = operator.cost.bytes / (BYTES_PER_NS if operator.delegated else PORTABLE_BYTES)
        without, accelerated = self._arithmetic_times(operator, operator.cost)
        times = max(without, memory) * operator.calls, max(accelerated, memory) * operator.calls
        yield _NominalTime(part_of(operator), *times, waits=memory > accelerated)
        if operator.delegated:
            start = DELEGATED_OPERATOR_NS * operator.calls
            yield _NominalTime(Part.CALLS, start, start)

    def _arithmetic_times(self, operator: PlannedOperator, cost: Cost) -> list[float]:
        """Return the nominal time of one call's arithmetic in ns, without and with the ablated features."""
        other_operations = max(0, cost.flops - 2 * cost.macs)
        if not operator.delegated:
            return [cost.macs / PORTABLE_MACS + other_operations / PORTABLE_OPERATIONS] * 2
        chosen = operator.kernels
        kernels = [chosen.without, chosen.kernel] if chosen else self._vectors
        times = []
        for kernel, vector in zip(kernels, self._vectors, strict=True):
            macs = cost.macs / (macs_per_cycle(kernel, operator.bits, vector) * CLOCK_GHZ)
            times.append(macs + other_operations / (macs_per_cycle(vector, operator.bits, vector) * CLOCK_GHZ))
        return times


def _shares_by_part(rows: Iterable[_NominalTime], time: Callable[[_NominalTime], float]) -> dict[Part, float]:
    """Return the share of each part that takes time; empty when none does."""
    times: dict[Part, float] = {}
    for row in rows:
        times[row.part] = times.get(row.part, 0.0) + time(row)
    total = sum(times.values())
    return {part: part_ns / total for part, part_ns in times.items() if part_ns} if total else {}
