"""Keeps this process on some CPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opscope.core.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Sequence


def stay_on(cpus: Sequence[int]) -> None:
    """Keep this process on some CPUs; none means all."""
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise RunError("this system cannot keep a process on some CPUs")
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, OverflowError) as error:
        raise RunError(f"the CPUs {', '.join(map(str, cpus))} cannot be used: {error}") from error
