"""What blocks of a document hold, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.reports.document.blocks import Beside, Block, Bullets, Details, Section, Sentence, TableBlock, cell_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def cells(table: TableBlock) -> list[list[str]]:
    """The cells of each row and of the lines below them, without notes."""
    return [
        [cell_text(cell, one) for cell, one in zip(row.cells, table.columns, strict=True)] for row in table.all_rows
    ]


def inside(blocks: Iterable[Block]) -> Iterator[Block]:
    """All blocks, those of sections and details too."""
    for block in blocks:
        yield block
        if isinstance(block, Section | Details):
            yield from inside(block.blocks)
        if isinstance(block, Beside):
            yield from inside([*block.left, *block.right])


def tables(*blocks: Block) -> list[TableBlock]:
    """The tables in blocks."""
    return [block for block in inside(blocks) if isinstance(block, TableBlock)]


def sentences(*blocks: Block) -> list[str]:
    """Sentences and bullets in blocks."""
    found = []
    for block in inside(blocks):
        found += [block.text] if isinstance(block, Sentence) else []
        found += list(block.items) if isinstance(block, Bullets) else []
    return found
