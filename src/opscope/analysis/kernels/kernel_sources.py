"""What one file or run tells of kernels: counts of a counter, samples of a profiler, lines of a log."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from opscope.program.kernels.calls import added

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.program.kernels.calls import KernelCalls
    from opscope.program.kernels.names import KernelLog
    from opscope.program.kernels.recordings import Recording


class EvidenceKind(str, enum.Enum):
    """How a source knows of kernels."""

    COUNTED = "counted"
    """Every call was counted."""
    SAMPLED = "sampled"
    """A profiler found the process in them."""
    REGISTERED = "registered"
    """The library listed them while it was loaded; whether any ran is not told."""


class KernelState(str, enum.Enum):
    """What a source says of a kernel.

    ``counted`` comes with the number of calls, which may be 0, ``sampled`` with that of samples; ``present`` and
    ``absent`` are said of logs; ``not known`` where a source could not tell.
    """

    COUNTED = "counted"
    SAMPLED = "sampled"
    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "not known"


_STATES = {
    EvidenceKind.COUNTED: KernelState.COUNTED,
    EvidenceKind.SAMPLED: KernelState.SAMPLED,
    EvidenceKind.REGISTERED: KernelState.PRESENT,
}


class KernelSource(msgspec.Struct, frozen=True):
    """What one file or run tells of the kernels of one variant."""

    variant: str  # name of the variant, or of the file
    kind: EvidenceKind  # how it knows
    path: str  # of the file or directory
    # of every kernel that it names: calls, samples, or lines of a log; null where it tells no number
    amounts: dict[str, int | None]
    role: str | None = None  # `accelerated`, `baseline` or another; null where none is known
    threads: int | None = None  # size of the thread pool; null where it is not known
    # kernels of which it would know; null for all. A recording knows of none that it did not see
    universe: frozenset[str] | None = None
    note: str | None = None  # what limits it, one sentence; null when nothing does
    categories: dict[str, str] = {}  # what the library registered kernels for, where a log tells

    def of(self, kernel: str) -> tuple[KernelState, int | None]:
        """What it says of a kernel, and the number; a name that is not in it may be one that it cannot know."""
        if kernel in self.amounts:
            return _STATES[self.kind], self.amounts[kernel]
        if self.kind is EvidenceKind.SAMPLED or (self.universe is not None and kernel not in self.universe):
            return KernelState.UNKNOWN, None
        return (KernelState.COUNTED, 0) if self.kind is EvidenceKind.COUNTED else (KernelState.ABSENT, None)


def counted_source(calls: KernelCalls, variant: str, path: str) -> KernelSource:
    """What a counter saw."""
    amounts: dict[str, int | None] = dict(calls.totals())
    return KernelSource(
        variant, EvidenceKind.COUNTED, path, amounts, universe=frozenset(calls.kernels), note=calls.problem
    )


def sampled_source(recording: Recording, variant: str, path: str) -> KernelSource:
    """What a profiler saw; samples of all threads and events together."""
    amounts: dict[str, int | None] = {}
    for row in recording.functions:
        if row.kernel is not None:
            known = amounts.get(row.kernel, 0)
            amounts[row.kernel] = None if known is None or row.samples is None else known + row.samples
    return KernelSource(variant, EvidenceKind.SAMPLED, path, amounts, note=_blind(recording))


_MUCH = 0.05


def _blind(recording: Recording) -> str | None:
    if recording.nameless > _MUCH:
        return f"{recording.nameless:.0%} of the samples fell into functions without a name"
    return None


def registered_source(lines: Iterable[tuple[str, str, int]], variant: str, path: str) -> KernelSource:
    """What a log lists."""
    listed = list(lines)
    amounts: dict[str, int | None] = dict(added({name: count} for name, _, count in listed))
    categories = {name: category for name, category, _ in reversed(listed)}
    return KernelSource(variant, EvidenceKind.REGISTERED, path, amounts, categories=categories)


def log_source(log: KernelLog, variant: str, path: str) -> KernelSource:
    """What a log of XNNPACK tells."""
    lines = Counter((entry.kernel.whole, entry.category) for entry in log.entries)
    return registered_source([(*key, count) for key, count in lines.items()], variant, path)
