"""ONNX Runtime on this machine, as the wheel has it."""

from __future__ import annotations

from opscope.runtimes.onnxruntime.installed import PACKAGE, installed_onnxruntime
from opscope.runtimes.package_target import PackageModules, PackageTarget

MODULES = PackageModules(
    "opscope.runtimes.onnxruntime.child",
    "opscope.runtimes.onnxruntime.ceilings.child",
    # the graph is called whatever its name, and its weights are found beside the model
    frozenset({"affinity", "calls", "inputs", "values", "data", "options"}),
)
TRACE = "trace.onnxruntime.json"
"""The profile of a session, as ONNX Runtime writes it."""


def onnxruntime_here() -> PackageTarget:
    """The installed ONNX Runtime."""
    found = installed_onnxruntime()
    return PackageTarget(MODULES, TRACE, lambda: found.library, lambda: {PACKAGE: found.version})
