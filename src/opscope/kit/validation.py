"""Is a run directory of the kit whole, and do its figures agree with its traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opscope.bundle.validation import COMPLETE, MANIFEST, PROGRAM, TRACES, Area, Problem, Question
from opscope.core.errors import NotFoundError, OpscopeError, TraceFormatError
from opscope.core.units import counted_text
from opscope.kit.readers.directory import read_kit
from opscope.kit.sides import experiment_side, is_timed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from opscope.bundle.validation import BundleCheck
    from opscope.core.table import TraceWarning
    from opscope.kit.readers.run import KitExperiment, KitRun
    from opscope.runtimes.side import Side

_AGAIN = "rerun the experiment with the kit"
LISTING = MANIFEST._replace(action="repair the file, or move it out of the directory")
PAIRS = Question("pairs", Area.MANIFEST, "compare two experiments with one thread count: --baseline, --candidate")
WHOLE = COMPLETE._replace(action=_AGAIN)
READABLE = TRACES._replace(action=_AGAIN)
PROGRAM_OF_RUN = PROGRAM._replace(action="put the program that ran where the manifest expects it")
STATED = Question("stated", Area.FIGURES, "trust the traces; rerun the kit's scripts to rewrite their figures")
_BEHIND = (PAIRS, WHOLE, READABLE, PROGRAM_OF_RUN, STATED)
_OF_WHOLE = ("kit_experiment_without_files", "kit_runner_not_finished", "kit_ok_without_result")
_OF_FIGURES = ("kit_median_differs", "kit_timeline_differs", "kit_timeline_damaged", "kit_percentages_wrong")
_OF_PAIRS = ("kit_pair_unknown", "kit_pair_threads_differ")


def kit_checks(directory: Path) -> list[BundleCheck]:
    """All checks, whatever fails; a NotFoundError where nothing of the kit is there."""
    try:
        run = read_kit(directory)
    except TraceFormatError as error:
        damaged = LISTING.answered([Problem(_name(error, directory), "", error.problem)], "")
        return [damaged, *(question.skipped("a file that lists the experiments is damaged") for question in _BEHIND)]
    timed = [experiment for experiment in run.experiments if is_timed(experiment)]
    sides = {experiment.key: _side(run, experiment) for experiment in timed if experiment.trace}
    read = [side for side in sides.values() if not isinstance(side, Problem)]
    warnings = [(e, warning) for e in run.experiments for warning in e.warnings]
    told = [(side.path, warning) for side in read for warning in side.table.warnings]
    listed = f"{len(run.experiments)} experiment{'s' * (len(run.experiments) != 1)} listed"
    unfinished = _warning_problems([(e.key, warning) for e, warning in warnings], _OF_WHOLE)
    known = {problem.file for problem in unfinished}
    unreadable = [side for side in sides.values() if isinstance(side, Problem)]
    return [
        LISTING.answered([], listed),
        _pairs(run),
        WHOLE.answered(
            [*unfinished, *_without_trace(e for e in timed if e.key not in known)],
            f"each of {counted_text(len(timed), 'timed experiment')} finished and left a trace",
        ),
        READABLE.answered(
            [*unreadable, *_empty(read)], f"{counted_text(len(read), 'trace')} readable, and no inference took no time"
        )
        if sides
        else READABLE.skipped("there is none"),
        _program(run, told),
        STATED.answered(_warning_problems(told, _OF_FIGURES), "the kit's medians and timelines match the traces")
        if read
        else STATED.skipped("there is no trace to compare with"),
    ]


def _pairs(run: KitRun) -> BundleCheck:
    problems = _warning_problems([(run.config or "", warning) for warning in run.warnings], _OF_PAIRS)
    if not problems and not run.comparisons:
        return PAIRS.skipped("no comparison was requested")
    return PAIRS.answered(problems, f"{len(run.comparisons)} of the requested comparisons can be made")


def _name(error: OpscopeError, directory: Path) -> str:
    where = str(error.where or directory)
    return where.removeprefix(f"{directory}/")


def _side(run: KitRun, experiment: KitExperiment) -> Side | Problem:
    """An experiment, or why its trace cannot be read."""
    try:
        return experiment_side(run, experiment)
    except (TraceFormatError, NotFoundError) as error:
        return Problem(experiment.trace or experiment.key, "", error.problem)


def _without_trace(timed: Iterable[KitExperiment]) -> list[Problem]:
    message = "no trace of a timing experiment: the runner was built without event tracing"
    return [Problem(experiment.key, "", message) for experiment in timed if not experiment.trace]


def _empty(sides: Iterable[Side]) -> list[Problem]:
    """Traces without an inference, or with one that took no time."""
    problems = []
    for side in sides:
        durations = np.asarray(side.table.inference_times().duration)
        if not len(durations):
            problems.append(Problem(side.path, "", "holds no inference"))
        elif not durations.all():
            problems.append(
                Problem(side.path, "", f"{counted_text(int((durations == 0).sum()), 'inference')} took no time")
            )
    return problems


def _warning_problems(warnings: Sequence[tuple[str, TraceWarning]], codes: Sequence[str]) -> list[Problem]:
    return [Problem(place, "", warning.message) for place, warning in warnings if warning.code in codes]


def _program(run: KitRun, told: Sequence[tuple[str, TraceWarning]]) -> BundleCheck:
    if run.program is None:
        reason = f"{run.model} is not here" if run.model else "the program that ran is not recorded"
        return PROGRAM_OF_RUN.skipped(f"{reason}: operators are known by name only")
    passed = f"{run.program} matches the traces"
    return PROGRAM_OF_RUN.answered(_warning_problems(told, ["program_unusable"]), passed)
