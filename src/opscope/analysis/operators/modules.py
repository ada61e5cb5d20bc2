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

    _Token: TypeAlias = tuple[str | None, str, tuple[int, ...] | None]


FEWEST_STEPS = 8
"""Steps from which operators are one row: fewer are as well read one by one."""
_MOST_PRODUCTS = 8
_NUMBER = re.compile(r" #\d+$")


class Unrolled(NamedTuple):
    """A module that was called, or stepped, over and over."""

    method: str
    module: str  # of all its operators; empty for the model itself
    steps: int
    operators: tuple[Operator, ...]  # in program order


def unrolled(rows: Sequence[Operator]) -> list[Unrolled]:
    """Modules whose operators repeat in the same order, without the framework's own time, in program order.

    A step has a product in it whose module is known: layers of equal shape are different modules. Layers and directions
    of one module are told together, with the sum of their steps. No operator is part of two.
    """
    work = [row for row in rows if row.kind != FRAMEWORK.kind]
    methods = grouped(work, lambda row: row.method)
    return [found for method, operators in methods.items() for found in _of_method(method, operators)]


def _of_method(method: str, rows: Sequence[Operator]) -> Iterator[Unrolled]:
    tokens = [(row.module, _NUMBER.sub("", row.name), row.shape) for row in rows]
    modules: dict[str, list[_Run]] = {}
    for run in _runs(tokens, rows):
        inside = [module for module, *_ in tokens[run.start : run.end] if module is not None]
        modules.setdefault(_common(inside), []).append(run)
    for module, runs in modules.items():
        places = {at for run in runs for at in range(run.start, run.end)}
        each = {tokens[run.product]: run.products for run in runs}
        places |= {at for at, token in enumerate(tokens) if token in each}  # the first step may stand by itself
        steps = sum(tokens.count(token) / products for token, products in each.items())
        yield Unrolled(method, module, round(steps), tuple(rows[at] for at in sorted(places)))


class _Run(NamedTuple):
    """A repetition: places of its first operator, behind its last, and of a product; how many of these a step has."""

    start: int
    end: int
    product: int
    products: int


def _runs(tokens: Sequence[_Token], rows: Sequence[Operator]) -> Iterator[_Run]:
    """Repetitions, those of the most frequent products first; none overlaps another."""
    places: dict[_Token, list[int]] = {}
    for at, row in enumerate(rows):
        if row.category is Category.GEMM and row.module is not None:
            places.setdefault(tokens[at], []).append(at)
    taken: set[int] = set()
    for own in sorted(places.values(), key=lambda own: -len(own)):
        left = own
        while len(left) >= FEWEST_STEPS:
            run = _run_from(tokens, left)
            if run is None or not taken.isdisjoint(range(run.start, run.end)):
                left = left[1:]
                continue
            taken.update(range(run.start, run.end))
            yield run
            left = [at for at in left if at >= run.end]


def _run_from(tokens: Sequence[_Token], places: Sequence[int]) -> _Run | None:
    """The repetition that begins with the first of these products; a step may have several of them."""
    start = places[0]
    for products in range(1, min(_MOST_PRODUCTS + 1, len(places))):
        size, steps = places[products] - start, 1
        step = tokens[start : start + size]
        while tokens[start + steps * size : start + (steps + 1) * size] == step:
            steps += 1
        if steps >= FEWEST_STEPS - 1:  # the last one may end otherwise
            return _Run(*_widened(tokens, start, start + steps * size, size), start, products)
    return None


def _widened(tokens: Sequence[_Token], start: int, end: int, size: int) -> tuple[int, int]:
    """With what is left of the first step and the last one, where the exporter orders the same operators otherwise."""
    known = set(tokens[start : start + size])
    first = next((at for at in range(start, max(0, start - 2 * size), -1) if tokens[at - 1] not in known), start)
    last = next((at for at in range(end, min(len(tokens), end + 2 * size)) if tokens[at] not in known), end)
    return first, last


def _common(modules: Sequence[str]) -> str:
    """The innermost module that holds all of these."""
    parts = [module.split(".") if module else [] for module in modules]
    whole = takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))
    return ".".join(names[0] for names in whole)


class ModuleTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module of the model, with everything below it.

    Attributes:
        method: the program's method.
        path: its name in the model; empty for the model itself.
        type: qualified name of its class; null for a container that is never called.
        depth: number of modules above it.
        self_ns: time per inference of its operators; null where only shares are known.
        total_ns: with those of the modules below it.
        share: ``total_ns`` of the headline.
        self_share: ``self_ns`` of it.
        operators: number of its own operators.
        macs: of it and everything below; null when one of its operators' is not known.
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
    """A line of the model's code and the time of the operators that it caused."""

    source: str
    code: str | None
    operators: int
    aten: list[str]


def module_times(rows: Sequence[Operator], types: Mapping[tuple[str, str], str]) -> list[ModuleTime]:
    """The module tree of each method, parents before children, children in the order of the exported model.

    Operators without a known module are in none; empty when no module is known.
    """
    known = [row for row in rows if row.module is not None]
    below: dict[tuple[str, str], list[Operator]] = {}
    for row in known:
        for path in _prefixes(row.module or ""):
            below.setdefault((row.method, path), []).append(row)
    steps = {(one.method, one.module): one.steps for one in unrolled(rows)}
    found = [_module(method, path, types, below) for method, path in _tree(below, types)]
    return [msgspec.structs.replace(one, steps=steps.get((one.method, one.path))) for one in found]


def source_times(rows: Sequence[Operator]) -> list[SourceTime]:
    """Time by line of the model's code, longest first; empty when no line is known."""
    lines = grouped((row for row in rows if row.source is not None), lambda row: row.source or "")
    found = [_source(source, operators) for source, operators in lines.items()]
    return sorted(found, key=lambda line: -line.share)


def _prefixes(path: str) -> Iterator[str]:
    """The path of a module and of every module above it, from the model itself down."""
    yield ""
    parts = path.split(".") if path else []
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _tree(below: Iterable[tuple[str, str]], recorded: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keys of modules, each behind its parent; siblings in the recorded order, others in that of their operators."""
    order = {key: number for number, key in enumerate(dict.fromkeys([*recorded, *below]))}
    rank = {key: order[key] for key in below}

    def place(key: tuple[str, str]) -> list[int]:
        method, path = key
        return [rank[method, prefix] for prefix in _prefixes(path)]

    return sorted(rank, key=place)


def _module(
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


def _source(source: str, rows: Sequence[Operator]) -> SourceTime:
    names = dict.fromkeys(row.aten for row in rows if row.aten)
    code = next((row.code for row in rows if row.code), None)
    return SourceTime(source, code, len(rows), list(names), **msgspec.structs.asdict(sums(rows)))
