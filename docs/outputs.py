"""What pages show of the output of commands: parts of recordings, of one real run, in ``docs/recorded``.

A block of a page that follows ``<!-- recorded: NAME -->`` is the recording of that name. With ``| FIRST WORDS | COUNT``
behind the name, it is so many of its lines, from the first one that begins with these words; with
``| FIRST WORDS | LAST WORDS``, those up to the next one that begins with the others. ``docs/build.py`` writes the
blocks, ``docs/record.py`` the recordings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "docs" / "recorded"
_BLOCK = re.compile(
    r"(?P<note><!-- recorded: (?P<what>[^\n]*?) -->\n+```text\n)(?P<text>.*?)(?P<end>^```$)", re.MULTILINE | re.DOTALL
)


def pages_with_outputs() -> list[Path]:
    """The pages that can show recordings."""
    docs, skills = ROOT / "docs", ROOT / "src" / "opscope" / "skills"
    return [ROOT / "README.md", *sorted(docs.rglob("*.md")), *sorted(skills.glob("*/SKILL.md"))]


def written(pages: Iterable[Path]) -> dict[Path, str]:
    """The pages that show recordings, each as it must be; paths within the repository.

    Raises:
        ValueError: there is no such recording, or it has no such lines.
    """
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    return {
        page.relative_to(ROOT): _BLOCK.sub(_filled, text) for page, text in texts.items() if "<!-- recorded: " in text
    }


def _filled(block: re.Match[str]) -> str:
    return f"{block['note']}{excerpt(block['what'])}{block['end']}"


def excerpt(what: str) -> str:
    """The lines that a note names, each with its end.

    Raises:
        ValueError: there are no such lines.
    """
    name, *part = (word.strip() for word in what.split("|"))
    path = RECORDED / f"{name}.txt"
    if not path.is_file():
        raise ValueError(f"there is no recording {name!r} in docs/recorded")
    lines = path.read_text(encoding="utf-8").splitlines()[1:]  # the first one is the command
    if part:
        first = _found(lines, part[0], name)
        lines = lines[first:]
        count = int(part[1]) if part[1].isdigit() else _found(lines, part[1], name) + 1
        if count > len(lines):
            raise ValueError(f"the recording {name!r} has no {count} lines from {part[0]!r} on: change the page")
        lines = lines[:count]
    return "".join(f"{line}\n" for line in lines)


def _found(lines: list[str], words: str, name: str) -> int:
    """Number of the first line that begins with these words."""
    found = next((number for number, line in enumerate(lines) if line.startswith(words)), None)
    if found is None:
        raise ValueError(f"the recording {name!r} has no line that begins with {words!r}: change the page")
    return found
