"""The installed ONNX Runtime package: which library holds the runtime."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.core.system.c_library import check_c_library

PACKAGE = "onnxruntime"
_LIBRARIES = "capi/onnxruntime_pybind11_state*"


class InstalledOnnxRuntime(NamedTuple):
    """The runtime's library."""

    version: str  # of the package
    library: Path  # that Python loads, with the kernels and the questions for the CPU's features


def installed_onnxruntime() -> InstalledOnnxRuntime:
    """What is installed; nothing of it is imported."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        check_c_library()  # what to install does not help where no wheel fits
        raise MissingDependencyError("ONNX Runtime (onnxruntime) is not installed", hint=install_command("onnxruntime"))
    package = Path(next(iter(spec.submodule_search_locations)))
    library = next((file for file in sorted(package.glob(_LIBRARIES)) if file.is_file()), None)
    if library is None:
        raise MissingDependencyError(
            "onnxruntime has no library for this Python", where=package, hint=install_command("onnxruntime")
        )
    return InstalledOnnxRuntime(_version(), library)


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "of an unknown version"
