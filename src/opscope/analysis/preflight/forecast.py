"""What will take the time, by the work of a model and the rates of a stated nominal machine.

Each operator takes the longer of its arithmetic and its bytes, as under a roofline. That tells which part of a model
becomes the bottleneck, never how long an inference takes: real kernels stay below these rates, each by its own factor.
Method and sources of the rates: ``docs/how-to/check-a-model-before-running-it.md``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.cost.operator_cost import DELEGATED_OPERATOR_NS
from opscope.program.operators.kinds import Category
from opscope.program.partition.verdicts import SmeSupport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opscope.analysis.preflight.operators import Planned
    from opscope.program.cost.operator_cost import Cost


class Part(str, enum.Enum):
    """Parts of a model that take time in different ways."""

    ELIGIBLE = "matrix work that SME can run"
    OTHER_MATRIX = "matrix work that SME cannot run"
    MOVEMENT = "data movement"
    REST = "other operators"
    PORTABLE = "portable operators"
    CALLS = "starting operators"


class Machine(msgspec.Struct, frozen=True):
    """Rates of a machine; one thread.

    Attributes:
        name: what it stands for.
        vector: multiply-accumulates per ns without matrix unit, by width of the data in bits.
        matrix: likewise with it.
        bytes_per_ns: that memory moves.
        portable_macs: multiply-accumulates per ns of portable kernels.
        portable_operations: other operations per ns of portable kernels.
        portable_bytes: that portable kernels move per ns.
        call_ns: of calling a delegate.
        operator_ns: of starting one of its operators.
    """

    name: str
    vector: dict[int, float]
    matrix: dict[int, float]
    bytes_per_ns: float
    portable_macs: float
    portable_operations: float
    portable_bytes: float
    call_ns: float
    operator_ns: float


NOMINAL = Machine(
    name="one Arm core with a matrix unit, nominal",
    vector={8: 256.0, 16: 128.0, 32: 64.0},
    matrix={8: 2000.0, 16: 1000.0, 32: 1000.0},
    bytes_per_ns=50.0,
    portable_macs=0.2,
    portable_operations=2.0,
    portable_bytes=20.0,
    call_ns=3200.0,
    operator_ns=DELEGATED_OPERATOR_NS,
)
"""``vector``: four units of 128 bits at 4 GHz. ``matrix``: outer products of an Apple M4 performance core, measured by
github.com/tzakharko/m4-sme-exploration (reports/02). ``bytes_per_ns``: most of a phone's memory bandwidth. Portable
rates and calls: measured with executorch 1.5.1 on x86-64, where a naive convolution reached 0.15 and a matrix product
0.26 multiply-accumulates per ns."""


class PartTime(msgspec.Struct, frozen=True):
    """One part of a model.

    Attributes:
        part: which.
        share: of the nominal time without matrix unit.
        share_accelerated: of the nominal time with it.
    """

    part: Part
    share: float
    share_accelerated: float


class Forecast(msgspec.Struct, frozen=True):
    """Where the time will go, by nominal rates.

    Attributes:
        machine: the rates.
        parts: every part that takes time, the longest with matrix unit first.
        bottleneck: the first of them.
        memory_bound: share of the matrix work's nominal time, with matrix unit, in operators that wait for memory.
        left_out: operators whose work is not known.
    """

    machine: Machine
    parts: list[PartTime]
    bottleneck: Part
    memory_bound: float
    left_out: int


def forecast(operators: Iterable[Planned], calls: int) -> Forecast | None:
    """Shares of the parts; None when no work is known."""
    listed = list(operators)
    rows = [row for operator in listed for row in _rows(operator)]
    rows.append(_Row(Part.CALLS, NOMINAL.call_ns * calls, NOMINAL.call_ns * calls))
    plain, fast = _shares(rows, lambda row: row.vector), _shares(rows, lambda row: row.matrix)
    if not fast:
        return None
    parts = [PartTime(part, plain[part], fast[part]) for part in Part if plain.get(part)]
    parts.sort(key=lambda row: -row.share_accelerated)
    eligible = [row for row in rows if row.part is Part.ELIGIBLE]
    whole = sum(row.matrix for row in eligible)
    waiting = sum(row.matrix for row in eligible if row.waits)
    left_out = sum(operator.cost is None for operator in listed)
    return Forecast(NOMINAL, parts, parts[0].part, waiting / whole if whole else 0.0, left_out)


def part_of(operator: Planned) -> Part:
    """The part that an operator belongs to."""
    if not operator.delegated:
        return Part.PORTABLE
    if operator.eligibility is not None:
        return Part.ELIGIBLE if operator.eligibility.verdict is SmeSupport.ELIGIBLE else Part.OTHER_MATRIX
    return Part.MOVEMENT if operator.category is Category.DATA_MOVEMENT else Part.REST


class _Row(NamedTuple):
    """Nominal time of all calls of an operator in ns, without and with matrix unit; whether memory sets the latter."""

    part: Part
    vector: float
    matrix: float
    waits: bool = False


def _rows(operator: Planned) -> Iterator[_Row]:
    """An operator and, in a delegate, the start of it; nothing when its work is not known."""
    if operator.cost is None:
        return
    memory = operator.cost.bytes / (NOMINAL.bytes_per_ns if operator.delegated else NOMINAL.portable_bytes)
    vector, matrix = _arithmetic(operator, operator.cost)
    times = max(vector, memory) * operator.calls, max(matrix, memory) * operator.calls
    yield _Row(part_of(operator), *times, waits=memory > matrix)
    if operator.delegated:
        start = NOMINAL.operator_ns * operator.calls
        yield _Row(Part.CALLS, start, start)


def _arithmetic(operator: Planned, cost: Cost) -> tuple[float, float]:
    """Nominal time of one call's arithmetic in ns, without and with matrix unit."""
    others = max(0, cost.flops - 2 * cost.macs)
    if not operator.delegated:
        portable = cost.macs / NOMINAL.portable_macs + others / NOMINAL.portable_operations
        return portable, portable
    width = operator.bits if operator.bits in NOMINAL.vector else None
    rate = NOMINAL.vector[width or max(NOMINAL.vector)]
    if part_of(operator) is not Part.ELIGIBLE:
        return (cost.macs + others) / rate, (cost.macs + others) / rate
    return (cost.macs + others) / rate, cost.macs / NOMINAL.matrix[width or max(NOMINAL.matrix)]


def _shares(rows: Iterable[_Row], time: Callable[[_Row], float]) -> dict[Part, float]:
    """Share of each part that takes time; empty when none does."""
    found: dict[Part, float] = {}
    for row in rows:
        found[row.part] = found.get(row.part, 0.0) + time(row)
    whole = sum(found.values())
    return {part: spent / whole for part, spent in found.items() if spent} if whole else {}
