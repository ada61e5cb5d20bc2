"""Where a store is: a directory, or a place in object storage. Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opscope.core.errors import MissingDependencyError, StorageError, UsageError
from opscope.core.files import storage_errors, write_atomically
from opscope.core.install import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEFAULT_STORE = "opscope-store"
STORE_VARIABLE = "OPSCOPE_STORE"
SCHEMES = ("s3", "gs", "az")
"""Kinds of object storage: of S3's protocol, Google Cloud Storage, Azure Blob Storage."""
_URL = "://"
_WHOLE = 8 << 20
"""Bytes up to which an object is read whole."""
_RETRIES, _RETRY_SECONDS = 3, 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BRANCH = re.compile(r"\s*\n\s*(?:↳\s*)?")


class StoredFile(NamedTuple):
    """A file: its size in bytes, and when it last changed or came to its name, in seconds since the epoch."""

    size: int
    changed: float


class StoreLocation(Protocol):
    """Files by their paths within the store, which always have ``/`` between their parts."""

    address: str
    """As the user named it."""
    uri: str
    """As Delta Lake takes it."""
    options: dict[str, str]
    """Likewise: how to reach it."""

    def read(self, path: str) -> bytes:
        """Content of a file; FileNotFoundError when it is not there."""

    def write(self, path: str, content: bytes) -> None:
        """Make or replace a file in one step."""

    def settle(self, path: str) -> None:
        """Wait until a file that another library wrote would survive a loss of power."""

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""

    def files(self, folder: str) -> dict[str, StoredFile]:
        """Every file below a folder, by its path; of the store, with an empty text."""

    def url(self, path: str) -> str:
        """The file as messages name it."""

    def ranges(self, path: str, size: int) -> Callable[[int, int], bytes]:
        """What gives the bytes of a file from an offset on, as many as are asked for, to several threads at once."""


class _LetGo(io.FileIO):
    """A file to read that is closed when nobody holds it any more: DuckDB lets go of files and closes none."""

    def __del__(self) -> None:
        self.close()


