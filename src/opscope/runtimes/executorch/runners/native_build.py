"""Building the native runner: one call of the compiler at hand, against the installed executorch package, once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import VARIABLE, cache_directory, made_in_place
from opscope.core.system.compiler import Compiler, usual_compiler
from opscope.core.system.stages import enter
from opscope.hosts.process import last_line
from opscope.runtimes.executorch.installed import library_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).with_name("cpp") / "runner.cpp"
_LIBRARIES = ("executorch_etdump", "executorch_threadpool", "executorch")
# The event tracer's switch must be that of the package's own libraries, or the classes have other layouts.
_DEFINES = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED")
_TYPES = "executorch/runtime/core/portable_type/c10"
_COMPILE_SECONDS, _START_SECONDS = 180, 60
_HINT = "install a C++17 compiler (Debian: apt install g++, macOS: xcode-select --install) or use --target local"
_ELSEWHERE = f"name another directory in {VARIABLE}, or use --target local"


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


def find_compiler() -> Compiler:
    """The compiler that ``CXX`` names, else the first of c++, g++ and clang++ that answers.

    Raises:
        MissingDependencyError: none does.
    """
    return usual_compiler("the native runner cannot be built", _HINT)


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
    parts = (runtime, compiler.version, *compiler.command, SOURCE.read_text(encoding="utf-8"), *flags)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = (cache or cache_directory()) / "native" / key / "runner"
    if not path.exists():
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
        raise MissingDependencyError("the executorch package has no C++ headers", where=include, hint=_HINT)
    return [
        *("-O2", "-std=c++17", *(f"-D{name}" for name in _DEFINES)),
        *("-isystem", str(include), "-isystem", str(include / _TYPES)),
        str(SOURCE),
        *(f"-L{libraries}", "-Xlinker", "-rpath", "-Xlinker", rpath, *(f"-l{name}" for name in _LIBRARIES)),
        *(() if sys.platform == "darwin" else ("-ldl",)),
    ]


def compile_runner(compiler: Compiler, flags: Sequence[str], path: Path, *, starts: bool = True) -> None:
    """Compile under another name, see that it starts, and put it in its place in one step.

    Args:
        compiler: to use.
        flags: see :func:`compiler_flags`.
        path: of the runner.
        starts: whether it can be started on this machine.

    Raises:
        MissingDependencyError: the compiler fails, or what it built does not start.
        StorageError: the runner cannot be kept.
    """
    enter("building the native runner")
    with made_in_place(path) as built:
        _must([*compiler.command, *flags, "-o", str(built)], _COMPILE_SECONDS, "cannot build the native runner")
        if starts:
            _must([str(built), "--help"], _START_SECONDS, "built a native runner that does not start")


def _must(command: Sequence[str], seconds: float, problem: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise MissingDependencyError(f"the compiler {problem}: no end after {seconds} s", hint=_HINT) from None
    except PermissionError:
        reason = "nothing may be executed where it is kept"
        raise MissingDependencyError(f"the compiler {problem}: {reason}", where=command[0], hint=_ELSEWHERE) from None
    if done.returncode:
        words = _complaint(done.stderr) or f"exit code {done.returncode}"
        raise MissingDependencyError(f"the compiler {problem}: {words}", hint=_HINT)


def _complaint(text: str) -> str:
    """The first error of a compiler's output, else its last line."""
    errors = [line.strip() for line in text.splitlines() if "error" in line.lower()]
    return errors[0] if errors else last_line(text)
