"""Experiments on the workers of a Dask scheduler, each on one that owns its device; their bundles come here.

A worker says what it owns by its resources: ``device:NAME=1`` for each device, ``opscope=1`` for the machine itself. A
resource of 1 is taken by one experiment at a time, so that no two of them disturb each other. An experiment travels
with its files. A model that is to be exported is exported here, once for all devices.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.bundle import Bundle, check_free, is_bundle
from opscope.bundle.manifest import Manifest, Model, Repetition
from opscope.core.errors import ClusterError, OpscopeError, TraceFormatError, UsageError, did_you_mean
from opscope.core.files import leads_out, storage_errors
from opscope.core.json import from_json, to_json
from opscope.core.system.stages import heard_by
from opscope.core.system.stop import StopRequest
from opscope.core.writing import write_atomically
from opscope.experiment.planned import Experiments
from opscope.experiment.target_names import parse_target
from opscope.runtimes.exports import record_of_export
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.experiments import Means, attempt, experiment_target, failed
from opscope.workflows.measure.parallel.side_by_side import TURNS
from opscope.workflows.measure.parallel.workers import Handout, HandoutSettings, Task, UnfinishedTask, dask_workers
from opscope.workflows.measure.program_inputs import exported_files, program_source
from opscope.workflows.measure.run_report import ExperimentResult, RunReport, with_comparisons
from opscope.workflows.reports.reports import REPORT_FORMATS, content, content_of, write_reports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.core.system.stages import StageProgress
    from opscope.experiment.planned import Experiment
    from opscope.hosts.lock import LockMode

MACHINE = "opscope"
_FOLDER = "run"
_HERE = {"the worker's machine": "this machine"}
"""What a worker says of where it is, as the client is told."""
_LOOK_SECONDS = 1.0


class ExperimentFile(NamedTuple):
    """Content of a file that a worker needs."""

    content: bytes
    is_executable: bool


class Sent(NamedTuple):
    """Something that an experiment names, with all files that belong to it."""

    original: str  # as the experiment names it
    files: dict[str, ExperimentFile]  # by path below the folder of what it belongs to
    first: str  # the file that stands for what was named; empty: the folder of the files does
    model: str | None = None  # name of the model that was exported; None for what is a file already


class Errand(NamedTuple):
    """What a worker needs for an experiment."""

    config: tuple[str, bytes]  # name and content of the file that asked for it
    experiment: Experiment  # as it was read
    sent: tuple[Sent, ...]
    topic: str  # of what is told while it runs
    lock: LockMode  # what to do when another run measures on the machine
    lock_limit: float | None  # longest wait for it, in seconds; None: as usual
    keep_going: bool


class Brought(NamedTuple):
    """A worker's result, files and notes."""

    result: ExperimentResult
    files: dict[str, bytes]  # of the bundle, by path; empty when there is none
    notes: list[str]  # what could not be had there, one sentence each


class WorkerEvent(msgspec.Struct, frozen=True):
    """Message of an experiment that runs: a stage, a repetition, or a notice."""

    stage: tuple[str, str] | None = None  # with its detail
    moved: tuple[int, int, Repetition | None] | None = None  # how many repetitions are done, of how many, and the last
    notice: str | None = None


class UnwantedError(Exception):
    """A task that nobody waits for any more was stopped."""


