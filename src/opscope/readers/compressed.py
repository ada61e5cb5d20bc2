"""Traces that are stored compressed: gzip and zstd, recognised by content and bounded in what they may become.

The content may be as large as reading may take memory, see :mod:`opscope.core.system.memory`.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import hashlib
import io
import mmap
import os
import zlib
from typing import TYPE_CHECKING

from opscope.core.errors import TraceFormatError
from opscope.core.files import head_of, opened, sha256_of
from opscope.core.system.memory import file_bytes, limited, memory_limit, too_large
from opscope.core.writing import write_atomically

if TYPE_CHECKING:
    from pathlib import Path


_LARGE = 1 << 26


def advise_dontneed(data: memoryview, end: int) -> None:
    """Give the memory of a mapped file up to a byte back; parts that are read again are loaded again."""
    mapping = data.obj
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, 0, end // mmap.PAGESIZE * mmap.PAGESIZE)


def mapped_file(path: Path) -> memoryview:
    """Return the bytes of a file: of one below 64 MiB a copy, which nobody changes; a larger one is mapped.

    A mapped file must not be shortened: the system then ends the process with SIGBUS, and the interpreter prints where.
    """
    with opened(path) as stream:
        if os.fstat(stream.fileno()).st_size < _LARGE:
            return memoryview(stream.read(_LARGE))
        faulthandler.enable()
        try:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError from error
            raise


def check_unchanged(data: memoryview, path: Path) -> None:
    """Refuse the content of a mapped file that has another size by now; of a copy nothing can have changed."""
    if isinstance(data.obj, mmap.mmap) and path.stat().st_size != len(data):
        hint = "wait for the program that writes it, and read it again"
        raise TraceFormatError("the file changed while it was read", where=path, hint=hint)


_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP_WINDOW = 31  # zlib's window of 15 bits, plus 16 for gzip's header
# A trace of one model repeated a million times compresses well; a file that grows more than this is an attack.
_MOST_GROWTH = 400
_ALWAYS_ALLOWED = 1 << 26
_ZSTD_STEP, _GZIP_STEP, _GZIP_PART = 1 << 10, 1 << 16, 1 << 24
_PROBE = 1 << 16
PACKED = (".gz", ".zst")
"""Ends of the names of compressed files."""
# Traces of a model shrink to an eighth by the one, which takes 0.1 s for a MB, and to a sixth by the other, in a tenth.
_STRONG, _QUICK, _STRONG_UP_TO = 17, 9, 1 << 23
_HINT = "the file is damaged or not a trace; decompress it and give the result"


def is_compressed(data: bytes | memoryview) -> bool:
    """Return whether data start like one of these formats."""
    return bytes(data[:2]) == _GZIP or bytes(data[:4]) == _ZSTD


def inflated(data: bytes | memoryview, path: Path) -> bytes | memoryview:
    """Return the content of a compressed file, or the data themselves when they are not compressed."""
    content, cut = inflated_part(data, path)
    if cut:
        raise TraceFormatError("the compressed data is truncated", where=path, offset=len(data), hint=_HINT)
    return content


def inflated_part(data: bytes | memoryview, path: Path) -> tuple[bytes | memoryview, bool]:
    """Return the content as :func:`inflated` does, of a file that is cut off as much as there is."""
    if not is_compressed(data):
        return data, False
    with limited(path):
        return _inflate_gzip(memoryview(data), path) if data[:2] == _GZIP else _inflate_zstd(memoryview(data), path)


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file's content, which may be compressed; fewer where it is shorter or damaged."""
    with opened(path) as file:
        data = file.read(max(count, _PROBE))
    if data[:2] == _GZIP:
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(_GZIP_WINDOW).decompress(data, count)
        return b""
    return _first_of_zstd(data, count) if data[:4] == _ZSTD else data[:count]


def _first_of_zstd(data: bytes, count: int) -> bytes:
    """Return the first bytes of the content of zstd data."""
    import zstandard  # noqa: PLC0415 - needed for this format only

    with contextlib.suppress(zstandard.ZstdError):
        first: bytes = zstandard.ZstdDecompressor().stream_reader(data).read(count)
        return first
    return b""


