"""One experiment of a file: its bundle, measured and reported."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.bundle import Bundle, is_bundle
from opscope.core.errors import (
    InterruptedRunError,
    OpscopeError,
    RunError,
    StorageError,
)
from opscope.core.files import write_atomically
from opscope.experiment.engine import run_experiment
from opscope.experiment.pacing import Rest
from opscope.experiment.target import reserved
from opscope.hosts.target_kinds import AUTO
from opscope.machine.clock import SystemClock
from opscope.reports.content.content import measured_latency
from opscope.workflows.measure.ceilings import measure_roofs
from opscope.workflows.measure.experiment_bundle import (
    grow,
    new_bundle,
    old_bundle,
    pinned,
    rounds_wanted,
    target_of,
)
from opscope.workflows.measure.profiling import complete_inferences
from opscope.workflows.measure.run_report import ExperimentResult
from opscope.workflows.measure.targets import recorded_target
from opscope.workflows.reports.reports import REPORT_FORMATS, content_of, write_reports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opscope.analysis.compare.compare import Comparison
    from opscope.bundle.manifest import Repetition
    from opscope.experiment.engine import Progress
    from opscope.experiment.planned import Effort, Experiment, Experiments
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.reports.content.content import ReportContent


class Means(NamedTuple):
    """What a run needs besides its file; tests give their own.

    Attributes:
        progress: hears of every repetition.
        target: where to run instead of where the file says; None: as it says. Runners are always those of the file.
        clock: the machine's unless given.
        sleep: how time between processes is spent.
        scheduler: address of a Dask scheduler, whose workers run the experiments; None: this machine does.
    """

    progress: Progress
    target: RunTarget | None = None
    clock: TimeSource = SystemClock()
    sleep: Callable[[float], None] = time.sleep
    scheduler: str | None = None


CONFIG = "config"
"""The file that asked for a bundle is kept in it under this name."""


def experiment_result(asked: Experiments, experiment: Experiment, means: Means, notes: list[str]) -> ExperimentResult:
    """Run one experiment; what fails in it leaves the others."""
    path = asked.out / experiment.name
    try:
        content = _run(asked, experiment, means, notes)
    except (StorageError, InterruptedRunError):
        raise
    except OpscopeError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return ExperimentResult(experiment.name, str(path), error=f"{error}{hint}", exit_code=error.exit_code)
    return ExperimentResult(experiment.name, str(path), content)


def _run(asked: Experiments, experiment: Experiment, means: Means, notes: list[str]) -> ReportContent:
    target = _target_of(experiment, asked.out / experiment.name, means)
    with reserved(target):
        return _run_on(target, asked, experiment, means, notes)


def _target_of(experiment: Experiment, path: Path, means: Means) -> RunTarget:
    """Where an experiment runs; one on ``auto`` is finished where it began, whatever that stands for by now."""
    begun = experiment.target == AUTO.name and means.target is None and is_bundle(path)
    given = recorded_target(Bundle.open(path).manifest.target) if begun else means.target
    return target_of(experiment, given=given)


def _run_on(
    target: RunTarget, asked: Experiments, experiment: Experiment, means: Means, notes: list[str]
) -> ReportContent:
    path = asked.out / experiment.name
    if is_bundle(path):
        bundle = old_bundle(path, experiment, target)
    else:
        bundle = new_bundle(path, experiment, target, means.clock)
    write_atomically(path / f"{CONFIG}{asked.file.suffix}", asked.file.read_bytes())
    program = bundle.path / bundle.manifest.model.program
    target = pinned(target_of(experiment, program, target), experiment, bundle.manifest.variants)
    rest = Rest(experiment.effort, target, means.sleep)
    if rest.unreadable:
        notes.append(f"{experiment.name}: this machine tells no temperature, so max_temperature has no effect")
    with bundle.locked():
        content = _measured(bundle, experiment.effort, target, means, rest)
        if experiment.effort.roofs is not False:
            measure_roofs(bundle, target, means.clock, anew=experiment.effort.roofs is True)
            content = content_of(bundle)
    if content.shown is None:
        failures = bundle.manifest.failures()
        reason = failures[0].failure.message if failures and failures[0].failure else "no repetition succeeded"
        raise RunError(f"nothing could be measured: {reason}", where=path, hint="see the logs beside the manifest")
    write_reports(bundle, content, REPORT_FORMATS)
    return content


def _measured(bundle: Bundle, effort: Effort, target: RunTarget, means: Means, rest: Rest) -> ReportContent:
    """Run the planned rounds, then more of them until there are enough."""

    def heard(done: int, total: int, repetition: Repetition | None) -> None:
        means.progress(done, total, repetition)
        if repetition is not None and done < total:
            rest.take()

    if bundle.manifest.plan.rounds < effort.rounds:
        grow(bundle, effort.rounds)
    while True:
        run_experiment(bundle, target, means.clock, complete_inferences, heard)
        content = content_of(bundle)
        wanted = rounds_wanted(bundle, effort, enough=_enough(content, effort))
        if wanted == bundle.manifest.plan.rounds:
            return content
        grow(bundle, wanted)
        rest.take()


def _enough(content: ReportContent, effort: Effort) -> bool:
    """Whether every variant was measured long enough, and every interval is narrow enough."""
    analyses = [result.analysis for result in content.variants if result.analysis]
    if any(sum(measured_latency(one).samples_ns) < effort.min_seconds * 1e9 for one in analyses):
        return False
    if effort.until is None:
        return True
    return all(_width(comparison) <= effort.until for comparison in content.comparisons)


def _width(comparison: Comparison) -> float:
    """Width of the interval of the speedup, relative to the speedup; infinite where there is no interval."""
    found = comparison.end_to_end
    return float("inf") if found.ci95 is None else (found.ci95[1] - found.ci95[0]) / found.speedup
