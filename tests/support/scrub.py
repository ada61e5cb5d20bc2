"""Take the path of the checkout out of recorded files: records, bundles and the hashes that they state of others."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

PATHS = {str(Path(__file__).resolve().parents[2]): "/home/me/opscope", sys.base_prefix: "/usr"}
"""Of the checkout and of Python, and what stands in their place."""


def scrubbed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a recording without the path, by name; a hash that one states of another follows."""
    found = {name: plain(data) for name, data in files.items()}
    known = {name: _sha256(data) for name, data in files.items()}
    for _ in range(len(files)):
        moved = {known[name]: _sha256(data) for name, data in found.items() if _sha256(data) != known[name]}
        if not moved:
            break
        known = {name: _sha256(data) for name, data in found.items()}
        for old, new in moved.items():
            found = {name: data.replace(old, new) for name, data in found.items()}
    return found


def plain(data: bytes) -> bytes:
    """A file without the path; of a zip, each of its members."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return _without_paths(data)
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(packed, "w") as after:
        for member in before.infolist():
            after.writestr(member, _without_paths(before.read(member)), member.compress_type)
    return packed.getvalue()


def _without_paths(data: bytes) -> bytes:
    for path, instead in PATHS.items():
        data = data.replace(path.encode(), instead.encode())
    return data


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
