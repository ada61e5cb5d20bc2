"""Files that other programs change while they are read: small ones are copies, large ones are mapped."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from opscope.core.errors import TraceFormatError
from opscope.readers.compressed import check_unchanged, mapped_file

if TYPE_CHECKING:
    from pathlib import Path

LARGE = 1 << 26
_READER = """
import os, sys
from pathlib import Path
from opscope.readers.compressed import mapped_file
path = Path(sys.argv[1])
data = mapped_file(path)
os.truncate(path, 0)
print(sum(data[:: 1 << 12]))
"""


def shorten_while_reading(path: Path) -> subprocess.CompletedProcess[str]:
    """Return how a process ended that reads a file that was emptied behind it."""
    return subprocess.run([sys.executable, "-c", _READER, path], capture_output=True, text=True, check=False)


def test_a_small_file_that_shrinks_is_read_whole(tmp_path: Path) -> None:
    """What was there when it was opened."""
    path = tmp_path / "trace"
    path.write_bytes(b"\1" * (1 << 20))
    done = shorten_while_reading(path)
    assert (done.returncode, done.stdout.strip()) == (0, "256")


@pytest.mark.skipif(sys.platform != "linux", reason="the signal differs between systems")
def test_a_large_file_that_shrinks_ends_the_process_with_a_word(tmp_path: Path) -> None:
    """The system's signal, which no program in Python can take; the interpreter says where."""
    path = tmp_path / "trace"
    with path.open("wb") as file:
        file.truncate(LARGE)
    done = shorten_while_reading(path)
    assert done.returncode == -signal.SIGBUS
    assert "Bus error" in done.stderr


def test_a_large_file_that_grew_is_refused(tmp_path: Path) -> None:
    """What was read may be of two states of it."""
    path = tmp_path / "trace"
    with path.open("wb") as file:
        file.truncate(LARGE)
    data = mapped_file(path)
    check_unchanged(data, path)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(TraceFormatError, match="changed while it was read"):
        check_unchanged(data, path)
