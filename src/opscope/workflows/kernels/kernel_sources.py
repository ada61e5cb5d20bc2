"""Whatever tells of kernels, as sources of one form: bundles, runs of the Arm kit, counts, logs, lists, recordings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.analysis.kernels.kernel_sources import counted_source, log_source, registered_source, sampled_source
from opscope.core.errors import NotFoundError, TraceFormatError
from opscope.core.files import head_of
from opscope.readers.kernel_counts import MAGIC, read_kernel_counts

if TYPE_CHECKING:
    from opscope.analysis.kernels.kernel_sources import KernelSource

_HEAD = 1 << 16


def split_label(path: str) -> tuple[Path, str | None]:
    """A path and the variant behind ``#``; a file whose own name has one is taken as it is."""
    place, mark, label = path.rpartition("#")
    return (Path(place), label) if mark and place and not Path(path).exists() else (Path(path), None)


def file_source(path: Path, label: str | None) -> KernelSource:
    """What a file tells: counts, a log of XNNPACK, a list of the kit, or a recording of a profiler."""
    from opscope.readers.kernel_log import is_kernel_log, read_kernel_log
    from opscope.readers.recordings.recording import is_recording, read_recording

    head, variant = _head(path), label or path.stem
    if head.startswith(MAGIC):
        return counted_source(read_kernel_counts(path), variant, str(path))
    if is_recording(head):
        return sampled_source(read_recording(path), variant, str(path))
    if b"kernel_name" in head.partition(b"\n")[0]:
        return _listed(path, variant)
    if is_kernel_log(head):
        return log_source(read_kernel_log(path), variant, str(path))
    hint = "give a bundle, a run of the Arm kit, a kernels.counts, a log of XNNPACK, or a recording as text"
    raise TraceFormatError("nothing in it is about kernels", where=path, hint=hint)


def _head(path: Path) -> bytes:
    try:
        return head_of(path, _HEAD)
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", where=path) from None


def _listed(path: Path, variant: str) -> KernelSource:
    from opscope.kit.readers.csv import kernel_rows

    rows = kernel_rows(path)
    return registered_source([(r.kernel.whole, r.category, r.registrations) for r in rows], variant, str(path))
