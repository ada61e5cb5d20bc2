"""The zip file of an ETRecord, treated as hostile: only its JSON members are inflated, and nothing is written to disk.

Beside the JSON an ETRecord holds pickles. They are never opened: unpickling runs whatever code the file contains.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from typing import TYPE_CHECKING, final

from opscope.core.errors import NotFoundError, StorageError, TraceFormatError
from opscope.core.files import leads_out
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

IDENTIFIER = "ETRECORD_V0"
LARGEST_JSON = 128 * 2**20  # bytes, all members that are read taken together; a model of 500 operators has 2 MB
_MOST_MEMBERS = 10_000
_MOST_EXPANSION = 200  # inflated bytes a stored byte; JSON of graphs reaches about 50
_FREE_EXPANSION = 2**20  # bytes below which expansion is harmless
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HINT = "export the model or copy the file again: it is corrupted, or not an ExecuTorch ETRecord"

# What the standard library raises on damaged archives, found by fuzzing.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)


@final
class Archive:
    """The members of an ETRecord, checked before any of them is read.

    Raises NotFoundError: there is no such file; StorageError: it cannot be read; TraceFormatError: it is not an
    ETRecord, damaged, or built to do harm.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._left = LARGEST_JSON
        self._zip = self._opened()
        try:
            self._members = self._checked()
        except TraceFormatError:
            self._zip.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        """Names of all members, in the order of the file."""
        return list(self._members)

    def read(self, name: str) -> bytes | None:
        """A member inflated; None when there is no such member."""
        if name not in self._members:
            return None
        info = self._members[name]
        self._check_size(info)
        self._left -= info.file_size
        try:
            return self._zip.read(info)
        except _DAMAGE as error:
            raise self.error(f"{_shown(name)} is damaged: {error}", info.header_offset) from error
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", where=self.path) from error

    def error(self, problem: str, offset: int | None = None) -> TraceFormatError:
        """An error that names this file."""
        return TraceFormatError(problem, where=self.path, offset=offset, hint=_HINT)

    def _opened(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except FileNotFoundError:
            raise NotFoundError("no such file", where=self.path) from None
        except _DAMAGE as error:
            raise self.error(f"not an ETRecord: it is not a zip file, or a damaged one ({error})") from error
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", where=self.path) from error

    def _checked(self) -> dict[str, zipfile.ZipInfo]:
        infos = self._zip.infolist()
        if len(infos) > _MOST_MEMBERS:
            raise self.error(
                f"it has {counted_text(len(infos), 'member', ',')}; an ETRecord has about a dozen per method"
            )
        members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            self._check_member(info)
            if info.filename in members:
                raise self.error(f"two members have the name {_shown(info.filename)}", info.header_offset)
            members[info.filename] = info
        if IDENTIFIER not in members:
            raise self.error(f"not an ETRecord: the member {IDENTIFIER} is missing")
        return members

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.orig_filename
        if leads_out(name) or ":" in name:
            raise self.error(f"the name {_shown(name)} points outside the archive", info.header_offset)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise self.error(f"{_shown(name)} is a link", info.header_offset)
        if info.header_offset < 0:
            raise self.error(f"{_shown(name)} starts before the file")
        if info.flag_bits & _ENCRYPTED:
            raise self.error(f"{_shown(name)} is encrypted", info.header_offset)
        if info.compress_type not in _METHODS:
            raise self.error(f"{_shown(name)} is compressed by an unusual method", info.header_offset)

    def _check_size(self, info: zipfile.ZipInfo) -> None:
        size, stored = info.file_size, info.compress_size
        if size > self._left:
            problem = f"{_shown(info.filename)} would need {size:,} bytes, the limit is {LARGEST_JSON:,} for all"
            raise self.error(problem, info.header_offset)
        whole = self.path.stat().st_size
        if info.header_offset + stored > whole or (info.compress_type == zipfile.ZIP_STORED and stored != size):
            problem = f"{_shown(info.filename)} claims {stored:,} stored bytes for {size:,}, the file has {whole:,}"
            raise self.error(problem, info.header_offset)
        if expands_too_far(size, stored):
            problem = f"{_shown(info.filename)} would grow from {stored:,} to {size:,} bytes: a zip bomb"
            raise self.error(problem, info.header_offset)


def expands_too_far(size: int, stored: int) -> bool:
    """Whether so many bytes in so few stored ones are taken for a zip bomb."""
    return size > _FREE_EXPANSION and size > stored * _MOST_EXPANSION


def _shown(name: str) -> str:
    """A name from the file as it can be printed: control characters escaped, not longer than a line."""
    return repr(name[:60])
