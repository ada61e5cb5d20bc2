"""Time by module and by source line of the model, and recurrences whose steps the exporter unrolled."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.operators.headline import TimeShare
from opscope.analysis.operators.operators import sums
from opscope.core.grouping import grouped
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from opscope.analysis.operators.operators import Operator

    _Signature: TypeAlias = tuple[str | None, str, tuple[int, ...] | None]


MIN_STEPS = 8
"""Shortest recurrence that is reported; fewer steps are as easy to read one by one."""
_MAX_PRODUCTS_PER_STEP = 8
_INSTANCE_SUFFIX = re.compile(r" #\d+$")


class Recurrence(NamedTuple):
    """Recurrent layer that the exporter unrolled into one copy of its operators per step."""

    method: str
    module: str  # innermost module that contains all its operators; empty for the model itself
    steps: int
    operators: tuple[Operator, ...]  # operators in program order


def find_recurrences(rows: Sequence[Operator]) -> list[Recurrence]:
    """Find runs of operators that repeat in the same order, in program order.

    A step contains at least one matrix product whose module is known, because equally shaped layers differ only in
    their module. Several layers or directions of one module count as one recurrence with the sum of their steps.
    Framework time is ignored, and an operator belongs to at most one recurrence.
    """
    operators = [row for row in rows if row.kind != FRAMEWORK.kind]
    by_method = grouped(operators, lambda row: row.method)
    return [
        recurrence
        for method, method_rows in by_method.items()
        for recurrence in _find_recurrences_in_method(method, method_rows)
    ]


def _find_recurrences_in_method(method: str, rows: Sequence[Operator]) -> Iterator[Recurrence]:
    signatures = [(row.module, _INSTANCE_SUFFIX.sub("", row.name), row.shape) for row in rows]
    runs_by_module: dict[str, list[_Run]] = {}
    for run in _find_runs(signatures, rows):
        modules = [module for module, *_ in signatures[run.start : run.stop] if module is not None]
        runs_by_module.setdefault(_find_innermost_common_module(modules), []).append(run)
    for module, runs in runs_by_module.items():
        positions = {position for run in runs for position in range(run.start, run.stop)}
        products = {signatures[run.product]: run.products_per_step for run in runs}
        # The first step may stand apart from the others.
        positions |= {position for position, signature in enumerate(signatures) if signature in products}
        steps = sum(signatures.count(product) / per_step for product, per_step in products.items())
        yield Recurrence(method, module, round(steps), tuple(rows[position] for position in sorted(positions)))


class _Run(NamedTuple):
    """Equal steps, one directly after the other. Positions index the operators of one method."""

    start: int
    stop: int
    product: int  # position of the first matrix product
    products_per_step: int


def _find_runs(signatures: Sequence[_Signature], rows: Sequence[Operator]) -> Iterator[_Run]:
    """Yield runs that do not overlap, starting from the matrix product that occurs most often."""
    product_positions: dict[_Signature, list[int]] = {}
    for position, row in enumerate(rows):
        if row.category is Category.GEMM and row.module is not None:
            product_positions.setdefault(signatures[position], []).append(position)
    taken: set[int] = set()
    for positions in sorted(product_positions.values(), key=lambda positions: -len(positions)):
        remaining = positions
        while len(remaining) >= MIN_STEPS:
            run = _find_run_at_first_product(signatures, remaining)
            if run is None or not taken.isdisjoint(range(run.start, run.stop)):
                remaining = remaining[1:]
                continue
            taken.update(range(run.start, run.stop))
            yield run
            remaining = [position for position in remaining if position >= run.stop]


def _find_run_at_first_product(signatures: Sequence[_Signature], product_positions: Sequence[int]) -> _Run | None:
    """Return the run that starts at the first of the given positions of one product; None if no run starts there.

    A step may contain the product several times, so step lengths up to several products are tried.
    """
    start = product_positions[0]
    for products_per_step in range(1, min(_MAX_PRODUCTS_PER_STEP + 1, len(product_positions))):
        length, steps = product_positions[products_per_step] - start, 1
        step = signatures[start : start + length]
        while signatures[start + steps * length : start + (steps + 1) * length] == step:
            steps += 1
        if steps >= MIN_STEPS - 1:  # the last step may end differently
            bounds = _extend_over_partial_steps(signatures, start, start + steps * length, length)
            return _Run(*bounds, start, products_per_step)
    return None


def _extend_over_partial_steps(signatures: Sequence[_Signature], start: int, stop: int, length: int) -> tuple[int, int]:
    """Return start and stop of a run with the incomplete steps before and after it; ``length`` is that of a step.

    The exporter may order the operators of the first and the last step differently, so membership decides, not order.
    """
    step = set(signatures[start : start + length])
    before = range(start, max(0, start - 2 * length), -1)
    after = range(stop, min(len(signatures), stop + 2 * length))
    first = next((position for position in before if signatures[position - 1] not in step), start)
    last = next((position for position in after if signatures[position] not in step), stop)
    return first, last


def _find_innermost_common_module(modules: Sequence[str]) -> str:
    """Return the innermost module that contains all given modules; "" for the model itself."""
    paths = [module.split(".") if module else [] for module in modules]
    shared = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return ".".join(names[0] for names in shared)


class ModuleTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """Module of the model, with everything below it.

    Attributes:
        method: the program's method.
        path: its name in the model; empty for the model itself.
        type: qualified name of its class; null for a container that is never called.
        depth: number of modules above it.
        self_ns: time per inference of its operators; null where only shares are known.
        total_ns: time with those of the modules below it.
        share: ``total_ns`` of the headline.
        self_share: ``self_ns`` of it.
        operators: number of its own operators.
        macs: multiply-accumulates of it and everything below; null when one of its operators' is not known.
        steps: how many steps of it the exporter unrolled; left out where nothing repeats.
    """

    method: str
    path: str
    type: str | None
    depth: int
    self_ns: float | None
    total_ns: float | None
    share: float
    operators: int
    macs: int | None
    self_share: float
    steps: int | None = None


class SourceTime(TimeShare, frozen=True):
    """Line of the model's code and the time of the operators that it caused."""

    source: str
    code: str | None
    operators: int
    aten: list[str]


