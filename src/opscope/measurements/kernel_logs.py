"""Logs of XNNPACK as sources: a file of its own, or what the processes of a variant printed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from opscope.analysis.kernels.kernel_sources import registered_source
from opscope.experiment.protocol import LOG
from opscope.readers.kernel_log import read_kernel_log

if TYPE_CHECKING:
    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.bundle.bundle import Bundle
    from opscope.program.kernels.names import KernelLog


def log_source(log: KernelLog, variant: str, path: str) -> KernelSource:
    """What a log of XNNPACK tells."""
    lines = Counter((entry.kernel.whole, entry.category) for entry in log.entries)
    return registered_source([(*key, count) for key, count in lines.items()], variant, path)


def printed_log(bundle: Bundle, variant: str) -> KernelSource | None:
    """The kernels that the first process of a variant printed; None where it listed none.

    A library that was built with XNNPACK's log level 4 lists them in every process, others in none.

    Args:
        bundle: to look into.
        variant: its name.

    Raises:
        InvalidBundleError: the log is not the one that was printed.
    """
    places = (bundle.left_file(repetition, LOG) for repetition in bundle.manifest.completed(variant))
    path = next(filter(None, places), None)
    log = read_kernel_log(path) if path else None
    return log_source(log, variant, str(path.relative_to(bundle.path))) if path and log and log.entries else None
