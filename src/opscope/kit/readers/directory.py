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
    fitting_key,
    named_pairs,
)
from opscope.readers.kernels import read_kernel_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


_NESTED = 1.05


def inconsistencies(experiment: KitExperiment) -> list[TraceWarning]:
    """Return warnings where the files of an experiment contradict what the kit recorded about it."""
    return [
        *_warn_of_no_files(experiment),
        *_warn_of_unfinished(experiment),
        *_warn_of_no_median(experiment),
        *_warn_of_nested_shares(experiment),
        *_warn_of_registrations(experiment),
    ]


def _warn_of_no_files(experiment: KitExperiment) -> list[TraceWarning]:
    """Warn of an experiment that is listed without a file."""
    if any(msgspec.structs.astuple(experiment.files)):
        return []
    recorded = f" and recorded as {experiment.status[:40]!r}" if experiment.status else ""
    message = f"{experiment.key} is listed{recorded}, but none of its files exists"
    return [TraceWarning("kit_experiment_without_files", message, "its figures cannot be checked; rerun it")]


def _warn_of_unfinished(experiment: KitExperiment) -> list[TraceWarning]:
    """Warn of a log that lacks the runner's closing line."""
    if not experiment.files.latency_log or experiment.finished:
        return []
    message = f"the log of {experiment.key} lacks the runner's closing line: the runner did not finish"
    recorded = f"; the kit recorded it as {experiment.status[:40]!r}" if experiment.status else ""
    return [TraceWarning("kit_runner_not_finished", message + recorded, f"read {experiment.files.latency_log}")]


def _warn_of_no_median(experiment: KitExperiment) -> list[TraceWarning]:
    """Warn of an experiment whose recorded median is not a number."""
    files = [stated.file for stated in experiment.stated if stated.not_a_number]
    if not files:
        return []
    message = (
        f"{experiment.key} is recorded as {experiment.status or 'measured'!r} in {files[0]}, but its median is not a "
        "number"
    )
    return [TraceWarning("kit_ok_without_result", message, "no result: the run failed or wrote no trace")]


def _warn_of_nested_shares(experiment: KitExperiment) -> list[TraceWarning]:
    """Compare the kit's shares with shares of Method::execute, and name the operator that shows the difference best."""
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


def _warn_of_registrations(experiment: KitExperiment) -> list[TraceWarning]:
    """Warn that listed kernels were registered, not run, or that a log names none."""
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
    """Parts that the experiments are put together from."""

    directory: Path
    files: list[str]
    sources: dict[str, Listing]  # by the names of their files
    config: KitConfigFields
    grouped: dict[ExperimentKey, dict[str, str]]
    made: dict[str, dict[ExperimentKey, StatedSide]]  # comparisons that the kit made, by their files
    pairs: Pairs


