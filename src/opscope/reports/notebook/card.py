"""A result in a few lines: what it is of, its answer, and short tables; as a line of text and as a piece of HTML."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from opscope.reports.document.template import environment
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2

MOST_ROWS = 10
"""Rows of a long table that a card shows; the data frame has all of them."""
_LONG = 200


class Grid(NamedTuple):
    """A table of text."""

    heads: Sequence[str]  # of the columns; the first `texts` columns are words, the others figures
    rows: Sequence[Sequence[str]]  # cells, as many as heads
    texts: int = 1  # number of columns of words


class Card(NamedTuple):
    """A result in a few lines. Names from traces stand in it as they are: :func:`text` and :func:`html` escape them."""

    where: str  # what it is of: the path or paths
    answer: str  # the figure or verdict that is asked for first, as a sentence without a full stop
    note: str | None = None  # what belongs to the answer; None for `where`
    grids: Sequence[Grid] = ()  # tables; those without rows are not shown
    lines: Sequence[str] = ()  # what else is to be said, one sentence each


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
