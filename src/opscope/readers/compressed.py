"""Traces that are stored compressed: gzip and zstd, recognised by content and bounded in what they may become."""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import TraceFormatError, reading

if TYPE_CHECKING:
    from pathlib import Path

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP_WINDOW = 31  # zlib's window of 15 bits, plus 16 for gzip's header
# A trace of one model repeated a million times compresses well; a file that grows more than this is an attack.
_MOST_GROWTH = 400
_ALWAYS_ALLOWED = 1 << 26
_STEP = 1 << 10
_PROBE = 1 << 16
_HINT = "the file is damaged, or was not made from a trace; uncompress it and give the result"


def is_compressed(data: bytes | memoryview) -> bool:
    """Whether data start like one of these formats."""
    return bytes(data[:2]) == _GZIP or bytes(data[:4]) == _ZSTD


class Inflated(NamedTuple):
    """The content of a compressed file, and whether the file ends before it does."""

    data: bytes
    cut: bool


def inflated(data: bytes, path: Path) -> bytes:
    """The content of a compressed file, or the data themselves when they are not compressed.

    Raises:
        TraceFormatError: the compressed data are damaged, cut off, or would grow beyond all measure.
    """
    content, cut = inflated_part(data, path)
    if cut:
        raise TraceFormatError("the compressed data are cut off", where=path, offset=len(data), hint=_HINT)
    return content


def inflated_part(data: bytes, path: Path) -> Inflated:
    """The same, of a file that is cut off as much as there is.

    Raises:
        TraceFormatError: the compressed data are damaged, or would grow beyond all measure.
    """
    if data[:2] == _GZIP:
        return _gunzipped(data, path)
    return _unzstd(data, path) if data[:4] == _ZSTD else Inflated(data, cut=False)


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file's content, which may be compressed; fewer where it is shorter or damaged.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
    """
    with reading(path), path.open("rb") as file:
        data = file.read(max(count, _PROBE))
    if data[:2] == _GZIP:
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(_GZIP_WINDOW).decompress(data, count)
        return b""
    return _first_of_zstd(data, count) if data[:4] == _ZSTD else data[:count]


def _first_of_zstd(data: bytes, count: int) -> bytes:
    import zstandard  # noqa: PLC0415 - needed for this format only

    with contextlib.suppress(zstandard.ZstdError):
        first: bytes = zstandard.ZstdDecompressor().stream_reader(data).read(count)
        return first
    return b""


def _limit(data: bytes) -> int:
    return max(_ALWAYS_ALLOWED, len(data) * _MOST_GROWTH)


def _gunzipped(data: bytes, path: Path) -> Inflated:
    limit, parts, rest, cut = _limit(data), list[bytes](), data, False
    while rest:
        stream = zlib.decompressobj(_GZIP_WINDOW)
        try:
            parts.append(stream.decompress(rest, limit + 1))
        except zlib.error as error:
            raise TraceFormatError(f"the gzip data are damaged: {error}", where=path, hint=_HINT) from error
        limit -= len(parts[-1])
        if limit < 0:
            raise _too_large(path)
        rest, cut = stream.unused_data, not stream.eof
    return Inflated(b"".join(parts), cut)


def _unzstd(data: bytes, path: Path) -> Inflated:
    import zstandard  # noqa: PLC0415 - needed for this format only

    limit, parts, stream = _limit(data), [], zstandard.ZstdDecompressor().decompressobj()
    # In small steps, since a few bytes can stand for a block of 128 KiB and the stream takes no limit itself.
    for start in range(0, len(data), _STEP):
        try:
            step = data[start : start + _STEP]
            while step:
                if stream.eof:
                    stream = zstandard.ZstdDecompressor().decompressobj()
                parts.append(stream.decompress(step))
                limit -= len(parts[-1])
                step = stream.unused_data
        except zstandard.ZstdError as error:
            raise TraceFormatError(f"the zstd data are damaged: {error}", where=path, hint=_HINT) from error
        if limit < 0:
            raise _too_large(path)
    return Inflated(b"".join(parts), cut=not stream.eof)


def _too_large(path: Path) -> TraceFormatError:
    return TraceFormatError(f"the file grows more than {_MOST_GROWTH} times when inflated", where=path, hint=_HINT)