def is_kit_run(directory: Path) -> bool:
    """Return whether a directory looks like the kit's: its JSON files, its timelines, or its lists of kernels.

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
    """Return everything that a run directory tells, except what is in its traces.

    Raises NotFoundError: nothing of the kit is there, or no experiment of a name; TraceFormatError: a file is not
    what
    the kit writes; UsageError: of the two that are to be compared one is missing, or both are the same experiment.
    """
    files = _list_files(directory)
    sources = {name: decode(directory / name, Listing) for name in _listing_files(files)}
    config_path, warnings = _find_config(directory, files, list(sources.values()))
    config = decode(config_path, KitConfigFields) if config_path else KitConfigFields()
    model = next((source.model for source in sources.values() if source.model), config.model)
    listed = _listed_keys(list(sources.values()), config)
    file_groups = _group_files(files, listed, model)
    keys = _merge_keys([*listed, *file_groups])
    if not keys:
        raise NotFoundError("this directory has no Arm kit files", where=directory, hint=_WHAT)
    made = _read_comparisons(directory, files, listed, model, list(keys))
    if compared is not None:
        pairs = named_pairs(*compared, list(keys), directory)
    else:
        fields = [*config.pairs, *(pair for source in sources.values() for pair in source.pairs)]
        pairs = asked_pairs(
            [*fields, *(PairFields(baseline, candidate) for baseline, candidate in made.values())],
            list(keys),
        )
    run = _RunParts(directory, files, sources, config, file_groups, made, pairs)
    experiments = [_assemble_experiment(run, key, stands_for) for key, stands_for in keys.items()]
    program = _find_program(directory, files, model)
    return KitRun(
        directory=str(directory),
        model=model,
        program=str(program) if program else None,
        etrecord=str(record) if program and (record := _find_record(directory, files, program)) else None,
        generated=next((source.generated_at for source in sources.values() if source.generated_at), None),
        config=str(config_path) if config_path else None,
        executorch=next((source.executorch for source in sources.values() if source.executorch), None),
        experiments=tuple(experiments),
        comparisons=pairs.comparisons,
        warnings=(*warnings, *pairs.warnings),
    )


_WHAT = "give the directory that holds manifest.json, metrics.json or the .etdump files of a run"


def _list_files(directory: Path) -> list[str]:
    """Return all files of the directory and of its subdirectories, relative, sorted; not what opscope wrote there."""
    try:
        inner = [d for d in directory.iterdir() if d.is_dir() and d.name != OURS and not d.name.startswith(".")]
        paths = [file for folder in (directory, *inner) for file in folder.iterdir() if file.is_file()]
    except FileNotFoundError:
        raise NotFoundError("no such directory", where=directory, hint=_WHAT) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=directory) from error
    return sorted(file.relative_to(directory).as_posix() for file in paths)


def _listing_files(files: Sequence[str]) -> list[str]:
    """Return the files that list experiments; the pipeline's summary first, since it tells most."""
    summaries = [name for name in files if name.endswith(SUMMARY) and "/" not in name]
    return [*summaries, *(name for name in (MANIFEST, METRICS) if name in files)]


def _find_config(directory: Path, files: list[str], sources: list[Listing]) -> tuple[Path | None, list[TraceWarning]]:
    """Find the config that the manifest names, or one that lies in the directory, with a warning if it is missing."""
    config_name = next((source.config for source in sources if source.config), None)
    if config_name is None:
        ours = (MANIFEST, METRICS, ANALYSIS)
        candidates = [f for f in files if f.endswith(".json") and "/" not in f and f not in ours and SUMMARY not in f]
        configs = [f for f in candidates if b'"experiments"' in file_bytes(directory / f)]
        return (directory / configs[0] if configs else None), []
    local = _find_local(config_name, files)
    if local:
        return directory / local, []
    above = _find_upwards(directory, config_name)
    if above:
        return above, []
    message = f"the config {config_name[:200]} is missing: it may have named the baseline experiment"
    return None, [TraceWarning("kit_config_missing", message, "copy the config into the run directory")]


def _find_program(directory: Path, files: Sequence[str], model: str | None) -> Path | None:
    """Find the program that was run: in the run directory, where the kit recorded it, or where its export puts it."""
    if not model:
        return None
    if local := _find_local(model, files):
        return directory / local
    name = model.replace("\\", "/").rpartition("/")[2]
    return _find_upwards(directory, model) or _find_upwards(directory, f"artifacts/{name}")


def _find_record(directory: Path, files: Sequence[str], program: Path) -> Path | None:
    """Find the record of its export: beside it under either name, or where the kit's analysis found it."""
    path = record_beside(program)
    if path is None and ANALYSIS in files:
        recorded = decode(directory / ANALYSIS, AnalysisSummary).etrecord
        path = _find_upwards(directory, recorded) if recorded else None
    return path


def record_beside(program: Path) -> Path | None:
    """Return the record of an export beside its program, under either of the names that exporters give it."""
    names = (program.with_name(f"{program.name}.etrecord"), program.with_suffix(".etrecord"))
    return next((path for path in names if path.is_file()), None)


