"""Exporting in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from opscope.errors import ExportError, MissingDependencyError
from opscope.export.lower import check_dtype
from opscope.export.registry import entry

if TYPE_CHECKING:
    from pathlib import Path

EXPORT_LOG = "export.log"
_NEEDED = ("torch", "executorch")


class Refusal(msgspec.Struct, frozen=True):
    """What the exporting process says when it fails: an error's sentence and hint."""

    problem: str
    hint: str | None


def export_model(name: str, dtype: str, directory: Path) -> tuple[Path, Path]:
    """Export a registered model into a directory; what torch prints is kept in ``export.log`` beside it.

    Returns:
        The .pte and the .etrecord.

    Raises:
        NotFoundError: there is no such model.
        UsageError: there is no such number type.
        MissingDependencyError: torch or executorch is not installed.
        ExportError: the export failed.
    """
    entry(name)
    check_dtype(dtype)
    check_installed()
    stem = f"{name}_xnnpack_{dtype}"
    program, etrecord = directory / f"{stem}.pte", directory / f"{stem}.etrecord"
    command = [sys.executable, "-m", "opscope.export.child", name, dtype, str(program), str(etrecord)]
    log = directory / EXPORT_LOG
    with log.open("wb") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, check=False)
    if done.returncode or not program.exists():
        raise _failure(name, done.stdout, done.returncode, log)
    return program, etrecord


def check_installed() -> None:
    """Make sure that the packages for exporting and running are there.

    Raises:
        MissingDependencyError: naming those that are missing and what to type.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        problem = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise MissingDependencyError(problem, hint="install them with: pip install 'opscope[executorch]'")


def _failure(name: str, output: bytes, code: int, log: Path) -> ExportError:
    last = output.strip().splitlines()[-1:]
    try:
        refusal = msgspec.json.decode(last[0] if last else b"", type=Refusal)
    except msgspec.MsgspecError:
        ending = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        refusal = Refusal(f"the exporting process {ending}", "the last lines of the log say why")
    return ExportError(f"{name} could not be exported: {refusal.problem}", where=log, hint=refusal.hint)