def run_on_workers(experiments: Experiments, scheduler: str, means: Means, *, resume: bool) -> RunReport:
    """Run experiments on workers; each bundle is here, whole, as soon as its experiment is done.

    Raises:
        ClusterError: no worker owns a device, or the scheduler cannot be reached or was lost.
        UsageError: a file is missing; BundleError: a bundle is there already; nothing has run then.
    """
    timed = [e for e in experiments.experiments if not e.evidence]
    notes = [*experiments.notes]
    notes += [f"{e.name}: workers do not collect kernel evidence" for e in experiments.experiments if e.evidence]
    complete = [e for e in timed if resume and is_bundle(experiments.out / e.name)]
    missing = [e for e in timed if e not in complete]
    for experiment in missing:
        check_free(experiments.out / experiment.name)
        for planned in experiment.all_models:
            program_source(*planned, experiment.models)
    results = {}
    for experiment in complete:
        path = experiments.out / experiment.name
        results[experiment.name] = ExperimentResult(experiment.name, str(path), content(path))
    with tempfile.TemporaryDirectory(prefix="opscope-") as exports, dask_workers(scheduler) as pool:
        _check_owned(missing, {name for owned in pool.list_capacities().values() for name in owned}, scheduler)
        terms = HandoutSettings(
            partial(_pack_errand, experiments, means, pool.topic, Path(exports)),
            partial(_hear_worker, means),
            means.notify,
            means.worker_seconds,
        )
        tasks = [Task(experiment.name, experiment, resource_of(experiment)) for experiment in missing]
        with contextlib.closing(Handout(pool, run_there, tasks, terms).results()) as handed_out:
            for number, brought in handed_out:
                result = keep_bundle(experiments, missing[number], brought, notes)
                results[result.name] = result
                means.finished(result, len(timed) - len(results))
    ordered = [results[e.name] for e in timed]
    return RunReport(str(experiments.file), with_comparisons(experiments, ordered, notes), [], notes)


def resource_of(experiment: Experiment) -> str:
    """Return the resource of a worker that an experiment takes while it runs."""
    return MACHINE if experiment.device is None else f"device:{experiment.device}"


def _check_owned(experiments: list[Experiment], owned: set[str], scheduler: str) -> None:
    """Refuse devices without a worker, which would be waited for."""
    for experiment in experiments:
        name = resource_of(experiment)
        if name not in owned:
            hint = f'start one with `dask worker {scheduler} --resources "{name}=1"`; {did_you_mean(name, owned)}'
            raise ClusterError(f"no worker owns {name}", where=experiment.name, hint=hint)


def _pack_errand(asked: Experiments, means: Means, topic: str, exports: Path, experiment: Experiment) -> Errand:
    config = (asked.file.name, asked.file.read_bytes())
    with heard_by(_stages_of(means, experiment.name)):
        sent = tuple(pack_files(experiment, exports))
    return Errand(config, experiment, sent, topic, means.lock, means.lock_limit, means.keep_going)


def pack_files(experiment: Experiment, exports: Path) -> Iterator[Sent]:
    """Yield everything that an experiment names, with its files; models are exported to a directory, each once.

    Raises:
        UsageError: a file is not here.
        OpscopeError: a model cannot be exported.
    """
    for model, runtime in experiment.all_models:
        source = program_source(model, runtime, experiment.models)
        if source is None:
            files = _export_once(experiment, model, exports)
            record = record_of_export(files[0])
            yield _read_files(model, files, files[0].parent)._replace(model=record.name if record else None)
        else:
            data = experiment.data if model == experiment.model else None
            files = runtime_of(source, runtime).files(source, Path(data) if data else None)
            sent = _read_files(model, files, source.parent)
            yield sent._replace(first="") if Path(model).is_dir() else sent
    runners = [str(variant.runner) for variant in experiment.variants if variant.runner]
    runners += filter(None, [parse_target(experiment.target, builds_named=True).runner])
    for name in dict.fromkeys([*filter(None, [experiment.inputs, experiment.data]), *runners]):
        if not Path(name).is_file():
            hint = "workers get every file from here: name one that is here"
            raise UsageError("there is no such file", where=name, hint=hint)
        yield _read_files(name, [Path(name)], Path(name).parent)


def _read_files(original: str, files: Sequence[Path], home: Path) -> Sent:
    names = [file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name for file in files]
    contents = [ExperimentFile(file.read_bytes(), os.access(file, os.X_OK)) for file in files]
    return Sent(original, dict(zip(names, contents, strict=True)), names[0])


def _export_once(experiment: Experiment, model: str, exports: Path) -> list[Path]:
    """Return the files of an export, the program first; those of an earlier one with equal settings."""
    settings = f"{model}\0{experiment.dtype}\0{experiment.models}"
    work = exports / hashlib.sha256(settings.encode()).hexdigest()[:16]
    listed = work / "files.json"
    if not listed.exists():
        work.mkdir(parents=True)
        files = exported_files(msgspec.structs.replace(experiment, model=model), work, work)
        write_atomically(listed, msgspec.json.encode([file.name for file in files]))
    return [work / name for name in from_json(listed.read_bytes(), list[str])]


