"""Commands that hints, findings and help name exist under that name, with those options."""

from __future__ import annotations

import re

import pytest

from command_line import ended_here
from named_commands import NAMED, VERBS, command_of, commands, texts


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