def keep_compressed(path: Path) -> Path:
    """Put a file with its content compressed in the place of a file; return its path.

    A large file stays as it is: it is mapped when it is read, and so that it may be of any size. A link does, too.
    """
    if path.is_symlink() or path.stat().st_size >= _ALWAYS_ALLOWED:
        return path
    import zstandard  # noqa: PLC0415 - needed for this format only

    content, packed = file_bytes(path), path.with_name(f"{path.name}.zst")
    level = _STRONG if len(content) < _STRONG_UP_TO else _QUICK
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    write_atomically(packed, compressor.compress(content), follow=False)
    path.unlink()
    return packed


def content_sha256(path: Path) -> str:
    """Return the hash of a file's content, in hexadecimal, inflated where it is compressed; else as ``sha256_of``."""
    if not is_compressed(head_of(path, len(_ZSTD))):
        return sha256_of(path)
    return hashlib.sha256(inflated(file_bytes(path), path)).hexdigest()


class _Content:
    """Inflated content, part by part."""

    def __init__(self, path: Path, stored: int) -> None:
        self._path, self._parts = path, io.BytesIO()
        self._most, self._growth = memory_limit(), max(_ALWAYS_ALLOWED, stored * _MOST_GROWTH)

    def add(self, part: bytes) -> None:
        """Take over a part."""
        size = self._parts.tell() + len(part)
        if size > self._growth:
            problem = f"the file grows more than {_MOST_GROWTH} times when inflated"
            raise TraceFormatError(problem, where=self._path, hint=_HINT)
        if size > self._most:
            raise too_large(self._path)
        self._parts.write(part)

    def whole(self) -> bytes:
        """Return all parts; nothing is copied."""
        return self._parts.getvalue()


def _inflate_gzip(data: memoryview, path: Path) -> tuple[bytes | memoryview, bool]:
    """Inflate gzip data, of any number of members; return whether the last one was cut."""
    content, rest, cut = _Content(path, len(data)), data, False
    while len(rest):
        stream = zlib.decompressobj(_GZIP_WINDOW)
        try:
            rest = _gunzip_member(stream, rest, content)
        except zlib.error as error:
            raise TraceFormatError(f"the gzip data is damaged: {error}", where=path, hint=_HINT) from error
        cut = not stream.eof
    return content.whole(), cut


def _gunzip_member(stream: zlib._Decompress, data: memoryview, content: _Content) -> memoryview:
    """Inflate a member; return the data behind it."""
    for start in range(0, len(data), _GZIP_STEP):
        step: bytes | memoryview = data[start : start + _GZIP_STEP]
        while len(step) and not stream.eof:
            content.add(stream.decompress(step, _GZIP_PART))
            step = stream.unconsumed_tail
        if stream.eof:
            return data[min(start + _GZIP_STEP, len(data)) - len(stream.unused_data) :]
    content.add(stream.flush())
    return data[len(data) :]


def _inflate_zstd(data: memoryview, path: Path) -> tuple[bytes | memoryview, bool]:
    """Inflate zstd data, of any number of frames; return whether the last one was cut."""
    import zstandard  # noqa: PLC0415 - needed for this format only

    content, stream = _Content(path, len(data)), zstandard.ZstdDecompressor().decompressobj()
    try:
        # In small steps, since a few bytes can stand for a block of 128 KiB and the stream takes no limit itself.
        for start in range(0, len(data), _ZSTD_STEP):
            step: bytes | memoryview = data[start : start + _ZSTD_STEP]
            while len(step):
                if stream.eof:
                    stream = zstandard.ZstdDecompressor().decompressobj()
                content.add(stream.decompress(step))
                step = stream.unused_data
    except zstandard.ZstdError as error:
        raise TraceFormatError(f"the zstd data is damaged: {error}", where=path, hint=_HINT) from error
    return content.whole(), not stream.eof
