"""LiteRT on this machine, as the wheel has it."""

from __future__ import annotations

from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.package_target import PackageModules, PackageTarget

MODULES = PackageModules(
    "opscope.runtimes.litert.child",
    "opscope.runtimes.litert.ceilings.child",
    frozenset({"affinity", "calls", "inputs", "values", "delegate"}),
)


def litert_here(stand_in: str | None = None) -> PackageTarget:
    """The installed LiteRT."""
    found = installed_litert()
    return PackageTarget(MODULES, TRACE, lambda: found.library, lambda: {PACKAGE: found.version}, stand_in)
