"""The manual page: well-formed, whole, and where ``man`` finds it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from documents import ROOT
from opscope.cli.main import app

PAGE = ROOT / "docs" / "reference" / "opscope.1"


def printed(command: list[str], **variables: str) -> str:
    """What a command prints; it has nothing to complain of."""
    environment = os.environ | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc: apt install mandoc")
def test_mandoc_finds_nothing_wrong() -> None:
    """Neither an error nor a warning."""
    assert printed(["mandoc", "-T", "lint", "-W", "warning", str(PAGE)]) == ""


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man: apt install man-db")
def test_man_shows_every_option_of_every_command() -> None:
    """In the words of the help, hidden options too; roff takes nothing of it for itself."""
    shown = printed(["man", "--warnings", "--local-file", str(PAGE)], MANWIDTH="1000", LC_ALL="C.UTF-8", MANROFFOPT="")
    for name, command in typer.main.get_command(app).commands.items():
        for words, one in [(name, command), *((f"{name} {n}", c) for n, c in getattr(command, "commands", {}).items())]:
            (section,) = re.findall(
                rf"^   opscope {words}$(.*?)(?=^   opscope |^EXIT STATUS)", shown, re.DOTALL | re.MULTILINE
            )
            for parameter in one.params:
                for option in (*parameter.opts, *parameter.secondary_opts):
                    if option.startswith("-") and parameter.name not in {"help", "help_all"}:
                        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", section), f"{words} {option}"


def test_it_is_installed_beside_the_command() -> None:
    """Below ``share/man`` of the environment, which ``man`` derives from the path of the command."""
    installed = Path(sys.prefix) / "share" / "man" / "man1" / "opscope.1"
    if not (Path(sys.prefix) / "pyvenv.cfg").exists():
        pytest.skip("not an environment")
    assert installed.is_file()
