"""Reads a run directory of the Arm profiling kit into one typed value.

Files lie flat in the directory, named ``<model>_<experiment>_t<threads><suffix>``, or in a directory for each
experiment. What the JSON files list comes first, then what the config plans, then what the names of files tell. Names
tell which experiment a file belongs to and its thread count, never what an experiment is: whether it is the baseline is
known only where the user says so, or where a file of the run compares it with another one.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.errors import NotFoundError, StorageError, TraceFormatError
from opscope.core.files import leads_out
from opscope.core.system.memory import file_bytes
from opscope.core.table import TraceWarning
from opscope.core.units import share_text, time_text
from opscope.kit.readers.csv import kernel_rows, stats_rows
from opscope.kit.readers.json import (
    AnalysisSummary,
    ExperimentKey,
    KitConfigFields,
    Listing,
    PairFields,
    PlannedExperiment,
    Result,
    StatedComparison,
    StatedSide,
    decode,
)
from opscope.kit.readers.run import (
    KitExperiment,
    KitFiles,
    KitRun,
    Pairs,
    StatedMedian,
    asked_pairs,
    fitting,
    named_pairs,
)
from opscope.readers.kernels import read_kernel_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


_NESTED = 1.05


def inconsistencies(experiment: KitExperiment) -> list[TraceWarning]:
    """What the files of an experiment say against what the kit recorded about it."""
    return [
        *_without_files(experiment),
        *_not_finished(experiment),
        *_no_median(experiment),
        *_percentages(experiment),
        *_registrations(experiment),
    ]


def _without_files(experiment: KitExperiment) -> list[TraceWarning]:
    if any(msgspec.structs.astuple(experiment.files)):
        return []
    recorded = f" and recorded as {experiment.status[:40]!r}" if experiment.status else ""
    message = f"{experiment.key} is listed{recorded}, but none of its files exists"
    return [TraceWarning("kit_experiment_without_files", message, "its figures cannot be checked; rerun it")]


def _not_finished(experiment: KitExperiment) -> list[TraceWarning]:
    if not experiment.files.latency_log or experiment.finished:
        return []
    message = f"the log of {experiment.key} lacks the runner's closing line: the runner did not finish"
    recorded = f"; the kit recorded it as {experiment.status[:40]!r}" if experiment.status else ""
    return [TraceWarning("kit_runner_not_finished", message + recorded, f"read {experiment.files.latency_log}")]


def _no_median(experiment: KitExperiment) -> list[TraceWarning]:
    files = [stated.file for stated in experiment.stated if stated.not_a_number]
    if not files:
        return []
    message = (
        f"{experiment.key} is recorded as {experiment.status or 'measured'!r} in {files[0]}, but its median is not a "
        "number"
    )
    return [TraceWarning("kit_ok_without_result", message, "no result: the run failed or wrote no trace")]


def _percentages(experiment: KitExperiment) -> list[TraceWarning]:
    """The kit's shares against shares of Method::execute, with the operator that shows it best."""
    executed = sum(row.total_ns for row in experiment.stats if row.name == "Method::execute")
    total = sum(row.total_ns for row in experiment.stats)
    if not executed or total <= executed * _NESTED:
        return []
    inner = [
        row
        for row in experiment.stats
        if not row.name.startswith(("Method::", "Program::")) and "_CALL" not in row.name
    ]
    message = (
        f"pct_total of {experiment.files.stats} is a share of all its lines, {time_text(total)}, which count nested "
        f"time {total / executed:.1f} times; the latency is {time_text(executed)}"
    )
    if inner:
        top = max(inner, key=lambda row: row.total_ns)
        stated, true = share_text(top.share), share_text(top.total_ns / executed)
        message += f". {top.name[:80]} reads {stated} and is {true}"
    return [TraceWarning("kit_percentages", message, "use opscope's shares, which add up to end-to-end latency")]