def _hear_worker(means: Means, name: str, text: str) -> None:
    """Pass on what a worker said of an experiment."""
    event = from_json(text, WorkerEvent)
    if event.stage is not None and (stages := _stages_of(means, name)):
        stages(*event.stage)
    if event.moved is not None:
        (means.progress_of(name) if means.progress_of else means.progress)(*event.moved)
    if event.notice is not None:
        means.notify(f"{name}: {event.notice}")


def _stages_of(means: Means, name: str) -> StageProgress | None:
    return means.stages_of(name) if means.stages_of else None


def keep_bundle(
    experiments: Experiments, experiment: Experiment, brought: Brought | UnfinishedTask, notes: list[str]
) -> ExperimentResult:
    """Put a bundle in its place in one step, and return the result with its path; notes of the worker are appended.

    Raises:
        TraceFormatError: a file leads out of the bundle; nothing is kept.
    """
    path = experiments.out / experiment.name
    if isinstance(brought, UnfinishedTask):
        return ExperimentResult(experiment.name, str(path), error=brought.reason, exit_code=ClusterError.exit_code)
    notes += brought.notes
    for name in brought.files:
        if leads_out(name):
            raise TraceFormatError(f"a worker named a file outside its bundle: {name!r}", where=path)
    if brought.files:
        with storage_errors(path):
            experiments.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{experiment.name}-", dir=experiments.out) as folder:
                for name, data in brought.files.items():
                    write_atomically(Path(folder) / _FOLDER / name, data)
                shutil.move(Path(folder) / _FOLDER, path)
    return msgspec.structs.replace(brought.result, path=str(path))


def run_there(errand: Errand) -> Brought:
    """Run one experiment on this worker, in a directory of its own that is gone afterwards.

    It takes turns with others of this worker on the same machine, and is stopped when nobody waits for it any more.
    """
    from distributed.worker import get_worker

    worker, experiment = get_worker(), errand.experiment
    _drop_nanny_variables()

    def send_event(event: WorkerEvent) -> None:
        worker.log_event(errand.topic, ["said", experiment.name, msgspec.json.encode(event).decode()])

    means = Means(
        progress=lambda done, total, last: send_event(WorkerEvent(moved=(done, total, last))),
        notify=lambda text: send_event(WorkerEvent(notice=replace_paths(text, _HERE))),
        lock=errand.lock,
        lock_limit=errand.lock_limit,
        keep_going=errand.keep_going,
    )
    with tempfile.TemporaryDirectory(prefix="opscope-") as work, _stop_when_unwanted():
        out = Path(work) / _FOLDER
        experiments = Experiments(Path(work) / errand.config[0], out, (experiment,))
        try:
            experiments.file.write_bytes(errand.config[1])
            paths = unpack_files(errand.sent, Path(work))
            experiments = msgspec.structs.replace(experiments, experiments=(with_local_paths(experiment, paths),))
            with heard_by(lambda stage, detail: send_event(WorkerEvent(stage=(stage, detail)))):
                outcome = TURNS.attempt(
                    experiments.experiments[0],
                    lambda e: experiment_target(e, out / e.name, means),
                    lambda e, target: attempt(experiments, e, means, target),
                    lambda e, error: failed(experiments, e, error),
                )
            result = _restore_names(outcome.result, errand, paths, out / experiment.name)
            texts = [replace_paths(note, {**paths, **_HERE}) for note in outcome.notes]
            return Brought(result, _bundle_files(out / experiment.name), texts)
        except OpscopeError as error:  # this worker's disk is full, for example, and others go on
            return Brought(failed(experiments, experiment, error).result, _bundle_files(out / experiment.name), [])


def _drop_nanny_variables() -> None:
    """Drop the variables that Dask's nanny gives a worker, such as a limit of threads: they change what is measured."""
    import dask
    from distributed.worker import get_worker

    if get_worker().nanny is not None:
        for name, value in dask.config.get("distributed.nanny.pre-spawn-environ").items():
            if os.environ.get(name) == str(value):
                del os.environ[name]


