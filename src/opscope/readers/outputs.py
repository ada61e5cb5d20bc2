"""The outputs that a run saved: .npz files of plain arrays, never pickles."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def read_outputs(path: Path) -> list[NDArray[Any]] | None:
    """All arrays of a file in order; None when there is no such file.

    Raises:
        TraceFormatError: the file is damaged or holds anything but plain arrays.
    """
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as saved:
            return [saved[name] for name in saved.files]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise TraceFormatError(f"the saved outputs are damaged: {error}", where=path) from error
