"""What a process prints is kept within a limit: its beginning, its end, and how much is left out between them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from opscope.core.system.capped_log import HEAD, TAIL, trim_log
from opscope.hosts.process import last_line, log_tail, run_process

MUCH = """
import sys
print("the first line")
line = "x" * 99 + "\\n"
for _ in range(300_000):
    sys.stdout.write(line)
sys.stdout.flush()
print("the last line", file=sys.stderr)
"""
_LEFT_OUT = re.compile(rb"\n\[opscope left out ([0-9,]+) bytes of output here\]\n")


def _printed(program: str, log: Path, timeout: float = 60.0) -> int | None:
    return run_process([sys.executable, "-c", program], log, timeout)


def test_a_short_log_is_whole(tmp_path: Path) -> None:
    """Both streams, in the order in which they were written."""
    program = "import sys; print('one', flush=True); print('two', file=sys.stderr, flush=True); print('three')"
    assert _printed(program, tmp_path / "log.txt") == 0
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\nthree\n"


def test_a_log_of_30_mb_keeps_beginning_and_end(tmp_path: Path) -> None:
    """A line says how much is missing; the end begins with a whole line."""
    log = tmp_path / "log.txt"
    assert _printed(MUCH, log) == 0
    content = log.read_bytes()
    gap = _LEFT_OUT.search(content)
    assert gap
    printed = len("the first line\n") + 300_000 * 100 + len("the last line\n")
    assert len(content) <= HEAD + TAIL + len(gap[0])
    assert len(content) - len(gap[0]) + int(gap[1].replace(b",", b"")) == printed
    assert content.startswith(b"the first line\nxxx")
    assert content[gap.end() :].startswith(b"x" * 99 + b"\n")
    assert log_tail(log) == "; its last output: the last line"


def test_who_prints_without_end_is_ended_by_its_time(tmp_path: Path) -> None:
    """The log is no larger for it."""
    log = tmp_path / "log.txt"
    assert _printed("while True: print('x' * 999)", log, timeout=2.0) is None
    assert log.stat().st_size < HEAD + TAIL + 100


def test_a_descendant_that_goes_on_holds_nobody_up(tmp_path: Path) -> None:
    """One in a session of its own keeps the pipe open; what it prints later is lost."""
    program = (
        "import subprocess, sys; print('before', flush=True);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(12)'], start_new_session=True)"
    )
    assert _printed(program, tmp_path / "log.txt") == 0
    assert (tmp_path / "log.txt").read_text() == "before\n"


def test_a_log_of_another_machine_is_trimmed_to_the_same_limit(tmp_path: Path) -> None:
    """It was written there without one."""
    log = tmp_path / "log.txt"
    log.write_bytes(b"first\n" + b"y" * (HEAD + 2 * TAIL) + b"\nlast\n")
    trim_log(log)
    content = log.read_bytes()
    assert content.startswith(b"first\nyyy")
    assert content.endswith(b"]\nlast\n")
    assert _LEFT_OUT.search(content)
    assert len(content) < HEAD + TAIL + 100


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
def test_the_last_line_is_told_in_letters(printed: str, said: str, tmp_path: Path) -> None:
    """Colours are left out, and what else a terminal would obey is escaped; in a log, bytes that are no text too."""
    assert last_line(printed) == said
    (tmp_path / "log.txt").write_bytes(b"begin\n" + printed.encode() + b"\n\x1b[2J\x9b31mfatal \xff")
    assert (
        log_tail(tmp_path / "log.txt")
        == "; its last output: \\x1b[2J\N{REPLACEMENT CHARACTER}31mfatal \N{REPLACEMENT CHARACTER}"
    )
