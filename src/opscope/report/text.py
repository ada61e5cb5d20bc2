"""Names in Markdown and CSV: whatever a trace holds stays text there."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 120
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~#])")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def plain(name: str, longest: int = LONGEST) -> str:
    """A name on one line, without control or direction characters, cut in the middle when it is too long."""
    visible = "".join(c if _printable(c) else "\N{REPLACEMENT CHARACTER}" for c in name)
    if len(visible) <= longest:
        return visible
    half = (longest - 1) // 2
    return f"{visible[:half]}…{visible[-half:]}"


def markdown(name: str) -> str:
    """A name for a Markdown cell or paragraph: no markup, no table break, no HTML."""
    return _MARKDOWN.sub(r"\\\1", plain(name))


def csv_cell(value: str) -> str:
    """A text for a CSV cell that spreadsheets must not take for a formula."""
    return f"'{value}" if value.startswith(_FORMULA) else value


def _printable(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"}
