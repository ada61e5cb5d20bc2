"""What a run directory of the Arm profiling kit holds, as frozen values."""

from __future__ import annotations

import enum

import msgspec

from opscope.core.errors import NotFoundError, did_you_mean
from opscope.core.table import TraceWarning
from opscope.kit.readers.csv import KitKernelRow, StatsRow
from opscope.kit.readers.json import Executorch
from opscope.program.kernels.names import KernelLog


class KitRole(str, enum.Enum):
    """What an experiment is in the comparisons that the kit was asked for."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    BOTH = "both"


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
    """The median that one of the kit's JSON files states.

    Attributes:
        file: which file.
        median_ms: null when it states none, or no number.
        not_a_number: whether it states ``nan``, or something else that is no duration.
    """

    file: str
    median_ms: float | None
    not_a_number: bool


class KitExperiment(msgspec.Struct, frozen=True):
    """One experiment at one thread count.

    Attributes:
        name: as the kit lists it.
        threads: null where no file tells.
        mode: ``timing`` or ``xnntrace``; null where no file tells.
        status: what the kit recorded; it says that the run was started, not that it succeeded.
        role: in the comparisons that were asked for; null when there are none.
        runs: measured inferences that were asked for.
        warmup: warm-up inferences that were asked for; the kit runs them in their own process.
        files: what is there.
        stated: medians that the kit states.
        finished: whether there is a log with the closing line of the runner.
        kernels: kernels that the trace-enabled run registered.
        kernel_rows: the kit's list of them.
        stats: the kit's operator statistics.
        warnings: what is wrong with the files of this experiment.
    """

    name: str
    threads: int | None
    mode: str | None
    status: str | None
    role: KitRole | None
    runs: int | None
    warmup: int | None
    files: KitFiles
    stated: tuple[StatedMedian, ...]
    finished: bool
    kernels: KernelLog | None
    kernel_rows: tuple[KitKernelRow, ...]
    stats: tuple[StatsRow, ...]
    warnings: tuple[TraceWarning, ...] = ()

    @property
    def key(self) -> str:
        """Name with thread count, as the kit's file names have it; unique in a run."""
        return self.name if self.threads is None else f"{self.name}_t{self.threads}"

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
    """A run directory of the kit.

    Attributes:
        directory: where it is.
        model: path of the program, as the kit recorded it.
        generated: when, as the kit recorded it.
        config: path of the config that was read; null without.
        executorch: the checkout that the kit recorded.
        experiments: in the order the kit lists them; those that only files tell of come last.
        comparisons: those that were asked for and whose experiments are known.
        warnings: what is wrong with the run as a whole.
    """

    directory: str
    model: str | None
    generated: str | None
    config: str | None
    executorch: Executorch | None
    experiments: tuple[KitExperiment, ...]
    comparisons: tuple[KitPair, ...]
    warnings: tuple[TraceWarning, ...]

    def experiment(self, name: str) -> KitExperiment:
        """The experiment of that key, or of that name when it has one thread count.

        Raises:
            NotFoundError: there is none, or several; the known ones are listed.
        """
        found = [e for e in self.experiments if e.key == name] or [e for e in self.experiments if e.name == name]
        if len(found) == 1:
            return found[0]
        keys = [experiment.key for experiment in self.experiments]
        if found:
            hint = f"say which: {', '.join(e.key for e in found)}"
            raise NotFoundError(f"{name[:80]!r} was run at several thread counts", where=self.directory, hint=hint)
        raise NotFoundError(f"no experiment {name[:80]!r}", where=self.directory, hint=did_you_mean(name, keys))
