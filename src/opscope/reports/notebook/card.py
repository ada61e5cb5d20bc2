"""A result in a few lines: what it is of, its answer, and short tables; as a line of text and as a piece of HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from opscope.reports.document.blocks import LEFT, cell_text
from opscope.reports.document.text import LONG, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.reports.document.blocks import TableBlock, TableColumn

MOST_ROWS = 10
"""Rows of a long table that a card shows; the data frame has all of them."""
_LONG = 200


class Card(NamedTuple):
    """A result in a few lines. Names from traces stand in it as they are: :func:`text` and :func:`html` escape them."""

    where: str  # what it is of: the path or paths
    answer: str  # the figure or verdict that is asked for first, as a sentence without a full stop
    note: str | None = None  # what belongs to the answer; None for `where`
    grids: Sequence[TableBlock] = ()  # tables, of which the first rows are shown
    lines: Sequence[str] = ()  # what else is to be said, one sentence each


def text(kind: str, card: Card) -> str:
    """One line: the kind of result, what it is of, and the answer."""
    return f"<{kind} {plain(card.where, _LONG)}: {plain(card.answer, _LONG)}>"


def html(card: Card) -> str:
    """A piece of HTML without style or script."""
    note = card.where if card.note is None else card.note
    tables = Markup("\n").join(_table(block) for block in card.grids if block.every)
    items = Markup("").join(Markup("<li>{}</li>").format(plain(line, LONG)) for line in card.lines)
    head = Markup("<p><b>{}</b><br>{}</p>").format(plain(card.answer, LONG), plain(note, LONG))
    listed = Markup("\n<ul>{}</ul>").format(items) if items else ""
    return Markup("<div>\n{}\n{}{}\n</div>").format(head, tables, listed)


def _table(block: TableBlock) -> Markup:
    shown = block.worded
    heads = Markup("").join(_cell("th", block.columns[at].head, block.columns[at]) for at in shown)
    rows = [
        Markup("").join(_cell("td", cell_text(row.cells[at], block.columns[at]), block.columns[at]) for at in shown)
        for row in (*block.rows[:MOST_ROWS], *block.closing)
    ]
    body = Markup("\n").join(Markup("<tr>{}</tr>").format(row) for row in rows)
    return Markup("<table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>").format(heads, body)


def _cell(tag: str, text: str, column: TableColumn) -> Markup:
    side = "left" if column.format in LEFT else "right; white-space: nowrap"
    return Markup('<{} style="text-align: {}">{}</{}>').format(tag, side, plain(text), tag)


def more_rows(shown: int, total: int) -> list[str]:
    """Says how many rows a card leaves out; nothing when it has all."""
    return [f"{total - shown:,} more: .to_polars() has all of them"] if total > shown else []
