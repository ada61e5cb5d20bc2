"""The compiler at hand, for the small programs and libraries that are built on the machine where they run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_USUAL = ("c++", "g++", "clang++")


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
