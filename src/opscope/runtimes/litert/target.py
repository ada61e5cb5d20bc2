"""LiteRT on this machine, as the wheel has it."""

from __future__ import annotations

from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.package_target import PackageTarget

CHILD = "opscope.runtimes.litert.child"


def litert_here() -> PackageTarget:
    """The installed LiteRT.

    Raises:
        MissingDependencyError: there is none that can be driven.
    """
    found = installed_litert()
    return PackageTarget(CHILD, TRACE, lambda: found.library, lambda: {PACKAGE: found.version})
