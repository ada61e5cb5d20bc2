"""Running a model once under Callgrind, with a clock that counts how often it is read: what each read is preceded by.

Callgrind shows programs an x86-64 processor of its own, with AVX2 at most, whatever this machine has.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.work.counted import CountedMoments
from opscope.analysis.work.work import CLASSES, INSTRUCTIONS, LOADED, PRODUCTS, STORED
from opscope.core.errors import MissingDependencyError, RunError
from opscope.core.system.cache import cache_directory, is_whole, made_in_place
from opscope.core.system.compiler import usual_compiler
from opscope.hosts.host import ProcessSettings
from opscope.hosts.process import last_line
from opscope.machine.x86_instructions import Instructions
from opscope.readers.callgrind import read_callgrind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget

PROCESSOR = "x86-64 as Valgrind shows it, AVX2 at most"
NOT_SHOWN = "avx512"
"""The first feature group that Valgrind does not show programs; nor those beyond it."""
_SOURCE = Path(__file__).with_name("cpp") / "counted_clock.c"
_LIBRARY = "libopscope_clock.so"
_FLAGS = ("-x", "c", "-O2", "-fPIC", "-shared", "-Wall", "-Werror")
_PARTS = "callgrind.out"
_READ, _BEGINS, _ENDS = "opscope_clock_read", "opscope_text_begins", "opscope_text_ends"
_MOST_TOLD = 64  # of the last two between two reads, as the clock has it
_TRIGGER = re.compile(rb"^desc: Trigger: --dump-before=(\w+)", re.MULTILINE)
_HEAD = 4096
_HINT = "install Valgrind (Debian: apt install valgrind)"
_SECONDS = 60


class WorkRun(NamedTuple):
    """A run, and what it had executed at each read of its clock."""

    versions: dict[str, str]  # of the runtime
    counts: dict[str, CountedMoments]  # instructions, their classes, bytes and products, by name


class _ShownProcess(ProcessSettings, frozen=True):
    """A process that sees the processor of Valgrind, and is not counted."""

    @property
    def prefix(self) -> list[str]:
        """Valgrind, with the tool that does nothing."""
        return ["valgrind", "-q", "--tool=none"]


class CountedProcess(ProcessSettings, frozen=True):
    """A process under Callgrind."""

    out: str = ""  # how names of the parts begin
    clock: str = ""  # library with the clock
    texts: bool = False  # whether texts between two reads are told, too

    @property
    def prefix(self) -> list[str]:
        """Valgrind, and how it is asked."""
        told = (_READ, _BEGINS, _ENDS) if self.texts else (_READ,)
        options = ["--tool=callgrind", "--dump-instr=yes", "--compress-pos=yes"]
        options += [f"--dump-before={name}" for name in told]
        # Another environment moves the stack and the heap, and kernels take other ways by the alignment of their data.
        clean = ["env", "-i", f"PATH={os.environ.get('PATH', os.defpath)}", f"LD_PRELOAD={self.clock}"]
        return [*clean, "valgrind", "-q", *options, f"--callgrind-out-file={self.out}"]

    @property
    def processor(self) -> ProcessSettings:
        """What Valgrind shows."""
        return _ShownProcess()


def valgrind_version() -> str:
    """Of the installed Valgrind; a MissingDependencyError where there is none."""
    if shutil.which("valgrind") is None:
        raise MissingDependencyError("Valgrind is not installed: instructions cannot be counted", hint=_HINT)
    done = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=False, timeout=_SECONDS)  # noqa: S607
    found = re.search(r"[\d.]+", done.stdout)
    if done.returncode or found is None:
        raise MissingDependencyError(f"Valgrind does not start: {last_line(done.stderr)}", hint=_HINT)
    return f"Valgrind {found[0]}"


def run_counted(target: RunTarget, job: Job, directory: Path, *, texts: bool = False) -> WorkRun:
    """Run a job in an empty directory, where its trace is left.

    Args:
        target: with a native runner.
        job: a traced one.
        directory: for what it leaves.
        texts: whether its profiler writes a text before and after what it times of an operator.

    Raises:
        MissingDependencyError: Valgrind or a C compiler is missing.
        RunError: the model does not run.
    """
    clock = str(_clock())
    own = CountedProcess(nice=job.process.nice, out=str(directory / _PARTS), clock=clock, texts=texts)
    outcome = target.execute(msgspec.structs.replace(job, counter=clock, process=own), directory)
    if outcome.measurement is None:
        reason = outcome.failure.message if outcome.failure else "no result"
        raise RunError(f"it does not run under Valgrind: {reason}", where=job.program)
    return WorkRun(outcome.measurement.versions, _counts(directory))


def _clock() -> Path:
    """The library with the clock; built where there is none of this source and compiler."""
    hint = "install a C compiler (Debian: apt install gcc)"
    compiler = usual_compiler("instructions cannot be counted", hint)
    source = _SOURCE.read_text(encoding="utf-8")
    key = hashlib.sha256("\0".join((source, compiler.version, *compiler.command, *_FLAGS)).encode()).hexdigest()[:16]
    path = cache_directory() / "clock" / key / _LIBRARY
    if not is_whole(path):
        with made_in_place(path) as built:
            command = [*compiler.command, *_FLAGS, str(_SOURCE), "-o", str(built), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
            if done.returncode:
                raise MissingDependencyError(f"the clock cannot be built: {last_line(done.stderr)}", hint=hint)
    return path


def _counts(directory: Path) -> dict[str, CountedMoments]:
    """What the parts hold, the last one included, which follows the last read."""
    files = sorted(directory.glob(f"{_PARTS}.*"), key=lambda file: int(file.suffix[1:]))
    instructions, names = Instructions(), dict[int, str]()
    rows = [_row(file, names, instructions) for file in [*files, directory / _PARTS] if file.exists()]
    places = _moments([_trigger(file) for file in files], len(rows) - 1)
    totals = {name: np.cumsum([row[name] for row in rows], dtype=np.int64) for name in (*_COUNTED, *CLASSES)}
    return {name: CountedMoments(*(total[own] for own in places)) for name, total in totals.items()}


def _trigger(file: Path) -> str:
    """The function before whose call a part ended."""
    with file.open("rb") as content:
        found = _TRIGGER.search(content.read(_HEAD))
    return found[1].decode() if found else ""


def _moments(triggers: Sequence[str], end: int) -> tuple[list[int], list[int], list[int]]:
    """Parts that end at each read; with the first text behind it; and where the last text before it begins."""
    reads = [number for number, name in enumerate(triggers) if name == _READ]
    at, behind, ahead = [*reads, end], [*reads, end], [*reads, end]
    for place, (this, following) in enumerate(pairwise(at)):
        between = range(this + 1, following)
        if len(between) < _MOST_TOLD:
            behind[place] = next((part for part in between if triggers[part] == _ENDS), this)
            ahead[place + 1] = next((part for part in reversed(between) if triggers[part] == _BEGINS), following)
    return at, behind, ahead


_COUNTED = (INSTRUCTIONS, LOADED, STORED, PRODUCTS)


def _row(file: Path, names: dict[int, str], instructions: Instructions) -> Counter[str]:
    found: Counter[str] = Counter()
    for (where, address), times in read_callgrind(file, names).items():
        if where.endswith(_LIBRARY):
            continue
        own = instructions.at(where, address)
        found[INSTRUCTIONS] += times
        found[own.kind] += times
        found[LOADED] += times * own.loaded
        found[STORED] += times * own.stored
        found[PRODUCTS] += times * own.products
    return found