def _registrations(experiment: KitExperiment) -> list[TraceWarning]:
    if experiment.kernels is not None and not experiment.kernels.entries:
        message = f"{experiment.files.kernel_log} names no kernel: the runner was built without XNNPACK's log"
        return [
            TraceWarning("kit_log_without_kernels", message, "build it with EXECUTORCH_XNNPACK_LOG_LEVEL=4 or higher")
        ]
    if not experiment.kernels and not experiment.kernel_rows:
        return []
    message = f"the kernels of {experiment.key} were registered: their count is lines of a log, not calls"
    return [TraceWarning("kit_kernels_registered", message, "a listed kernel may never have run")]


OURS = "opscope"
MANIFEST = "manifest.json"
METRICS = "metrics.json"
ANALYSIS = "analysis_summary.json"
SUMMARY = "_pipeline_summary.json"
# The longest suffix that fits decides; all but the last column of the file's name is the experiment's.
_SUFFIXES = {
    "_exec_all_runs_timeline.csv": "timeline",
    "_all_runs_timeline.csv": "timeline",
    "_exec_run0_timeline.csv": "run0",
    "_run0_timeline.csv": "run0",
    "_exec_ops_stats.csv": "stats",
    "_ops_stats.csv": "stats",
    "_kernels.csv": "kernels",
    "_xnntrace.log": "kernel_log",
    "_latency.log": "latency_log",
    ".etdump": "etdump",
    ".log": "latency_log",
}
_COMPARISON, _TIMELINE = "_robust_comparison.json", "_timeline"
_OF_DIRECTORY = {"kernels.csv": "kernels"}
_MARKS = (SUMMARY, "_timeline.csv", "_kernels.csv")
_THREADS = re.compile(r"(?P<name>.+)_t(?P<threads>\d{1,4})\Z")
_FINISHED = re.compile(rb"Model executed successfully \d{1,9} time\(s\) in \d{1,15}(?:\.\d{1,9})? ms", re.IGNORECASE)
_ANCESTORS = 6
_LONGEST_PATH = 1_000


class _RunParts(NamedTuple):
    """What the experiments are put together from."""

    directory: Path
    files: list[str]
    sources: dict[str, Listing]  # by the names of their files
    config: KitConfigFields
    grouped: dict[ExperimentKey, dict[str, str]]
    made: dict[str, dict[ExperimentKey, StatedSide]]  # comparisons that the kit made, by their files
    pairs: Pairs


def is_kit_run(directory: Path) -> bool:
    """Whether a directory looks like the kit's: its JSON files, its timelines, or its lists of kernels.

    A bundle of opscope does not.
    """
    if not directory.is_dir():
        return False
    manifest = directory / MANIFEST
    content = file_bytes(manifest) if manifest.is_file() else b""
    if b"opscope.bundle/" in content:
        return False
    if any((directory / name).is_file() for name in (METRICS, ANALYSIS)):
        return True
    marked = any(next(directory.glob(f"{at}*{end}"), None) for at in ("", "*/") for end in _MARKS)
    marked = marked or any(next(directory.glob(f"*/{name}"), None) for name in _OF_DIRECTORY)
    return marked or any(word in content for word in (b'"results"', b'"executorch"', b'"experiment'))


def read_kit(directory: Path, compared: tuple[str | None, str | None] | None = None) -> KitRun:
    """Everything that a run directory tells, except what is in its traces.

    Raises NotFoundError: nothing of the kit is there, or no experiment of a name; TraceFormatError: a file is not what
    the kit writes; UsageError: of the two that are to be compared one is missing, or both are the same experiment.
    """
    files = _files_in(directory)
    sources = {name: decode(directory / name, Listing) for name in _listings(files)}
    config_path, warnings = _config_path(directory, files, list(sources.values()))
    config = decode(config_path, KitConfigFields) if config_path else KitConfigFields()
    model = next((source.model for source in sources.values() if source.model), config.model)
    listed = _listed(list(sources.values()), config)
    found = _grouped(files, listed, model)
    keys = _merged([*listed, *found])
    if not keys:
        raise NotFoundError("this directory has no Arm kit files", where=directory, hint=_WHAT)
    made = _made(directory, files, listed, model, list(keys))
    if compared is not None:
        pairs = named_pairs(*compared, list(keys), directory)
    else:
        fields = [*config.pairs, *(pair for source in sources.values() for pair in source.pairs)]
        pairs = asked_pairs(
            [*fields, *(PairFields(baseline, candidate) for baseline, candidate in made.values())],
            list(keys),
        )
    run = _RunParts(directory, files, sources, config, found, made, pairs)
    experiments = [_experiment(run, key, stands_for) for key, stands_for in keys.items()]
    program = _program(directory, files, model)
    return KitRun(
        directory=str(directory),
        model=model,
        program=str(program) if program else None,
        etrecord=str(record) if program and (record := _record(directory, files, program)) else None,
        generated=next((source.generated_at for source in sources.values() if source.generated_at), None),
        config=str(config_path) if config_path else None,
        executorch=next((source.executorch for source in sources.values() if source.executorch), None),
        experiments=tuple(experiments),
        comparisons=pairs.found,
        warnings=(*warnings, *pairs.warnings),
    )


