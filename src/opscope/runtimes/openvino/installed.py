"""The installed OpenVINO package: which of its libraries choose kernels, and how it compiles models."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError, UsageError, did_you_mean
from opscope.core.install import install_command
from opscope.core.system.pythons import HERE
from opscope.runtimes.loading import InstalledLibrary, find_package, first_file, package_version

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from opscope.core.system.pythons import Python


PACKAGE = "openvino"
NEWEST = "2026.4.1"
"""Newest version that was tested: docs/reference/versions.md."""
_PLUGIN = "libs/libopenvino_intel_cpu_plugin.*"
_ARM_PLUGIN = "libs/libopenvino_arm_cpu_plugin.*"
_CORE = "libs/libopenvino.*"


def installed_openvino(python: Python = HERE) -> InstalledLibrary:
    """Find the installed package and its CPU plugin without importing it.

    Raises MissingDependencyError if it is not installed or has no plugin for this CPU.
    """
    package = find_package(python, PACKAGE, PACKAGE, "OpenVINO", PACKAGE)
    library = first_file(package, _PLUGIN, _ARM_PLUGIN)
    if library is None:
        raise MissingDependencyError(
            "openvino has no plugin for this CPU", where=package, hint=install_command(PACKAGE)
        )
    return InstalledLibrary(PACKAGE, package_version(python, PACKAGE), library)


def asking_libraries(python: Python = HERE) -> list[Path]:
    """Return the libraries that ask for the CPU's features: the plugin, and the core with its reference kernels."""
    plugin = installed_openvino(python).library
    core = first_file(plugin.parent.parent, _CORE)
    return [plugin] if core is None else [plugin, core]


def imported_openvino() -> ModuleType:
    """Import the package without its telemetry."""
    os.environ["OPENVINO_TELEMETRY_OPT_OUT"] = "1"
    return import_module(PACKAGE)


def reason_of(error: Exception) -> str:
    """Return the reason in an exception of OpenVINO: its last line, since earlier ones name lines of its sources."""
    lines = [line.strip() for line in str(error).replace("\\n", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else "it gives no reason"


def text_of(value: Any) -> str:  # noqa: ANN401 - of the package
    """Return the text of a property of a node that ran."""
    return str(value.astype(str)) if hasattr(value, "astype") else str(value)


USUAL = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": "1",
    # On a CPU with bfloat16 the plugin would compute a model in single precision with it.
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": "NO",
    "ENABLE_HYPER_THREADING": "YES",
}
"""Default properties with which a model is compiled."""
_SWITCHES = ("YES", "NO")
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "PERFORMANCE_HINT": ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"),
    "EXECUTION_MODE_HINT": ("PERFORMANCE", "ACCURACY"),
    "INFERENCE_PRECISION_HINT": ("f32", "bf16", "f16", "dynamic"),
    "ENABLE_CPU_PINNING": _SWITCHES,
    "ENABLE_CPU_RESERVATION": _SWITCHES,
    "ENABLE_HYPER_THREADING": _SWITCHES,
    "ENABLE_TENSOR_PARALLEL": _SWITCHES,
    "CPU_DENORMALS_OPTIMIZATION": _SWITCHES,
    "SCHEDULING_CORE_TYPE": ("ANY_CORE", "PCORE_ONLY", "ECORE_ONLY"),
    "TBB_PARTITIONER": ("STATIC", "AUTO", "NONE"),
    "NUM_STREAMS": (),
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": (),
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": (),
    "KV_CACHE_PRECISION": (),
    "KEY_CACHE_PRECISION": (),
    "VALUE_CACHE_PRECISION": (),
    "KEY_CACHE_GROUP_SIZE": (),
    "VALUE_CACHE_GROUP_SIZE": (),
}
"""Properties that a user may set, as OpenVINO 2026.4 names them, with their values; empty: the plugin checks them."""


def properties(options: Mapping[str, str] | None) -> dict[str, str]:
    """Return the properties with which a model is compiled, given the options of a user.

    Raises UsageError if a property is unknown or has an unknown value.
    """
    chosen = dict(options or {})
    for name, value in chosen.items():
        if name not in _OTHERS:
            hint = did_you_mean(name, _OTHERS) or f"known: {', '.join(_OTHERS)}"
            raise UsageError(f"unknown property {name!r} of OpenVINO", where="session_options", hint=hint)
        allowed = _OTHERS[name]
        if allowed and value not in allowed:
            raise UsageError(f"{value!r} is not allowed; expected {', '.join(allowed)}", where=name)
    return {**USUAL, **chosen}
