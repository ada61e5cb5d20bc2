"""Operators of bundles that ran the same program, side by side by their place in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.compare.matching import match
from opscope.core.grouping import grouped
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.reports.content.content import operator_rows
from opscope.reports.content.places import layer_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.reports.content.content import OperatorRow, ReportContent


class SharedOperator(msgspec.Struct, frozen=True):
    """One operator of a program on every platform that ran it; null where a platform has no such operator.

    Attributes:
        method: of the program.
        instruction: of its chain.
        position: within the instruction's call, on the first platform that has it.
        layer: that it belongs to; empty where that is not known.
        category: as the first platform that has it has it.
        names: as recorded on each platform.
        times_ns: self time per inference on the scale of each platform's headline.
        shares: of that headline.
        speedups: what acceleration does to it there.
        spread: largest share minus smallest, one that is absent counting as nothing.
    """

    method: str
    instruction: int | None
    position: int | None
    layer: str
    category: Category
    names: list[str | None]
    times_ns: list[float | None]
    shares: list[float | None]
    speedups: list[float | None]
    spread: float


class SharedProgram(msgspec.Struct, frozen=True):
    """A program that several bundles ran.

    Attributes:
        sha256: of it.
        model: its name in the first of them.
        bundles: labels of those that ran it and have a result; the lists of operators are in this order.
        operators: all of them, those that differ most between the platforms first; the framework's time is left out.
        unmatched: how many of them some platform does not have.
    """

    sha256: str
    model: str
    bundles: list[str]
    operators: list[SharedOperator]
    unmatched: int


def shared_programs(told: Sequence[tuple[str, ReportContent]]) -> list[SharedProgram]:
    """Programs that at least two bundles ran, each with its operators; by label and content of each bundle."""
    groups = grouped((one for one in told if one[1].shown is not None), lambda one: one[1].manifest.model.sha256)
    return [_program(sha256, group) for sha256, group in groups.items() if sha256 is not None and len(group) > 1]


def _program(sha256: str, group: Sequence[tuple[str, ReportContent]]) -> SharedProgram:
    tables = [_rows(content) for _, content in group]
    lines = _lines([[row.operator for row in table.values()] for table in tables])
    operators = [_operator(line, tables) for line in lines]
    operators.sort(key=lambda one: -one.spread)
    return SharedProgram(
        sha256=sha256,
        model=group[0][1].manifest.model.name,
        bundles=[label for label, _ in group],
        operators=operators,
        unmatched=sum(1 for one in operators if None in one.names),
    )


_Place = tuple[str, int | None, int | None]


def _rows(content: ReportContent) -> dict[_Place, OperatorRow]:
    """Operators that do work, in the order of the program, with their change."""
    rows = {_place(row.operator): row for row in operator_rows(content)}
    listed = content.shown.operators if content.shown else []
    return {_place(operator): rows[_place(operator)] for operator in listed if operator.kind != FRAMEWORK.kind}


def _place(operator: Operator) -> _Place:
    return operator.method, operator.instruction, operator.position


def _lines(tables: Sequence[list[Operator]]) -> list[list[Operator | None]]:
    """Operators side by side, in the order of the program: each platform is matched with those before it together."""
    lines: list[list[Operator | None]] = [[operator] for operator in tables[0]]
    for number, table in enumerate(tables[1:], 1):
        shown = [_first(line) for line in lines]
        known = {id(operator): line for operator, line in zip(shown, lines, strict=True)}
        lines = [
            [*(known[id(own)] if own is not None else [None] * number), theirs]
            for (own, theirs), _ in match(shown, table)
        ]
    return lines


def _first(line: Sequence[Operator | None]) -> Operator:
    return next(operator for operator in line if operator is not None)


def _operator(line: Sequence[Operator | None], tables: Sequence[dict[_Place, OperatorRow]]) -> SharedOperator:
    shown = _first(line)
    changes = [
        table[_place(operator)].change if operator is not None else None
        for operator, table in zip(line, tables, strict=True)
    ]
    shares = [operator.share if operator else None for operator in line]
    known = [share or 0.0 for share in shares]
    return SharedOperator(
        method=shown.method,
        instruction=shown.instruction,
        position=shown.position,
        layer=next((layer_text(operator) for operator in line if operator and layer_text(operator)), ""),
        category=shown.category,
        names=[operator.name if operator else None for operator in line],
        times_ns=[operator.time_ns if operator else None for operator in line],
        shares=shares,
        speedups=[change.speedup if change else None for change in changes],
        spread=max(known) - min(known),
    )
