"""Documents on a terminal: in 80 columns or in all available ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding

from opscope.analysis.findings.message import MessageKind, Severity
from opscope.core.stats.effect import Verdict
from opscope.core.units import time_text
from opscope.reports.document.blocks import (
    LEFT,
    Beside,
    Block,
    Bullets,
    Code,
    Details,
    Figures,
    Format,
    Messages,
    Picture,
    Section,
    Sentence,
    TableBlock,
    Tone,
    cell_text,
)
from opscope.reports.document.console import FittingTable, NameCell, Text, TextTable
from opscope.reports.document.messages import finding_parts, in_short, sentence
from opscope.reports.document.text import LONG, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opscope.analysis.findings.message import Message
    from opscope.reports.document.blocks import Document, Row, TableColumn

_BELOW = (0, 0, 0, 3)
"""Indent of the lines below the title of a finding."""
_STYLES = {Tone.STRONG: "bold", Tone.DIM: "dim", Tone.BAD: "bold red", Tone.BETTER: "green", Tone.WORSE: "red"}
_VERDICTS = {Verdict.FASTER: "green", Verdict.SLOWER: "red"}


def terminal_document(document: Document) -> RenderableType:
    """Return the first screen of a document; files hold the rest."""
    grade = f"{document.grade}: " if document.grade else ""
    answer = Text(f"{grade}{plain(document.answer, LONG)}", "bold red" if document.grade else "bold")
    heading = [Text(plain(document.heading, LONG), "dim")] if document.heading else []
    return Group(*heading, answer, *_write_blocks([*document.trust, *document.blocks]))


def _write_blocks(blocks: Iterable[Block]) -> Iterator[RenderableType]:
    """Yield each block as it is printed; blocks that a terminal does not show are left out."""
    for block in blocks:
        yield from _WRITERS[type(block)](block) if type(block) in _WRITERS else ()


def message_lines(block: Messages) -> list[RenderableType]:
    """Return messages as lines: findings numbered and in full, other messages one line each."""
    findings = [message for message in block.messages if message.kind is MessageKind.FINDING]
    listed = replace(block, messages=findings, first=1) if block.brief and findings else block
    write = _brief_message if block.brief else _full_message
    lines = [
        line for number, message in enumerate(listed.messages[: listed.first], 1) for line in write(message, number)
    ]
    return [*lines, Text(plain(listed.rest, LONG), style="dim")] if listed.rest else lines


def _brief_message(message: Message, _number: int) -> list[RenderableType]:
    """Return a finding by its title and first next step, another message by its first statement."""
    parts = finding_parts(message)
    if parts is None:
        mark = "note: " if message.kind is MessageKind.WARNING else ""
        return [Text(f"{mark}{plain(in_short(message.title), LONG)}", style="dim")]
    saving = f" (could save up to {time_text(message.saving_ns)})" if message.saving_ns else ""
    title = Text(f"{plain(parts.title, LONG)}{saving}", "bold")
    return [title, Text(f"next: {plain(in_short(parts.next_step), LONG)}")]


def _full_message(message: Message, number: int) -> list[RenderableType]:
    parts = finding_parts(message)
    if parts is None:
        mark = "note: " if message.kind is MessageKind.WARNING else ""
        return [Text(f"{mark}{plain(sentence(message), LONG)}", style="dim")]
    behind = "".join(f" ({plain(remark)})" for remark in (parts.place, parts.saving) if remark)
    title = Text(f"{number}. {plain(parts.title, LONG)}{behind}", "bold" if message.severity is Severity.HIGH else "")
    return [
        title,
        Padding(Text(plain(message.evidence, LONG), style="dim"), _BELOW),
        Padding(Text(f"next: {plain(parts.next_step, LONG)}"), _BELOW),
    ]


def _write_table(block: TableBlock) -> list[RenderableType]:
    """Return a table without rules; columns of figures are right-aligned and never wrap."""
    if not block.all_rows:
        return []
    numbers = [number for number in block.text_columns if not block.columns[number].wide]
    narrow = [number for number in numbers if not block.columns[number].roomy]
    table = FittingTable(_text_table(block, numbers), _text_table(block, narrow))
    rest = _write_sentence(Sentence(block.rest(block.fold.first), Tone.DIM)) if block.fold else []
    return [Text(), table, Text(), *rest]


def _text_table(block: TableBlock, numbers: Sequence[int]) -> TextTable:
    """Return a table of the columns with these numbers."""
    table = TextTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.show_header = any(block.columns[number].head for number in numbers)
    for number in numbers:
        column = block.columns[number]
        is_left = column.format in LEFT
        table.add_column(
            column.head, justify="left" if is_left else "right", no_wrap=not is_left or column.format is Format.VERDICT
        )
    for row in [*block.rows[: block.fold.first if block.fold else None], *block.closing]:
        table.add_row(*(_table_cell(row, number, block.columns[number]) for number in numbers))
    return table


def _table_cell(row: Row, number: int, column: TableColumn) -> RenderableType:
    cell = row.cells[number]
    text = f"{'  ' * (cell.depth or 0)}{cell_text(cell, column)}"
    if column.format is Format.NAME or (not number and column.format in LEFT):
        return NameCell(text, cell.note)
    verdict = _VERDICTS.get(cell.value, "") if isinstance(cell.value, Verdict) else ""
    noted = ", ".join(filter(None, (text, cell.note)))
    return Text(plain(noted, LONG), verdict or _STYLES.get(cell.tone, ""))


def _write_section(block: Section) -> list[RenderableType]:
    """Return a section's title and blocks; nothing if a terminal shows none of them."""
    lines = list(_write_blocks(block.blocks))
    if lines and isinstance(lines[0], Text) and not lines[0].plain:
        lines = lines[1:]  # a table stands right below its title
    return [Text(), Text(plain(block.title, LONG), "bold"), *lines] if lines else []


def _write_sentence(block: Sentence) -> list[RenderableType]:
    return [Text(plain(block.text, LONG), _STYLES.get(block.tone, ""))] if block.text and not block.wide else []


_WRITERS: dict[type[Block], Callable[[Any], Iterable[RenderableType]]] = {
    Sentence: _write_sentence,
    Bullets: lambda block: [] if block.wide else [Text(plain(item, LONG)) for item in block.items],
    Messages: message_lines,
    TableBlock: _write_table,
    Picture: lambda block: [Text(block.instead)] if block.instead else [],
    Code: lambda block: [Text(block.text)],
    Figures: lambda block: _write_blocks(filter(None, [block.listed if block.alone else block.instead])),
    Details: lambda block: _write_blocks([Sentence(block.instead)] if block.instead else block.blocks),
    Beside: lambda block: _write_blocks([*block.left, *block.right]),
    Section: _write_section,
}
"""Writer of each block that a terminal shows; heat maps are only on pages."""
