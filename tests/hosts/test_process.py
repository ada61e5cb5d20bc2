"""What a process printed, as messages repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.hosts.process import last_line, log_tail


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("one\ntwo\n\n", "two"),
        ("\x1b[0;93mWARNING: words\x1b[m", "WARNING: words"),
        ("\x1b[2J\x1b[1;31merror\x1b[0m", r"\x1b[2Jerror"),
        ("\x1b]0;title\x07\N{RIGHT-TO-LEFT OVERRIDE}", r"\x1b]0;title\x07\u202e"),
        (" \n", ""),
    ],
)
def test_the_last_line_is_told_in_letters(printed: str, said: str) -> None:
    """Colours are left out, and what else a terminal would obey is escaped, before it stands in a message."""
    assert last_line(printed) == said


def test_the_last_words_of_a_log_are_told_in_letters(tmp_path: Path) -> None:
    """Also bytes that are no text."""
    (tmp_path / "log.txt").write_bytes(b"begin\n\x1b[2J\x9b31mfatal \xff")
    assert (
        log_tail(tmp_path / "log.txt")
        == "; its last output: \\x1b[2J\N{REPLACEMENT CHARACTER}31mfatal \N{REPLACEMENT CHARACTER}"
    )
