"""What a program tells before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import NotFoundError

if TYPE_CHECKING:
    from opscope.measurements.results import PreflightResult

_HEAD = 8


def preflight(path: str | Path) -> PreflightResult:
    """What of a program XNNPACK will run, what share SME and SME2 can accelerate, what holds it back, and what to do.

    Nothing is run and no device is needed. A delegate without a payload is counted, and its work stays unknown.

    Args:
        path: the program, a .pte or a .tflite.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is neither a .pte nor a .tflite, truncated, or damaged.
    """
    from opscope.analysis.preflight.preflight import preflight as look
    from opscope.core.files import sha256_of
    from opscope.measurements.notebook import shown_as
    from opscope.measurements.results import PreflightResult
    from opscope.runtimes.registry import read_model

    place = Path(path)
    _check(place)
    return shown_as(PreflightResult, look(read_model(place), str(place), sha256_of(place)))


def _check(path: Path) -> None:
    """Refuse what is not a program with a word on what is expected."""
    from opscope.readers.compressed import mapped_file
    from opscope.readers.other_files import not_recognised
    from opscope.runtimes.registry import runtime_of_content

    if path.is_dir():
        hint = "name the .pte or .tflite; in a bundle it is in the directory model"
        raise NotFoundError("it is a directory, not a program", where=path, hint=hint)
    if runtime_of_content(bytes(mapped_file(path)[:_HEAD])) is None:
        known = "a .tflite, or a .pte as written by `opscope profile` or ExecuTorch's exporter"
        hint = f"give {known}; `opscope analyze` reads traces"
        raise not_recognised(path, hint=hint)
