"""Arrays in .npz files, never pickles: the outputs that a run saved, and the inputs that a user gives."""

from __future__ import annotations

import hashlib
import io
import tokenize
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from opscope.core.errors import TraceFormatError
from opscope.core.system.memory import file_bytes, limited, reserve

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

_MOST_DEFLATED = 1032
"""Bytes that one byte of deflate can stand for, https://zlib.net/zlib_tech.html."""
# What numpy and the standard library raise on damaged archives, found by fuzzing.
_DAMAGE = (
    *(OSError, ValueError, EOFError, AttributeError, KeyError, TypeError, SyntaxError, OverflowError, MemoryError),
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of an .npz by name, in the order of the file."""
    content = file_bytes(path)
    with limited(path):
        reserve(_inflated_size(content))
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as saved:
                return {name: np.asarray(saved[name]) for name in saved.files}
        except _DAMAGE as error:
            hint = "write it with numpy.savez(FILE, first, second, ...)"
            raise TraceFormatError(f"not an .npz of arrays of numbers: {error}", where=path, hint=hint) from error


def _inflated_size(content: bytes) -> int:
    """Return the bytes that the members claim, as far as so few stored ones can hold them.

    0 if it is not a zip file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            stated = sum(member.file_size for member in archive.infolist())
            return min(stated, _MOST_DEFLATED * len(content))
    except _DAMAGE:
        return 0


def read_outputs(path: Path) -> list[NDArray[Any]] | None:
    """Return all arrays of a file in order; None when there is no such file."""
    return list(read_arrays(path).values()) if path.exists() else None


def values_sha256(arrays: Iterable[NDArray[Any]]) -> str:
    """Return the hash of all values, one array after the other, as processes state that of their outputs."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()
