"""What a native runner is asked and what it answers, whichever runtime it drives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.bundle.manifest import Failure, FailureKind, Measurement
from opscope.core.printable import uncoloured
from opscope.core.system.usage import ProcessUsage
from opscope.hosts.host import ProcessSettings
from opscope.machine.cpu_reading import CpuReading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from opscope.bundle.manifest import MaskProof, Tensor

INPUT, OUTPUT, ANSWER = "in", "out", "answer.json"
"""Prefixes of the files with inputs and outputs, and the name of the answer."""


class RunnerAnswer(msgspec.Struct, frozen=True):
    """What every runner writes: a measurement, or an error. Those of a runtime add what else they tell."""

    error: str | None = None  # the error's sentence; null when there was none
    kind: str = "exit"  # of the error: `mask`, `storage` or `exit`
    warmup_ns: list[int] = []  # durations of the calls before the measured ones
    wall_ns: list[int] = []  # durations of the measured calls
    # of every call, those before the measured ones first, how much of it was spent off the CPU
    off_cpu_ns: list[int] | None = None
    usage: ProcessUsage | None = None  # of the system, over the measured calls
    start_ns: int = 0  # from the request for the process to the loaded runtime
    load_ns: int = 0  # loading the program and what it calls, with the delegates' own preparation
    write_ns: int = 0  # writing the trace and the outputs
    peak_rss_bytes: int = 0  # largest resident memory of the process, before anything was written
    processor: CpuReading | None = None  # what the processor says of itself, when it was asked

    def measurement(  # noqa: PLR0913 - what a runner does not tell of itself
        self,
        *,
        mask: MaskProof | None,
        threads: int | None,
        inputs: list[Tensor],
        outputs: list[Tensor],
        output_sha256: str | None,
        versions: Mapping[str, str],
        spent: int,
    ) -> Measurement:
        """The measurement of a repetition; ``spent`` is the time to read and keep what the runner left, in ns."""
        return Measurement(
            mask=mask,
            threads=threads,
            inputs=inputs,
            outputs=outputs,
            output_sha256=output_sha256,
            wall_ns=self.warmup_ns + self.wall_ns,
            start_ns=self.start_ns,
            load_ns=self.load_ns,
            peak_rss_bytes=self.peak_rss_bytes,
            versions=dict(versions),
            write_ns=self.write_ns + spent,
            off_cpu_ns=self.off_cpu_ns,
            usage=self.usage,
        )


Answer = TypeVar("Answer", bound=RunnerAnswer)


class SentFile(NamedTuple):
    """A file that a runner reads."""

    kind: str  # of files; each kind has a directory of its own on a device
    name: str  # there
    path: Path  # of the file, here
    beside: Mapping[str, Path] = {}  # files here that lie beside it there, or below, by their names from there


class RunnerCall(NamedTuple):
    """One start of a runner, in terms of this machine's files."""

    flags: Mapping[str, object]  # of the runner, those that name files left out; an empty value leaves a flag out
    work: Path  # directory with the inputs, `in-0.bin` and so on, that takes the answer and the outputs
    log: Path  # takes what the runner prints
    timeout: float  # in seconds
    sent: Mapping[str, SentFile] = {}  # files that it reads, by the flags that name them
    inputs: int = 0  # how many there are; a file stands for each
    outputs: bool = False  # whether the outputs are wanted
    brought: Mapping[str, Path] = {}  # where files go that it leaves in its directory, by their names
    variables: Mapping[str, str] = {}  # of its environment
    process: ProcessSettings = ProcessSettings()


def judged(heard: Answer | Failure, code: int | None, log: Path) -> Answer | Failure:
    """An answer, or the failure that it tells of."""
    if isinstance(heard, RunnerAnswer) and (heard.error is not None or code):
        kind = FailureKind(heard.kind) if heard.kind in set(FailureKind) else FailureKind.EXIT
        return Failure(kind, f"{heard.error or 'no result'}{_complaint(log)}", exit_code=code)
    return heard


# "E 00:00:00.0 executorch:method.cpp:12] words" of ExecuTorch, "ERROR: [litert_model.cc:12] words" of LiteRT.
_ERROR = re.compile(r"E \d|ERROR: ")


def _complaint(log: Path) -> str:
    """The last error that the runtime logged, for the end of a message."""
    lines = uncoloured(log.read_text(encoding="utf-8", errors="replace")).splitlines()
    errors = [line for line in lines if _ERROR.match(line)]
    return f"; runtime message: {errors[-1].partition('] ')[2] or errors[-1]}" if errors else ""
