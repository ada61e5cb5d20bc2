"""What a process prints, kept in a file of limited size: its beginning, its end, and how much is left out."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = TAIL = 4 << 20
"""Bytes that are kept of the beginning and of the end."""
_BLOCK = 1 << 16
_LAST_SECONDS = 5.0


def left_out(count: int) -> bytes:
    """The line that stands in a log for so many bytes."""
    return f"\n[opscope left out {count:,} bytes of output here]\n".encode()


@contextlib.contextmanager
def capped_log(path: Path) -> Iterator[int]:
    """A descriptor for the output of a process; what is written to it lands in a file, within the limit.

    The file is whole when the context ends, by which time the process should have. What one of its descendants still
    prints then is lost.
    """
    with path.open("wb") as file:
        log = _CappedLog(file)
        reader, writer = os.pipe()
        listening = threading.Thread(target=_listen, args=(reader, log), daemon=True)
        listening.start()
        try:
            yield writer
        finally:
            os.close(writer)
            listening.join(_LAST_SECONDS)
            log.finish()


def trim_log(path: Path) -> None:
    """Bring a log that another machine wrote within the same limit."""
    size = path.stat().st_size
    if size <= HEAD + TAIL:
        return
    with path.open("r+b") as file:
        file.seek(size - TAIL)
        tail = _from_line(file.read(TAIL))
        file.seek(HEAD)
        file.write(left_out(size - HEAD - len(tail)) + tail)
        file.truncate()


def last_bytes(path: Path, count: int) -> bytes:
    """The end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - count))
        return file.read(count)


def _listen(reader: int, log: _CappedLog) -> None:
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while block := pipe.read(_BLOCK):
            log.add(block)


class _CappedLog:
    """The file, and what of the end is not yet in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._written = file, 0
        self._tail, self._held, self._dropped = deque[bytes](), 0, 0
        self._lock, self._finished = threading.Lock(), False

    def add(self, block: bytes) -> None:
        """Take over what was printed."""
        with self._lock:
            if self._finished:
                return
            head = block[: HEAD - self._written]
            self._write(head)
            self._written += len(head)
            self._hold(block[len(head) :])

    def finish(self) -> None:
        """Write the end; what comes later is dropped."""
        with self._lock:
            self._finished = True
            tail = b"".join(self._tail)
            if self._dropped:
                kept = _from_line(tail[-TAIL:])
                tail = left_out(self._dropped + len(tail) - len(kept)) + kept
            self._write(tail)

    def _hold(self, block: bytes) -> None:
        if block:
            self._tail.append(block)
            self._held += len(block)
        while self._held - len(self._tail[0] if self._tail else b"") >= TAIL:
            first = self._tail.popleft()
            self._held -= len(first)
            self._dropped += len(first)

    def _write(self, block: bytes) -> None:
        # A full disk ends no process that prints: what it measured is judged by the answer that it writes.
        with contextlib.suppress(OSError):
            self._file.write(block)
            self._file.flush()


def _from_line(tail: bytes) -> bytes:
    """The end of a log from the beginning of a line on."""
    return tail.partition(b"\n")[2] or tail
