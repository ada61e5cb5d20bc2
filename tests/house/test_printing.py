"""What is printed goes through ``reports/document/console.py`` or ``opscope.cli.output.say``: there names are text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "opscope"
CONSOLE = "reports/document/console.py"
SAY = "cli/output.py"
HARMLESS = {"Group", "RenderableType", "Padding", "Progress", "ProgressColumn", "BarColumn", "TextColumn"}
"""Names of Rich that read no markup in what they are given, or are given words of ours alone."""
PRINTERS = {"print", "echo", "secho", "pprint"}


def printed_past_the_rule(source: str) -> list[str]:
    """Imports and calls of a module that print strings without making text of them."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = [ast.Pass()]  # a type prints nothing
    return [told for node in ast.walk(tree) for told in _imported(node)] + [
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _prints(node.func)
    ]


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names if one.name.partition(".")[0] == "rich"]
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rich":
        return [one.name for one in node.names if one.name not in HARMLESS]
    return []


def _prints(function: ast.expr) -> bool:
    """``print`` itself, or ``echo`` of a module; a console's own ``print`` reads no markup."""
    if isinstance(function, ast.Attribute):
        return function.attr in PRINTERS - {"print"}
    return isinstance(function, ast.Name) and function.id in PRINTERS


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from rich.table import Table", ["Table"]),
        ("from rich.text import Text", ["Text"]),
        ("from rich.console import Console, Group", ["Console"]),
        ("import rich.markup", ["rich.markup"]),
        ("typer.echo(name)", ["echo"]),
        ("print(name)", ["print"]),
        ("if TYPE_CHECKING:\n    from rich.table import Table", []),
        ("from opscope.reports.document.console import Text, TextTable", []),
        ("console.print(table)", []),
    ],
)
def test_what_counts_as_printing(source: str, found: list[str]) -> None:
    """Tables, texts and consoles that read markup, and printing of bare strings."""
    assert printed_past_the_rule(source) == found


def test_only_the_console_and_say_print() -> None:
    """So no table row, line or error is a bare string from a trace."""
    found = {
        path.relative_to(PACKAGE).as_posix(): printed_past_the_rule(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert sorted(name for name, told in found.items() if told) == sorted([CONSOLE, SAY])
