"""Files that commands leave where a user asked for them: nothing is replaced without proof that opscope wrote it.

The proof is a mark that the format has room for: the ``schema`` of JSON, the generator of HTML, a comment at the end of
Markdown, the exact header of CSV. What opscope writes in formats without one (graphs for Model Explorer, the files of
other tools) is remembered by its SHA-256 in the cache: bytes that opscope wrote may be replaced.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import OverwriteError, StorageError
from opscope.core.files import is_stream, sha256_of, storage_errors
from opscope.core.system.cache import cache_directory
from opscope.core.writing import open_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MARKDOWN_MARK = "<!-- written by opscope -->"
"""Last line of every Markdown file."""
RECORD = "opscope.bundle"
"""Mark of a bundle's manifest, which no output ever replaces."""
_LEDGER = "written.txt"
_ENDS = 1 << 13  # bytes at either end of a file that are searched for a mark
_JSON = re.compile(rb'\s*\[?\s*\{\s*"schema"\s*:\s*"(opscope\.)(?:no-)?([a-z-]+)/')
_HEADS = (
    ("HTML", re.compile(rb'\s*<!doctype html>.*?<meta name="generator" content="opscope ', re.DOTALL)),
    ("JUnit XML", re.compile(rb'<\?xml [^>]*\?>\s*<testsuites name="opscope"')),
    ("speedscope", re.compile(rb'\{"\$schema":"https://www.speedscope.app/[^{}]*"exporter":"opscope ')),
    ("Perfetto", re.compile(rb'\{"displayTimeUnit":"ns","otherData":\{"generator":"opscope"\}')),
    ("traceback", re.compile(rb"opscope \S+, Python ")),
    ("skill", re.compile(rb"---\nname: opscope-")),
    ("configuration", re.compile(rb"# [^\n]*`opscope run FILE`")),
)
_TAILS = (
    ("Markdown", re.compile(re.escape(MARKDOWN_MARK.encode()) + rb"\s*\Z")),
    ("Parquet", re.compile(rb"opscope\.sha256.*PAR1\Z", re.DOTALL)),
)
_HEADER = re.compile(rb"\A\w+(?:,\w+){2,}\r?\n")
_KIT_HEADER = b"model_id,"
"""How the header of the Arm kit's tables begins: the kit writes the same, so it proves nothing."""
_HINT = "name another file, or remove it first"


class Output(NamedTuple):
    """A place that a call is to write to."""

    option: str  # that named it, for messages
    path: Path  # of the file or directory
    is_directory: bool = False  # whether files are written into it


def check_outputs(outputs: Iterable[Output], inputs: Iterable[Path]) -> None:
    """Refuse a call that would lose bytes, before anything is read."""
    read = list(inputs)
    seen: dict[object, str] = {}
    for output in outputs:
        with storage_errors(output.path):
            nothing_lost = output.is_directory or (is_stream(output.path) and output.path.is_char_device())
        if nothing_lost:
            continue
        _check_inputs(output, read)
        for key in _file_identities(output.path):
            if key in seen:
                problem = f"{seen[key]} and {output.option} name the same file"
                raise OverwriteError(problem, where=output.path, hint="name two files")
            seen[key] = output.option
        check_ours(output.path)


def check_ours(path: Path, *, follow: bool = True) -> None:
    """Refuse to replace what opscope did not write; free places, empty files, devices and pipes lose nothing."""
    with storage_errors(path):
        if follow and path.is_block_device():
            raise OverwriteError("opscope never writes to a block device", where=path, hint="name a file")
        try:
            status = path.stat() if follow else path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISREG(status.st_mode):
            proved = status.st_size == 0 or mark_of(path) not in {None, RECORD} or _was_written_here(path)
        else:
            proved = follow
    if not proved:
        raise OverwriteError("the file exists, and opscope did not write it", where=path, hint=_HINT)


