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
"""Most cells of a heat map that Markdown shows."""


def markdown_document(document: Document, level: int = 1) -> str:
    """Return a document in Markdown, ending with opscope's mark; its heading has the given level."""
    grade = f"{document.grade}: " if document.grade else ""
    answer = f"{grade}{_escape_sentence(document.answer)}"
    mark = "#" * level
    first = [f"{mark} {_escape_sentence(document.heading)}\n", f"**{answer}**\n"]
    parts = first if document.heading else [f"{mark} {answer}\n"]
    blocks: list[Block] = [*document.trust, *document.blocks, *document.sections]
    return "\n".join([*parts, *_write_blocks(blocks, level + 1), f"{MARKDOWN_MARK}\n"])


def _write_blocks(blocks: Iterable[Block], level: int) -> Iterator[str]:
    """Yield each block as paragraphs that end with a line end; blocks that Markdown does not show are left out."""
    for block in blocks:
        yield from filter(None, _WRITERS[type(block)](block, level) if type(block) in _WRITERS else ())


def _write_section(title: str, blocks: Iterable[Block], level: int) -> Iterator[str]:
    """Yield a heading and the blocks below it; nothing if Markdown shows none of them."""
    paragraphs = list(_write_blocks(blocks, level + 1))
    if paragraphs:
        yield f"{'#' * min(level, _DEEPEST)} {_escape_sentence(title)}\n"
        yield from paragraphs


def _sentence_markdown(block: Sentence) -> str:
    text = _escape_sentence(block.text)
    if not text:
        return ""
    if block.tone is Tone.BAD:
        return f"> {text}\n"
    return f"**{text}**\n" if block.tone is Tone.STRONG else f"{text}\n"


def _table_markdown(block: TableBlock) -> str:
    if not block.all_rows:
        return ""
    numbers = block.text_columns
    columns = [block.columns[number] for number in numbers]
    heads = [_escape_name(column.head) for column in columns]
    most = block.fold.first if block.fold else _MOST_ROWS
    rows_shown = [*block.rows[:most], *block.closing]
    rows = [[_cell_markdown(row, number, block.columns[number]) for number in numbers] for row in rows_shown]
    ruler = "|".join("---" if column.format in LEFT else "---:" for column in columns)
    lines = [f"| {' | '.join(cells)} |\n" for cells in [heads, *rows]]
    rest = block.rest(most)
    return "".join([lines[0], f"|{ruler}|\n", *lines[1:], f"\n{rest}\n" if rest else ""])


def _cell_markdown(row: Row, number: int, column: TableColumn) -> str:
    cell = row.cells[number]
    text = (_escape_name if column.format is Format.NAME else _escape_sentence)(cell_text(cell, column))
    if row.is_total and not number:
        text = f"**{text}**"
    return f"{'· ' * (cell.depth or 0)}{text}{f' ({_escape_sentence(cell.note)})' if cell.note else ''}"


def _map_markdown(block: CellMap) -> str:
    """Return a small heat map with bold text for its colours; of a large one only its size."""
    if any(block.left_out) or len(block.rows) * len(block.columns) > _MOST_CELLS:
        return f"The HTML page has a map of {block.size}; {block.elsewhere}.\n"
    heads = [block.down, *block.columns]
    lines = [[_escape_name(name), *map(_map_cell_markdown, cells)] for name, cells in block.rows]
    ruler = f"|---|{'---:|' * len(block.columns)}\n"
    first, *rest = (f"| {' | '.join(cells)} |\n" for cells in [list(map(_escape_name, heads)), *lines])
    return "".join([first, ruler, *rest])


def _map_cell_markdown(cell: MapCell) -> str:
    text = f"**{_escape_sentence(cell.text)}**" if cell.shade else _escape_sentence(cell.text)
    return f"{text} ({_escape_sentence(', '.join(cell.notes))})" if cell.notes else text


def _write_messages(block: Messages) -> Iterator[str]:
    """Yield all messages; of brief ones the first few, and the rules of the rest."""
    listed = block.messages[: block.first] if block.brief else block.messages
    yield "".join(f"{_message_markdown(message, at)}\n" for at, message in enumerate(listed, 1))
    yield f"{_escape_sentence(block.rest)}\n" if block.brief and block.rest else ""


def _message_markdown(message: Message, number: int) -> str:
    parts = finding_parts(message)
    if parts is None:
        return f"- {_escape_sentence(sentence(message))}"
    details = f" {_escape_sentence(parts.details)}" if parts.details else ""
    behind = "".join(f" ({_escape_sentence(remark)})" for remark in (parts.place, parts.saving) if remark)
    title, evidence, step = map(_escape_sentence, (parts.title, parts.evidence, parts.next_step))
    return f"{number}. **{title}**{behind}: {evidence}. Next: {step}.{details}"


def _escape_sentence(text: str) -> str:
    return markdown(text, LONG)


def _escape_name(text: str) -> str:
    return markdown(text)


_WRITERS: dict[type[Block], Callable[[Any, int], Iterable[str]]] = {
    Sentence: lambda block, _: [_sentence_markdown(block)],
    Bullets: lambda block, _: ["".join(f"- {_escape_sentence(item)}\n" for item in block.items)],
    Messages: lambda block, _: _write_messages(block),
    TableBlock: lambda block, _: [_table_markdown(block)],
    Figures: lambda block, _: map(_table_markdown, filter(None, [block.listed if block.alone else block.instead])),
    CellMap: lambda block, _: [_map_markdown(block)],
    Picture: lambda block, _: [f"{block.instead}\n"] if block.instead else [],
    Code: lambda block, _: [fenced(block.text)],
    Details: lambda block, level: (
        [f"{_escape_sentence(block.instead)}\n"]
        if block.instead
        else _write_section(block.summary, block.blocks, level)
    ),
    Beside: lambda block, level: _write_blocks([*block.left, *block.right], level),
    Section: lambda block, level: _write_section(block.title, block.blocks, level),
}
"""Writer of each block that Markdown shows; the others are only on pages."""
