"""Building the small libraries that a process loads to see fewer features: one call of the compiler at hand, once."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Mechanism
from opscope.core.errors import MissingDependencyError
from opscope.core.system.cache import cache_directory, is_whole, made_in_place
from opscope.core.system.compiler import compiler_for
from opscope.machine import isa

if TYPE_CHECKING:
    from opscope.core.system.compiler import Compiler

_FOLDER = Path(__file__).with_name("c")
_SOURCES = {Mechanism.TRAP: "cpuid_trap.c", Mechanism.HWCAP: "hwcap_mask.c"}
ARCHITECTURES = {Mechanism.TRAP: "x86_64", Mechanism.HWCAP: "aarch64"}
"""On which each mechanism works, as in ``opscope.machine.isa``."""
# The sources are C, whichever language the compiler is made for.
_FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-fPIC", "-shared")
_SECONDS = 60
_HINT = "install a C++ compiler (Debian: apt install g++), or switch with --switch cpuinfo where that is offered"
_CONSEQUENCE = "the library that switches features off cannot be built"


def switch_library(mechanism: Mechanism, cache: Path | None = None) -> Path:
    """The library of a mechanism; built when there is none of this source and compiler."""
    source, here = _FOLDER / _SOURCES[mechanism], isa.architecture(platform.machine())
    compiler = compiler_for(ARCHITECTURES[mechanism], here, _CONSEQUENCE, _HINT, ("g++", "gcc"))
    texts = [file.read_text(encoding="utf-8") for file in (source, _FOLDER / "report.h")]
    parts = (compiler.version, *compiler.command, *_FLAGS, *texts)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = (cache or cache_directory()) / "switch" / key / f"libopscope_{mechanism.value}.so"
    if not is_whole(path):
        _build(compiler, source, path)
    return path


def _build(compiler: Compiler, source: Path, path: Path) -> None:
    """Compile under another name and put it in its place in one step."""
    with made_in_place(path) as built:
        command = [*compiler.command, *_FLAGS, str(source), "-o", str(built), "-ldl", "-lpthread"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise MissingDependencyError(f"the compiler did not end within {_SECONDS} s", hint=_HINT) from None
        if done.returncode:
            errors = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()]
            said = errors[0] if errors else f"exit code {done.returncode}"
            raise MissingDependencyError(f"the compiler failed, so {_CONSEQUENCE}: {said}", hint=_HINT)
