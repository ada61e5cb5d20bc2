"""How a command ended that ran in the process of a test: what the fixture ``command`` of tests/cli gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


Command: TypeAlias = Callable[..., Ended]
"""Called with the words of a command line, and the directory ``cwd`` where it shall run."""
