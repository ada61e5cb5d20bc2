"""What of macOS can be seen without a Mac: the runtime's libraries for it, read as files.

Run by ``make test-arm64`` (``.ci/arm64``), which downloads the wheel. Nothing of it is executed.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from mach_o import ARM64, MachO, read_mach_o
from opscope.core.system.elf import read_symbols
from opscope.machine.cpu_reading import SYSCTL_NAMES
from opscope.program.kernels.symbols import parse_symbol
from opscope.runtimes.executorch.installed import BACKEND, THREADPOOL

_ENVIRONMENT = "OPSCOPE_ARM64"
PLACE = Path(os.environ.get(_ENVIRONMENT, "."))
LIBRARIES = PLACE / "macos/executorch/lib"
pytestmark = pytest.mark.skipif(_ENVIRONMENT not in os.environ, reason="make test-arm64 downloads the wheel")


@functools.cache
def _runtime_library(name: str) -> MachO:
    return read_mach_o((LIBRARIES / f"{name}.dylib").read_bytes())


@pytest.mark.parametrize("name", [THREADPOOL, BACKEND, "libexecutorch", "libexecutorch_etdump"])
def test_the_runtime_has_the_libraries_that_we_link_and_load(name: str) -> None:
    """For the processor, each found beside the others."""
    found = _runtime_library(name)
    assert found.processor == ARM64
    assert "@loader_path" in found.paths
    assert found.system == (14, 0)


def test_the_backend_reads_the_features_that_we_clear() -> None:
    """By name, of that very library: macOS looks a symbol up in the library that it was linked with.

    They have the size of the known layout: no table states it, but behind 32 bytes the section ends.
    """
    assert _runtime_library(BACKEND).taken["_cpuinfo_isa"] == f"@rpath/{THREADPOOL}.dylib"
    assert {"_cpuinfo_isa", "_cpuinfo_initialize"} <= set(_runtime_library(THREADPOOL).exported)
    assert _runtime_library(THREADPOOL).room("_cpuinfo_isa") == 32


def test_we_ask_macos_what_the_runtime_asks() -> None:
    """The names of features stand in the library as it asks for them."""
    data = (LIBRARIES / f"{THREADPOOL}.dylib").read_bytes()
    asked = {name.decode() for name in re.findall(rb"hw\.optional\.arm\.(\w+)", data)}
    assert set(SYSCTL_NAMES) <= asked
    assert asked - set(SYSCTL_NAMES) == {"sme_max_svl_b"}


def test_the_backend_has_the_kernels_that_it_has_on_linux() -> None:
    """KleidiAI's of SME and SME2, which counted calls and profiles name; and the same names of operators in traces."""
    path = PLACE / f"packages/executorch/lib/{BACKEND}.so"
    symbols = read_symbols(path.read_bytes(), path)
    on_linux = matrix_kernels(symbols.functions)
    assert len(on_linux) == 33
    assert matrix_kernels(name.removeprefix("_") for name in _runtime_library(BACKEND).exported) == on_linux
    data = (LIBRARIES / f"{BACKEND}.dylib").read_bytes()
    assert all(word in data for word in (b"PF32", b"PF16", b"PQS8"))


def matrix_kernels(symbols: Iterable[str]) -> set[str]:
    """Names of KleidiAI's kernels that need SME or SME2."""
    parsed = filter(None, map(parse_symbol, symbols))
    return {kernel.name for kernel in parsed if kernel.name.startswith("kai_run_") and "sme" in kernel.name}


# What the native runner calls, without arguments: those of the C++ library have other names there.
CALLED = """
    9extension6module6ModuleC1 9extension6module6Module11load_method 9extension6module6Module11method_meta
    9extension6module6Module12method_names 9extension6module6Module7execute 9extension15make_tensor_ptr
    9extension10threadpool10ThreadPool24_unsafe_reset_threadpool 6etdump9ETDumpGenC1 6etdump9ETDumpGen15get_etdump_data
    7runtime12runtime_init 7runtime6MethodD1 7runtime10MethodMeta10num_inputs 7runtime10TensorInfo9dim_order
""".split()


def test_what_the_native_runner_calls_is_exported() -> None:
    """With the headers for it; whether a compiler takes all that is another question."""
    assert (LIBRARIES.parent / "include/executorch/extension/module/module.h").exists()
    exported = [name for file in LIBRARIES.glob("*.dylib") for name in _runtime_library(file.stem).exported]
    begins = tuple(f"__ZN{const}10executorch{name}" for name in CALLED for const in ("", "K"))
    found = {begin for begin in begins if any(name.startswith(begin) for name in exported)}
    assert len(found) == len(CALLED)