def _find_upwards(directory: Path, file_name: str) -> Path | None:
    """Return the file that a run names relative to the root of the kit's checkout, which is a directory above the run.

    None if there is none, or if the name leads elsewhere: the run may come from somebody else, so absolute paths,
    paths
    with ``..`` and files of other kinds than the kit's are never opened.
    """
    is_kind_of_kit = file_name.endswith((".json", ".pte", ".etrecord"))
    if len(file_name) > _LONGEST_PATH or leads_out(file_name) or not is_kind_of_kit:
        return None
    resolved = directory.resolve()
    for parent in (resolved, *list(resolved.parents)[:_ANCESTORS]):
        if len(file_name.rpartition("/")[2]) < 255 and (parent / file_name).is_file():  # noqa: PLR2004 - longest name of a file
            return parent / file_name
    return None


def _find_local(stated: str, files: Sequence[str]) -> str | None:
    """Return the file of this directory that a recorded path means: the longest end of the path that is here."""
    parts = [part for part in stated.replace("\\", "/").split("/") if part not in {"", ".", ".."}]
    ends = ("/".join(parts[first:]) for first in range(len(parts)))
    return next((end for end in ends if end in files), None)


def _listed_keys(sources: Sequence[Listing], config: KitConfigFields) -> list[ExperimentKey]:
    """Return the keys of the experiments that the listings and the config name."""
    results = [result.key for source in sources for result in (*source.runs, *source.results)]
    planned = [ExperimentKey(e.name, threads=threads) for e in config.experiments for threads in e.threads or (None,)]
    return list(dict.fromkeys([*results, *planned]))


def _group_files(
    files: Sequence[str], listed: Sequence[ExperimentKey], model: str | None
) -> dict[ExperimentKey, dict[str, str]]:
    """Return the files of each experiment by their kind."""
    stem = _model_stem(model)
    groups: dict[ExperimentKey, dict[str, str]] = defaultdict(dict)
    for file in files:
        folder, _, name = file.rpartition("/")
        suffix = next((end for end in _SUFFIXES if name.endswith(end) and len(name) > len(end)), None)
        if folder and name in _OF_DIRECTORY:
            groups[_owning_experiment(folder, folder, listed, stem)].setdefault(_OF_DIRECTORY[name], file)
        elif suffix and not name.endswith("_xtrace.etdump"):
            groups[_owning_experiment(folder, name.removesuffix(suffix), listed, stem)].setdefault(
                _SUFFIXES[suffix], file
            )
    return groups


def _model_stem(model: str | None) -> str:
    """Return the name of the model's file without its ending."""
    return (model or "").replace("\\", "/").rpartition("/")[2].rpartition(".")[0]


def _owning_experiment(folder: str, prefix: str, listed: Sequence[ExperimentKey], stem: str) -> ExperimentKey:
    """Return the experiment that a file belongs to, by its directory and the front of its name."""
    match = _THREADS.match(prefix)
    front = match["name"] if match else prefix
    threads = int(match["threads"]) if match else None
    bare = front.removeprefix(f"{stem}_") if stem else front
    names = sorted({key.experiment for key in listed}, key=len, reverse=True)
    fitting = [name for name in names if name in {bare, folder}] or [n for n in names if front.endswith(f"_{n}")]
    if fitting:
        return ExperimentKey(bare if bare in fitting else fitting[0], threads=threads)
    ends_in_folder = bool(folder) and (front == folder or front.endswith(f"_{folder}"))
    return ExperimentKey(folder if ends_in_folder else bare, threads=threads)


def _read_comparisons(
    directory: Path,
    files: Sequence[str],
    listed: Sequence[ExperimentKey],
    model: str | None,
    keys: Sequence[ExperimentKey],
) -> dict[str, dict[ExperimentKey, StatedSide]]:
    """Return the comparisons that the kit made, by file: the sides, baseline first, which it may call as it likes."""
    comparisons = {}
    for file in files:
        first, _, second = file.removesuffix(_COMPARISON).partition(f"{_TIMELINE}_vs_")
        if file.endswith(_COMPARISON) and second.endswith(_TIMELINE) and "/" not in file:
            owners = [
                _owning_experiment("", front, listed, _model_stem(model))
                for front in map(_timeline_front, (f"{first}{_TIMELINE}", second))
            ]
            sides = [fitting_key(owner, keys) for owner in owners]
            if sides[0] and sides[1] and sides[0] != sides[1]:
                stated = decode(directory / file, StatedComparison)
                comparisons[file] = {sides[0]: stated.config1, sides[1]: stated.config2}
    return comparisons


