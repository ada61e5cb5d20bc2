"""Commands that hints, findings and help name exist under that name, with those options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from command_line import ended_here
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


def wrong(text: str) -> list[str]:
    """Commands and options of a text that do not exist."""
    found = []
    for named in NAMED.finditer(text):
        command = command_of(named["words"])
        if command is None:
            found += [named["words"]] if named["words"].partition(" ")[0] not in VERBS else []
            continue
        options = re.findall(r"(?<!\S)--[a-z][a-z-]*", f"{named['words']}{named['rest']}")
        found += [f"{command} {option}" for option in options if option not in commands()[command]]
    return found


def test_every_named_command_exists() -> None:
    """In strings of the program, docstrings and help included."""
    assert {where: found for where, text in texts() if (found := wrong(text))} == {}


def test_every_named_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It is run: what is named can be typed."""
    named = {command for _, text in texts() for one in NAMED.finditer(text) if (command := command_of(one["words"]))}
    assert len(named) >= 20
    for command in sorted(named):
        assert ended_here(*command.split(), "--help") == 0, command
        assert capsys.readouterr().out.startswith(f"Usage: opscope {command} ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`opscope features` lists them", ["features"]),
        ("opscope analyse FILE shows it", ["analyse"]),
        ("opscope profile MODEL --fast", ["profile --fast"]),
        ("opscope store prune --store S", ["store --store"]),
        ("opscope keeps its cache there", []),
        ("opscope store list --store S", []),
        ("opscope check new --against old", []),
    ],
)
def test_what_does_not_exist_is_found(text: str, found: list[str]) -> None:
    """A command, an option, a command of a command; sentences about the program are none."""
    assert wrong(text) == found