_WHAT = "give the directory that holds manifest.json, metrics.json or the .etdump files of a run"


def _files_in(directory: Path) -> list[str]:
    """All files of the directory and of the directories in it, relative, sorted; not what opscope wrote there."""
    try:
        inner = [d for d in directory.iterdir() if d.is_dir() and d.name != OURS and not d.name.startswith(".")]
        paths = [file for place in (directory, *inner) for file in place.iterdir() if file.is_file()]
    except FileNotFoundError:
        raise NotFoundError("no such directory", where=directory, hint=_WHAT) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=directory) from error
    return sorted(file.relative_to(directory).as_posix() for file in paths)


def _listings(files: Sequence[str]) -> list[str]:
    """The files that list experiments; the pipeline's summary first, since it tells most."""
    summaries = [name for name in files if name.endswith(SUMMARY) and "/" not in name]
    return [*summaries, *(name for name in (MANIFEST, METRICS) if name in files)]


def _config_path(directory: Path, files: list[str], sources: list[Listing]) -> tuple[Path | None, list[TraceWarning]]:
    """The config that the manifest names, or one that lies in the directory."""
    named = next((source.config for source in sources if source.config), None)
    if named is None:
        ours = (MANIFEST, METRICS, ANALYSIS)
        others = [f for f in files if f.endswith(".json") and "/" not in f and f not in ours and SUMMARY not in f]
        beside = [f for f in others if b'"experiments"' in file_bytes(directory / f)]
        return (directory / beside[0] if beside else None), []
    local = _local(named, files)
    if local:
        return directory / local, []
    outside = _up_from(directory, named)
    if outside:
        return outside, []
    message = f"the config {named[:200]} is missing: it may have named the baseline experiment"
    return None, [TraceWarning("kit_config_missing", message, "copy the config into the run directory")]


def _program(directory: Path, files: Sequence[str], model: str | None) -> Path | None:
    """The program that was run: in the run directory, where the kit recorded it, or where its export puts it."""
    if not model:
        return None
    if local := _local(model, files):
        return directory / local
    name = model.replace("\\", "/").rpartition("/")[2]
    return _up_from(directory, model) or _up_from(directory, f"artifacts/{name}")


def _record(directory: Path, files: Sequence[str], program: Path) -> Path | None:
    """The record of its export: beside it under either name, or where the kit's analysis found it."""
    path = record_beside(program)
    if path is None and ANALYSIS in files:
        named = decode(directory / ANALYSIS, AnalysisSummary).etrecord
        path = _up_from(directory, named) if named else None
    return path


def record_beside(program: Path) -> Path | None:
    """The record of an export beside its program, under either of the names that exporters give it."""
    names = (program.with_name(f"{program.name}.etrecord"), program.with_suffix(".etrecord"))
    return next((path for path in names if path.is_file()), None)


