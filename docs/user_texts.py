"""Every text of the program that users read, by an id, read from the source.

``python docs/user_texts.py DIRECTORY`` writes them, a file for each room of the program, so that a reviewer can read
all of them in one sitting; without a directory it prints them. ``docs/prose.py`` looks for phrasings in the same texts.
The id of a text is its module, the function, class or name it is in, and its number there, so it stays when lines move.
What code fills in stands in braces: ``{name}``, and ``{one|other}`` where it chooses between words.

What is no text for users is left out: docstrings but those of commands and rules, keys, patterns, queries, scripts, and
tables of names.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "opscope"

_TABLES = frozenset({"program.operators.kinds", "program.origin", "program.xnnpack.events"})
"""Modules of names of operators."""
_LOOKING = frozenset(
    "compile sub match search fullmatch finditer split rsplit partition rpartition removeprefix removesuffix startswith"
    " endswith replace strip lstrip rstrip getattr setattr hasattr sql execute query encode namedtuple TypeVar find"
    " index count import_module get pop cast metadata version struct Struct unpack unpack_from getenv".split()
)
"""Functions whose arguments are patterns, keys, names and queries."""
_HEADED = frozenset("column TableColumn Closing Section".split())
"""Functions whose first argument is a head, also where that is one word."""
_WORDED = frozenset("help hint title label meaning problem rich_help_panel".split())
"""Arguments that are texts, also where they are one word."""
_COMMANDS = frozenset({"command", "with_settings", "callback"})
_NO_TEXT = re.compile(
    r"^[\s\W\d_]*$|^-|^#include|^/|</|/>|^\.\w|^<\w|[{;]\s*$"  # options, paths, markup, styles
    r"|\\[dswb]|\(\?|\[\^|\.\*|\\\."  # patterns
    r"|\b(SELECT .* FROM|(ORDER|PARTITION) BY|NULLS|IS (NOT )?(NULL|DISTINCT))\b|unnest\(|FILTER \(|::"  # queries
    r"|\n.*\n.*\n"  # scripts, and files that are written whole
    r"|^[\w., \[\]]+ \| [\w., \[\]|]+$"  # types
    r"|^[0-9a-f]{2}(-[0-9a-f]{2})?( |$)"  # codes of instructions
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_LONGEST_HOLE = 24


class UserText(NamedTuple):
    """A text that users read.

    Attributes:
        id: module, where in it, and its number there: ``analysis.rules.time:dominant_category.2``.
        text: the words; what code fills in stands in braces.
    """

    id: str
    text: str


def user_texts() -> Iterator[UserText]:
    """All texts, by modules in the order of their names, and in the order of each module's code."""
    for _, texts in texts_by_file():
        yield from texts


def texts_by_file() -> Iterator[tuple[Path, list[UserText]]]:
    """Yield each module of the program that has texts for users, with these."""
    for file in sorted(SOURCE.rglob("*.py")):
        if (module := _module(file)) not in _TABLES:
            yield file, list(module_texts(file.read_text("utf-8"), module))


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "opscope"


def module_texts(source: str, module: str) -> Iterator[UserText]:
    """Texts of one module."""
    found: dict[str, list[str]] = defaultdict(list)
    for scope, text in _Texts(of_commands=module.startswith("cli.")).within(ast.parse(source), ""):
        found[scope or "module"].append(text)
    for scope, texts in found.items():
        for number, text in enumerate(texts, 1):
            yield UserText(f"{module}:{scope}{f'.{number}' if len(texts) > 1 else ''}", text)


def texts_by_room() -> dict[str, str]:
    """Return the content of one file for each room of the program, by the room's name."""
    rooms: dict[str, list[UserText]] = defaultdict(list)
    for text in user_texts():
        rooms[text.id.partition(":")[0].partition(".")[0]].append(text)
    return {room: "".join(map(_entry, texts)) for room, texts in rooms.items()}


def _entry(text: UserText) -> str:
    lines = "".join(f"    {line}".rstrip() + "\n" for line in text.text.splitlines())
    return f"{text.id}\n{lines}"


