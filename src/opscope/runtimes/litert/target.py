"""LiteRT on this machine, as the wheel has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.system.pythons import HERE
from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.package_target import PackageModules, PackageTarget

if TYPE_CHECKING:
    from opscope.core.system.pythons import Python

MODULES = PackageModules(
    "opscope.runtimes.litert.child",
    "opscope.runtimes.litert.ceilings.child",
    frozenset({"affinity", "calls", "inputs", "values", "delegate"}),
)


def litert_here(stand_in: str | None = None, python: Python = HERE) -> PackageTarget:
    """The installed LiteRT."""
    found, versions = installed_litert(python), {PACKAGE: installed_litert(python).version}
    return PackageTarget(MODULES, TRACE, lambda: found.library, lambda: versions, stand_in, python=python)
