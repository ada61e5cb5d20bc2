"""Recurrences that the exporter unrolled: one module's operators, the same in every step."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.grouping import grouped
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
    return [found for method, own in methods.items() for found in _of_method(method, own)]


def _of_method(method: str, rows: Sequence[Operator]) -> Iterator[Unrolled]:
    tokens = [_token(row) for row in rows]
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


def _token(row: Operator) -> _Token:
    return row.module, _NUMBER.sub("", row.name), row.shape


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
