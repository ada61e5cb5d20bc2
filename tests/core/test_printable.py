"""Text of others on a terminal, and commands that are copied from it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.core.printable import escaped, hides, printable, shell_command, unescaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("aten::add (NHWC, F32)", "aten::add (NHWC, F32)"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31mred", r"\x9b31mred"),
        ("a\nb\r\x7f", r"a\nb\r\x7f"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}exe.txt", r"\u202eexe.txt"),
        ("a\N{LINE SEPARATOR}b\N{ZERO WIDTH SPACE}c", r"a\u2028b\u200bc"),
        ("\udcff", r"\udcff"),
        ("no\N{NO-BREAK SPACE}break", "no break"),
        ("Größe 模型 🙂", "Größe 模型 🙂"),
    ],
)
def test_what_no_terminal_shows_is_escaped(text: str, shown: str) -> None:
    """Letters of all scripts stay."""
    assert printable(text) == shown


@given(st.text())
def test_whatever_it_is_is_one_printable_line(text: str) -> None:
    """And what is printable already stays as it is."""
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


@given(st.text())
def test_what_was_escaped_comes_back(text: str) -> None:
    """Backslashes of its own too; what is written hides nothing."""
    shown = escaped(text)
    assert not hides(shown)
    assert unescaped(shown) == text


@pytest.mark.parametrize("text", ["\\", "\\q", "\\x1", "\\ud800", "\\U00110000", "\\u12"])
def test_what_is_no_escape_stays(text: str) -> None:
    """Files are not trusted: a broken escape is not an error, and none gives half a surrogate pair."""
    assert unescaped(text) == text


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    "word",
    [
        "plain",
        "two words",
        "$(reboot)",
        "it's",
        "a\nb",
        "\x1b[31m'\\",
        "\N{RIGHT-TO-LEFT OVERRIDE}x",
        "\x9bm",
        "\t\x7f",
        "",
    ],
)
def test_a_suggested_command_keeps_its_words(word: str) -> None:
    """A shell that is given the command sees the very words, and the command itself is printable."""
    command = shell_command(["printf", "%s|", word, "end"])
    assert command.isprintable()
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode() == f"{word}|end|"
