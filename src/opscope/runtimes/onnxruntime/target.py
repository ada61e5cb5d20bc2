"""ONNX Runtime on this machine, as the wheel has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.system.pythons import HERE
from opscope.runtimes.onnxruntime.installed import PACKAGE, installed_onnxruntime
from opscope.runtimes.package_target import PackageModules, PackageTarget

if TYPE_CHECKING:
    from opscope.core.system.pythons import Python

MODULES = PackageModules(
    "opscope.runtimes.onnxruntime.child",
    "opscope.runtimes.onnxruntime.ceilings.child",
    # the graph is called whatever its name, and its weights are found beside the model
    frozenset({"affinity", "calls", "inputs", "values", "data", "options"}),
)
TRACE = "trace.onnxruntime.json"
"""The profile of a session, as ONNX Runtime writes it."""


def onnxruntime_here(python: Python = HERE) -> PackageTarget:
    """The installed ONNX Runtime."""
    found = installed_onnxruntime(python)
    return PackageTarget(MODULES, TRACE, lambda: found.library, lambda: {PACKAGE: found.version}, python=python)