class _Texts:
    """Goes through a module, and knows in which function, class or name it is."""

    def __init__(self, *, of_commands: bool) -> None:
        self._of_commands = of_commands

    def within(self, node: ast.AST, scope: str) -> Iterator[tuple[str, str]]:
        """Texts below a node, each with its scope."""
        for child in ast.iter_child_nodes(node):
            yield from self._of(child, scope)

    def _of(self, node: ast.AST, scope: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from self._defined(node, f"{scope}.{node.name}" if scope else node.name)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from self._assigned(node, scope)
        elif isinstance(node, ast.Compare | ast.Subscript) and not _is_annotated(node):
            yield from self._compared(node, scope)
        elif isinstance(node, ast.Call):
            yield from self._called(node, scope)
        elif isinstance(node, ast.JoinedStr):
            yield from self._joined(node, scope)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and _is_text(node.value):
                yield scope, node.value
        else:
            yield from self.within(node, scope)

    def _defined(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: str
    ) -> Iterator[tuple[str, str]]:
        names = {_name(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list}
        is_command = self._of_commands and (node.name == "command" or names & _COMMANDS)
        if "declare_rule" in names or (is_command and not isinstance(node, ast.ClassDef)):
            yield scope, inspect.cleandoc(ast.get_docstring(node) or "")
        yield from self.within(node, scope)

    def _assigned(self, node: ast.Assign | ast.AnnAssign, scope: str) -> Iterator[tuple[str, str]]:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(node, ast.AnnAssign):
            if _name(node.annotation) == "TypeAlias":
                return
            yield from self._of(node.annotation, scope)
        if node.value is not None:
            yield from self._of(node.value, target.id if isinstance(target, ast.Name) and not scope else scope)

    def _compared(self, node: ast.AST, scope: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.Constant | ast.Tuple | ast.Set):
                yield from self._of(child, scope)

    def _called(self, node: ast.Call, scope: str) -> Iterator[tuple[str, str]]:
        name = _name(node.func)
        if name in _LOOKING:
            asked = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            for child in (asked, *node.args):
                if not isinstance(child, ast.Constant | ast.JoinedStr):
                    yield from self._of(child, scope)
            return
        yield from self._of(node.func, scope)
        for number, value in enumerate(node.args):
            yield from self._argument(value, scope, is_text=name in _HEADED and number == 0)
        for keyword in node.keywords:
            yield from self._argument(keyword.value, scope, is_text=keyword.arg in _WORDED)

    def _argument(self, node: ast.expr, scope: str, *, is_text: bool) -> Iterator[tuple[str, str]]:
        if is_text and isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORD.search(node.value):
            yield scope, node.value
        else:
            yield from self._of(node, scope)

    def _joined(self, node: ast.JoinedStr, scope: str) -> Iterator[tuple[str, str]]:
        if _is_text(text := _shown(node)):
            yield scope, text
        holes = (part.value for part in node.values if isinstance(part, ast.FormattedValue))
        for hole in holes:
            if not isinstance(hole, ast.IfExp | ast.BoolOp):
                yield from self._of(hole, scope)
            else:  # whose words are shown already
                yield from self._compared(hole, scope)


def _is_annotated(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and _name(node.value) == "Annotated"


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_text(text: str) -> bool:
    """Whether it is several words, and nothing for a machine."""
    words = re.sub(r"\{[^{}]*\}", "", text)
    return " " in text.strip() and bool(_WORD.search(words)) and not _NO_TEXT.search(text)


def _shown(node: ast.JoinedStr) -> str:
    parts = [part for part in node.values if isinstance(part, ast.Constant | ast.FormattedValue)]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else f"{{{_hole(part.value)}}}" for part in parts)


def _hole(node: ast.AST) -> str:
    """What fills a hole, in short."""
    if isinstance(node, ast.IfExp):
        return f"{_hole(node.body)}|{_hole(node.orelse)}"
    if isinstance(node, ast.BoolOp):
        return "|".join(map(_hole, node.values))
    if isinstance(node, ast.JoinedStr):
        return _shown(node)
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Call):
        return _filled(node)
    written = _name(node) or ast.unparse(node)
    return written if len(written) <= _LONGEST_HOLE else "value"


def _filled(node: ast.Call) -> str:
    """What a call fills in: a number with its noun, or what is written in some form."""
    name = _name(node.func)
    if name == "counted_text" and len(node.args) > 1:
        return f"n {_hole(node.args[1])}s"
    formats = name.endswith(("_text", "milliseconds")) or name in {"len", "plain", "str", "sorted", "join"}
    return _hole(node.args[0]) if formats and node.args else name or "value"


def main(arguments: list[str]) -> int:
    """Write the texts into the directory that is named, or print them."""
    rooms = texts_by_room()
    if not arguments:
        sys.stdout.write("".join(rooms.values()))
        return 0
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for room, content in rooms.items():
        (directory / f"{room}.txt").write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
