"""How the process of a job runs, in few words."""

from __future__ import annotations

from collections.abc import Sequence

from opscope.bundle.manifest import Mechanism, Variant
from opscope.bundle.settings import DelegateName


def run_as(
    clear: Sequence[str] | None = None,
    threads: int = 1,
    *,
    switch: Mechanism = Mechanism.CPUINFO,
    affinity: Sequence[int] = (),
    delegate: DelegateName | None = None,
    options: dict[str, str] | None = None,
) -> Variant:
    """A variant with these fields cleared by a mechanism; None: the switch is not used."""
    used = None if clear is None else switch
    off = list(clear or ())
    return Variant("asked", None, None, off, threads, list(affinity), used, delegate=delegate, options=options)
