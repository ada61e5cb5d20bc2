"""The fenced blocks of documents, and what the comment before a block says about running it.

A comment of HTML before a fence, which no reader of the page sees:

``<!-- check only: REASON -->``   the block is not run; its syntax, commands and options are checked
``<!-- exits: 1 or 14 -->``       the block ends with one of these codes instead of 0
``<!-- file: NAME -->``           the block is the content of a file
``<!-- example -->``              the output shown is of another model or machine: its words are compared, not its lines
``<!-- example: WHAT -->``        it is not the output of this program
``<!-- recorded: NAME -->``       it is a part of a recording, see ``docs/outputs.py``
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL, OUTPUT = ("sh", "bash"), ("text",)
_FENCE = re.compile(
    r"^(?: *<!-- (?P<note>[^\n]*?) -->\n+)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)*(?:e[+-]?\d+)?")
_UNIT = re.compile(r"# (?:ns|µs|ms|s|B|KiB|MiB|GiB|MMAC|GMAC|MAC)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document.

    Attributes:
        line: number of its first line in the document.
        language: word behind the fence; empty without.
        text: what it holds.
        note: the comment before it, empty without.
    """

    line: int
    language: str
    text: str
    note: str

    def told(self, key: str) -> str | None:
        """What the comment says under a key; None when it does not."""
        name, _, value = self.note.partition(":")
        return value.strip() if name.strip() == key else None

    def commands(self) -> list[list[str]]:
        """The words of every ``opscope`` command of a shell block, without what follows a pipe or ``&&``."""
        joined = self.text.replace("\\\n", " ")
        quoted_or_plain = r"""(?:"[^"\n]*"|'[^'\n]*'|[^|&;\n)>"'])*"""
        found = re.findall(rf"(?:^|[;&|(]\s*)(opscope(?=\s){quoted_or_plain})", joined, re.MULTILINE)
        return [shlex.split(command, comments=True) for command in found]


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = document.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(line, match["language"], body, match["note"] or ""))
    return found


def documents() -> list[Path]:
    """The pages that a user follows: README, tutorial, how-tos, concepts, recipes and skills."""
    docs, skills = ROOT / "docs", ROOT / "src" / "opscope" / "skills"
    pages = [*sorted((docs / "how-to").glob("*.md")), *sorted((docs / "concepts").glob("*.md"))]
    pages += sorted((docs / "recipes").glob("*.md"))
    return [ROOT / "README.md", docs / "tutorial.md", *pages, *sorted(skills.glob("*/SKILL.md"))]


def shape(line: str) -> str:
    """A line of output without its figures: numbers are ``#``, with any unit, and spaces are one."""
    numbered = _NUMBER.sub("#", line)
    return " ".join(_UNIT.sub("# unit", numbered).split())
