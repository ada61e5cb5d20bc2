"""What one file or run tells of kernels: counts of a counter, names in a trace, lines of a log."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.system.usage import ThreadCount
from opscope.program.kernels.kernel_calls import sum_calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.program.kernels.kernel_calls import KernelCalls
    from opscope.program.kernels.symbols import KernelLog


class EvidenceKind(str, enum.Enum):
    """How a source knows of kernels."""

    COUNTED = "counted"
    """Every call was counted."""
    NAMED = "named"
    """The runtime named the kernel of every operator that ran."""
    REGISTERED = "registered"
    """The library listed them while it was loaded; whether any ran is not told."""


class KernelState(str, enum.Enum):
    """What a source says of a kernel.

    ``counted`` comes with the number of calls, which may be 0, ``present`` and
    ``absent`` are said of logs; ``not known`` where a source could not tell.
    """

    COUNTED = "counted"
    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "not known"


_STATES = {
    EvidenceKind.COUNTED: KernelState.COUNTED,
    EvidenceKind.NAMED: KernelState.COUNTED,
    EvidenceKind.REGISTERED: KernelState.PRESENT,
}


class ThreadedVariant(ThreadCount, frozen=True):
    """A variant, of which there may be one for each number of threads.

    Attributes:
        variant: its name, or that of the file that it is known from.
    """

    variant: str


class KernelColumn(ThreadedVariant, msgspec.Struct, frozen=True):
    """Which file or run tells of the kernels of one variant, and how.

    Attributes:
        kind: how it knows.
        path: of the file or directory.
        role: ``accelerated``, ``baseline`` or another; null where none is known.
        kernels: how many it names.
        note: what limits it, one sentence; null when nothing does.
        categories: what the library registered kernels for, where a log tells.
    """

    kind: EvidenceKind
    path: str
    role: str | None
    kernels: int
    note: str | None
    categories: dict[str, str] = {}


class KernelSource(NamedTuple):
    """What one file or run tells of the kernels of one variant."""

    column: KernelColumn  # what it is
    # of every kernel that it names: calls or lines of a log; None where it tells no number
    amounts: Mapping[str, int | None]
    # kernels of which it would know; None for all
    universe: frozenset[str] | None = None

    def of(self, kernel: str) -> tuple[KernelState, int | None]:
        """What it says of a kernel, and the number; a name that is not in it may be one that it cannot know."""
        if kernel in self.amounts:
            return _STATES[self.column.kind], self.amounts[kernel]
        if self.universe is not None and kernel not in self.universe:
            return KernelState.UNKNOWN, None
        told = self.column.kind in {EvidenceKind.COUNTED, EvidenceKind.NAMED}
        return (KernelState.COUNTED, 0) if told else (KernelState.ABSENT, None)


def counted_source(calls: KernelCalls, variant: str, path: str) -> KernelSource:
    """What a counter saw."""
    amounts: dict[str, int | None] = dict(calls.totals())
    column = KernelColumn(variant, EvidenceKind.COUNTED, path, None, len(amounts), calls.problem)
    return KernelSource(column, amounts, frozenset(calls.kernels))


def named_source(operators: Sequence[Operator], variant: str, path: str) -> KernelSource | None:
    """What the names in a trace tell, in operators of an inference; None where it names none."""
    runs: dict[str, float] = {}
    for row in operators:
        if row.kernel:
            runs[row.kernel] = runs.get(row.kernel, 0.0) + row.calls
    amounts: dict[str, int | None] = {name: round(count) for name, count in runs.items()}
    column = KernelColumn(variant, EvidenceKind.NAMED, path, None, len(amounts), None)
    return KernelSource(column, amounts) if amounts else None


def registered_source(lines: Iterable[tuple[str, str, int]], variant: str, path: str) -> KernelSource:
    """What a log lists."""
    listed = list(lines)
    amounts: dict[str, int | None] = dict(sum_calls({name: count} for name, _, count in listed))
    categories = {name: category for name, category, _ in reversed(listed)}
    column = KernelColumn(variant, EvidenceKind.REGISTERED, path, None, len(amounts), None, categories)
    return KernelSource(column, amounts)


def log_source(log: KernelLog, variant: str, path: str) -> KernelSource:
    """What a log of XNNPACK tells."""
    lines = Counter((entry.kernel.whole, entry.category) for entry in log.entries)
    return registered_source([(*key, count) for key, count in lines.items()], variant, path)
