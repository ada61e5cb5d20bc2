"""Whether the sides of a gate are programs that are measured now, or were measured already."""

from __future__ import annotations

from pathlib import Path

from opscope.core.errors import UsageError
from opscope.core.printable import shell_command


def is_program(side: str, models: Path | None = None) -> bool:
    """Whether a side of a gate is a program or a model to export, and no measurement."""
    from opscope.runtimes.registry import EXPORTER

    path = Path(side)
    if path.suffix in EXPORTER.suffixes:
        return True
    return not path.is_dir() and "#" not in side and EXPORTER.names_model(side, models)


def check_kinds(candidate: str, against: str, models: Path | None = None) -> bool:
    """Whether both sides are programs to be measured; else both were measured already.

    Raises:
        UsageError: one is a program, and the other was measured already.
    """
    found = [is_program(side, models) for side in (candidate, against)]
    if all(found) or not any(found):
        return all(found)
    program, other = (candidate, against) if found[0] else (against, candidate)
    if not Path(other.partition("#")[0]).exists():
        return True  # then it is a misspelt program, which is said where it is looked for
    hint = (
        "give the program that was measured there, and both run interleaved; or measure this one like the other with "
        f"{shell_command(['opscope', 'profile', program])} --out DIR, and check that bundle"
    )
    raise UsageError(f"{program} is a program, and {other} was measured before", where="--against", hint=hint)
