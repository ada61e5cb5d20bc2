"""The help: commands in groups, each with one line that is not cut; of each command first what most people need."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from command_line import opscope
from opscope.cli.main import COMMANDS, GROUPS, app

MOST_OPTIONS, MOST_WORDS = 25, 250


def every_command() -> Iterator[tuple[str, ...]]:
    """The words of every command, those within groups too."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]  # a group
        inner = getattr(command, "commands", None)
        yield (name,)
        yield from ((name, own) for own in inner or ())


def printed(*words: str) -> str:
    """What a command prints on 80 columns."""
    done = CliRunner().invoke(app, words, env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    assert done.exit_code == 0, done.output
    return done.output


def options_in(text: str) -> list[str]:
    """The options that a help text lists below its headings, by their first words."""
    listed = re.split(r"^[A-Z].*:$", text, flags=re.MULTILINE)[1:]
    return [line.split()[0].rstrip(",") for own in listed for line in own.splitlines() if line.startswith("  -")]


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_help_is_short_and_help_all_has_every_option(words: tuple[str, ...]) -> None:
    """At most 25 options and 250 words of what most people need; the rest when asked, which the short one says."""
    short = printed(*words, "--help")
    assert len(options_in(short)) <= MOST_OPTIONS
    assert len(short.split()) <= MOST_WORDS
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]  # a group
    if hasattr(command, "commands"):
        return
    whole = options_in(printed(*words, "--help-all"))
    assert len(whole) == len(set(whole))
    known = {name for one in command.params if one.param_type_name == "option" for name in one.opts} - {"--help-all"}
    assert known <= {*whole, "--quiet"}
    assert ("--help-all" in short) is (len(options_in(short)) < len(whole))


def test_options_of_a_setting_stand_in_its_group() -> None:
    """As the setting says, in the short help too."""
    text = printed("profile", "--help")
    repetitions = text[text.index("\nRepetitions:") :].split("\n\n")[0]
    assert options_in(repetitions) == ["--rounds", "--runs"]
    assert "--timeout" not in text
    assert "--timeout" in printed("profile", "--help-all")


def test_every_command_is_in_one_group_with_a_line_of_its_own() -> None:
    """On 80 columns, the five for every day first."""
    lines = opscope("--help").stdout.splitlines()
    shown = {line.split()[0]: line for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS}
    assert list(shown) == [name for names in GROUPS.values() for name in names]
    assert [line[:-1] for line in lines if line.endswith(":") and line[:-1] in GROUPS] == list(GROUPS)
    assert all(line.endswith(".") and len(line) <= 80 for line in shown.values())