class Directory:
    """A store in a directory of this machine."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._root = path.absolute()
        self.uri, self.options = str(self._root), dict[str, str]()

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

    def settle(self, path: str) -> None:
        """See ``StoreLocation``."""
        file = self._root / path
        with storage_errors(file):
            for name, flags in ((file, os.O_RDONLY), (file.parent, os.O_RDONLY | os.O_DIRECTORY)):
                descriptor = os.open(name, flags)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def delete(self, path: str) -> None:
        """See ``StoreLocation``."""
        file = self._root / path
        with storage_errors(file):
            file.unlink(missing_ok=True)

    def files(self, folder: str) -> dict[str, StoredFile]:
        """See ``StoreLocation``."""
        stored_files = {}
        for directory, _, names in os.walk(self._root / folder):
            for name in names:
                file = Path(directory) / name
                with contextlib.suppress(FileNotFoundError):
                    state = file.stat()
                    changed = max(state.st_mtime, state.st_ctime)  # the second one nobody can set
                    stored_files[file.relative_to(self._root).as_posix()] = StoredFile(state.st_size, changed)
        return stored_files

    def url(self, path: str) -> str:
        """See ``StoreLocation``."""
        return str(self._root / path)

    def ranges(self, path: str, size: int) -> Callable[[int, int], bytes]:  # noqa: ARG002 - see ``StoreLocation``
        """See ``StoreLocation``."""
        file = _LetGo(self._root / path)
        return lambda offset, count: os.pread(file.fileno(), count, offset)


class Remote:
    """A store in object storage.

    Raises MissingDependencyError: obstore is not installed; UsageError: the URL names no kind of object storage that is
    known.
    """

    def __init__(self, address: str) -> None:
        self.address = self.uri = address.rstrip("/")
        self._scheme = address.partition(_URL)[0]
        if self._scheme not in SCHEMES:
            hint = f"give a directory, or a URL that begins with one of {', '.join(f'{one}://' for one in SCHEMES)}"
            raise UsageError(f"unknown kind of storage: {self._scheme!r}", where=address, hint=hint)
        # Without encryption only where the user's own endpoint is such: a server in the same house, or a test.
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        self.options = {"max_retries": str(_RETRIES), "retry_timeout": f"{_RETRY_SECONDS}s"}
        if plain:
            self.options["allow_http"] = "true"
        try:
            from obstore.store import from_url
        except ImportError:
            raise MissingDependencyError(
                "obstore is not installed", where=address, hint=install_command("store")
            ) from None
        http = {"allow_http": True} if plain else None
        retries = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
        with storage_faults(self.address):
            self._store: Any = from_url(self.uri, client_options=http, retry_config=retries)

    def read(self, path: str) -> bytes:
        """See ``StoreLocation``."""
        import obstore

        with storage_faults(f"{self.address}/{path}"):
            return bytes(obstore.get(self._store, path).bytes())

    def write(self, path: str, content: bytes) -> None:
        """See ``StoreLocation``: object stores replace an object in one step."""
        import obstore

        with storage_faults(f"{self.address}/{path}"):
            obstore.put(self._store, path, content)

    def settle(self, path: str) -> None:
        """See ``StoreLocation``: an object is durable once it is there."""

    def delete(self, path: str) -> None:
        """See ``StoreLocation``."""
        import obstore

        with storage_faults(f"{self.address}/{path}"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def files(self, folder: str) -> dict[str, StoredFile]:
        """See ``StoreLocation``."""
        import obstore

        with storage_faults(f"{self.address}/{folder}"):
            found = [one for page in obstore.list(self._store, prefix=folder or None) for one in page]
        return {str(one["path"]): StoredFile(one["size"], one["last_modified"].timestamp()) for one in found}

    def url(self, path: str) -> str:
        """See ``StoreLocation``."""
        return f"{self.address}/{path}"

    def ranges(self, path: str, size: int) -> Callable[[int, int], bytes]:
        """See ``StoreLocation``: a small object is read whole, with one request."""
        import obstore

        if size <= _WHOLE:
            content = self.read(path)
            return lambda offset, count: content[offset : offset + count]

        def part(offset: int, count: int) -> bytes:
            with storage_faults(f"{self.address}/{path}"):
                return bytes(obstore.get_range(self._store, path, start=offset, length=count))

        return part


def store_address(store: str | Path | None) -> str:
    """The address of the store: as given, else of the environment variable OPSCOPE_STORE, else ``opscope-store``."""
    return str(store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def place_of(store: str | Path | None) -> StoreLocation:
    """The place that :func:`store_address` names: a URL of object storage, or else a directory."""
    address = store_address(store)
    if address.startswith("file://"):
        return Directory(Path(address.removeprefix("file://")))
    return Remote(address) if _URL in address else Directory(Path(address))


@contextlib.contextmanager
def storage_faults(where: str) -> Iterator[None]:
    """Say of what object storage refuses why, and what to do; an object that is not there stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except _refusals() as error:
        raise storage_error(error, where) from error


def storage_error(error: Exception, where: str) -> StorageError:
    """What a storage library said, in one line, with the step that fits."""
    text = " ".join(_BRANCH.sub(": ", _COLOUR.sub("", str(error))).split())
    said = text.replace(where.partition(_URL)[2], "")  # a bucket may be called what an error is
    hint = next((advice for words, advice in _ADVICE if words.search(said)), "what was stored is kept")
    return StorageError(f"the storage refused: {text[:_LONGEST]}", where=where, hint=hint)


_LONGEST = 300
_ADVICE = tuple(
    (re.compile(words, re.IGNORECASE), advice)
    for words, advice in (
        (
            r"latest/api/token|latest/meta-data|metadata\.google|credential|Account must be specified|token request",
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or those of your storage",
        ),
        (
            r"NoSuchBucket|bucket does not exist|ContainerNotFound",
            "create the bucket first, or name another one",
        ),
        (
            r"\bcode\W+40[13]\b|forbidden|denied|unauthorized|InvalidAccessKeyId|SignatureDoesNotMatch",
            "access denied: check AWS_ACCESS_KEY_ID and the permissions on the bucket",
        ),
        (
            r"connect|dns|resolve|timed? ?out|URL scheme is not allowed",
            "no server answers: check AWS_ENDPOINT_URL, AWS_REGION and the network",
        ),
        (
            r"no space|disk full|file too large|read-only",
            "free some space or choose another place; what was stored is kept",
        ),
    )
)


def _refusals() -> tuple[type[Exception], ...]:
    """Errors by which a storage refuses: the system's, and those of obstore where that is installed."""
    try:
        from obstore.exceptions import BaseError
    except ImportError:
        return (OSError,)
    return OSError, BaseError
