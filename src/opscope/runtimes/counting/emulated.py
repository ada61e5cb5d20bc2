"""Count instructions under QEMU: a 64-bit Arm processor with SVE, SME2 and vectors of any length, on any machine."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import MissingDependencyError, TraceFormatError, UsageError
from opscope.core.system.elf import read_code
from opscope.hosts.emulator import find_emulator
from opscope.hosts.host import ProcessSettings
from opscope.machine.instructions import LENGTHS, SME_BITS, SVE_BITS, Arm64Instructions, VectorLengths
from opscope.readers.instruction_counts import read_qemu_log
from opscope.runtimes.counting.kernel_counter import find_compiler
from opscope.runtimes.counting.work_run import (
    BEGINS,
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
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget
    from opscope.readers.instruction_counts import ExecutedBlock, ExecutedParts

_MARKS = {0xD5032FFF: READ, 0xD5032FDF: BEGINS, 0xD5032FBF: ENDS}
"""Instruction words in the clock's functions, and the read or text that each marks: hint #127, #126, #125."""
_READ_WORD = 0xD5032FFF
_WORD = 4
_BITS = 8
_COMPILER = "install a C compiler for 64-bit Arm (Debian: apt install gcc-aarch64-linux-gnu)"


class EmulatedCpu(ProcessSettings, frozen=True):
    """Settings of a process that sees vectors of these lengths, in bits."""

    sve_bits: int = SVE_BITS
    sme_bits: int = SME_BITS

    @property
    def emulation(self) -> list[str]:
        """Arguments of QEMU for the emulated processor."""
        lengths = (
            f"sve-default-vector-length={self.sve_bits // _BITS},sme-default-vector-length={self.sme_bits // _BITS}"
        )
        return ["-cpu", f"max,{lengths}"]


class LoggedProcess(EmulatedCpu, frozen=True):
    """Settings of an emulated process whose executed blocks are logged."""

    log: str = ""  # where to
    clock: str = ""  # library with the clock

    @property
    def prefix(self) -> list[str]:
        """Command that starts the process with an empty environment: variables move the stack and the heap."""
        return ["env", "-i", f"PATH={os.environ.get('PATH', os.defpath)}"]

    @property
    def emulation(self) -> list[str]:
        """Arguments of QEMU: the processor, the log, and the library to preload."""
        logged = ["-d", "in_asm,exec,nochain", "-D", self.log]
        return [*super().emulation, *logged, "-E", f"LD_PRELOAD={self.clock}"]

    @property
    def processor(self) -> ProcessSettings:
        """Settings of an emulated process with vectors of these lengths and without a log."""
        return EmulatedCpu(sve_bits=self.sve_bits, sme_bits=self.sme_bits)


