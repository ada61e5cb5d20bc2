"""Checks of a run directory of the kit: is it whole, and do its figures agree with its traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.bundle.validation import (
    COMPLETE,
    LIKE_FIELDS,
    LIKE_FILES,
    MANIFEST,
    PROGRAM,
    TRACES,
    Area,
    Problem,
    Question,
)
from opscope.core.errors import NotFoundError, OpscopeError, TraceFormatError
from opscope.core.units import counted_text
from opscope.kit.readers.directory import OURS, read_kit
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
LIKE_FILES_OF_RUN = LIKE_FILES._replace(action="run the script of the kit that writes these, then compare again")
LIKE_FIELDS_OF_RUN = LIKE_FIELDS._replace(action="compare runs that one version of the kit wrote")
_BEHIND = (PAIRS, WHOLE, READABLE, PROGRAM_OF_RUN, STATED)
_OF_WHOLE = ("kit_experiment_without_files", "kit_runner_not_finished", "kit_ok_without_result")
_OF_FIGURES = ("kit_median_differs", "kit_timeline_differs", "kit_timeline_damaged", "kit_percentages_wrong")
_OF_PAIRS = ("kit_pair_unknown", "kit_pair_threads_differ")


def kit_checks(directory: Path) -> list[BundleCheck]:
    """Return all checks, whatever fails; raise a NotFoundError where nothing of the kit is there."""
    try:
        run = read_kit(directory)
    except TraceFormatError as error:
        damaged = LISTING.answered([Problem(_problem_file(error, directory), "", error.problem)], "")
        return [damaged, *(question.skipped("a file that lists the experiments is damaged") for question in _BEHIND)]
    timed = [experiment for experiment in run.experiments if is_timed(experiment)]
    sides = {experiment.key: _read_side(run, experiment) for experiment in timed if experiment.trace}
    read = [side for side in sides.values() if not isinstance(side, Problem)]
    warnings = [(e, warning) for e in run.experiments for warning in e.warnings]
    side_warnings = [(side.path, warning) for side in read for warning in side.table.warnings]
    listed = f"{len(run.experiments)} experiment{'s' * (len(run.experiments) != 1)} listed"
    unfinished = _warning_problems([(e.key, warning) for e, warning in warnings], _OF_WHOLE)
    known = {problem.file for problem in unfinished}
    unreadable = [side for side in sides.values() if isinstance(side, Problem)]
    return [
        LISTING.answered([], listed),
        _check_pairs(run),
        WHOLE.answered(
            [*unfinished, *_problems_without_trace(e for e in timed if e.key not in known)],
            f"each of {counted_text(len(timed), 'timed experiment')} finished and left a trace",
        ),
        READABLE.answered(
            [*unreadable, *_empty_problems(read)],
            f"{counted_text(len(read), 'trace')} readable, and no inference took no time",
        )
        if sides
        else READABLE.skipped("there is none"),
        _check_program(run, side_warnings),
        STATED.answered(
            _warning_problems(side_warnings, _OF_FIGURES), "the kit's medians and timelines match the traces"
        )
        if read
        else STATED.skipped("there is no trace to compare with"),
    ]


_KINDS = (
    *("manifest.json", "metrics.json", "analysis_summary.json", "operator_analysis.json", "_pipeline_summary.json"),
    *("_pipeline_summary.md", "_all_runs_timeline.csv", "_run0_timeline.csv", "_ops_stats.csv", "_kernels.csv"),
    *("_robust_stats.json", "_category_summary.csv", "_operator_details.csv", "_e2e_latency.csv"),
    *("_comparison.csv", ".etdump"),
)
"""Ends of the names of files, which tell what a file of a run is, whatever the model and the experiments."""
_LONGEST_DOCUMENT = 64 << 20


def kit_structure_checks(directory: Path, good: Path) -> list[BundleCheck]:
    """Compare the kinds of files of a run, their columns and the fields of their documents with those of a good run.

    The run may have more than the good one: the kit writes more than a reader needs.

    Raises:
        NotFoundError: nothing of the kit is in ``good``.
    """
    files, good_files = _files_by_kind(directory), _files_by_kind(good)
    keys, good_keys = ([experiment.key for experiment in read_kit(run).experiments] for run in (directory, good))
    shared = sorted(files.keys() & good_files)
    missing = [Problem(kind, "", "is missing; the good run has it") for kind in sorted(good_files.keys() - files)]
    lacking = [
        Problem(files[kind].name, field, "is missing; the good run has it")
        for kind in shared
        for field in _fields_of(good_files[kind], good_keys)
        if field not in _fields_of(files[kind], keys)
    ]
    return [
        LIKE_FILES_OF_RUN.answered(missing, f"{counted_text(len(shared), 'kind')} of files, as in the good run"),
        LIKE_FIELDS_OF_RUN.answered(lacking, "columns and fields as in the good run"),
    ]


def _files_by_kind(directory: Path) -> dict[str, Path]:
    """Return a file of each kind that a run has."""
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file() and OURS not in path.parts]
    endings = {kind: [path for path in paths if path.name.endswith(kind)] for kind in _KINDS}
    return {kind: of_kind[0] for kind, of_kind in endings.items() if of_kind}


def _fields_of(path: Path, keys: Sequence[str]) -> list[str]:
    """Return the columns of a table, or the fields of a JSON document; none of a file of another form.

    ``*`` stands for the key of an experiment in the name of a column.
    """
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.readline(_LONGEST_DOCUMENT).strip()
        for key in keys:
            head = head.replace(key, "*")
        return head.split(",")
    if path.suffix != ".json" or path.stat().st_size > _LONGEST_DOCUMENT:
        return []
    try:
        document = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError:
        return []
    return list(document) if isinstance(document, dict) else []


def _check_pairs(run: KitRun) -> BundleCheck:
    """Check that the requested comparisons can be made."""
    problems = _warning_problems([(run.config or "", warning) for warning in run.warnings], _OF_PAIRS)
    if not problems and not run.comparisons:
        return PAIRS.skipped("no comparison was requested")
    return PAIRS.answered(problems, f"{len(run.comparisons)} of the requested comparisons can be made")


def _problem_file(error: OpscopeError, directory: Path) -> str:
    """Return the file that an error is about, relative to the run directory."""
    where = str(error.where or directory)
    return where.removeprefix(f"{directory}/")


def _read_side(run: KitRun, experiment: KitExperiment) -> Side | Problem:
    """Return an experiment, or why its trace cannot be read."""
    try:
        return experiment_side(run, experiment)
    except (TraceFormatError, NotFoundError) as error:
        return Problem(experiment.trace or experiment.key, "", error.problem)


def _problems_without_trace(timed: Iterable[KitExperiment]) -> list[Problem]:
    """Return a problem for each timed experiment that left no trace."""
    message = "no trace of a timing experiment: the runner was built without event tracing"
    return [Problem(experiment.key, "", message) for experiment in timed if not experiment.trace]


def _empty_problems(sides: Iterable[Side]) -> list[Problem]:
    """Return traces without an inference, or with one that took no time."""
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
    return [Problem(subject, "", warning.message) for subject, warning in warnings if warning.code in codes]


def _check_program(run: KitRun, side_warnings: Sequence[tuple[str, TraceWarning]]) -> BundleCheck:
    """Check that the program that ran is here and matches the traces."""
    if run.program is None:
        reason = f"{run.model} is not here" if run.model else "the program that ran is not recorded"
        return PROGRAM_OF_RUN.skipped(f"{reason}: operators are known by name only")
    passed = f"{run.program} matches the traces"
    return PROGRAM_OF_RUN.answered(_warning_problems(side_warnings, ["program_unusable"]), passed)
