"""Run a model once under an instruction counter, with a clock that counts how often it is read.

A part is what was executed between two reads of the clock. Times in the trace of such a run are numbers of
parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.work.work import (
    CLASSES,
    INSTRUCTIONS,
    LOADED,
    PRODUCTS,
    STORED,
    STREAMING,
    TILE_PRODUCTS,
    CountedMoments,
)
from opscope.core.errors import RunError
from opscope.core.files import sha256_of
from opscope.core.system.compiler import build_once, run_compiler

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from opscope.experiment.protocol import Job
    from opscope.experiment.target import JobOutcome, RunTarget
    from opscope.machine.instructions import Instruction

READ, BEGINS, ENDS = "opscope_clock_read", "opscope_text_begins", "opscope_text_ends"
"""Functions of the clock that end a part when called: a read of the time, and the bounds of a profiler's text."""
CLOCK = "libopscope_clock.so"
_SOURCE = Path(__file__).with_name("cpp") / "counted_clock.c"
_FLAGS = ("-x", "c", "-O2", "-fPIC", "-shared", "-Wall", "-Werror")
_MOST_TOLD = 64  # beginnings and ends of texts between two reads, as the clock has it
_SECONDS = 60
_COUNTED = (INSTRUCTIONS, LOADED, STORED, PRODUCTS, TILE_PRODUCTS, STREAMING)


class WorkRun(NamedTuple):
    """A run under an instruction counter, and what it had executed at each read of its clock."""

    versions: dict[str, str]  # of the runtime
    files: dict[str, str]  # SHA-256 of the files of which instructions ran, by their names
    counts: dict[str, CountedMoments]  # instructions, their classes, bytes and products, by name


class WorkCounter(ABC):
    """Counts what processes execute."""

    name: str  # of what counts, with its version
    processor: str  # that it shows programs
    target: str  # name of the target whose processes it counts
    tile_bits: int | None = None  # length of a row of a tile of its matrix unit; None without one
    hidden: str | None = None  # the first feature group that it does not show programs, nor those beyond it

    @abstractmethod
    def check_machine(self, machine: str) -> None:
        """Raise FeatureError if the instructions of a machine cannot be counted."""

    @abstractmethod
    def run(self, target: RunTarget, job: Job, directory: Path, *, texts: bool) -> WorkRun:
        """Run a job in an empty directory, where its trace is left.

        Args:
            target: with a native runner.
            job: a traced one.
            directory: for the files that it writes.
            texts: whether its profiler writes a text before and after what it times of an operator.

        Raises:
            RunError: the model does not run.
        """


def finished(outcome: JobOutcome, job: Job, where: str) -> dict[str, str]:
    """Return the runtime's versions of a job that ran. Raises RunError if it failed."""
    if outcome.measurement is None:
        reason = outcome.failure.message if outcome.failure else "no result"
        raise RunError(f"it does not run under {where}: {reason}", where=job.program)
    return outcome.measurement.versions


def counted_clock(command: Sequence[str], version: str, hint: str) -> Path:
    """Build the library with the clock, or return the one built from this source with this compiler."""

    def build(path: Path) -> None:
        run_compiler([*command, *_FLAGS, str(_SOURCE), "-o", str(path), "-ldl"], "cannot build the clock", hint)

    return build_once("clock", CLOCK, (_SOURCE.read_text(encoding="utf-8"), version, *command, *_FLAGS), build)


def hashes_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of existing files, by their names."""
    return {file.name: sha256_of(file) for file in sorted(files) if file.is_file()}


def add(counts: Counter[str], instruction: Instruction, times: int) -> None:
    """Add what an instruction does to counts, for so many executions."""
    counts[INSTRUCTIONS] += times
    counts[instruction.kind] += times
    counts[LOADED] += times * instruction.loaded
    counts[STORED] += times * instruction.stored
    counts[PRODUCTS] += times * instruction.products
    counts[TILE_PRODUCTS] += times * instruction.tile_products
    counts[STREAMING] += times * instruction.streaming


def counted_moments(rows: Sequence[Counter[str]], triggers: Sequence[str]) -> dict[str, CountedMoments]:
    """Return the counts at each read of the clock, by name of the count.

    ``rows``: counts of each part, including the part after the last call. ``triggers``: the function whose call
    ended a part, for all parts but the last.
    """
    moments = _find_moments(triggers, len(rows) - 1)
    totals = {name: np.cumsum([row[name] for row in rows], dtype=np.int64) for name in (*_COUNTED, *CLASSES)}
    return {name: CountedMoments(*(total[parts] for parts in moments)) for name, total in totals.items()}


def _find_moments(triggers: Sequence[str], end: int) -> tuple[list[int], list[int], list[int]]:
    """Find for each read of the clock the parts that end at it, at the next text's end, and at the last text's begin.

    A text belongs to the reads before and after it.
    """
    reads = [number for number, name in enumerate(triggers) if name == READ]
    at, behind, ahead = [*reads, end], [*reads, end], [*reads, end]
    for index, (this, following) in enumerate(pairwise(at)):
        between = range(this + 1, following)
        if len(between) < _MOST_TOLD:
            behind[index] = next((part for part in between if triggers[part] == ENDS), this)
            ahead[index + 1] = next((part for part in reversed(between) if triggers[part] == BEGINS), following)
    return at, behind, ahead
