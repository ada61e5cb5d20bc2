"""Counting calls of KleidiAI's kernels on aarch64 Linux: a small library, preloaded into the process that runs a model.

XNNPACK calls these kernels through the table that the loader fills, so a definition that is loaded earlier is called in
their place, counts, and jumps on. Which kernels a library calls that way stands in its relocations; the counter is made
for one library, by one call of a C compiler, and kept. How it works: ``cpp/kernel_counter.c``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.core.files import storage_errors
from opscope.core.system.compiler import build_once, run_compiler
from opscope.core.system.elf import AARCH64, read_symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.system.elf import ElfSymbols

COUNTS = "kernels.counts"
"""File that a counted job leaves in its directory."""
SOURCE = Path(__file__).with_name("cpp") / "kernel_counter.c"
_VARIABLE = "OPSCOPE_KERNEL_COUNTS"
_INVOKE = "xnn_invoke_runtime"
_KERNEL = re.compile(r"kai_run_[a-z0-9_]{1,200}\Z")
_LIBRARY = re.compile(r"[\w.+-]{1,200}\Z", re.ASCII)
_COMPILERS = ("aarch64-linux-gnu-gcc", "cc", "gcc", "clang")
_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-Wall", "-Werror")
_HINT = "install a C compiler for 64-bit Arm (Debian: apt install gcc-aarch64-linux-gnu), or set OPSCOPE_CC"


class Counter(NamedTuple):
    """A library that counts calls of the kernels of one other library."""

    path: Path  # the library to preload
    kernels: tuple[str, ...]  # that it counts
    sha256: str  # hash of the library that it was made for


def counter_environment(counter: str, counts: str) -> dict[str, str]:
    """Return the environment variables of a process whose kernel calls are counted."""
    return {"LD_PRELOAD": counter, _VARIABLE: counts}


def build_counter(library: Path, cache: Path | None = None) -> Counter:
    """Build the counter for a library with the XNNPACK backend, or return the one built for this library and source."""
    with storage_errors(library):
        data = library.read_bytes()
    header, kernels = _write_header(read_symbols(data, library), library)
    compiler = find_compiler()

    def build(path: Path) -> None:
        (path.parent / "kernels.h").write_text(header, encoding="utf-8")
        command = [*compiler, *_FLAGS, "-I", str(path.parent), str(SOURCE), "-o", str(path), "-ldl", "-lpthread"]
        run_compiler(command, "the compiler cannot build the kernel counter", _HINT)

    parts = (*compiler, *_FLAGS, SOURCE.read_text(encoding="utf-8"), header)
    path = build_once("counter", "libopscope_counter.so", parts, build, cache)
    return Counter(path, kernels, hashlib.sha256(data).hexdigest())


def find_compiler() -> tuple[str, ...]:
    """Return the compiler that ``OPSCOPE_CC`` names, else the first available one that builds for 64-bit Arm Linux."""
    command_text = os.environ.get("OPSCOPE_CC")
    for command in [tuple(shlex.split(command_text))] if command_text else [(name,) for name in _COMPILERS]:
        if command and shutil.which(command[0]) and _query_target_machine(command).startswith("aarch64"):
            return command
    problem = f"{command_text} (OPSCOPE_CC) does not compile" if command_text else "there is no C compiler"
    raise MissingDependencyError(f"{problem} for 64-bit Arm: kernels cannot be counted", hint=_HINT)


def _query_target_machine(compiler: Sequence[str]) -> str:
    process = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True, check=False)
    machine = process.stdout.strip()
    return machine if not process.returncode and "linux" in machine else ""


def _write_header(symbols: ElfSymbols | None, library: Path) -> tuple[str, tuple[str, ...]]:
    """Return the part of the counter's source that is made for a library, and the kernels that it counts."""
    if symbols is None or symbols.machine != AARCH64 or not _LIBRARY.match(library.name):
        hint = "run the model on 64-bit Arm Linux, or with --target qemu-aarch64; elsewhere compare with features off"
        raise FeatureError("kernels can be counted only in libraries for 64-bit Arm Linux", where=library, hint=hint)
    kernels = tuple(sorted(name for name in symbols.called if _KERNEL.match(name) and name in symbols.defined))
    if not kernels or _INVOKE not in symbols.called or not symbols.defined.get(_INVOKE):
        hint = "the library calls its own functions directly; use `perf record` to name its kernels"
        raise FeatureError("its kernels cannot be counted: no call goes through the loader", where=library, hint=hint)
    names = "\n".join(f'  "{name}\\0"' for name in kernels)
    jumps = " \\\n".join(f"  KERNEL({number}, {name})" for number, name in enumerate(kernels))
    lines = (
        f'#define LIBRARY "{library.name}"',
        f"#define INVOKE_SIZE {symbols.defined[_INVOKE]}",
        f"#define KERNELS {len(kernels)}",
        f"static const char kNames[] =\n{names};",
        f"#define ALL_KERNELS \\\n{jumps}",
    )
    return "\n".join(lines) + "\n", kernels
