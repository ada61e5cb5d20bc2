"""Take the path of the checkout out of recorded files: records, bundles and the hashes that they state of others."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2]).encode()
INSTEAD = b"/home/me/opscope"


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
        return data.replace(ROOT, INSTEAD)
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(packed, "w") as after:
        for member in before.infolist():
            after.writestr(member, before.read(member).replace(ROOT, INSTEAD), member.compress_type)
    return packed.getvalue()


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
