"""What a run directory of the Arm profiling kit holds, as frozen values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Role
from opscope.core.errors import NotFoundError, did_you_mean
from opscope.core.table import TraceWarning
from opscope.kit.readers.csv import KitKernelRow, StatsRow
from opscope.kit.readers.json import Executorch, ExperimentKey
from opscope.program.kernels.names import KernelLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def named_key(name: str, keys: Sequence[ExperimentKey], directory: Path | str) -> ExperimentKey:
    """The experiment of that text, or of that name when it has one thread count.

    Raises:
        NotFoundError: there is none, or it was run at several thread counts.
    """
    found = [key for key in keys if key.text == name] or [key for key in keys if key.experiment == name]
    if len(found) == 1:
        return found[0]
    if found:
        hint = f"choose one: {', '.join(key.text for key in found)}"
        raise NotFoundError(f"{name[:80]!r} ran with several thread counts", where=directory, hint=hint)
    hint = did_you_mean(name, [key.text for key in keys])
    raise NotFoundError(f"no experiment {name[:80]!r}", where=directory, hint=hint)


class KitFiles(msgspec.Struct, frozen=True):
    """The files of an experiment, relative to the run directory; null where there is none."""

    etdump: str | None = None
    timeline: str | None = None
    run0: str | None = None
    stats: str | None = None
    kernels: str | None = None
    kernel_log: str | None = None
    latency_log: str | None = None


class StatedMedian(msgspec.Struct, frozen=True):
    """The median that one of the kit's JSON files states."""

    file: str  # which file
    median_ms: float | None  # null when it states none, or no number
    not_a_number: bool  # whether it states `nan`, or something else that is no duration


class KitExperiment(msgspec.Struct, frozen=True):
    """One experiment at one thread count."""

    listed: ExperimentKey  # as the kit lists it
    mode: str | None  # `timing` or `xnntrace`; null where no file tells
    status: str | None  # what the kit recorded; it says that the run was started, not that it succeeded
    role: Role | None  # in the comparisons that were asked for, intermediate where it is on both sides; null without
    runs: int | None  # measured inferences that were asked for
    warmup: int | None  # warm-up inferences that were asked for; the kit runs them in their own process
    files: KitFiles  # what is there
    stated: tuple[StatedMedian, ...]  # medians that the kit states
    finished: bool  # whether there is a log with the closing line of the runner
    kernels: KernelLog | None  # kernels that the trace-enabled run registered
    kernel_rows: tuple[KitKernelRow, ...]  # the kit's list of them
    stats: tuple[StatsRow, ...]  # the kit's operator statistics
    warnings: tuple[TraceWarning, ...] = ()  # what is wrong with the files of this experiment

    @property
    def key(self) -> str:
        """Name with thread count, as the kit's file names have it; unique in a run."""
        return self.listed.text

    @property
    def trace(self) -> str | None:
        """The file to analyse: the .etdump, else the timeline of all runs, else that of the first run."""
        return self.files.etdump or self.files.timeline or self.files.run0


class KitPair(msgspec.Struct, frozen=True):
    """A comparison that the kit was asked for: keys of two experiments."""

    baseline: str
    candidate: str
    label: str | None


class KitRun(msgspec.Struct, frozen=True):
    """A run directory of the kit."""

    directory: str  # where it is
    model: str | None  # path of the program, as the kit recorded it
    program: str | None  # path of that program here; null where it was not found
    etrecord: str | None  # likewise of the record of its export
    generated: str | None  # when, as the kit recorded it
    config: str | None  # path of the config that was read; null without
    executorch: Executorch | None  # the checkout that the kit recorded
    experiments: tuple[KitExperiment, ...]  # in the order the kit lists them; those that only files tell of come last
    comparisons: tuple[KitPair, ...]  # those that were asked for and whose experiments are known
    offered: KitPair | None  # where none was: the first two whose names differ in on and off alone
    warnings: tuple[TraceWarning, ...]  # what is wrong with the run as a whole

    def experiment(self, name: str) -> KitExperiment:
        """The experiment of that key, or of that name when it has one thread count."""
        keys = [own.listed for own in self.experiments]
        return self.experiments[keys.index(named_key(name, keys, self.directory))]
