"""Phrasings of ``docs/phrasings.toml`` in what users read: strings, templates, help texts, pages and skills.

``python docs/prose.py`` lists them with what to write instead; it ends with 1 when there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import user_texts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PHRASINGS = Path(__file__).with_name("phrasings.toml")
PAGES = ("README.md", "docs/*.md", "docs/how-to/*.md", "docs/concepts/*.md", "src/opscope/skills/*/SKILL.md")
TEMPLATES = "src/opscope/**/*.j2"
_FILLED = re.compile(r"\{[^{}]*\}")
_FENCE = "```"


class Text(NamedTuple):
    """A text that users read, and where it is."""

    file: Path
    line: int
    text: str


class Slip(NamedTuple):
    """A phrasing of the list, and what to write instead."""

    text: Text
    found: str
    better: str

    def __str__(self) -> str:
        """One line, as compilers write them."""
        return f"{self.text.file.relative_to(ROOT)}:{self.text.line}: {self.found!r}: write {self.better!r}"


def phrasings(of: str = "phrasings") -> dict[re.Pattern[str], str]:
    """The phrasings of a list to avoid, and what to write instead."""
    listed = tomllib.loads(PHRASINGS.read_text("utf-8"))[of]
    return {re.compile(pattern, re.IGNORECASE): better for pattern, better in listed.items()}


def slips(texts: Iterator[Text], of: str = "phrasings") -> Iterator[Slip]:
    """The phrasings of a list in some texts."""
    listed = phrasings(of)
    for text in texts:
        flat = _FILLED.sub("{}", " ".join(text.text.split()))
        for pattern, better in listed.items():
            for match in pattern.finditer(flat):
                yield Slip(text, match.group(), better)


def texts() -> Iterator[Text]:
    """All that users read: of modules the strings, of commands their help, of pages the prose outside of examples."""
    for file in sorted((ROOT / "src" / "opscope").rglob("*.py")):
        yield from _strings(file)
    for file in sorted(ROOT.glob(TEMPLATES)):
        yield from _lines(file)
    for pattern in PAGES:
        for file in sorted(ROOT.glob(pattern)):
            yield from _paragraphs(file)


def _strings(file: Path) -> Iterator[Text]:
    """String literals, those of f-strings with their expressions left out; docstrings of commands, and no others."""
    tree = ast.parse(file.read_text("utf-8"))
    kept = file.parent.name == "cli"
    skipped = set() if kept else {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            skipped |= {id(part) for part in node.values}
            yield Text(file, node.lineno, "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield Text(file, node.lineno, node.value)


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that stand alone: docstrings of modules, classes, functions and of the names before them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _lines(file: Path) -> Iterator[Text]:
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        yield Text(file, number, line)


def _paragraphs(file: Path) -> Iterator[Text]:
    """Paragraphs, so that a phrasing is found across a line break; what is in fences is output or code."""
    fenced, own, first = False, list[str](), 1
    for number, line in enumerate([*file.read_text("utf-8").splitlines(), ""], 1):
        if line.strip().startswith(_FENCE) or not line.strip() or fenced:
            if own:
                yield Text(file, first, " ".join(own))
            own, first = [], number + 1
            fenced ^= line.strip().startswith(_FENCE)
        else:
            own.append(line)


def program_texts() -> Iterator[Text]:
    """Yield the program's own texts, each at the first line of its module."""
    for file, found in user_texts.texts_by_file():
        yield from (Text(file, 1, text.text) for text in found)


def main() -> int:
    """Print what was found."""
    found = [*slips(texts()), *slips(program_texts(), "texts")]
    for one in found:
        print(one)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
