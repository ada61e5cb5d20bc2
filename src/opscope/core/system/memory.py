"""How much memory reading a file may take: a ceiling that the system enforces where it can, Linux.

A trace is not trusted: a few megabytes of gzip stand for gigabytes, and a table of events is larger than its file. What
is read under :func:`limited` ends in a MemoryLimitError before the machine runs out of memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import MemoryLimitError, UsageError
from opscope.core.files import opened, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "OPSCOPE_MAX_MEMORY"
"""Environment variable with the ceiling, for example ``8GiB``; the option ``--max-memory`` sets it."""
OPTION = "--max-memory"
LEAST_DEFAULT = 2 << 30
LEAST = 1 << 26
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(
    r"\s*(?P<number>[0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(?P<unit>[kmgt]?)(?:i?b)?\s*\Z", re.IGNORECASE | re.ASCII
)
_NUMBER = re.compile(r"[0-9]+\Z", re.ASCII)


def parse_size(text: str, where: str = VARIABLE) -> int:
    """A number of bytes, as ``8GiB``, ``512M`` or ``1073741824``; units are powers of 1,024."""
    match = _SIZE.match(text.strip())
    size = round(float(match["number"]) * _UNITS[match["unit"].lower()]) if match else 0
    if match is None or not LEAST <= size < sys.maxsize:
        hint = f"give a size of at least {LEAST >> 20} MiB, for example 8GiB"
        raise UsageError(f"{text[:40]!r} is not a usable size", where=where, hint=hint)
    return size


def memory_limit() -> int:
    """What reading may take, in bytes: the variable's value, else half of the available memory, at least 2 GiB."""
    if _state.depth:
        return _state.limit
    text = os.environ.get(VARIABLE, "")
    return parse_size(text) if text else max(LEAST_DEFAULT, (available() or 0) // 2)


def available(root: Path = Path("/")) -> int | None:
    """Memory that this process could still get, in bytes: of the machine and of its control groups.

    Returns None where the system does not tell.
    """
    match = re.search(r"^MemAvailable:\s+([0-9]+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    rooms = [int(match[1]) << 10] if match else []
    lines = text_of(root / "proc/self/cgroup").splitlines()
    grants = (_room(group) for line in lines for group in _groups(line, root / "sys/fs/cgroup"))
    return min([*rooms, *(room for room in grants if room is not None)], default=None)


def _groups(line: str, base: Path) -> Iterator[Path]:
    """The directories of a control group that bears on memory and of those above it; a line is ``ID:KINDS:PATH``."""
    _, _, rest = line.partition(":")
    kinds, _, place = rest.partition(":")
    if kinds and "memory" not in kinds.split(","):
        return
    base = base / "memory" if kinds else base
    path = base / place.lstrip("/")
    # A container sees its own group at the top, under whatever name the host has for it.
    yield from (path, *(above for above in path.parents if above == base or base in above.parents))


def _room(group: Path) -> int | None:
    """What a control group grants beyond what is in use, files in memory not counted; None without a limit."""
    for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        texts = text_of(group / limit), text_of(group / usage)
        if all(map(_NUMBER.match, texts)):
            files = re.search(r"^(?:total_)?inactive_file ([0-9]+)", text_of(group / "memory.stat"), re.MULTILINE)
            return max(0, int(texts[0]) - int(texts[1]) + (int(files[1]) if files else 0))
    return None


@contextlib.contextmanager
def limited(where: str | Path) -> Iterator[None]:
    """Let what is read meanwhile take no more than the limit, on top of what this process has.

    Mapped files do not count. Inside of another such context the outer one's limit holds.
    """
    _state.begin(memory_limit())
    try:
        yield
    except MemoryError as error:
        raise too_large(where) from error
    finally:
        _state.end()


def too_large(where: str | Path) -> MemoryLimitError:
    """The error that says what the limit is and how to raise it."""
    problem = f"reading it needs more memory than the limit of {size_text(memory_limit())}"
    hint = f"raise it with `opscope {OPTION} SIZE COMMAND ...` or {VARIABLE}=SIZE, for example 16GiB"
    return MemoryLimitError(problem, where=where, hint=hint)


def reserve(size: int) -> None:
    """Make sure that so many bytes can still be had, for code that ends the process where it does not get them."""
    if size > _state.room(memory_limit()):
        raise MemoryError


def addresses_left() -> int | None:
    """Addresses that this process may still take (``ulimit -v``), in bytes; None without a limit, or where unknown."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    pages = text_of(Path("/proc/self/statm")).partition(" ")[0]
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return max(0, limit - int(pages) * resource.getpagesize())


def size_text(size: int) -> str:
    """A size for people: ``1.5 GiB``."""
    unit, name = next(((1 << n, name) for n, name in ((30, "GiB"), (20, "MiB")) if size >> n), (1, "bytes"))
    return f"{size / unit:.3g} {name}"


class _State:
    """The limit of this process while something is read; several threads may read at once."""

    def __init__(self) -> None:
        self.limit, self.depth = 0, 0
        self._lock, self._before = threading.Lock(), _NO_LIMIT

    def begin(self, limit: int) -> None:
        """Enter a context; the first one sets the limit."""
        with self._lock:
            self.depth += 1
            if self.depth > 1:
                return
            self.limit, self._before = limit, resource.getrlimit(resource.RLIMIT_DATA)
            taken, (soft, hard) = _taken(), self._before
            if taken is not None and (soft == resource.RLIM_INFINITY or taken + limit < soft):
                resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, hard))

    def end(self) -> None:
        """Leave it; the last one takes the limit back."""
        with self._lock:
            self.depth -= 1
            if not self.depth:
                resource.setrlimit(resource.RLIMIT_DATA, self._before)

    def room(self, limit: int) -> int:
        """What is left of a limit, as far as the system tells."""
        taken, soft = _taken(), resource.getrlimit(resource.RLIMIT_DATA)[0]
        return limit if taken is None or soft == resource.RLIM_INFINITY else min(limit, soft - taken)


_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
_state = _State()


def _taken() -> int | None:
    """Private memory of this process that the system counts against its limit; None where it is not Linux."""
    words = text_of(Path("/proc/self/statm")).split() if sys.platform == "linux" else []
    return int(words[5]) * resource.getpagesize() if len(words) > 5 else None  # noqa: PLR2004 - proc(5): data + stack


def file_bytes(path: Path, hint: str | None = None) -> bytes:
    """All bytes of a file."""
    with opened(path, hint) as file, limited(path):
        if os.fstat(file.fileno()).st_size > memory_limit():
            raise too_large(path)
        return file.read()
