"""The kernel view and the evidence ladders in words: for a terminal, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from opscope.analysis.findings.message import note
from opscope.analysis.kernels.ladder import Answer, EvidenceLevel, evidence_level_counts
from opscope.core.outputs import marked_markdown
from opscope.core.units import counted_text, share_text
from opscope.reports.document.console import NameCell, Text
from opscope.reports.document.terminal import message_lines, plain_table
from opscope.reports.document.text import LONGEST, markdown, markdown_table, plain
from opscope.reports.sections.operator_kernels import KIND_TEXTS, cell_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from opscope.analysis.kernels.kernels import KernelColumn, KernelLine, KernelPair, KernelView
    from opscope.analysis.kernels.ladder import LevelAnswer, OperatorLadder, VariantLadder

_ANSWERS = {Answer.YES: "yes", Answer.NO: "no", Answer.UNKNOWN: "?"}
_OPERATORS = 20
_LONG = 200
_NOTHING = "no kernel of that kind is in any of them"


def kernel_summary(view: KernelView) -> RenderableType:
    """What a person reads after `opscope kernels`."""
    parts: list[RenderableType] = [Text(_column_line(n, c)) for n, c in enumerate(view.columns, 1)]
    parts += [Text(), _kernel_table(view)] if view.kernels else [Text(_NOTHING)] if view.columns else []
    parts += [Text(_pair_line(pair)) for pair in view.pairs]
    for ladder in view.ladders:
        parts += [Text(), Text(_ladder_heading(ladder), style="bold"), _rungs(ladder), _operators(ladder)]
    parts += message_lines(map(note, view.notes))
    return Group(*parts)


def _column_line(number: int, column: KernelColumn) -> str:
    parts = [plain(column.variant), column.role if column.role != column.variant else None, _threads(column.threads)]
    named = ", ".join(part for part in parts if part)
    note = f"; {column.note}" if column.note else ""
    found = counted_text(column.kernels, "kernel")
    return f"[{number}] {named}: {found}, {KIND_TEXTS[column.kind]} ({plain(column.path)}){note}"


def _threads(count: int | None) -> str | None:
    return None if count is None else counted_text(count, "thread")


def _kernel_table(view: KernelView) -> Table:
    table = plain_table("kernel", "ISA", *(f"[{number}]" for number in range(1, len(view.columns) + 1)))
    table.columns[0].overflow = "fold"
    for line in view.kernels:
        table.add_row(NameCell(line.name), Text(line.isa.value), *(cell_text(cell) for cell in line.cells))
    return table


def _pair_line(pair: KernelPair) -> str:
    left, right = pair.left + 1, pair.right + 1
    threads = _threads(pair.threads)
    where = f" at {threads}" if threads else ""
    return (
        f"[{left}] and [{right}]{where}: {len(pair.only_left)} only in [{left}], "
        f"{len(pair.only_right)} only in [{right}], {len(pair.both)} in both"
    )


def _ladder_heading(ladder: VariantLadder) -> str:
    threads = _threads(ladder.threads)
    where = f", {threads}" if threads else ""
    products = f"{len(ladder.operators)} convolutions and products in delegates"
    return f"{plain(ladder.variant)}{where}: {ladder.about}, {products}"


_SHARE = "share of latency with a yes"


def _rungs(ladder: VariantLadder) -> Table:
    """Answers by question; without shares of latency where times mean nothing."""
    table = plain_table("question", "yes", "no", Answer.UNKNOWN.value, *_unless(ladder.emulated, _SHARE))
    for row in evidence_level_counts(ladder):
        counts = (str(row.yes), str(row.no), str(row.unknown))
        table.add_row(row.rung.value, *counts, *_unless(ladder.emulated, row.share))
    return table


def _unless(emulated: bool, cell: str) -> tuple[str, ...]:
    return () if emulated else (cell,)


def _operators(ladder: VariantLadder) -> Table:
    table = plain_table("operator", *_unless(ladder.emulated, "share"), *(rung.value for rung in EvidenceLevel))
    table.columns[0].overflow = "fold"
    for own in ladder.operators[:_OPERATORS]:
        share = _unless(ladder.emulated, share_text(own.share))
        table.add_row(NameCell(own.module or own.name), *share, *map(_answer, own.steps))
    left = len(ladder.operators) - _OPERATORS
    if left > 0:
        table.add_row(f"and {left} more, see --md or --json")
    return table


def _answer(step: LevelAnswer) -> str:
    return step.isa.value if step.isa and step.answer is Answer.YES else _ANSWERS[step.answer]


def kernel_markdown(view: KernelView) -> str:
    """The same as Markdown, with the source or the reason of every answer."""
    return marked_markdown("\n".join(_markdown(view)))


def _markdown(view: KernelView) -> Iterator[str]:
    yield "# Kernels"
    yield ""
    for number, column in enumerate(view.columns, 1):
        yield f"- {markdown(_column_line(number, column), 4 * LONGEST)}"
    if view.columns:
        yield from _kernel_rows(view)
    for pair in view.pairs:
        yield from _pair_lists(view, pair)
    for ladder in view.ladders:
        yield from _ladder_rows(ladder)
    if view.notes:
        yield from ("", "## Not shown", "", *(f"- {markdown(note, 4 * LONGEST)}" for note in view.notes))


def _kernel_rows(view: KernelView) -> Iterator[str]:
    heads = ["kernel", "operator", "types", "tile", "ISA", *(f"[{n}]" for n in range(1, len(view.columns) + 1))]
    rows = [[*_name_cells(line), *map(cell_text, line.cells)] for line in view.kernels]
    yield from ("", _table(heads, rows) if rows else _NOTHING)


def _name_cells(line: KernelLine) -> list[str]:
    parts = (line.operator, line.types, line.tile)
    return [markdown(line.name, _LONG), *(markdown(part or "") for part in parts), line.isa.value]


def _pair_lists(view: KernelView, pair: KernelPair) -> Iterator[str]:
    yield from ("", markdown(_pair_line(pair), _LONG), "")
    sides = ((pair.left, pair.only_left), (pair.right, pair.only_right))
    for number, names in sides:
        if names:
            listed = ", ".join(markdown(name, _LONG) for name in names)
            yield f"- only in {markdown(view.columns[number].variant)}: {listed}"


def _ladder_rows(ladder: VariantLadder) -> Iterator[str]:
    yield from ("", f"## {markdown(_ladder_heading(ladder), _LONG)}", "")
    counts = evidence_level_counts(ladder)
    rows = [[row.rung.value, str(row.yes), str(row.no), str(row.unknown), row.share] for row in counts]
    yield _table(["question", "yes", "no", Answer.UNKNOWN.value, _SHARE], rows)
    if ladder.problem:
        yield from ("", f"Calls are not attributed to operators: {markdown(ladder.problem, _LONG)}.")
    steps = [step for own in ladder.operators for step in _steps(own, emulated=ladder.emulated)]
    yield from ("", _table(["operator", "layer", "share", "question", "answer", "because", "source"], steps))


def _steps(own: OperatorLadder, *, emulated: bool) -> Iterator[list[str]]:
    share = "" if emulated else share_text(own.share)
    first = [markdown(own.name), markdown(own.module or ""), share]
    for number, step in enumerate(own.steps):
        cells = first if number == 0 else ["", "", ""]
        detail, source = markdown(step.detail, 4 * LONGEST), markdown(step.source or "", _LONG)
        yield [*cells, step.rung.value, step.answer.value, detail, source]


def _table(heads: list[str], rows: list[list[str]]) -> str:
    return markdown_table(heads, rows).removesuffix("\n")
