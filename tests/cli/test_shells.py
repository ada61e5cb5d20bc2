"""Completion in the shells themselves, and what Windows says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ended import Command
from opscope.core.errors import MissingDependencyError
from waiting import HANG

ASKED = {
    "bash": """. "$HOME/script"; COMP_WORDS=(opscope {words}); COMP_CWORD={last}
        _opscope_completion opscope; printf '%s\n' "${{COMPREPLY[@]}}" """,
    # What zsh offers is what it gives to _arguments, outside of an editor that would show it.
    "zsh": """autoload -Uz compinit && compinit -u -d "$HOME/dump"; . "$HOME/script"
        words=(opscope {words}); CURRENT={count}
        _arguments() {{ print -r -- "${{@[-1]}}" }}; _files() {{ print FILES }}; _opscope_completion""",
    "fish": """source "$HOME/script"; complete -C 'opscope {words}'""",
}
"""By shell: take the script that was printed, and print what completes some words."""


def said_by(shell: str, text: str, home: Path) -> str:
    """What a shell prints that has opscope on its path, and a home without files of its own."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": path, "XDG_CONFIG_HOME": str(home), "XDG_DATA_HOME": str(home)}
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    command = [shell, *flags, "-c", text]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=True, timeout=HANG)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", list(ASKED))
def test_a_shell_completes_commands_and_options_and_leaves_files_to_itself(shell: str, tmp_path: Path) -> None:
    """By the script that it prints for the shell in which it is asked for it."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: apt install {shell}")
    said_by(shell, "opscope --show-completion >script; true", tmp_path)
    (tmp_path / "model.pte").touch()

    def completed(words: str) -> str:
        count = words.count(" ") + 2
        return said_by(shell, ASKED[shell].format(words=words, count=count, last=count - 1), tmp_path)

    assert "profile" in completed("pro")
    assert "analyze" not in completed("pro")
    options = completed("profile --th")
    assert "--threads" in options
    assert "--ladder" not in options
    assert "--threshold" in completed("check --th")
    assert "remove" in completed("store re")
    files = completed("profile mod")
    assert files.strip() in {"", "FILES", "model.pte"}, "files are the shell's to complete"


def test_nothing_writes_into_the_files_of_a_shell(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have no option of typer that would."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert command("--install-completion").returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_windows_is_told_where_opscope_runs() -> None:
    """Before anything is imported that Windows does not have."""
    without = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = sys.modules['resource'] = None\n"
    command = [sys.executable, "-c", f"{without}from opscope.cli.main import main"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == MissingDependencyError.exit_code
    assert done.stderr.splitlines() == [
        "error: opscope runs on Linux and macOS, not on Windows itself",
        "hint:  use it in WSL 2 (wsl --install), as on Linux",
    ]
