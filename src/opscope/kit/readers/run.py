"""Contents of a run directory of the Arm profiling kit, as frozen values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import Role
from opscope.core.errors import NotFoundError, UsageError, did_you_mean
from opscope.core.table import TraceWarning
from opscope.kit.readers.csv import KitKernelRow, StatsRow
from opscope.kit.readers.json import Executorch, ExperimentKey, PairFields
from opscope.machine.pair_names import accelerated_name
from opscope.program.kernels.symbols import KernelLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

ROLES_HINT = "name others with --baseline NAME --candidate NAME"
_MOST_NAMED = 4


def named_key(name: str, keys: Sequence[ExperimentKey], directory: Path | str) -> ExperimentKey:
    """Return the experiment of that text, or of that name when it has one thread count.

    Raises a NotFoundError where there is none, or it was run at several thread counts.
    """
    experiment_keys = [key for key in keys if key.text == name] or [key for key in keys if key.experiment == name]
    if len(experiment_keys) == 1:
        return experiment_keys[0]
    if experiment_keys:
        hint = f"choose one: {', '.join(key.text for key in experiment_keys)}"
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
        """Return the name with thread count, as the kit's file names have it; unique in a run."""
        return self.listed.text

    @property
    def trace(self) -> str | None:
        """Return the file to analyse: the .etdump, else the timeline of all runs, else that of the first run."""
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
    warnings: tuple[TraceWarning, ...]  # what is wrong with the run as a whole

    def experiment(self, name: str) -> KitExperiment:
        """Return the experiment of that key, or of that name when it has one thread count."""
        keys = [experiment.listed for experiment in self.experiments]
        return self.experiments[keys.index(named_key(name, keys, self.directory))]


class Pairs(NamedTuple):
    """The comparisons of a run, and what is wrong with them."""

    comparisons: tuple[KitPair, ...]
    warnings: list[TraceWarning]

    def role(self, key: str) -> Role | None:
        """Return the role of an experiment in the comparisons."""
        baseline = any(pair.baseline == key for pair in self.comparisons)
        candidate = any(pair.candidate == key for pair in self.comparisons)
        if baseline and candidate:
            return Role.INTERMEDIATE
        return Role.BASELINE if baseline else Role.CANDIDATE if candidate else None


def named_pairs(
    baseline_name: str | None, candidate_name: str | None, keys: Sequence[ExperimentKey], directory: Path
) -> Pairs:
    """Return the one comparison that the user requests.

    Raises NotFoundError: an experiment is not there, or at several thread counts; UsageError: one of the sides is
    missing, or both are the same.
    """
    names = (baseline_name, candidate_name)
    baseline, candidate = (None if name is None else named_key(name, keys, directory) for name in names)
    if baseline is None or candidate is None:
        lacking, stated_option = ("--candidate", "--baseline") if candidate is None else ("--baseline", "--candidate")
        texts = ", ".join(key.text for key in keys)
        raise UsageError(f"{stated_option} needs {lacking}", where=lacking, hint=f"name one of {texts[:400]}")
    if baseline == candidate:
        raise UsageError("an experiment cannot be compared with itself", where="--candidate", hint="name two")
    return Pairs((KitPair(baseline.text, candidate.text, None),), _warn_of_thread_counts(baseline, candidate))


def asked_pairs(fields: Iterable[PairFields], keys: Sequence[ExperimentKey]) -> Pairs:
    """Find the comparisons that the files of a run ask for or hold; without any, those that its names propose."""
    pairs: dict[tuple[str, str], KitPair] = {}
    warnings = []
    for pair in dict.fromkeys(fields):
        baseline, candidate = (fitting_key(side, keys) for side in pair.sides)
        if baseline is None or candidate is None:
            missing_name = pair.sides[0 if baseline is None else 1].experiment
            message = (
                f"a comparison names the experiment {missing_name[:80]}, which is not in the run, or at several threads"
            )
            warnings.append(TraceWarning("kit_pair_unknown", message, "compare two existing ones: DIR#a and DIR#b"))
            continue
        texts = baseline.text, candidate.text
        if texts not in pairs:
            warnings += _warn_of_thread_counts(baseline, candidate)
        pairs.setdefault(texts, KitPair(*texts, pair.label or None))
    if pairs:
        return Pairs(tuple(pairs.values()), warnings)
    proposed = propose_pairs(keys)
    by_name = tuple(KitPair(baseline.text, candidate.text, None) for baseline, candidate in proposed)
    if warnings or not by_name:
        hint = "name it: --baseline NAME --candidate NAME"
        message = "no comparison was requested: the baseline experiment is unknown"
        return Pairs((), warnings or [TraceWarning("kit_no_roles", message, hint)])
    return Pairs(by_name, [TraceWarning("kit_roles_by_name", roles_note(proposed), ROLES_HINT)])


def propose_pairs(keys: Sequence[ExperimentKey]) -> list[tuple[ExperimentKey, ExperimentKey]]:
    """Pair experiments of one thread count whose names differ in ``off`` and ``on`` alone: ``off`` is the baseline."""
    renamed = [(key, accelerated_name(key.experiment)) for key in keys]
    pairs = [(key, ExperimentKey(on, threads=key.threads)) for key, on in renamed if on]
    return [(off, on) for off, on in pairs if on in keys]


def roles_note(pairs: Sequence[tuple[ExperimentKey, ExperimentKey]]) -> str:
    """Say which experiment is taken as the baseline of which, and why."""
    texts = ", ".join(f"{off.text} as the baseline of {on.text}" for off, on in pairs[:_MOST_NAMED])
    more = f" and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
    return f"no comparison was requested; by their names, which differ in off and on: {texts}{more}"


def fitting_key(side: ExperimentKey, keys: Sequence[ExperimentKey]) -> ExperimentKey | None:
    """Return the experiment that a side of a comparison means; one without thread count means the only one there is."""
    experiment_keys = [key for key in keys if key.experiment == side.experiment and side.threads in {None, key.threads}]
    return experiment_keys[0] if len(experiment_keys) == 1 else None


def _warn_of_thread_counts(baseline: ExperimentKey, candidate: ExperimentKey) -> list[TraceWarning]:
    """Warn of a comparison of experiments with different thread counts."""
    if baseline.threads == candidate.threads:
        return []
    message = f"{baseline.text} is compared with {candidate.text}: they ran with different thread counts"
    hint = "such a speedup mixes acceleration and threads; compare experiments with one thread count"
    return [TraceWarning("kit_pair_threads_differ", message, hint)]
