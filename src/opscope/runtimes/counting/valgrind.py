"""Count instructions with Callgrind, which shows programs an x86-64 processor of its own, with AVX2 at most."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.core.system.compiler import usual_compiler
from opscope.hosts.host import ProcessSettings
from opscope.hosts.process import last_line
from opscope.machine.instructions import X86Instructions
from opscope.readers.instruction_counts import read_callgrind
from opscope.runtimes.counting.work_run import (
    BEGINS,
    CLOCK,
    ENDS,
    READ,
    WorkCounter,
    WorkRun,
    add,
    counted_clock,
    counted_moments,
    finished,
    hashes_of,
)

if TYPE_CHECKING:
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget

_MACHINES = ("x86_64", "AMD64")
_PARTS = "callgrind.out"
_TRIGGER = re.compile(rb"^desc: Trigger: --dump-before=(\w+)", re.MULTILINE)
_HEAD = 4096
_COMPILER = "install a C compiler (Debian: apt install gcc)"
_SECONDS = 60


class _ShownProcess(ProcessSettings, frozen=True):
    """Settings of a process that sees the processor of Valgrind, and is not counted."""

    @property
    def prefix(self) -> list[str]:
        """Command that runs the process under Valgrind with a tool that does nothing."""
        return ["valgrind", "-q", "--tool=none"]


class CountedProcess(ProcessSettings, frozen=True):
    """Settings of a process under Callgrind."""

    out: str = ""  # how names of the parts begin
    clock: str = ""  # library with the clock
    texts: bool = False  # whether texts between two reads are told, too

    @property
    def prefix(self) -> list[str]:
        """Command that runs the process under Callgrind."""
        functions = (READ, BEGINS, ENDS) if self.texts else (READ,)
        options = ["--tool=callgrind", "--dump-instr=yes", "--compress-pos=yes"]
        options += [f"--dump-before={name}" for name in functions]
        # Another environment moves the stack and the heap, and kernels take other ways by the alignment of their data.
        clean = ["env", "-i", f"PATH={os.environ.get('PATH', os.defpath)}", f"LD_PRELOAD={self.clock}"]
        return [*clean, "valgrind", "-q", *options, f"--callgrind-out-file={self.out}"]

    @property
    def processor(self) -> ProcessSettings:
        """Settings of a process that sees the processor of Valgrind, without counting."""
        return _ShownProcess()


class ValgrindCounter(WorkCounter):
    """Counts instructions with Callgrind.

    Raises MissingDependencyError if Valgrind or iced-x86 is missing.
    """

    processor = "x86-64 under Valgrind, up to AVX2"
    target = "native"
    hidden = "avx512"

    def __init__(self) -> None:
        self.name = _read_version()
        self._instructions = X86Instructions()

    def check_machine(self, machine: str) -> None:
        """Raise FeatureError unless Valgrind can show a processor like the machine's."""
        if machine not in _MACHINES:
            problem = f"instructions are counted on x86-64, but this is {machine}"
            raise FeatureError(problem, hint="count on another machine, or count 64-bit Arm with --target qemu-aarch64")

    def run(self, target: RunTarget, job: Job, directory: Path, *, texts: bool) -> WorkRun:
        """Run a job with a dump before each read of the clock."""
        compiler = usual_compiler("instructions cannot be counted", _COMPILER)
        clock = str(counted_clock(compiler.command, compiler.version, _COMPILER))
        process = CountedProcess(nice=job.process.nice, out=str(directory / _PARTS), clock=clock, texts=texts)
        outcome = target.execute(msgspec.structs.replace(job, counter=clock, process=process), directory)
        versions = finished(outcome, job, "Valgrind")
        files = sorted(directory.glob(f"{_PARTS}.*"), key=lambda file: int(file.suffix[1:]))
        names: dict[int, str] = {}
        rows = [self._count_part(file, names) for file in [*files, directory / _PARTS] if file.exists()]
        ran = hashes_of(Path(name) for name in set(names.values()) - {clock})
        return WorkRun(versions, ran, counted_moments(rows, [_read_trigger(file) for file in files]))

    def _count_part(self, file: Path, names: dict[int, str]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (where, address), times in read_callgrind(file, names).items():
            if not where.endswith(CLOCK):
                add(counts, self._instructions.at(where, address), times)
        return counts


def _read_trigger(file: Path) -> str:
    """Return the function before whose call a part ended."""
    with file.open("rb") as content:
        match = _TRIGGER.search(content.read(_HEAD))
    return match[1].decode() if match else ""


def _read_version() -> str:
    hint = "install Valgrind (Debian: apt install valgrind)"
    if shutil.which("valgrind") is None:
        raise MissingDependencyError("Valgrind is not installed: instructions cannot be counted", hint=hint)
    process = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=False, timeout=_SECONDS)  # noqa: S607
    match = re.search(r"[\d.]+", process.stdout)
    if process.returncode or match is None:
        raise MissingDependencyError(f"Valgrind does not start: {last_line(process.stderr)}", hint=hint)
    return f"Valgrind {match[0]}"