def write_outputs(files: Mapping[Path, bytes | Iterable[bytes]], *, follow: bool = True) -> list[Path]:
    """Write files where a user asked for them, each in one step; all places are looked at before the first is written.

    Returns the paths, in their order.
    """
    for path in files:
        check_ours(path, follow=follow)
    for path, content in files.items():
        unmarked: list[str] = []
        with open_atomically(path, follow=follow, may_replace=partial(_check_kind, unmarked)) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
        for sha256 in unmarked:
            _record_hash(sha256)
    return list(files)


def mark_of(path: Path) -> str | None:
    """Return what a regular file is, by the mark that opscope leaves in it; None without a mark."""
    with path.open("rb") as file:
        head = file.read(_ENDS)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _ENDS))
        tail = file.read(_ENDS)
    json = _JSON.match(head)
    if json:
        return (json[1] + json[2]).decode()
    kinds = [name for name, pattern in _HEADS if pattern.match(head)]
    kinds += [name for name, pattern in _TAILS if pattern.search(tail)]
    header = _HEADER.match(head)
    if header and not head.startswith(_KIT_HEADER):
        kinds.append(f"CSV of {header[0].decode().strip()}")
    return kinds[0] if kinds else None


def marked_markdown(text: str) -> str:
    """Return Markdown with the mark at its end, which no renderer shows."""
    return f"{text.rstrip()}\n\n{MARKDOWN_MARK}\n"


def _check_kind(unmarked: list[str], old: Path, new: Path) -> None:
    """Refuse to replace a file by one of another kind."""
    mark = mark_of(new)
    if mark is None:
        unmarked.append(sha256_of(new))
    if not os.path.lexists(old) or old.stat().st_size == 0:
        return
    old_mark = mark_of(old)
    if old_mark != mark or (mark is None and not _was_written_here(old)):
        problem = f"the file exists and has other content ({old_mark or 'no opscope mark'}, not {mark or 'this'})"
        raise OverwriteError(problem, where=old, hint=_HINT)


def _check_inputs(output: Output, inputs: Iterable[Path]) -> None:
    output_identities = _file_identities(output.path)
    for path in inputs:
        if output_identities & _file_identities(path):
            problem = f"{output.option} names an input, which it would replace"
            raise OverwriteError(problem, where=output.path, hint="name another file")
    if _is_bundle_file(output.path):
        problem = f"{output.option} names a file of a bundle"
        raise OverwriteError(problem, where=output.path, hint="name a file outside the bundle")


def _is_bundle_file(file: Path) -> bool:
    """Return whether a file exists and lies in a bundle."""
    records = (directory / "manifest.json" for directory in Path(os.path.realpath(file)).parents)
    return file.is_file() and any(record.is_file() and mark_of(record) == RECORD for record in records)


def _file_identities(path: Path) -> set[object]:
    """Return what distinguishes a file: its real path, and its number on its device if it exists."""
    identities: set[object] = {os.path.realpath(path)}
    if path.exists():
        status = path.stat()
        identities.add((status.st_dev, status.st_ino))
    return identities


def _ledger_path() -> Path | None:
    try:
        return cache_directory() / _LEDGER
    except StorageError:
        return None


def _read_ledger() -> Iterator[bytes]:
    ledger = _ledger_path()
    if ledger is not None and ledger.is_file():
        with ledger.open("rb") as file:
            yield from file


def _was_written_here(path: Path) -> bool:
    """Return whether opscope wrote exactly these bytes on this machine."""
    return _is_recorded(sha256_of(path))


def _is_recorded(sha256: str) -> bool:
    entry = f"{sha256}\n".encode()
    return any(line == entry for line in _read_ledger())


def _record_hash(sha256: str) -> None:
    """Record the hash of a file that was written; a file whose hash cannot be recorded is never replaced."""
    ledger = _ledger_path()
    if ledger is None or _is_recorded(sha256):
        return
    try:
        ledger.parent.mkdir(parents=True, exist_ok=True)
        with ledger.open("ab") as file:
            file.write(f"{sha256}\n".encode())
    except OSError:
        return