def _up_from(directory: Path, named: str) -> Path | None:
    """Return the file that a run names relative to the root of the kit's checkout, which is a directory above the run.

    None if there is none, or if the name leads elsewhere: the run may come from somebody else, so absolute paths, paths
    with ``..`` and files of other kinds than the kit's are never opened.
    """
    is_kind_of_kit = named.endswith((".json", ".pte", ".etrecord"))
    if len(named) > _LONGEST_PATH or leads_out(named) or not is_kind_of_kit:
        return None
    resolved = directory.resolve()
    for place in (resolved, *list(resolved.parents)[:_ANCESTORS]):
        if len(named.rpartition("/")[2]) < 255 and (place / named).is_file():  # noqa: PLR2004 - longest name of a file
            return place / named
    return None


def _local(stated: str, files: Sequence[str]) -> str | None:
    """The file of this directory that a recorded path means: the longest end of the path that is here."""
    parts = [part for part in stated.replace("\\", "/").split("/") if part not in {"", ".", ".."}]
    ends = ("/".join(parts[first:]) for first in range(len(parts)))
    return next((end for end in ends if end in files), None)


def _listed(sources: Sequence[Listing], config: KitConfigFields) -> list[ExperimentKey]:
    results = [result.key for source in sources for result in (*source.runs, *source.results)]
    planned = [ExperimentKey(e.name, threads=threads) for e in config.experiments for threads in e.threads or (None,)]
    return list(dict.fromkeys([*results, *planned]))


def _grouped(
    files: Sequence[str], listed: Sequence[ExperimentKey], model: str | None
) -> dict[ExperimentKey, dict[str, str]]:
    """The files of each experiment, by what they are."""
    stem = _stem(model)
    found: dict[ExperimentKey, dict[str, str]] = defaultdict(dict)
    for file in files:
        place, _, name = file.rpartition("/")
        suffix = next((end for end in _SUFFIXES if name.endswith(end) and len(name) > len(end)), None)
        if place and name in _OF_DIRECTORY:
            found[_owner(place, place, listed, stem)].setdefault(_OF_DIRECTORY[name], file)
        elif suffix and not name.endswith("_xtrace.etdump"):
            found[_owner(place, name.removesuffix(suffix), listed, stem)].setdefault(_SUFFIXES[suffix], file)
    return found


def _stem(model: str | None) -> str:
    return (model or "").replace("\\", "/").rpartition("/")[2].rpartition(".")[0]


def _owner(place: str, prefix: str, listed: Sequence[ExperimentKey], stem: str) -> ExperimentKey:
    """The experiment that a file belongs to, by its directory and the front of its name."""
    match = _THREADS.match(prefix)
    front = match["name"] if match else prefix
    threads = int(match["threads"]) if match else None
    bare = front.removeprefix(f"{stem}_") if stem else front
    names = sorted({key.experiment for key in listed}, key=len, reverse=True)
    fitting = [name for name in names if name in {bare, place}] or [n for n in names if front.endswith(f"_{n}")]
    if fitting:
        return ExperimentKey(bare if bare in fitting else fitting[0], threads=threads)
    inside = bool(place) and (front == place or front.endswith(f"_{place}"))
    return ExperimentKey(place if inside else bare, threads=threads)


def _made(
    directory: Path,
    files: Sequence[str],
    listed: Sequence[ExperimentKey],
    model: str | None,
    keys: Sequence[ExperimentKey],
) -> dict[str, dict[ExperimentKey, StatedSide]]:
    """The comparisons that the kit made, by their files: the sides, baseline first, which it may call as it likes."""
    found = {}
    for file in files:
        first, _, second = file.removesuffix(_COMPARISON).partition(f"{_TIMELINE}_vs_")
        if file.endswith(_COMPARISON) and second.endswith(_TIMELINE) and "/" not in file:
            owners = [_owner("", front, listed, _stem(model)) for front in map(_front, (f"{first}{_TIMELINE}", second))]
            sides = [fitting(owner, keys) for owner in owners]
            if sides[0] and sides[1] and sides[0] != sides[1]:
                stated = decode(directory / file, StatedComparison)
                found[file] = {sides[0]: stated.config1, sides[1]: stated.config2}
    return found