def module_times(rows: Sequence[Operator], types: Mapping[tuple[str, str], str]) -> list[ModuleTime]:
    """Return the module tree of each method, parents first, children in the order of the exported model.

    Operators without a known module are in none; empty when no module is known.
    """
    known = [row for row in rows if row.module is not None]
    below: dict[tuple[str, str], list[Operator]] = {}
    for row in known:
        for path in _module_prefixes(row.module or ""):
            below.setdefault((row.method, path), []).append(row)
    steps = {(recurrence.method, recurrence.module): recurrence.steps for recurrence in find_recurrences(rows)}
    modules = [_module_time(method, path, types, below) for method, path in _order_modules(below, types)]
    return [msgspec.structs.replace(module, steps=steps.get((module.method, module.path))) for module in modules]


def source_times(rows: Sequence[Operator]) -> list[SourceTime]:
    """Return the time by line of the model's code, longest first; empty if no line is known."""
    lines = grouped((row for row in rows if row.source is not None), lambda row: row.source or "")
    times = [_source_time(source, operators) for source, operators in lines.items()]
    return sorted(times, key=lambda line: -line.share)


def _module_prefixes(path: str) -> Iterator[str]:
    """Yield the path of every module above a module and its own, from the model itself down."""
    yield ""
    parts = path.split(".") if path else []
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _order_modules(below: Iterable[tuple[str, str]], recorded: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Order modules so that each follows its parent; siblings in recorded order, others in that of operators."""
    order = {key: number for number, key in enumerate(dict.fromkeys([*recorded, *below]))}
    rank = {key: order[key] for key in below}

    def sort_key(key: tuple[str, str]) -> list[int]:
        method, path = key
        return [rank[method, prefix] for prefix in _module_prefixes(path)]

    return sorted(rank, key=sort_key)


def _module_time(
    method: str,
    path: str,
    types: Mapping[tuple[str, str], str],
    below: dict[tuple[str, str], list[Operator]],
) -> ModuleTime:
    rows = below[method, path]
    operators = [row for row in rows if row.module == path]
    total, itself = sums(rows), sums(operators)
    macs = [row.macs for row in rows]
    return ModuleTime(
        method=method,
        path=path,
        type=types.get((method, path)),
        depth=path.count(".") + 1 if path else 0,
        self_ns=itself.time_ns,
        total_ns=total.time_ns,
        share=total.share,
        operators=len(operators),
        macs=None if None in macs else sum(count or 0 for count in macs),
        self_share=itself.share,
    )


def _source_time(source: str, rows: Sequence[Operator]) -> SourceTime:
    names = dict.fromkeys(row.aten for row in rows if row.aten)
    code = next((row.code for row in rows if row.code), None)
    return SourceTime(source, code, len(rows), list(names), **msgspec.structs.asdict(sums(rows)))
