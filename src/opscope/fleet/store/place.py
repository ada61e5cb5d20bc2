"""Where a store is: a directory, or any place that fsspec knows. Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from opscope.core.errors import MissingDependencyError, StorageError, UsageError
from opscope.core.files import storage_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRA = "pip install 'opscope[store]'"
_URL = "://"


class StoreLocation(Protocol):
    """Files by their paths within the store, which always have ``/`` between their parts."""

    address: str
    """As the user named it."""

    def read(self, path: str) -> bytes:
        """Content of a file; FileNotFoundError when it is not there."""

    def write(self, path: str, content: bytes) -> None:
        """Make or replace a file in one step."""

    def write_new(self, path: str, content: bytes) -> bool:
        """Make a file in one step; False when there is one already, which stays as it is."""

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""

    def files(self, folder: str) -> dict[str, tuple[int, float]]:
        """Every file below a folder: path, size in bytes, and time of the last change in seconds since the epoch."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    def url(self, path: str) -> str:
        """The file as DuckDB finds it."""

    def file_system(self) -> Any:  # noqa: ANN401 - fsspec's classes are not annotated
        """What DuckDB needs to be told of before; None for a directory."""


class Directory:
    """A store in a directory of this machine.

    Args:
        path: of it.
    """

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._root = path.absolute()

    def read(self, path: str) -> bytes:
        """See ``StoreLocation``."""
        file = self._root / path
        try:
            return file.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror or error}", where=file) from error

    def write(self, path: str, content: bytes) -> None:
        """See ``StoreLocation``."""
        write_atomically(self._root / path, content)

    def write_new(self, path: str, content: bytes) -> bool:
        """See ``StoreLocation``: a hard link to a finished file, which fails when the name is taken (link(2))."""
        file = self._root / path
        temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
        write_atomically(temporary, content)
        with storage_errors(file):
            try:
                os.link(temporary, file)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
        return True

    def delete(self, path: str) -> None:
        """See ``StoreLocation``; folders that are empty then go with it."""
        file = self._root / path
        with storage_errors(file):
            file.unlink(missing_ok=True)
        for folder in file.parents:
            if folder == self._root:
                break
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone already
                break

    def files(self, folder: str) -> dict[str, tuple[int, float]]:
        """See ``StoreLocation``."""
        found = {}
        for directory, _, names in os.walk(self._root / folder):
            for name in names:
                file = Path(directory) / name
                with contextlib.suppress(FileNotFoundError):
                    state = file.stat()
                    found[file.relative_to(self._root).as_posix()] = (state.st_size, state.st_mtime)
        return found

    def exists(self, path: str) -> bool:
        """See ``StoreLocation``."""
        return (self._root / path).is_file()

    def url(self, path: str) -> str:
        """See ``StoreLocation``."""
        return str(self._root / path)

    def file_system(self) -> None:
        """See ``StoreLocation``."""


class Remote:
    """A store at a place that fsspec knows.

    Args:
        address: its URL.

    Raises:
        MissingDependencyError: fsspec, or the package for this kind of URL, is not installed.
        UsageError: fsspec knows no such kind of URL.
    """

    def __init__(self, address: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise MissingDependencyError("fsspec is not installed", where=address, hint=EXTRA) from None
        try:
            self._fs, root = fsspec.core.url_to_fs(address)
        except ImportError as error:
            raise MissingDependencyError(str(error), where=address, hint="install that package") from None
        except ValueError as error:
            raise UsageError(str(error), where=address, hint="give a directory, or a URL that fsspec knows") from None
        self.address = address
        self._root = str(root).rstrip("/")

    def read(self, path: str) -> bytes:
        """See ``StoreLocation``."""
        with self._errors(path):
            return bytes(self._fs.cat_file(self._at(path)))

    def write(self, path: str, content: bytes) -> None:
        """See ``StoreLocation``: object stores replace an object in one step."""
        with self._errors(path):
            self._make_folder(path)
            self._fs.pipe_file(self._at(path), content)

    def write_new(self, path: str, content: bytes) -> bool:
        """See ``StoreLocation``: the put-if-absent of the object store, by fsspec's mode ``create``."""
        with self._errors(path):
            self._make_folder(path)
            try:
                self._fs.pipe_file(self._at(path), content, mode="create")
            except FileExistsError:
                return False
        return True

    def delete(self, path: str) -> None:
        """See ``StoreLocation``."""
        with self._errors(path), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(path))

    def files(self, folder: str) -> dict[str, tuple[int, float]]:
        """See ``StoreLocation``."""
        with self._errors(folder):
            self._fs.invalidate_cache()
            found = self._fs.find(self._at(folder), detail=True)
        length = len(self._root) + 1
        return {name[length:]: (int(about["size"] or 0), _changed(about)) for name, about in found.items()}

    def exists(self, path: str) -> bool:
        """See ``StoreLocation``."""
        with self._errors(path):
            return bool(self._fs.isfile(self._at(path)))

    def url(self, path: str) -> str:
        """See ``StoreLocation``."""
        return str(self._fs.unstrip_protocol(self._at(path)))

    def file_system(self) -> Any:  # noqa: ANN401 - see ``Place``
        """See ``StoreLocation``."""
        return self._fs

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _make_folder(self, path: str) -> None:
        self._fs.makedirs(str(PurePosixPath(self._at(path)).parent), exist_ok=True)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            where = f"{self.address}/{path}"
            raise StorageError(f"cannot be reached: {error}", where=where, hint="what was stored is kept") from error


def place_of(address: str) -> StoreLocation:
    """The place that an address names: a URL of fsspec, or else a directory."""
    if address.startswith("file://"):
        return Directory(Path(address.removeprefix("file://")))
    return Remote(address) if _URL in address else Directory(Path(address))


def _changed(about: dict[str, Any]) -> float:
    for name in ("mtime", "LastModified", "last_modified", "created"):
        value = about.get(name)
        if value is not None:
            return float(value.timestamp() if hasattr(value, "timestamp") else value)
    return 0.0
