"""A result in a few lines: what it is of, its answer, and short tables; as a line of text and as a piece of HTML."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from opscope.reports.content.template import environment
from opscope.reports.content.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2

MOST_ROWS = 10
"""Rows of a long table that a card shows; the data frame has all of them."""
_LONG = 200


class Grid(NamedTuple):
    """A table of text.

    Attributes:
        heads: of the columns; the first ``texts`` columns are words, the others figures.
        rows: cells, as many as heads.
        texts: number of columns of words.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1


class Card(NamedTuple):
    """A result in a few lines. Names from traces stand in it as they are: :func:`text` and :func:`html` escape them.

    Attributes:
        where: what it is of: the path or paths.
        answer: the figure or verdict that is asked for first, as a sentence without a full stop.
        note: what belongs to the answer; None for ``where``.
        grids: tables; those without rows are not shown.
        lines: what else is to be said, one sentence each.
    """

    where: str
    answer: str
    note: str | None = None
    grids: Sequence[Grid] = ()
    lines: Sequence[str] = ()


def text(kind: str, card: Card) -> str:
    """One line: the kind of result, what it is of, and the answer."""
    return f"<{kind} {plain(card.where, _LONG)}: {plain(card.answer, _LONG)}>"


def html(card: Card) -> str:
    """A piece of HTML without style or script."""
    note = card.where if card.note is None else card.note
    values = {"answer": card.answer, "note": note, "grids": card.grids, "lines": card.lines}
    return _template().render(values).removesuffix("\n")


def more_rows(shown: int, total: int) -> list[str]:
    """Says how many rows a card leaves out; nothing when it has all."""
    return [f"{total - shown:,} more: .to_polars() has all of them"] if total > shown else []


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    return environment({}).get_template("notebook.html.j2")
