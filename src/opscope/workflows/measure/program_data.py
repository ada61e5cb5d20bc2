"""Weights that a program keeps in a file of their own: the .ptd that was named, or the one beside the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import MismatchError, NotFoundError, OpscopeError, UsageError
from opscope.runtimes.executorch.ptd import data_keys, external_keys
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.xnnpack.payload import BACKEND

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DATA_SUFFIX = ".ptd"
_SHOWN = 3
_HOW = "name it with --data FILE.ptd; the exporter wrote it beside the program"


def program_data(program: Path, named: Path | None) -> Path | None:
    """The .ptd that a program needs; None for one that holds all its weights itself.

    Args:
        program: the .pte.
        named: that the user named; None: it is looked for beside the program, by the keys of its data.

    Raises:
        UsageError: one is named and none is needed, or several beside the program fit.
        NotFoundError: none is there.
        MismatchError: the one that is named lacks data.
        TraceFormatError: it is damaged.
    """
    needed = external_keys(program)
    if named is not None:
        _check(program, named, needed)
        return named
    return _beside(program, needed) if needed else None


def _check(program: Path, named: Path, needed: Sequence[str]) -> None:
    found = data_keys(named)
    if not needed and set(read_executable(program).outline().backends()) <= {BACKEND}:
        problem = f"{program.name} holds all its weights itself"
        raise UsageError(problem, where="--data", hint="leave it out")
    missing = [key for key in needed if key not in found]
    if missing:
        problem = f"it has no {_listed(missing)}, which {program.name} looks for"
        raise MismatchError(problem, where=named, hint="name the .ptd that the same export wrote")


def _beside(program: Path, needed: Sequence[str]) -> Path:
    fitting = [path for path in sorted(program.parent.glob(f"*{DATA_SUFFIX}")) if _fits(path, needed)]
    own = [path for path in fitting if path.stem == program.stem]
    if len(own or fitting) == 1:
        return (own or fitting)[0]
    if fitting:
        names = ", ".join(path.name for path in fitting)
        raise UsageError(f"several files hold the weights of {program.name}: {names}", where="--data", hint=_HOW)
    problem = f"its weights are in another file, and no .ptd beside it has {_listed(needed)}"
    raise NotFoundError(problem, where=program, hint=_HOW)


def _fits(path: Path, needed: Sequence[str]) -> bool:
    """Whether a file has all that is needed; one that is damaged has not."""
    try:
        return data_keys(path).issuperset(needed)
    except OpscopeError:
        return False


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more