class EmulatorCounter(WorkCounter):
    """Counts instructions in QEMU's user mode.

    ``sve_bits``: length of SVE vectors. ``sme_bits``: length of SME vectors, and of a row of a tile.

    Raises MissingDependencyError if QEMU, a compiler for 64-bit Arm or capstone is missing; UsageError if no
    processor has vectors of that length.
    """

    target = "qemu-aarch64"

    def __init__(self, sve_bits: int = SVE_BITS, sme_bits: int = SME_BITS) -> None:
        for option, bits in (("--sve-bits", sve_bits), ("--sme-bits", sme_bits)):
            if bits not in LENGTHS:
                raise UsageError(
                    f"vectors cannot have {bits} bits", where=option, hint=f"one of {', '.join(map(str, LENGTHS))}"
                )
        emulator = find_emulator()
        if emulator.doubt:
            raise MissingDependencyError(emulator.doubt, hint="count with QEMU 11.1 or newer")
        self.name = f"QEMU {emulator.text}"
        self.processor = f"64-bit Arm with SME2, SVE of {sve_bits} bits and SME of {sme_bits} bits"
        self._instructions, self._compiler = Arm64Instructions(), find_compiler()
        self._sve_bits, self._sme_bits = sve_bits, sme_bits
        self.tile_bits = sme_bits
        self._sums: dict[ExecutedBlock, Counter[str]] = {}

    def check_machine(self, machine: str) -> None:
        """Accept every machine: any can emulate."""

    def run(self, target: RunTarget, job: Job, directory: Path, *, texts: bool) -> WorkRun:
        """Run a job, and read QEMU's log while it is written."""
        clock = counted_clock(self._compiler, "", _COMPILER)
        marks = _MARKS if texts else {_READ_WORD: READ}
        with _read_pipe(directory / "qemu.log", marks) as parts:
            process = LoggedProcess(
                nice=job.process.nice,
                sve_bits=self._sve_bits,
                sme_bits=self._sme_bits,
                log=str(directory / "qemu.log"),
                clock=str(clock),
            )
            outcome = target.execute(msgspec.structs.replace(job, process=process), directory)
        versions = finished(outcome, job, "QEMU")
        (executed,) = parts
        brought = target.capabilities().brought
        files = hashes_of(brought() if brought else [])
        return WorkRun(versions, files, counted_moments(self._count_parts(executed, clock), executed.triggers))

    def _count_parts(self, executed: ExecutedParts, clock: Path) -> list[Counter[str]]:
        read = next((block for block in executed.marks if _READ_WORD in block.words), None)
        if read is None:
            raise TraceFormatError(f"the log of {self.name} has no clock read")
        aside = _clock_addresses(clock, read)
        rows = []
        for part in executed.parts:
            row: Counter[str] = Counter()
            for block, times in part.items():
                if block.address not in aside:
                    for name, count in self._count_block(block).items():
                        row[name] += times * count
            rows.append(row)
        return rows

    def _count_block(self, block: ExecutedBlock) -> Counter[str]:
        """Count what a block does when it runs once."""
        if block not in self._sums:
            expected = self._sme_bits if block.streaming else self._sve_bits
            if (block.vector_bits, block.tile_bits) != (expected, self._sme_bits):
                problem = f"{self.name} states vectors of {block.vector_bits} bits, but {expected} were requested"
                raise TraceFormatError(problem)
            lengths = VectorLengths(block.vector_bits, block.tile_bits)
            self._sums[block] = Counter()
            for word in block.words:
                add(self._sums[block], self._instructions.of(word, lengths), 1)
        return self._sums[block]


def _clock_addresses(clock: Path, read: ExecutedBlock) -> range:
    """Return the addresses of the clock's own code in a process, given the block that contains the mark."""
    code = read_code(clock.read_bytes(), clock)
    sections = code.sections if code else ()
    word = _READ_WORD.to_bytes(_WORD, "little")
    marked = next((section for section in sections if word in section.code), None)
    if marked is None:
        raise TraceFormatError("the clock was not built for QEMU", where=clock)
    mark = read.address + _WORD * read.words.index(_READ_WORD)
    base = mark - marked.address - marked.code.index(word)
    return range(
        base + min(section.address for section in sections),
        base + max(section.address + len(section.code) for section in sections),
    )


@contextmanager
def _read_pipe(fifo: Path, marks: Mapping[int, str]) -> Iterator[list[ExecutedParts]]:
    """Create a pipe that a thread reads while the context is open; the list holds what was executed after it ends.

    Raises TraceFormatError if the log is not as QEMU writes it.
    """
    os.mkfifo(fifo)
    parts: list[ExecutedParts] = []
    errors: list[BaseException] = []
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    held = os.open(fifo, os.O_WRONLY)  # so that the pipe does not end before the writer comes
    os.set_blocking(reading, True)

    def read() -> None:
        with os.fdopen(reading, "rb", buffering=1 << 20) as lines:
            try:
                parts.append(read_qemu_log(lines, marks))
            except (TraceFormatError, ValueError) as error:  # the latter of a line that is not as QEMU writes it
                errors.append(error)
                while lines.read(1 << 20):
                    pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield parts
    finally:
        os.close(held)
        thread.join()
    if errors:
        raise TraceFormatError(f"unexpected QEMU log: {errors[0]}") from errors[0]
