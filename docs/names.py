"""Count names and docstrings that need a second reading, room by room, and let the counts only fall.

``python docs/names.py`` ends with 1 when a room has more of them than ``docs/names.toml`` allows, or fewer: then
``--write`` lowers what is allowed, and never raises it. ``--list ROOM`` prints each of them with its place. Counted are

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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "opscope"
LIMITS = Path(__file__).with_name("names.toml")
ONE_WORD, POINTING, VAGUE = KINDS = ("one-word names", "pointing docstrings", "vague locals")
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


def count_slips() -> dict[str, dict[str, int]]:
    """Count the slips of each room, in alphabetical order, by kind; rooms without any have zeros."""
    counts = Counter((slip.room, slip.kind) for slip in find_slips())
    rooms = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE})
    return {room: {kind: counts[room, kind] for kind in KINDS} for room in ["opscope", *rooms]}


def read_limits() -> dict[str, dict[str, int]]:
    """Read what each room is allowed; a room that is not listed is allowed nothing."""
    return tomllib.loads(LIMITS.read_text("utf-8")) if LIMITS.exists() else {}


def find_changes(counts: dict[str, dict[str, int]], limits: dict[str, dict[str, int]]) -> Iterator[tuple[str, bool]]:
    """Describe each count that differs from its limit, and say whether it is above it."""
    for room, by_kind in counts.items():
        for kind, count in by_kind.items():
            limit = limits.get(room, {}).get(kind, 0)
            if count != limit:
                yield f"{room}: {count} {kind}, {limit} allowed", count > limit


def write_limits(counts: dict[str, dict[str, int]], limits: dict[str, dict[str, int]]) -> None:
    """Lower the limits to the counts. Limits that are already lower stay; the first writing takes the counts."""
    lines = ["# What docs/names.py allows in each room; written by it, and never raised by hand."]
    for room, by_kind in counts.items():
        lines.append(f"\n[{room}]")
        for kind, count in by_kind.items():
            lowest = min(count, limits.get(room, {}).get(kind, 0)) if limits else count
            lines.append(f'"{kind}" = {lowest}')
    LIMITS.write_text("\n".join([*lines, ""]), "utf-8")


def main() -> int:
    """Compare the counts with the limits, or lower these; return 1 when a count differs from its limit."""
    parser = argparse.ArgumentParser(prog="python docs/names.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="lower the limits to the counts")
    parser.add_argument("--list", metavar="ROOM", help="print every slip of a room")
    options = parser.parse_args()
    if options.list:
        for slip in find_slips():
            if slip.room == options.list:
                print(f"{slip.path.relative_to(PACKAGE)}:{slip.line}: {slip.kind}: {slip.text}")
        return 0
    counts, limits = count_slips(), read_limits()
    if options.write:
        write_limits(counts, limits)
        limits = read_limits()
    changes = list(find_changes(counts, limits))
    for text, is_above in changes:
        print(f"{text}: {'see docs/names.py --list ROOM' if is_above else 'run python docs/names.py --write'}")
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
