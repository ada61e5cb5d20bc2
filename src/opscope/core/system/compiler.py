"""The compiler at hand, for the small programs and libraries that are built on the machine where they run."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.printable import printable
from opscope.core.system.cache import VARIABLE, cache_directory, is_whole, made_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_USUAL = ("c++", "g++", "clang++")
_BUILD_SECONDS = 180.0


class Compiler(NamedTuple):
    """A compiler that answers."""

    command: tuple[str, ...]  # that starts it
    version: str  # first line of what it says about itself


def answering_compiler(command: Sequence[str]) -> Compiler | None:
    """The compiler that a command starts; None when nothing answers to it."""
    if not command or not shutil.which(command[0]):
        return None
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or not done.stdout.strip():
        return None
    return Compiler(tuple(command), done.stdout.strip().splitlines()[0])


def usual_compiler(consequence: str, hint: str) -> Compiler:
    """The compiler that ``CXX`` names, else the first of c++, g++ and clang++ that answers."""
    named = os.environ.get("CXX")
    for command in [tuple(shlex.split(named))] if named else [(name,) for name in _USUAL]:
        compiler = answering_compiler(command)
        if compiler:
            return compiler
    problem = f"the C++ compiler {named} (CXX) does not work" if named else "there is no C++ compiler"
    raise MissingDependencyError(f"{problem}: {consequence}", hint=hint)


def compiler_for(arch: str, here: str | None, consequence: str, hint: str, cross: Sequence[str] = ("g++",)) -> Compiler:
    """The compiler for an architecture: as the environment says, that of this machine, or the usual cross compiler."""
    variable = f"OPSCOPE_CXX_{arch.upper()}"
    named = os.environ.get(variable)
    if named is None and arch == here:
        return usual_compiler(consequence, hint)
    # Debian and Homebrew name their cross compilers differently.
    prefixes = (f"{arch}-linux-gnu", f"{arch}-unknown-linux-gnu")
    usual = [[f"{prefix}-{name}"] for prefix in prefixes for name in cross]
    commands = [shlex.split(named)] if named else usual
    compiler = next(filter(None, map(answering_compiler, commands)), None)
    if compiler is None:
        problem = f"there is no C++ compiler for {arch}, {shlex.join(commands[0])}: {consequence}"
        install = f"Debian: apt install g++-{arch.replace('_', '-')}-linux-gnu"
        if sys.platform == "darwin":
            install = f"brew install messense/macos-cross-toolchains/{prefixes[1]}"
        hint = f"{install}; or set one in {variable}"
        raise MissingDependencyError(problem, hint=hint)
    return compiler


def build_once(
    kind: str, name: str, parts: Sequence[str], build: Callable[[Path], None], cache: Path | None = None
) -> Path:
    """Return a file that is built once and kept in the cache.

    Args:
        kind: directory of the cache.
        name: of the file.
        parts: all that the file depends on: versions, commands, flags and texts.
        build: makes the file at another path, from which it comes to its place in one step.
        cache: None: the user's.
    """
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = (cache or cache_directory()) / kind / key / name
    if not is_whole(path):
        with made_in_place(path) as built:
            build(built)
    return path


def run_compiler(
    command: Sequence[str], problem: str, hint: str, *, seconds: float = _BUILD_SECONDS, source: str | None = None
) -> None:
    """Run a compiler, or what it has built.

    Args:
        command: with all arguments.
        problem: what cannot be completed when it fails, for the message.
        hint: what to do then.
        seconds: how long it may take.
        source: what it reads from its standard input; None: nothing.

    Raises:
        MissingDependencyError: it failed; the message has its first error, else its last line.
    """
    try:
        completed = subprocess.run(
            command, input=source, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingDependencyError(f"{problem}: not finished after {seconds:g} s", hint=hint) from None
    except PermissionError:
        hint = f"set {VARIABLE} to another directory, or use --target local"
        reason = "its directory does not allow execution"
        raise MissingDependencyError(f"{problem}: {reason}", where=command[0], hint=hint) from None
    if completed.returncode:
        lines = [line.strip() for line in completed.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        reasons = [*errors[:1], *lines[-1:], f"exit code {completed.returncode}"]
        raise MissingDependencyError(f"{problem}: {printable(reasons[0])}", hint=hint)
