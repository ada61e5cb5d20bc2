"""Documents in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope.core.outputs import MARKDOWN_MARK
from opscope.reports.document.blocks import (
    LEFT,
    Beside,
    Block,
    Bullets,
    CellMap,
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
from opscope.reports.document.messages import finding_parts, sentence
from opscope.reports.document.text import LONG, fenced, markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opscope.analysis.findings.message import Message
    from opscope.reports.document.blocks import Document, MapCell, Row, TableColumn

_DEEPEST = 4
_MOST_ROWS = 200
_MOST_CELLS = 400
"""Of a heat map."""


def markdown_document(document: Document, level: int = 1) -> str:
    """A whole document, with the mark of opscope at its end; ``level`` of its heading, where it is part of a page."""
    grade = f"{document.grade}: " if document.grade else ""
    answer = f"{grade}{_long(document.answer)}"
    mark = "#" * level
    first = [f"{mark} {_long(document.heading)}\n", f"**{answer}**\n"]
    parts = first if document.heading else [f"{mark} {answer}\n"]
    blocks: list[Block] = [*document.trust, *document.blocks, *document.sections]
    return "\n".join([*parts, *_written(blocks, level + 1), f"{MARKDOWN_MARK}\n"])


def _written(blocks: Iterable[Block], level: int) -> Iterator[str]:
    """Each as a paragraph that ends with a line end; what Markdown does not show is left out."""
    for block in blocks:
        yield from filter(None, _WRITERS[type(block)](block, level) if type(block) in _WRITERS else ())


def _section(title: str, blocks: Iterable[Block], level: int) -> Iterator[str]:
    """A heading and what stands below it; nothing where Markdown shows nothing of it."""
    inside = list(_written(blocks, level + 1))
    if inside:
        yield f"{'#' * min(level, _DEEPEST)} {_long(title)}\n"
        yield from inside


def _sentence(block: Sentence) -> str:
    text = _long(block.text)
    if not text:
        return ""
    if block.tone is Tone.BAD:
        return f"> {text}\n"
    return f"**{text}**\n" if block.tone is Tone.STRONG else f"{text}\n"


def _table(block: TableBlock) -> str:
    if not block.every:
        return ""
    shown = block.worded
    columns = [block.columns[number] for number in shown]
    heads = [_name(column.head) for column in columns]
    most = block.fold.first if block.fold else _MOST_ROWS
    kept = [*block.rows[:most], *block.closing]
    rows = [[_cell(row, number, block.columns[number]) for number in shown] for row in kept]
    ruler = "|".join("---" if column.format in LEFT else "---:" for column in columns)
    lines = [f"| {' | '.join(cells)} |\n" for cells in [heads, *rows]]
    rest = block.rest(most)
    return "".join([lines[0], f"|{ruler}|\n", *lines[1:], f"\n{rest}\n" if rest else ""])


def _cell(row: Row, number: int, column: TableColumn) -> str:
    cell = row.cells[number]
    text = (_name if column.format is Format.NAME else _long)(cell_text(cell, column))
    if row.whole and not number:
        text = f"**{text}**"
    return f"{'· ' * (cell.depth or 0)}{text}{f' ({_long(cell.note)})' if cell.note else ''}"


def _map(block: CellMap) -> str:
    """A small map, its colours as bold text; of a large one its size."""
    if any(block.left_out) or len(block.rows) * len(block.columns) > _MOST_CELLS:
        return f"The HTML page has a map of {block.size}; {block.elsewhere}.\n"
    heads = [block.down, *block.columns]
    lines = [[_name(name), *map(_map_cell, cells)] for name, cells in block.rows]
    ruler = f"|---|{'---:|' * len(block.columns)}\n"
    first, *rest = (f"| {' | '.join(cells)} |\n" for cells in [list(map(_name, heads)), *lines])
    return "".join([first, ruler, *rest])


def _map_cell(cell: MapCell) -> str:
    text = f"**{_long(cell.text)}**" if cell.shade else _long(cell.text)
    return f"{text} ({_long(', '.join(cell.notes))})" if cell.notes else text


def _messages(block: Messages) -> Iterator[str]:
    """All of them; of brief ones the first few, and the rules of the others."""
    shown = block.messages[: block.first] if block.brief else block.messages
    yield "".join(f"{_message(message, at)}\n" for at, message in enumerate(shown, 1))
    yield f"{_long(block.rest)}\n" if block.brief and block.rest else ""


def _message(message: Message, number: int) -> str:
    parts = finding_parts(message)
    if parts is None:
        return f"- {_long(sentence(message))}"
    details = f" {_long(parts.details)}" if parts.details else ""
    behind = "".join(f" ({_long(one)})" for one in (parts.place, parts.saving) if one)
    return (
        f"{number}. **{_long(parts.title)}**{behind}: {_long(parts.evidence)}. Next: {_long(parts.next_step)}.{details}"
    )


def _long(text: str) -> str:
    return markdown(text, LONG)


def _name(text: str) -> str:
    return markdown(text)


_WRITERS: dict[type[Block], Callable[[Any, int], Iterable[str]]] = {
    Sentence: lambda block, _: [_sentence(block)],
    Bullets: lambda block, _: ["".join(f"- {_long(item)}\n" for item in block.items)],
    Messages: lambda block, _: _messages(block),
    TableBlock: lambda block, _: [_table(block)],
    Figures: lambda block, _: map(_table, filter(None, [block.listed if block.alone else block.instead])),
    CellMap: lambda block, _: [_map(block)],
    Picture: lambda block, _: [f"{block.instead}\n"] if block.instead else [],
    Code: lambda block, _: [fenced(block.text)],
    Details: lambda block, level: (
        [f"{_long(block.instead)}\n"] if block.instead else _section(block.summary, block.blocks, level)
    ),
    Beside: lambda block, level: _written([*block.left, *block.right], level),
    Section: lambda block, level: _section(block.title, block.blocks, level),
}
"""What writes each block; pages alone show the others."""