def _timeline_front(timeline: str) -> str:
    """Return the name of a timeline without the ending that marks it as one."""
    ends = sorted(
        (end.removesuffix(".csv") for end in _SUFFIXES if end.endswith("_timeline.csv")), key=len, reverse=True
    )
    return timeline.removesuffix(next((end for end in ends if timeline.endswith(end)), ""))


def _merge_keys(keys: Iterable[ExperimentKey]) -> dict[ExperimentKey, list[ExperimentKey]]:
    """Return each experiment once, with the keys that stand for it: one without thread count joins the only other."""
    distinct = list(dict.fromkeys(keys))
    counts = {
        key.experiment: [k for k in distinct if k.experiment == key.experiment and k.threads is not None]
        for key in distinct
    }
    merged: dict[ExperimentKey, list[ExperimentKey]] = {}
    for key in distinct:
        counted = counts[key.experiment]
        target = counted[0] if key.threads is None and len(counted) == 1 else key
        merged.setdefault(target, []).append(key)
    return merged


def _assemble_experiment(run: _RunParts, key: ExperimentKey, names: Sequence[ExperimentKey]) -> KitExperiment:
    """Return one experiment, which the keys ``names`` stand for, as the run's files tell it."""
    results = [
        (file, result)
        for file, source in run.sources.items()
        for result in (*source.runs, *source.results)
        if result.key in names
    ]
    planned = [experiment for experiment in run.config.experiments if experiment.name == key.experiment]
    recorded: list[Result | PlannedExperiment] = [*(result for _, result in results), *planned]
    runs = [*(value.runs for value in recorded), *(r.metrics.runs for _, r in results if r.metrics)]
    paths = _listed_paths(results, run.files)
    for name in names:
        paths |= run.grouped.get(name, {})
    experiment = KitExperiment(
        listed=key,
        mode=next((value.mode for value in recorded if value.mode), None),
        status=next((result.status for _, result in results if result.status), None),
        runs=next((count for count in runs if count is not None), None),
        warmup=next((value.warmup for value in recorded if value.warmup is not None), None),
        role=run.pairs.role(key.text),
        files=KitFiles(**paths),
        stated=(
            *(_read_median(run.directory, file, key, r.metrics.median_ms) for file, r in results if r.metrics),
            *(
                _read_median(run.directory, file, key, made[key].median_ms)
                for file, made in run.made.items()
                if key in made
            ),
        ),
        finished="latency_log" in paths
        and _FINISHED.search(file_bytes(run.directory / paths["latency_log"])) is not None,
        kernels=read_kernel_log(run.directory / paths["kernel_log"]) if "kernel_log" in paths else None,
        kernel_rows=kernel_rows(run.directory / paths["kernels"]) if "kernels" in paths else (),
        stats=stats_rows(run.directory / paths["stats"]) if "stats" in paths else (),
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


def _listed_paths(results: Sequence[tuple[str, Result]], files: Sequence[str]) -> dict[str, str]:
    """Return the files that the listings name and that are here."""
    paths: dict[str, str] = {}
    for _, result in results:
        stated = {_PATHS[name]: path for name, path in result.paths.items() if path and name in _PATHS}
        if result.metrics:
            stated |= {k: v for k, v in (("etdump", result.metrics.etdump), ("latency_log", result.metrics.log)) if v}
        here = {kind: _find_local(path, files) for kind, path in stated.items()}
        paths = {kind: path for kind, path in here.items() if path} | paths
    return paths


def _read_median(directory: Path, file: str, key: ExperimentKey, value: float | str | None) -> StatedMedian:
    """Return the median that a file states; raise an error where it is no number."""
    if value is None:
        return StatedMedian(file, None, not_a_number=False)
    try:
        number = float(value)
    except ValueError:
        problem = f"median_ms of {key.text[:80]} is {str(value)[:40]!r}, no number"
        raise TraceFormatError(problem, where=directory / file) from None
    usable = math.isfinite(number) and number >= 0
    return StatedMedian(file, number if usable else None, not_a_number=not usable)
