"""Experiments on the workers of a Dask scheduler, each on one that owns its device; their bundles come here.

A worker says what it owns by its resources: ``device:NAME=1`` for each device, ``opscope=1`` for the machine itself. A
resource of 1 is taken by one experiment at a time, so that no two of them disturb each other.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.bundle import check_free, is_bundle
from opscope.core.errors import ClusterError, TraceFormatError, did_you_mean
from opscope.core.files import leads_out, storage_errors, write_atomically
from opscope.workflows.measure.model_files import program_source
from opscope.workflows.measure.run_report import ExperimentResult, RunReport, with_comparisons
from opscope.workflows.measure.workers import Lost, Where, calls, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.experiment.planned import Experiment, Experiments
    from opscope.hosts.lock import LockMode

MACHINE = "opscope"
_FOLDER = "run"


class Errand(NamedTuple):
    """What a worker needs for an experiment.

    Attributes:
        config: name and content of the file that asked for it.
        experiment: as it was read.
        program: content of the .pte; None for a registered model, which the worker exports.
        lock: what to do when another run measures on the machine.
    """

    config: tuple[str, bytes]
    experiment: Experiment
    program: bytes | None
    lock: LockMode = "wait"


class Brought(NamedTuple):
    """What a worker brings.

    Attributes:
        result: of the experiment.
        files: of its bundle, by path; empty when there is none.
        notes: what could not be had there, one sentence each.
    """

    result: ExperimentResult
    files: dict[str, bytes]
    notes: list[str]


def run_on_workers(asked: Experiments, scheduler: str, *, resume: bool, lock: LockMode = "wait") -> RunReport:
    """Run experiments on workers; what a worker brings is here, whole, before the next result is waited for.

    Args:
        asked: the experiments.
        scheduler: its address.
        resume: leave out those whose bundles are there; without it they must not be.
        lock: what a worker does when another run measures on its machine.

    Raises:
        BundleError: a bundle is there already.
        ClusterError: no worker owns a device, or the scheduler was lost.
        NotFoundError: a model is not there.
        StorageError: the system refused to write.
    """
    timed = [e for e in asked.experiments if not e.evidence]
    notes = [*asked.notes]
    notes += [f"{e.name}: evidence of kernels is not collected on workers" for e in asked.experiments if e.evidence]
    there = [e for e in timed if resume and is_bundle(asked.out / e.name)]
    wanted = [e for e in timed if e not in there]
    for experiment in wanted:
        check_free(asked.out / experiment.name)
        program_source(experiment.model, experiment.models)
    _check_owned(wanted, scheduler)
    errands = [_errand(asked.file, experiment)._replace(lock=lock) for experiment in wanted]
    found = {e.name: _there(asked, e) for e in there}
    for errand, brought in zip(errands, calls(Where(scheduler), run_there, errands, needs), strict=True):
        found[errand.experiment.name] = _kept(asked, errand.experiment, brought, notes)
    results = [found[e.name] for e in timed]
    return RunReport(str(asked.file), with_comparisons(asked, results, notes), [], notes)


def needs(errand: Errand) -> dict[str, float]:
    """Resources of a worker that an experiment takes while it runs."""
    return {_resource(errand.experiment): 1.0}


def run_there(errand: Errand) -> Brought:
    """Run one experiment on this worker, in a directory of its own that is gone afterwards."""
    from opscope.experiment.planned import Experiments
    from opscope.workflows.measure.experiments import Means, attempt

    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        file = Path(work) / errand.config[0]
        file.write_bytes(errand.config[1])
        experiment = errand.experiment
        if errand.program is not None:
            program = Path(work) / Path(experiment.model).name
            program.write_bytes(errand.program)
            experiment = msgspec.structs.replace(experiment, model=str(program))
        out = Path(work) / _FOLDER
        done = attempt(Experiments(file, out, (experiment,)), experiment, Means(lock=errand.lock))
        return Brought(done.result, dict(_files(out / experiment.name)), list(done.notes))


def _resource(experiment: Experiment) -> str:
    return MACHINE if experiment.device is None else f"device:{experiment.device}"


def _check_owned(experiments: list[Experiment], scheduler: str) -> None:
    """Make sure that every device has a worker, since Dask would wait for one for ever.

    Raises:
        ClusterError: one has none.
    """
    with connected(scheduler) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        owned = {name for worker in workers for name in worker["resources"]}
    for experiment in experiments:
        name = _resource(experiment)
        if name not in owned:
            hint = f'start one with `dask worker {scheduler} --resources "{name}=1"`; {did_you_mean(name, owned)}'
            raise ClusterError(f"no worker owns {name}", where=experiment.name, hint=hint)


def _errand(file: Path, experiment: Experiment) -> Errand:
    program = Path(experiment.model)
    content = program.read_bytes() if program.suffix == ".pte" or program.is_file() else None
    return Errand((file.name, file.read_bytes()), experiment, content)


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
    """A path that a worker named, once it is known to stay in its bundle.

    Raises:
        TraceFormatError: it does not.
    """
    if leads_out(name):
        raise TraceFormatError(f"a worker named a file outside of its bundle: {name!r}", where=path)
    return name
