"""Where a store is: a directory, or a place in object storage; its files are listed before anything opens them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.core.errors import MissingDependencyError, StorageError, TraceFormatError, UsageError
from opscope.core.install import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_STORE = "opscope-store"
STORE_VARIABLE = "OPSCOPE_STORE"
SCHEMES = ("s3", "gs", "az")
"""Kinds of object storage: of S3's protocol, Google Cloud Storage, Azure Blob Storage."""
RESTORE = "restore the file from a copy, or add the bundles to a new store"
_URL = "://"
_RETRIES, _RETRY_SECONDS = 3, 20
_LONGEST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BRANCH = re.compile(r"\s*\n\s*(?:↳\s*)?")
_ADVICE = tuple(
    (re.compile(words, re.IGNORECASE), advice)
    for words, advice in (
        (
            r"latest/api/token|latest/meta-data|metadata\.google|credential|Account must be specified|token request",
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or those of your storage",
        ),
        (r"NoSuchBucket|bucket does not exist|ContainerNotFound", "create the bucket first, or name another one"),
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


class StorePlace(NamedTuple):
    """Address of a store, and how to reach it."""

    address: str  # as the user named it
    uri: str  # as Delta Lake takes it: an absolute path, or a URL
    options: dict[str, str]  # of the storage, as Delta Lake takes them
    is_remote: bool

    def file_address(self, path: str) -> str:
        """Return the address of a file of the store, by its path within the store."""
        return f"{self.uri}/{path}"

    def list_sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all files of a folder of the store, by their paths; empty without the folder.

        Raises TraceFormatError where anything but a regular file lies there: a pipe would hang its reader, and a link
        leads elsewhere.
        """
        if self.is_remote:
            with translate_storage_errors(self.file_address(folder)):
                listing = open_object_store(self).list(prefix=folder)
                return {str(entry["path"]): int(entry["size"]) for page in listing for entry in page}
        directory, sizes = Path(self.uri, folder), {}
        with _read_locally(directory), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if directory.is_symlink():
                raise TraceFormatError("a link stands in place of a directory", where=directory, hint=RESTORE)
            for path in directory.iterdir():
                state = path.lstat()
                if not stat.S_ISREG(state.st_mode):
                    raise TraceFormatError("it is not a regular file", where=path, hint=RESTORE)
                sizes[f"{folder}/{path.name}"] = state.st_size
        return sizes

    def read_file(self, path: str) -> bytes:
        """Return the content of a file of the store."""
        if self.is_remote:
            with translate_storage_errors(self.file_address(path)):
                return bytes(open_object_store(self).get(path).bytes())
        with _read_locally(file := Path(self.uri, path)):
            return file.read_bytes()


@contextlib.contextmanager
def _read_locally(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror or error}", where=path) from error


def find_place(store: str | Path | None) -> StorePlace:
    """Return where a store is: a URL of object storage, or else a directory.

    Without a store it is that of the variable OPSCOPE_STORE, else ``opscope-store``. Raises UsageError for a kind of
    URL that is unknown.
    """
    address = str(store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)
    if address.startswith("file://") or _URL not in address:
        return StorePlace(address, str(Path(address.removeprefix("file://")).absolute()), {}, is_remote=False)
    scheme = address.partition(_URL)[0]
    if scheme not in SCHEMES:
        hint = f"give a directory, or a URL that begins with one of {', '.join(f'{known}://' for known in SCHEMES)}"
        raise UsageError(f"unknown kind of storage: {scheme!r}", where=address, hint=hint)
    options = {"max_retries": str(_RETRIES), "retry_timeout": f"{_RETRY_SECONDS}s"}
    return StorePlace(address, address.rstrip("/"), options | _plain_endpoint_option("true"), is_remote=True)


def _plain_endpoint_option(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a text or a truth value, as the library asks
    """Return the option that allows HTTP where the user's own endpoint has no encryption; else no option."""
    return {"allow_http": value} if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://") else {}


def open_object_store(place: StorePlace) -> Any:  # noqa: ANN401 - of a package that may be absent
    """Return obstore's view of a place in object storage."""
    retries = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
    module = import_extra("obstore.store")
    return module.from_url(place.uri, client_options=_plain_endpoint_option(value=True), retry_config=retries)


def open_file_system(place: StorePlace) -> Any:  # noqa: ANN401 - of a package that may be absent
    """Return obstore's view of a place in object storage as a file system, as DuckDB takes it."""
    scheme = place.uri.partition(_URL)[0]
    return import_extra("obstore.fsspec").FsspecStore(scheme, client_options=_plain_endpoint_option(value=True))


def import_extra(name: str) -> Any:  # noqa: ANN401 - a module of a package that may be absent
    """Return a module of one of the packages that a store needs; raise MissingDependencyError without it."""
    try:
        return import_module(name)
    except ImportError:
        hint = install_command("store")
        raise MissingDependencyError(f"{name} is not installed", where="store", hint=hint) from None


@contextlib.contextmanager
def translate_storage_errors(where: str) -> Iterator[None]:
    """Raise a StorageError with the step that helps for whatever object storage or Delta Lake refuses."""
    refusals: tuple[type[Exception], ...] = (OSError,)
    for name, kind in (("obstore.exceptions", "BaseError"), ("deltalake.exceptions", "DeltaError")):
        with contextlib.suppress(ImportError):
            refusals += (getattr(import_module(name), kind),)
    try:
        yield
    except refusals as error:
        raise make_storage_error(error, where) from error


def make_storage_error(error: Exception, where: str) -> StorageError:
    """Return what a storage library said, in one line, with the step that helps."""
    text = " ".join(_BRANCH.sub(": ", _COLOUR.sub("", str(error))).split())
    reason = text.replace(where.partition(_URL)[2], "")  # a bucket may be called what an error is
    hint = next((advice for words, advice in _ADVICE if words.search(reason)), "what was stored is kept")
    return StorageError(f"the storage refused: {text[:_LONGEST]}", where=where, hint=hint)
