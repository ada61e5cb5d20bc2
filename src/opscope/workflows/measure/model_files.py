"""The files of a model as a bundle keeps them: the ETRecord without its weights, everything else as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import TraceFormatError
from opscope.core.files import write_atomically
from opscope.runtimes.executorch.etrecord.slim import slim_etrecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RECORD_SUFFIX = ".etrecord"
_SLIM = "slim"


def bundled_files(files: Sequence[Path], work: Path) -> list[Path]:
    """The files to copy into a bundle, in the same order.

    Args:
        files: of the model.
        work: a directory for files that differ from those given; it must last until they are copied.

    Raises:
        StorageError: the record cannot be read, or a file cannot be written.
    """
    return [_slim(file, work / _SLIM) if file.suffix == RECORD_SUFFIX else file for file in files]


def _slim(record: Path, directory: Path) -> Path:
    """A record without weights; one that cannot be read as it is, since analyses then say what is wrong with it."""
    try:
        content = slim_etrecord(record)
    except TraceFormatError:
        return record
    target = directory / record.name
    write_atomically(target, content)
    return target
