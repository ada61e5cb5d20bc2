"""Count names and docstrings that need a second reading, and refuse more of them than the package may have.

``python docs/names.py`` ends with 1 where there are more than ``LIMITS`` allow; ``--list ROOM`` prints each of a room
with its place. Counted are

- private functions and methods with a name of one word, such as ``_widened``;
- docstrings that begin by pointing elsewhere ("Of", "The same", "What") and not with what the object does or is;
- local names and parameters that name nothing, such as ``own``, ``one`` and ``found``.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "opscope"
ONE_WORD, POINTING, VAGUE = KINDS = ("one-word names", "pointing docstrings", "vague locals")
LIMITS = {ONE_WORD: 145, POINTING: 80, VAGUE: 430}
"""Largest counts of the whole package, which has 6,400 functions and 4,900 docstrings."""
POINTING_WORDS = frozenset(
    "all also and as at by each every for from how in it its likewise more most none of on one same so such that their "
    "these this those to what when where whether which who why with".split()
)
VAGUE_NAMES = frozenset(
    "alone asked begun called done each found given heard inside it kept left lone named one other others own place "
    "places said shown told them there wanted what whole whose".split()
)


class Slip(NamedTuple):
    """A name or docstring that counts."""

    kind: str  # of KINDS
    path: Path
    line: int
    text: str

    @property
    def room(self) -> str:
        """The directory of the package that it stands in; ``opscope`` for modules of the package itself."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else "opscope"


def find_slips() -> Iterator[Slip]:
    """Find every name and docstring that counts, in order of path and line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            yield from _slips_of_node(node, path)


def _slips_of_node(node: ast.AST, path: Path) -> Iterator[Slip]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES:
        yield Slip(VAGUE, path, node.lineno, node.id)
    elif isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
        yield Slip(VAGUE, path, node.lineno, node.arg)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
        if node.name.startswith("_") and "_" not in node.name.strip("_"):
            yield Slip(ONE_WORD, path, node.lineno, node.name)
        docstring = ast.get_docstring(node) or ""
        if _points_elsewhere(docstring):
            yield Slip(POINTING, path, node.lineno, f"{node.name}: {docstring.splitlines()[0]}")


def _points_elsewhere(docstring: str) -> bool:
    words = docstring.replace("``", "").lower().split()
    return bool(words) and (words[0].strip(".,:;") in POINTING_WORDS or words[:2] == ["the", "same"])


def main() -> int:
    """Compare the counts with the limits, or list a room; return 1 when a count is above its limit."""
    parser = argparse.ArgumentParser(prog="python docs/names.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", metavar="ROOM", help="print every slip of a room; opscope: of its own modules")
    options = parser.parse_args()
    slips = list(find_slips())
    if options.list:
        for slip in slips:
            if slip.room == options.list:
                print(f"{slip.path.relative_to(PACKAGE)}:{slip.line}: {slip.kind}: {slip.text}")
        return 0
    counts = Counter(slip.kind for slip in slips)
    excesses = [f"{counts[kind]} {kind}, {LIMITS[kind]} allowed" for kind in KINDS if counts[kind] > LIMITS[kind]]
    for text in excesses:
        print(f"{text}: see docs/names.py --list ROOM")
    return int(bool(excesses))


if __name__ == "__main__":
    sys.exit(main())
