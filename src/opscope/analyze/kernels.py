"""The kernel view: which kernels each variant has, misses, or is known to have called, and how that is known."""

from __future__ import annotations

import enum
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.kernel_symbols import IsaClass, KernelSymbol, parse_symbol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.program.kernel_calls import KernelCalls
    from opscope.program.recordings import Recording


class EvidenceKind(str, enum.Enum):
    """How a source knows of kernels."""

    COUNTED = "counted"
    """Every call was counted."""
    SAMPLED = "sampled"
    """A profiler found the process in them."""
    REGISTERED = "registered"
    """The library listed them while it was loaded; whether any ran is not told."""


class KernelState(str, enum.Enum):
    """What a source says of a kernel."""

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
    """What one file or run tells of the kernels of one variant.

    Attributes:
        variant: name of the variant, or of the file.
        kind: how it knows.
        path: of the file or directory.
        amounts: of every kernel that it names: calls, samples, or lines of a log; null where it tells no number.
        role: ``accelerated``, ``baseline`` or another; null where none is known.
        threads: size of the thread pool; null where it is not known.
        universe: kernels of which it would know; null for all. A recording knows of none that it did not see.
        note: what limits it, one sentence; null when nothing does.
    """

    variant: str
    kind: EvidenceKind
    path: str
    amounts: dict[str, int | None]
    role: str | None = None
    threads: int | None = None
    universe: frozenset[str] | None = None
    note: str | None = None

    def state(self, kernel: str) -> KernelState:
        """What it says of a kernel; a name that is not in it may be one that it cannot know."""
        if kernel in self.amounts:
            return _STATES[self.kind]
        if self.kind is EvidenceKind.SAMPLED or (self.universe is not None and kernel not in self.universe):
            return KernelState.UNKNOWN
        return KernelState.ABSENT


class KernelColumn(msgspec.Struct, frozen=True):
    """One source as a column; the attributes are those of :class:`KernelSource`, the amounts left out."""

    variant: str
    kind: EvidenceKind
    path: str
    role: str | None
    threads: int | None
    kernels: int
    note: str | None


class KernelCell(msgspec.Struct, frozen=True):
    """What one source says of one kernel; the amount is null where it tells none."""

    state: KernelState
    amount: int | None = None


class KernelLine(msgspec.Struct, frozen=True):
    """One kernel.

    Attributes:
        name: of the kernel.
        library: that it is from; null when the name follows no known grammar.
        operator: that it computes, by its name; likewise, and likewise below.
        types: number types, as the name writes them.
        tile: that one call computes.
        isa: instruction set that it needs.
        cells: one for each column.
    """

    name: str
    library: str | None
    operator: str | None
    types: str | None
    tile: str | None
    isa: IsaClass
    cells: list[KernelCell]


class KernelPair(msgspec.Struct, frozen=True):
    """Two columns of the same number of threads and the same kind of evidence.

    Attributes:
        left: number of a column; where a baseline is known it is the right one.
        right: number of another.
        threads: of both.
        only_left: kernels that only the left one has.
        only_right: kernels that only the right one has.
        both: kernels that both have.
    """

    left: int
    right: int
    threads: int | None
    only_left: list[str]
    only_right: list[str]
    both: list[str]


class KernelFilter(NamedTuple):
    """Which kernels are wanted; empty parts choose all.

    Attributes:
        isa: instruction sets.
        dtypes: families of number types such as ``int8``, or words of a name such as ``qai8``.
        operators: parts of operators' names.
    """

    isa: tuple[IsaClass, ...] = ()
    dtypes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    def wants(self, symbol: KernelSymbol | None) -> bool:
        """Whether a kernel is wanted; one without a known name is wanted only when nothing is filtered."""
        if symbol is None:
            return self == KernelFilter()
        words = {*symbol.families, *symbol.types.split("_")}
        return (
            (not self.isa or symbol.isa in self.isa)
            and (not self.dtypes or any(dtype in words for dtype in self.dtypes))
            and (not self.operators or any(part in symbol.operator for part in self.operators))
        )


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


def registered_source(kernels: Mapping[str, int | None], variant: str, path: str) -> KernelSource:
    """What a log lists, with its number of lines for each kernel."""
    return KernelSource(variant, EvidenceKind.REGISTERED, path, dict(kernels))


def kernel_columns(sources: Sequence[KernelSource]) -> list[KernelColumn]:
    """The sources as columns."""
    return [
        KernelColumn(each.variant, each.kind, each.path, each.role, each.threads, len(each.amounts), each.note)
        for each in sources
    ]


def kernel_lines(sources: Sequence[KernelSource], wanted: KernelFilter, *, every: bool = False) -> list[KernelLine]:
    """Kernels by instruction set, strongest first, then by name.

    Args:
        sources: one for each column.
        wanted: which kernels.
        every: those, too, that were looked for and are in no source.
    """
    names = {name for source in sources for name in source.amounts}
    if every:
        names |= {name for source in sources for name in source.universe or ()}
    found = [(name, parse_symbol(name)) for name in names]
    order = list(IsaClass)
    lines = [_line(name, symbol, sources) for name, symbol in found if wanted.wants(symbol)]
    return sorted(lines, key=lambda line: (order.index(line.isa), line.name))


def _line(name: str, symbol: KernelSymbol | None, sources: Iterable[KernelSource]) -> KernelLine:
    cells = [KernelCell(source.state(name), source.amounts.get(name)) for source in sources]
    if symbol is None:
        return KernelLine(name, None, None, None, None, IsaClass.UNKNOWN, cells)
    return KernelLine(name, symbol.library, symbol.operator, symbol.types or None, symbol.tile, symbol.isa, cells)


_BASELINE = "baseline"


def kernel_pairs(sources: Sequence[KernelSource], wanted: KernelFilter) -> list[KernelPair]:
    """Every two columns that can be held against each other: of one kind, and of the same number of threads.

    Where a baseline is among those of a number of threads, only pairs with it are made.
    """
    found = []
    for one, other in combinations(range(len(sources)), 2):
        left, right = (one, other) if sources[one].role != _BASELINE else (other, one)
        if _comparable(sources, left, right):
            found.append(_pair(sources, left, right, wanted))
    return found


def _comparable(sources: Sequence[KernelSource], left: int, right: int) -> bool:
    one, other = sources[left], sources[right]
    if (one.kind, one.threads) != (other.kind, other.threads):
        return False
    roles = {each.role for each in sources if (each.kind, each.threads) == (one.kind, one.threads)}
    return _BASELINE not in roles or (other.role == _BASELINE and one.role != _BASELINE)


def _pair(sources: Sequence[KernelSource], left: int, right: int, wanted: KernelFilter) -> KernelPair:
    own, others = (
        {name for name in sources[number].amounts if wanted.wants(parse_symbol(name))} for number in (left, right)
    )
    return KernelPair(
        left, right, sources[left].threads, sorted(own - others), sorted(others - own), sorted(own & others)
    )
