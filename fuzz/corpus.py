"""The inputs that are kept in the repository: few and small, each of which reaches lines that the others do not.

They stand in one archive a target, ``fuzz/corpus/TARGET.zip``. Fuzzing starts from them besides the seeds, and
``python -m fuzz readers --keep`` writes them anew.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DIRECTORY = Path(__file__).resolve().parent / "corpus"
MOST_INPUTS, MOST_BYTES = 24, 8 << 10
"""Of a target; the archives of all together are some tens of KB."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def kept(name: str) -> list[bytes]:
    """The inputs of a target, the shortest first; none where nothing is kept."""
    path = _path(name)
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return sorted((archive.read(member) for member in archive.namelist()), key=_order)


def keep(name: str, inputs: Sequence[bytes]) -> None:
    """Write the inputs of a target; the same inputs always give the same file."""
    path = _path(name)
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for data in sorted(set(inputs), key=_order):
            member = zipfile.ZipInfo(hashlib.sha256(data).hexdigest()[:12], _EPOCH)
            archive.writestr(member, data, zipfile.ZIP_DEFLATED, 9)


def _path(name: str) -> Path:
    return DIRECTORY / f"{name.replace(':', '.')}.zip"


def _order(data: bytes) -> tuple[int, bytes]:
    return len(data), data
