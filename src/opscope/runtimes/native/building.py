"""Building a native runner: one call of the compiler at hand, once."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.core.system.cache import VARIABLE, made_in_place
from opscope.core.system.compiler import compiler_for, usual_compiler
from opscope.core.system.stages import enter
from opscope.hosts.process import last_line
from opscope.machine import isa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.system.compiler import Compiler

SHARED = Path(__file__).with_name("cpp") / "runner.h"
"""What all runners share; the first argument of the compiler says where it lies."""
_COMPILE_SECONDS, _START_SECONDS = 180, 60
_CONSEQUENCE = "cannot build the native runner"
COMPILER_HINT = (
    "install a C++17 compiler (Debian: apt install g++, macOS: xcode-select --install) or use --target local"
)
_ELSEWHERE = f"set {VARIABLE} to another directory, or use --target local"


def host_architecture() -> str | None:
    """This machine's, as in ``opscope.machine.isa``, when it runs Linux; else None."""
    if sys.platform != "linux":
        return None
    try:
        return isa.architecture(platform.machine())
    except FeatureError:
        return None


def find_compiler(arch: str | None = None) -> Compiler:
    """The compiler for an architecture; None: for this machine, whatever it is."""
    if arch is None:
        return usual_compiler(_CONSEQUENCE, COMPILER_HINT)
    return compiler_for(arch, host_architecture(), _CONSEQUENCE, COMPILER_HINT)


def source_flags(source: Path) -> list[str]:
    """Arguments of the compiler for the one source file of a runner."""
    return ["-O2", "-std=c++17", f"-I{SHARED.parent}", str(source)]


def build_key(compiler: Compiler, source: Path, flags: Sequence[str], *parts: str) -> str:
    """Name of what is built, by all that it depends on."""
    texts = [file.read_text(encoding="utf-8") for file in (source, SHARED)]
    known = (*parts, compiler.version, *compiler.command, *texts, *flags)
    return hashlib.sha256("\0".join(known).encode()).hexdigest()[:16]


def compile_runner(compiler: Compiler, flags: Sequence[str], path: Path) -> None:
    """Compile under another name, see that it starts, and put it in its place in one step."""
    with made_in_place(path) as built:
        compile_to(built, compiler, flags)
        _must([str(built), "--help"], _START_SECONDS, "the native runner was built but does not start")


def compile_to(path: Path, compiler: Compiler, flags: Sequence[str]) -> None:
    """Compile the runner where something larger is being made."""
    enter("building the native runner")
    _must([*compiler.command, *flags, "-o", str(path)], _COMPILE_SECONDS, "cannot build the native runner")


def _must(command: Sequence[str], seconds: float, problem: str) -> None:
    hint = COMPILER_HINT
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise MissingDependencyError(f"the compiler {problem}: not finished after {seconds} s", hint=hint) from None
    except PermissionError:
        reason = "its directory does not allow execution"
        raise MissingDependencyError(f"the compiler {problem}: {reason}", where=command[0], hint=_ELSEWHERE) from None
    if done.returncode:
        words = _complaint(done.stderr) or f"exit code {done.returncode}"
        raise MissingDependencyError(f"the compiler {problem}: {words}", hint=hint)


def _complaint(text: str) -> str:
    """The first error of a compiler's output, else its last line."""
    errors = [line.strip() for line in text.splitlines() if "error" in line.lower()]
    return errors[0] if errors else last_line(text)
