"""Text of others on one line of a terminal: what would move the cursor, hide or reorder letters is shown escaped.

Names in traces, paths, messages of other programs and what they printed may hold anything. Escape sequences of a
terminal (ECMA-48) begin with control characters; direction and other format characters (Unicode category Cf) change how
the text around them reads.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


CSV_ESCAPED = "'\\"
"""What stands before a cell of a CSV file whose text is escaped."""


def printable(text: str) -> str:
    r"""The text on one line, in letters that stand for themselves.

    Control, format, private, unassigned and surrogate characters and ends of lines are shown as Python writes them
    (``\x1b``, ``\u202e``, ``\n``), other kinds of blanks as a blank.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def uncoloured(text: str) -> str:
    """The text without the sequences by which programs colour what they print (ECMA-48, ``CSI ... m``)."""
    return _COLOUR.sub("", text)


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if unicodedata.category(character) == "Zs" else character.encode("unicode_escape").decode()


def hides(text: str) -> bool:
    """Whether there is something in a text that no terminal shows as it is; blanks of all kinds are shown."""
    return not text.isprintable() and any(not c.isprintable() and unicodedata.category(c) != "Zs" for c in text)


def escaped(text: str) -> str:
    """The text with what no terminal shows escaped as by :func:`printable`, and backslashes doubled; blanks stay."""
    return "".join(_ESCAPED.get(c) or (c if unicodedata.category(c) == "Zs" else _shown(c)) for c in text)


def unescaped(text: str) -> str:
    """The text that :func:`escaped` was given; what is not an escape stays as it is."""
    return _ESCAPE.sub(lambda match: _MEANT.get(match[1]) or chr(int(match[1][1:], 16)), text)


_MEANT = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED = {meant: f"\\{letter}" for letter, meant in _MEANT.items()}
_ESCAPE = re.compile(r"\\([\\nrt]|x[0-9a-f]{2}|u(?!d[89a-f])[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4})")


def shell_command(words: Iterable[str]) -> str:
    """A command to be copied into a shell, in which every word stays one word.

    Words with characters that no terminal shows are written as ``$'...'``, which bash and zsh take.
    """
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_ansi_c(word)}'" for word in words)


def _ansi_c(word: str) -> str:
    r"""The word between the quotes of ``$'...'``, where ``\x`` stands for a byte, ``\u`` for a character."""
    return "".join(_QUOTED.get(character) or _code(character) for character in word)


_QUOTED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}
_SURROGATES = range(0xDC80, 0xDD00)
"""Bytes of a name that is not UTF-8, as Python keeps them (PEP 383)."""


def _code(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code in _SURROGATES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
