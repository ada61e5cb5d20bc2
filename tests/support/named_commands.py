"""Commands that texts of the program name: hints, findings, help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import typer

from opscope.cli.main import app

SOURCE = Path(__file__).parents[2] / "src" / "opscope"
VERBS = frozenset(
    """
    accepts again alone and are as asks at begins can cannot checks computed counts deletes derives did does ended
    executes exported exports finds follows for gives has in is it itself keeps kept knows leave leaves left limits
    looks makes may measured measures must needs no of on opens or predicts prevents profiles puts reads refuses
    replays runs sends sets shows starts stated takes tells than that there time to use uses was wherever which will
    with write writes wrote analysed computes hashed lock mark never newer prevented provides recorded supports version
    """.split()
)
"""What may follow the name of the program in a sentence and is no command."""
NAMED = re.compile(r"(?<![\w./@'-])opscope (?P<words>[a-z][a-z-]*(?: [a-z-]+)?)(?P<rest>[^`;:,\n]*)")


@cache
def commands() -> dict[str, frozenset[str]]:
    """Every command by its words, with its options."""
    found: dict[str, frozenset[str]] = {}

    def visit(command: object, words: str) -> None:
        options = (word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts))
        found[words] = frozenset({*(word for word in options if word.startswith("-")), "--help", "-h"})
        for name, inner in getattr(command, "commands", {}).items():
            visit(inner, f"{words} {name}".strip())

    visit(typer.main.get_command(app), "")
    return found


def texts() -> Iterator[tuple[str, str]]:
    """Where a string of the program is, and what it says; fields of an f-string are braces."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            where = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield where, "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                yield where, node.value


def command_of(words: str) -> str | None:
    """The command that words begin with, of two words where there is one."""
    first = words.partition(" ")[0]
    return next((one for one in (words, first) if one in commands()), None)
