"""Sources of kernel names: counts of a counter, names in a trace, lines of a log."""

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
    """Way in which a source knows of kernels."""

    COUNTED = "counted"
    """Every call was counted."""
    NAMED = "named"
    """The runtime named the kernel of every operator that ran."""
    REGISTERED = "registered"
    """The library listed them while it was loaded; whether any ran is unknown."""


class KernelState(str, enum.Enum):
    """Statement of a source about a kernel.

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
    """Variant at one number of threads.

    Attributes:
        variant: its name, or that of the file that it is known from.
    """

    variant: str


class KernelColumn(ThreadedVariant, msgspec.Struct, frozen=True):
    """File or run that names the kernels of one variant, and how it knows them.

    Attributes:
        kind: how it knows.
        path: path of the file or directory.
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
    """Kernels that one file or run names for a variant."""

    column: KernelColumn  # what it is
    # of every kernel that it names: calls or lines of a log; None where it tells no number
    amounts: Mapping[str, int | None]
    # kernels of which it would know; None for all
    universe: frozenset[str] | None = None

    def of(self, kernel: str) -> tuple[KernelState, int | None]:
        """Return the state of a kernel and its number; unknown if the source cannot know of it."""
        if kernel in self.amounts:
            return _STATES[self.column.kind], self.amounts[kernel]
        if self.universe is not None and kernel not in self.universe:
            return KernelState.UNKNOWN, None
        is_counting = self.column.kind in {EvidenceKind.COUNTED, EvidenceKind.NAMED}
        return (KernelState.COUNTED, 0) if is_counting else (KernelState.ABSENT, None)


def source_of_counter(calls: KernelCalls, variant: str, path: str) -> KernelSource:
    """Return the kernels that a counter saw."""
    amounts: dict[str, int | None] = dict(calls.totals())
    column = KernelColumn(variant, EvidenceKind.COUNTED, path, None, len(amounts), calls.problem)
    return KernelSource(column, amounts, frozenset(calls.kernels))


def source_of_trace(operators: Sequence[Operator], variant: str, path: str) -> KernelSource | None:
    """Return the kernels that a trace names, in operators of an inference; None if it names none."""
    runs: dict[str, float] = {}
    for row in operators:
        if row.kernel:
            runs[row.kernel] = runs.get(row.kernel, 0.0) + row.calls
    amounts: dict[str, int | None] = {name: round(count) for name, count in runs.items()}
    column = KernelColumn(variant, EvidenceKind.NAMED, path, None, len(amounts), None)
    return KernelSource(column, amounts) if amounts else None


def source_of_registrations(lines: Iterable[tuple[str, str, int]], variant: str, path: str) -> KernelSource:
    """Return the kernels that a log lists as registered."""
    listed = list(lines)
    amounts: dict[str, int | None] = dict(sum_calls({name: count} for name, _, count in listed))
    categories = {name: category for name, category, _ in reversed(listed)}
    column = KernelColumn(variant, EvidenceKind.REGISTERED, path, None, len(amounts), None, categories)
    return KernelSource(column, amounts)


def source_of_log(log: KernelLog, variant: str, path: str) -> KernelSource:
    """Return the kernels that a log of XNNPACK names."""
    lines = Counter((entry.kernel.whole, entry.category) for entry in log.entries)
    return source_of_registrations([(*key, count) for key, count in lines.items()], variant, path)
