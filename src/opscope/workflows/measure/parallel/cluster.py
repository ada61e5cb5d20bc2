"""Experiments on the workers of a Dask scheduler, each on one that owns its device; their bundles come here.

A worker says what it owns by its resources: ``device:NAME=1`` for each device, ``opscope=1`` for the machine itself. A
resource of 1 is taken by one experiment at a time, so that no two of them disturb each other.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.bundle import check_free, is_bundle
from opscope.core.errors import ClusterError, StorageError, TraceFormatError, did_you_mean
from opscope.core.files import leads_out, storage_errors, write_atomically
from opscope.experiment.planned import Experiments
from opscope.workflows.measure.experiments import Means, attempt, experiment_target, failed
from opscope.workflows.measure.model_files import program_source
from opscope.workflows.measure.parallel.owned_workers import owned_calls, owned_resources, while_wanted
from opscope.workflows.measure.parallel.side_by_side import TURNS
from opscope.workflows.measure.parallel.workers import Lost
from opscope.workflows.measure.run_report import ExperimentResult, RunReport, with_comparisons

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.experiment.planned import Experiment
    from opscope.hosts.lock import LockMode

MACHINE = "opscope"
_FOLDER = "run"


class Errand(NamedTuple):
    """What a worker needs for an experiment."""

    config: tuple[str, bytes]  # name and content of the file that asked for it
    experiment: Experiment  # as it was read
    program: bytes | None  # content of the .pte; None for a registered model, which the worker exports
    lock: LockMode = "wait"  # what to do when another run measures on the machine


class Brought(NamedTuple):
    """What a worker brings."""

    result: ExperimentResult  # of the experiment
    files: dict[str, bytes]  # of its bundle, by path; empty when there is none
    notes: list[str]  # what could not be had there, one sentence each


def run_on_workers(asked: Experiments, scheduler: str, means: Means, *, resume: bool) -> RunReport:
    """Run experiments on workers; what a worker brings is here, whole, as soon as it is done."""
    timed = [e for e in asked.experiments if not e.evidence]
    notes = [*asked.notes]
    notes += [f"{e.name}: evidence of kernels is not collected on workers" for e in asked.experiments if e.evidence]
    there = [e for e in timed if resume and is_bundle(asked.out / e.name)]
    wanted = [e for e in timed if e not in there]
    for experiment in wanted:
        check_free(asked.out / experiment.name)
        program_source(experiment.model, experiment.models)
    _check_owned(wanted, scheduler)
    found = {e.name: _there(asked, e) for e in there}
    calls = owned_calls(
        scheduler, run_there, wanted, _resource, lambda one: _errand(asked.file, one, means.lock), means.worker_seconds
    )
    with contextlib.closing(calls):
        for experiment, brought in calls:
            result = found[experiment.name] = _kept(asked, experiment, brought, notes)
            means.finished(result, len(timed) - len(found))
    results = [found[e.name] for e in timed]
    return RunReport(str(asked.file), with_comparisons(asked, results, notes), [], notes)


def run_there(errand: Errand) -> Brought:
    """Run one experiment on this worker, in a directory of its own that is gone afterwards.

    It takes turns with others of this worker on the same machine, and is stopped when nobody waits for it any more.
    """
    with while_wanted(), tempfile.TemporaryDirectory(prefix="opscope-") as work:
        file = Path(work) / errand.config[0]
        file.write_bytes(errand.config[1])
        experiment = errand.experiment
        if errand.program is not None:
            program = Path(work) / Path(experiment.model).name
            program.write_bytes(errand.program)
            experiment = msgspec.structs.replace(experiment, model=str(program))
        out, means = Path(work) / _FOLDER, Means(lock=errand.lock)
        asked = Experiments(file, out, (experiment,))
        try:
            done = TURNS.attempt(
                experiment,
                lambda e: experiment_target(e, out / e.name, means),
                lambda e, target: attempt(asked, e, means, target),
                lambda e, error: failed(asked, e, error),
            )
        except StorageError as error:  # this worker's disk is full, and others go on
            done = failed(asked, experiment, error)
        return Brought(done.result, dict(_files(out / experiment.name)), list(done.notes))


def _resource(experiment: Experiment) -> str:
    """Resource of a worker that an experiment takes while it runs."""
    return MACHINE if experiment.device is None else f"device:{experiment.device}"


def _check_owned(experiments: list[Experiment], scheduler: str) -> None:
    """Make sure that every device has a worker, since Dask would wait for one for ever."""
    owned = owned_resources(scheduler)
    for experiment in experiments:
        name = _resource(experiment)
        if name not in owned:
            hint = f'start one with `dask worker {scheduler} --resources "{name}=1"`; {did_you_mean(name, owned)}'
            raise ClusterError(f"no worker owns {name}", where=experiment.name, hint=hint)


def _errand(file: Path, experiment: Experiment, lock: LockMode) -> Errand:
    program = Path(experiment.model)
    content = program.read_bytes() if program.suffix == ".pte" or program.is_file() else None
    return Errand((file.name, file.read_bytes()), experiment, content, lock)


def _files(bundle: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a bundle but its lock."""
    for file in sorted(bundle.rglob("*")):
        if file.is_file() and file.name != ".lock":
            yield file.relative_to(bundle).as_posix(), file.read_bytes()


def _there(asked: Experiments, experiment: Experiment) -> ExperimentResult:
    """The result of a bundle that is there already."""
    from opscope.workflows.reports.reports import content

    path = asked.out / experiment.name
    return ExperimentResult(experiment.name, str(path), content(path))


def _kept(asked: Experiments, experiment: Experiment, brought: Brought | Lost, notes: list[str]) -> ExperimentResult:
    """Put a bundle in its place in one step, and say where it is now."""
    path = asked.out / experiment.name
    if isinstance(brought, Lost):
        return ExperimentResult(experiment.name, str(path), error=brought.reason, exit_code=ClusterError.exit_code)
    notes += brought.notes
    if brought.files:
        with storage_errors(path):
            asked.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{experiment.name}-", dir=asked.out) as folder:
                for name, content in brought.files.items():
                    write_atomically(Path(folder) / _FOLDER / _inside(name, path), content)
                shutil.move(Path(folder) / _FOLDER, path)
    return msgspec.structs.replace(brought.result, path=str(path))


def _inside(name: str, path: Path) -> str:
    """A path that a worker named, once it is known to stay in its bundle."""
    if leads_out(name):
        raise TraceFormatError(f"a worker named a file outside of its bundle: {name!r}", where=path)
    return name
