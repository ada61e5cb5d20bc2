"""Kernel view: which kernels each variant has, misses, or is known to have called, and how that is known."""

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
    """Statement of one source on one kernel; the amount is null if the source gives none."""

    state: KernelState
    amount: int | None = None


class KernelLine(msgspec.Struct, frozen=True):
    """Kernel with the statements of all sources.

    Attributes:
        name: name of the kernel.
        library: library that it is from; null when the name follows no known grammar.
        operator: operator that it computes, by its name; null when the name follows no known grammar.
        types: number types, as the name writes them.
        tile: tile that one call computes.
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
    """Two columns of equal number of threads and kind of evidence.

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
    """Selection of kernels; empty parts choose all.

    Attributes:
        isa: instruction sets.
        dtypes: families of number types such as ``int8``, or words of a name such as ``qai8``.
        operators: parts of operators' names.
    """

    isa: tuple[IsaClass, ...] = ()
    dtypes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    def wants(self, symbol: KernelSymbol | None) -> bool:
        """Return whether a kernel is selected; one without a known name only if nothing is filtered."""
        if symbol is None:
            return self == KernelFilter()
        words = {*symbol.families, *symbol.types.split("_")}
        return (
            (not self.isa or symbol.isa in self.isa)
            and (not self.dtypes or any(dtype in words for dtype in self.dtypes))
            and (not self.operators or any(part in symbol.operator for part in self.operators))
        )


def kernel_lines(sources: Sequence[KernelSource], selection: KernelFilter, *, every: bool = False) -> list[KernelLine]:
    """Return kernels by instruction set, strongest first, then by name."""
    names = {name for source in sources for name in source.amounts}
    if every:
        names |= {name for source in sources for name in source.universe or ()}
    symbols = [(name, parse_symbol(name)) for name in names]
    order = list(IsaClass)
    lines = [_kernel_line(name, symbol, sources) for name, symbol in symbols if selection.wants(symbol)]
    return sorted(lines, key=lambda line: (order.index(line.isa), line.name))


def _kernel_line(name: str, symbol: KernelSymbol | None, sources: Iterable[KernelSource]) -> KernelLine:
    cells = [KernelCell(*source.of(name)) for source in sources]
    if symbol is None:
        return KernelLine(name, None, None, None, None, IsaClass.UNKNOWN, cells)
    return KernelLine(name, symbol.library, symbol.operator, symbol.types or None, symbol.tile, symbol.isa, cells)


_BASELINE = "baseline"


def kernel_pairs(sources: Sequence[KernelSource], selection: KernelFilter) -> list[KernelPair]:
    """Return pairs of columns that can be compared: of one kind, and of equal number of threads.

    If a baseline is among the columns of a number of threads, only pairs with it are made.
    """
    pairs = []
    for first, second in combinations(range(len(sources)), 2):
        candidate, baseline = (first, second) if sources[first].column.role != _BASELINE else (second, first)
        if _can_compare(sources, candidate, baseline):
            pairs.append(_kernel_pair(sources, candidate, baseline, selection))
    return pairs


def _can_compare(sources: Sequence[KernelSource], candidate: int, baseline: int) -> bool:
    candidate_column, baseline_column = sources[candidate].column, sources[baseline].column
    if (candidate_column.kind, candidate_column.threads) != (baseline_column.kind, baseline_column.threads):
        return False
    columns = (column.column for column in sources)
    roles = {
        column.role
        for column in columns
        if (column.kind, column.threads) == (candidate_column.kind, candidate_column.threads)
    }
    return _BASELINE not in roles or (baseline_column.role == _BASELINE and candidate_column.role != _BASELINE)


def _kernel_pair(sources: Sequence[KernelSource], candidate: int, baseline: int, selection: KernelFilter) -> KernelPair:
    candidate_names, baseline_names = (
        {name for name in sources[number].amounts if selection.wants(parse_symbol(name))}
        for number in (candidate, baseline)
    )
    return KernelPair(
        candidate,
        baseline,
        sorted(candidate_names - baseline_names),
        sorted(baseline_names - candidate_names),
        sorted(candidate_names & baseline_names),
    )


class KernelView(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.kernel-view/1"):
    """Knowledge of the kernels of some runs.

    Attributes:
        columns: one for each source.
        kernels: those that were wanted, the strongest instruction set first.
        pairs: columns that can be held against each other.
        ladders: ladders of the variants of bundles.
        notes: what could not be shown, and why; one sentence each.
    """

    columns: list[KernelColumn]
    kernels: list[KernelLine]
    pairs: list[KernelPair]
    ladders: list[VariantLadder]
    notes: list[str] = []
