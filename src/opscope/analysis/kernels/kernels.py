"""The kernel view: which kernels each variant has, misses, or is known to have called, and how that is known."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.kernels.kernel_sources import KernelColumn, KernelState
from opscope.analysis.kernels.ladder import VariantLadder
from opscope.program.kernels.symbols import IsaClass, KernelSymbol, parse_symbol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.kernels.kernel_sources import KernelSource


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
        only_left: kernels that only the left one has.
        only_right: kernels that only the right one has.
        both: kernels that both have.
    """

    left: int
    right: int
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


def kernel_lines(sources: Sequence[KernelSource], wanted: KernelFilter, *, every: bool = False) -> list[KernelLine]:
    """Kernels by instruction set, strongest first, then by name."""
    names = {name for source in sources for name in source.amounts}
    if every:
        names |= {name for source in sources for name in source.universe or ()}
    found = [(name, parse_symbol(name)) for name in names]
    order = list(IsaClass)
    lines = [_line(name, symbol, sources) for name, symbol in found if wanted.wants(symbol)]
    return sorted(lines, key=lambda line: (order.index(line.isa), line.name))


def _line(name: str, symbol: KernelSymbol | None, sources: Iterable[KernelSource]) -> KernelLine:
    cells = [KernelCell(*source.of(name)) for source in sources]
    if symbol is None:
        return KernelLine(name, None, None, None, None, IsaClass.UNKNOWN, cells)
    return KernelLine(name, symbol.library, symbol.operator, symbol.types or None, symbol.tile, symbol.isa, cells)


_BASELINE = "baseline"


def kernel_pairs(sources: Sequence[KernelSource], wanted: KernelFilter) -> list[KernelPair]:
    """Every two columns that can be held against each other: of one kind, and of the same number of threads.

    Where a baseline is among those of a number of threads, only pairs with it are made.
    """
    pairs = []
    for one, other in combinations(range(len(sources)), 2):
        left, right = (one, other) if sources[one].column.role != _BASELINE else (other, one)
        if _comparable(sources, left, right):
            pairs.append(_pair(sources, left, right, wanted))
    return pairs


def _comparable(sources: Sequence[KernelSource], left: int, right: int) -> bool:
    one, other = sources[left].column, sources[right].column
    if (one.kind, one.threads) != (other.kind, other.threads):
        return False
    columns = (each.column for each in sources)
    roles = {each.role for each in columns if (each.kind, each.threads) == (one.kind, one.threads)}
    return _BASELINE not in roles or (other.role == _BASELINE and one.role != _BASELINE)


def _pair(sources: Sequence[KernelSource], left: int, right: int, wanted: KernelFilter) -> KernelPair:
    own, others = (
        {name for name in sources[number].amounts if wanted.wants(parse_symbol(name))} for number in (left, right)
    )
    return KernelPair(left, right, sorted(own - others), sorted(others - own), sorted(own & others))


class KernelView(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.kernel-view/1"):
    """Everything that is known of the kernels of some runs.

    Attributes:
        columns: one for each source.
        kernels: those that were wanted, the strongest instruction set first.
        pairs: columns that can be held against each other.
        ladders: of the variants of bundles.
        notes: what could not be shown, and why; one sentence each.
    """

    columns: list[KernelColumn]
    kernels: list[KernelLine]
    pairs: list[KernelPair]
    ladders: list[VariantLadder]
    notes: list[str] = []
