"""Running a model once under something that counts instructions, with a clock that counts how often it is read.

What was executed before each read of the clock is a part; so the times in the trace of such a run are places among the
parts.
"""

from __future__ import annotations

import hashlib
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.work.work import CLASSES, INSTRUCTIONS, LOADED, PRODUCTS, STORED, STREAMING, TILE_PRODUCTS
from opscope.core.errors import MissingDependencyError, RunError
from opscope.core.files import sha256_of
from opscope.core.system.cache import cache_directory, is_whole, made_in_place
from opscope.hosts.process import last_line

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from opscope.experiment.protocol import Job
    from opscope.experiment.target import JobOutcome, RunTarget
    from opscope.machine.instruction import Instruction

CLOCK_READ = "opscope_clock_read"
CLOCK = "libopscope_clock.so"
_SOURCE = Path(__file__).with_name("cpp") / "counted_clock.c"
_FLAGS = ("-x", "c", "-O2", "-fPIC", "-shared", "-Wall", "-Werror")
_SECONDS = 60
_COUNTED = (INSTRUCTIONS, LOADED, STORED, PRODUCTS, TILE_PRODUCTS, STREAMING)


class WorkRun(NamedTuple):
    """A run, and what was executed before each read of its clock since the one before; shape (reads,) each."""

    versions: dict[str, str]  # of the runtime
    files: dict[str, str]  # SHA-256 of the files of which instructions ran, by their names
    counts: dict[str, NDArray[np.int64]]  # instructions, their classes, bytes and products, by name


class WorkCounter(ABC):
    """Counts what processes execute."""

    name: str  # of what counts, with its version
    processor: str  # that it shows programs
    target: str  # name of the target whose processes it counts
    tile_bits: int | None = None  # length of a row of a tile of its matrix unit; None without one
    hidden: str | None = None  # the first feature group that it does not show programs, nor those beyond it

    @abstractmethod
    def check_machine(self, machine: str) -> None:
        """Refuse a machine whose instructions it does not count, with a FeatureError."""

    @abstractmethod
    def run(self, target: RunTarget, job: Job, directory: Path) -> WorkRun:
        """Run a job in an empty directory, where its trace is left.

        Raises:
            RunError: the model does not run.
        """


def finished(outcome: JobOutcome, job: Job, where: str) -> dict[str, str]:
    """Versions of the runtime of a job that ran; a RunError of one that did not."""
    if outcome.measurement is None:
        reason = outcome.failure.message if outcome.failure else "no result"
        raise RunError(f"it does not run under {where}: {reason}", where=job.program)
    return outcome.measurement.versions


def counted_clock(command: Sequence[str], version: str, hint: str) -> Path:
    """The library with the clock, by a compiler; built where there is none of this source and compiler."""
    source = _SOURCE.read_text(encoding="utf-8")
    key = hashlib.sha256("\0".join((source, version, *command, *_FLAGS)).encode()).hexdigest()[:16]
    path = cache_directory() / "clock" / key / CLOCK
    if not is_whole(path):
        with made_in_place(path) as built:
            words = [*command, *_FLAGS, str(_SOURCE), "-o", str(built)]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS)
            if done.returncode:
                raise MissingDependencyError(f"the clock cannot be built: {last_line(done.stderr)}", hint=hint)
    return path


def hashes_of(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files that are there, by their names."""
    return {file.name: sha256_of(file) for file in sorted(files) if file.is_file()}


def add(found: Counter[str], own: Instruction, times: int) -> None:
    """Add what an instruction does that ran so often."""
    found[INSTRUCTIONS] += times
    found[own.kind] += times
    found[LOADED] += times * own.loaded
    found[STORED] += times * own.stored
    found[PRODUCTS] += times * own.products
    found[TILE_PRODUCTS] += times * own.tile_products
    found[STREAMING] += times * own.streaming


def columns(rows: Sequence[Counter[str]]) -> dict[str, NDArray[np.int64]]:
    """Counts of parts, by their names."""
    return {name: np.array([row[name] for row in rows], np.int64) for name in (*_COUNTED, *CLASSES)}
