"""Names in Markdown and CSV: whatever a trace holds stays text there."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

LONGEST = 120
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~#])")
GUARDED = "=+-@\t\r\n'"
"""First characters of a text that gets an apostrophe in a CSV cell: formulas, and the apostrophe itself."""


def plain(name: str, longest: int = LONGEST) -> str:
    """A name on one line, without control or direction characters, cut in the middle when it is too long."""
    visible = "".join(_visible(c) for c in name)
    if len(visible) <= longest:
        return visible
    half = (longest - 1) // 2
    return f"{visible[:half]}…{visible[-half:]}"


def markdown(name: str, longest: int = LONGEST) -> str:
    """A name for a Markdown cell or paragraph: no markup, no table break, no HTML."""
    return _MARKDOWN.sub(r"\\\1", plain(name, longest))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> str:
    """A table in Markdown, each line with its end; cells are Markdown already.

    Args:
        head: names of the columns.
        rows: cells of each row.
        right: columns whose cells stand to the right.
    """
    lines = [head, ["---:" if name in right else "---" for name in head], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def csv_cell(value: str) -> str:
    """A text for a CSV cell that spreadsheets must not take for a formula; it is back without a leading apostrophe."""
    return f"'{value}" if value.startswith(tuple(GUARDED)) else value


def distinct(names: Iterable[str]) -> list[str]:
    """The names in their order; one that was there before gets a number, for formats that tell things by name."""
    found: dict[str, None] = {}
    for name in names:
        number, shown = 2, name
        while shown in found:
            number, shown = number + 1, f"{name} ({number})"
        found[shown] = None
    return list(found)


def _visible(character: str) -> str:
    """A character as it may stand in a line of text; what has no place there shows that something was there."""
    category = unicodedata.category(character)
    if category == "Zs":
        return " "
    return "\N{REPLACEMENT CHARACTER}" if category.startswith("C") or category in {"Zl", "Zp"} else character