@contextlib.contextmanager
def _stop_when_unwanted() -> Iterator[None]:
    """Stop this thread of a worker when its call was cancelled, or who asked for it is gone.

    Raises UnwantedError then. Nothing less would leave the worker to others: Dask ends one on whose thread a
    KeyboardInterrupt arrives.
    """
    from distributed.worker import get_worker, thread_state

    worker, key = get_worker(), thread_state.key
    request, ended = StopRequest(), threading.Event()

    def watch_task() -> None:
        while not ended.wait(_LOOK_SECONDS):
            task = worker.state.tasks.get(key)
            if task is None or task.state not in {"executing", "long-running"}:
                request.ask()
                return

    threading.Thread(target=watch_task, daemon=True).start()
    try:
        with request.heard():
            yield
    except KeyboardInterrupt:
        raise UnwantedError from None
    finally:
        ended.set()


def unpack_files(sent: Sequence[Sent], work: Path) -> dict[str, str]:
    """Write files into a directory; return the paths of what was named, by its name.

    Raises:
        UsageError: a file leads out of the directory.
    """
    paths = {}
    for number, item in enumerate(sent):
        folder = work / f"files-{number:04}"
        for name, file in item.files.items():
            if leads_out(name):
                raise UsageError(f"a client named a file outside its folder: {name!r}", where=item.original)
            path = folder / PurePosixPath(name)
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.content)
                path.chmod(0o755 if file.is_executable else 0o644)
        paths[item.original] = str(folder / item.first) if item.first else str(folder)
    return paths


def with_local_paths(experiment: Experiment, paths: Mapping[str, str]) -> Experiment:
    """Return an experiment that names its files where they lie here."""

    def local_path(name: str | None) -> str | None:
        return None if name is None else paths.get(name, name)

    variants = tuple(
        msgspec.structs.replace(
            variant,
            model=local_path(variant.model),
            runner=None if variant.runner is None else Path(paths[str(variant.runner)]),
        )
        for variant in experiment.variants
    )
    target = parse_target(experiment.target, builds_named=True)
    return msgspec.structs.replace(
        experiment,
        model=paths[experiment.model],
        models=None,
        against=local_path(experiment.against),
        inputs=local_path(experiment.inputs),
        data=local_path(experiment.data),
        target=target.running(paths[target.runner]).text if target.runner else experiment.target,
        variants=variants,
    )


def _restore_names(result: ExperimentResult, errand: Errand, paths: Mapping[str, str], path: Path) -> ExperimentResult:
    """Name files and models as the experiment does: in the result, and in the bundle with its reports."""
    if result.error is not None:
        result = msgspec.structs.replace(result, error=replace_paths(result.error, {**paths, **_HERE}))
    if is_bundle(path):
        bundle = Bundle.open(path)
        bundle.restate(_restore_manifest(bundle.manifest, errand, paths))
        if result.content is not None:
            shown_content = content_of(bundle)
            write_reports(path, shown_content, REPORT_FORMATS)
            result = msgspec.structs.replace(result, content=shown_content)
    return result


def _restore_manifest(manifest: Manifest, errand: Errand, paths: Mapping[str, str]) -> Manifest:
    """Name files and models in a manifest as the experiment does."""
    quoted = {
        msgspec.json.encode(original).decode()[1:-1]: msgspec.json.encode(path).decode()[1:-1]
        for original, path in paths.items()
    }
    restored = from_json(replace_paths(to_json(manifest).decode(), quoted).encode(), Manifest)
    names = {item.original: item.model for item in errand.sent if item.model}

    def restore_name(model: Model) -> Model:
        return msgspec.structs.replace(model, name=names.get(model.source, model.name))

    return msgspec.structs.replace(
        restored,
        model=restore_name(restored.model),
        programs={variant: restore_name(model) for variant, model in restored.programs.items()},
        request=errand.experiment.request if restored.request else None,
    )


def replace_paths(text: str, paths: Mapping[str, str]) -> str:
    """Return a text with the original name in place of each path."""
    # Longer paths first: none is then taken for the beginning of another one.
    for original, path in sorted(paths.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(path, original)
    return text


def _bundle_files(bundle: Path) -> dict[str, bytes]:
    """Read the files of a bundle but its lock; empty if there is none."""
    files = [file for file in sorted(bundle.rglob("*")) if file.is_file() and file.name != ".lock"]
    return {file.relative_to(bundle).as_posix(): file.read_bytes() for file in files}