def _front(timeline: str) -> str:
    """The name of a timeline without what says that it is one."""
    ends = sorted(
        (end.removesuffix(".csv") for end in _SUFFIXES if end.endswith("_timeline.csv")), key=len, reverse=True
    )
    return timeline.removesuffix(next((end for end in ends if timeline.endswith(end)), ""))


def _merged(keys: Iterable[ExperimentKey]) -> dict[ExperimentKey, list[ExperimentKey]]:
    """Every experiment once, with the keys that stand for it: one without thread count is the only one that has it."""
    distinct = list(dict.fromkeys(keys))
    counts = {
        key.experiment: [k for k in distinct if k.experiment == key.experiment and k.threads is not None]
        for key in distinct
    }
    merged: dict[ExperimentKey, list[ExperimentKey]] = {}
    for key in distinct:
        others = counts[key.experiment]
        target = others[0] if key.threads is None and len(others) == 1 else key
        merged.setdefault(target, []).append(key)
    return merged


def _experiment(run: _RunParts, key: ExperimentKey, names: Sequence[ExperimentKey]) -> KitExperiment:
    """What the run's files tell about one experiment, which the keys ``names`` stand for."""
    results = [
        (file, result)
        for file, source in run.sources.items()
        for result in (*source.runs, *source.results)
        if result.key in names
    ]
    planned = [one for one in run.config.experiments if one.name == key.experiment]
    recorded: list[Result | PlannedExperiment] = [*(result for _, result in results), *planned]
    runs = [*(value.runs for value in recorded), *(r.metrics.runs for _, r in results if r.metrics)]
    own = _paths(results, run.files)
    for name in names:
        own |= run.grouped.get(name, {})
    experiment = KitExperiment(
        listed=key,
        mode=next((value.mode for value in recorded if value.mode), None),
        status=next((result.status for _, result in results if result.status), None),
        runs=next((count for count in runs if count is not None), None),
        warmup=next((value.warmup for value in recorded if value.warmup is not None), None),
        role=run.pairs.role(key.text),
        files=KitFiles(**own),
        stated=(
            *(_stated(run.directory, file, key, r.metrics.median_ms) for file, r in results if r.metrics),
            *(_stated(run.directory, file, key, made[key].median_ms) for file, made in run.made.items() if key in made),
        ),
        finished="latency_log" in own and _FINISHED.search(file_bytes(run.directory / own["latency_log"])) is not None,
        kernels=read_kernel_log(run.directory / own["kernel_log"]) if "kernel_log" in own else None,
        kernel_rows=kernel_rows(run.directory / own["kernels"]) if "kernels" in own else (),
        stats=stats_rows(run.directory / own["stats"]) if "stats" in own else (),
    )
    return msgspec.structs.replace(experiment, warnings=tuple(inconsistencies(experiment)))


_PATHS = {
    "etdump": "etdump",
    "timeline_all": "timeline",
    "timeline_run0": "run0",
    "kernel_csv": "kernels",
    "xnntrace_log": "kernel_log",
    "latency_log": "latency_log",
}


def _paths(results: Sequence[tuple[str, Result]], files: Sequence[str]) -> dict[str, str]:
    """Files that the listings name and that are here."""
    paths: dict[str, str] = {}
    for _, result in results:
        stated = {_PATHS[name]: path for name, path in result.paths.items() if path and name in _PATHS}
        if result.metrics:
            stated |= {k: v for k, v in (("etdump", result.metrics.etdump), ("latency_log", result.metrics.log)) if v}
        here = {what: _local(path, files) for what, path in stated.items()}
        paths = {what: path for what, path in here.items() if path} | paths
    return paths


def _stated(directory: Path, file: str, key: ExperimentKey, value: float | str | None) -> StatedMedian:
    if value is None:
        return StatedMedian(file, None, not_a_number=False)
    try:
        number = float(value)
    except ValueError:
        problem = f"median_ms of {key.text[:80]} is {str(value)[:40]!r}, no number"
        raise TraceFormatError(problem, where=directory / file) from None
    usable = math.isfinite(number) and number >= 0
    return StatedMedian(file, number if usable else None, not_a_number=not usable)
