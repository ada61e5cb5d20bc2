"""The words of a document on a terminal beside those of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from opscope.reports.document.blocks import Beside, Block, Details, Document, Figures, Section, TableBlock
from opscope.reports.document.terminal import terminal_document
from terminal_text import text_of


def words_beside_tables(document: Document) -> list[str]:
    """What a person reads first, without the cells and heads of its tables."""
    return text_of(terminal_document(document._replace(blocks=list(_untabled(document.blocks)))), 1000).split()


def _untabled(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Section | Details):
            yield replace(block, blocks=[*_untabled(block.blocks)])
        elif isinstance(block, Beside):
            yield replace(block, left=[*_untabled(block.left)], right=[*_untabled(block.right)])
        elif not isinstance(block, TableBlock | Figures):
            yield block
