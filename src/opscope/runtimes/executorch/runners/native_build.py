"""Building the native runner of ExecuTorch against the installed package."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import cache_directory, is_whole
from opscope.runtimes.executorch.installed import library_directory
from opscope.runtimes.native.building import COMPILER_HINT, build_key, compile_runner, find_compiler, source_flags

if TYPE_CHECKING:
    from opscope.core.system.compiler import Compiler

SOURCE = Path(__file__).with_name("cpp") / "runner.cpp"
_LIBRARIES = ("executorch_etdump", "executorch_threadpool", "executorch")
# The event tracer's switch must be that of the package's own libraries, or the classes have other layouts.
_DEFINES = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED")
_TYPES = "executorch/runtime/core/portable_type/c10"


class NativeRunner(NamedTuple):
    """The native runner."""

    path: Path  # the executable
    compiler: Compiler  # that built it
    runtime: str  # version of the executorch package that it belongs to


def build_runner(cache: Path | None = None, python: Path | None = None) -> NativeRunner:
    """The native runner for the installed package; built when there is none of this source, package and compiler."""
    check_c_library(python)
    libraries, compiler = library_directory(), find_compiler()
    flags = compiler_flags(libraries, str(libraries))
    runtime = version("executorch")
    path = (cache or cache_directory()) / "native" / build_key(compiler, SOURCE, flags, runtime) / "runner"
    if not is_whole(path):
        compile_runner(compiler, flags, path)
    return NativeRunner(path, compiler, runtime)


def compiler_flags(libraries: Path, rpath: str) -> list[str]:
    """Arguments of the compiler but for the name of the result; source before libraries."""
    include = libraries.parent / "include"
    if not (include / "executorch/extension/module/module.h").exists():
        raise MissingDependencyError("the executorch package has no C++ headers", where=include, hint=COMPILER_HINT)
    return [
        *(f"-D{name}" for name in _DEFINES),
        *("-isystem", str(include), "-isystem", str(include / _TYPES)),
        *source_flags(SOURCE),
        *(f"-L{libraries}", "-Xlinker", "-rpath", "-Xlinker", rpath, *(f"-l{name}" for name in _LIBRARIES)),
        *(() if sys.platform == "darwin" else ("-ldl",)),
    ]
