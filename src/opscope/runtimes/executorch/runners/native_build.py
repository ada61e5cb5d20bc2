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
    """The native runner.

    Attributes:
        path: the executable.
        compiler: that built it.
        runtime: version of the executorch package that it belongs to.
    """

    path: Path
    compiler: Compiler
    runtime: str


def build_runner(cache: Path | None = None, python: Path | None = None) -> NativeRunner:
    """The native runner for the installed package; built when there is none of this source, package and compiler.

    Args:
        cache: where built runners are kept; the user's cache directory when it is not given.
        python: whose C library the runner has to share; the one that runs this when it is not given.

    Raises:
        MissingDependencyError: executorch or a compiler is missing, the compiler fails, or there is no glibc.
        StorageError: the cache cannot be written.
    """
    check_c_library(python)
    libraries, compiler = library_directory(), find_compiler()
    flags = compiler_flags(libraries, str(libraries))
    runtime = version("executorch")
    path = (cache or cache_directory()) / "native" / build_key(compiler, SOURCE, flags, runtime) / "runner"
    if not is_whole(path):
        compile_runner(compiler, flags, path)
    return NativeRunner(path, compiler, runtime)


def compiler_flags(libraries: Path, rpath: str) -> list[str]:
    """Arguments of the compiler but for the name of the result; source before libraries.

    Args:
        libraries: of the executorch package, its headers beside them.
        rpath: where the runner looks for them.

    Raises:
        MissingDependencyError: the package has no headers.
    """
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
