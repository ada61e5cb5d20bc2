"""Experiments on the workers of a Dask scheduler, each on one that owns its device; their bundles come here.

A worker says what it owns by its resources: ``device:NAME=1`` for each device, ``opscope=1`` for the machine itself. A
resource of 1 is taken by one experiment at a time, so that no two of them disturb each other.

Calls on workers of a Dask scheduler that own what a call needs, such as a device that one call at a time may use.

Results come as they are done, whichever call they are of, and every resource has calls to do as long as there are any:
as many are under way as are owned, and as many again wait at their workers.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import tempfile
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from opscope.bundle.bundle import check_free, is_bundle
from opscope.core.errors import ClusterError, StorageError, TraceFormatError, did_you_mean
from opscope.core.files import leads_out, storage_errors, write_atomically
from opscope.core.grouping import grouped
from opscope.core.system.stop import StopRequest
from opscope.experiment.planned import Experiments
from opscope.workflows.measure.experiments import Means, attempt, experiment_target, failed
from opscope.workflows.measure.model_files import program_source
from opscope.workflows.measure.parallel.side_by_side import TURNS
from opscope.workflows.measure.parallel.workers import (
    Lost,
    connected,
    distributed_module,
    killed,
    losses,
    scheduler_lost,
)
from opscope.workflows.measure.run_report import ExperimentResult, RunReport, with_comparisons

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from opscope.experiment.planned import Experiment
    from opscope.hosts.lock import LockMode


MACHINE = "opscope"
_FOLDER = "run"
_Item = TypeVar("_Item")
_Sent = TypeVar("_Sent")
_Result = TypeVar("_Result")
_EACH = 2
_LOOK_SECONDS = 1.0


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
    notes += [f"{e.name}: workers do not collect kernel evidence" for e in asked.experiments if e.evidence]
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
        raise TraceFormatError(f"a worker named a file outside its bundle: {name!r}", where=path)
    return name


def owned_resources(scheduler: str) -> set[str]:
    """What the workers of a scheduler own."""
    with connected(scheduler) as client:
        return set(_owned(client, scheduler))


def owned_calls(
    scheduler: str,
    function: Callable[[_Sent], _Result],
    items: Sequence[_Item],
    resource: Callable[[_Item], str],
    sent: Callable[[_Item], _Sent],
    patience: float,
) -> Generator[tuple[_Item, _Result | Lost], None, None]:
    """Each item with its result, as soon as it is done; calls under way when the iteration ends are cancelled."""
    with connected(scheduler) as client, losses(scheduler):
        work = _Work(client, scheduler, lambda item: (function, sent(item)), grouped(items, resource), patience)
        try:
            while work.left:
                yield from work.done()
        finally:
            work.cancel()


class _Work:
    """Calls that wait here, and those that are under way.

    Args:
        client: of the scheduler.
        scheduler: its address.
        call: function and argument for an item.
        items: that wait, by the resource that they need.
        patience: as of :func:`owned_calls`.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - a client of Dask
        scheduler: str,
        call: Callable[[Any], tuple[Callable[[Any], Any], Any]],
        items: Mapping[str, Sequence[Any]],
        patience: float,
    ) -> None:
        self._client, self._scheduler, self._call, self._patience = client, scheduler, call, patience
        self._waiting = {name: deque(own) for name, own in items.items()}
        self._under_way: dict[Any, tuple[str, Any]] = {}
        self._gone: dict[str, float] = {}
        self._ended = queue.SimpleQueue[Any]()

    @property
    def left(self) -> bool:
        """Whether some call is not done."""
        return bool(self._under_way) or any(self._waiting.values())

    def done(self) -> Iterator[tuple[Any, Any]]:
        """The next call that is done within a moment, with what came of it; else those that are given up."""
        owned = _owned(self._client, self._scheduler)
        self._submit(owned)
        with contextlib.suppress(queue.Empty):
            future = self._ended.get(timeout=_LOOK_SECONDS)
            if future in self._under_way:
                _, item = self._under_way.pop(future)
                yield item, _result(future)
                return
        yield from self._given_up(owned)

    def cancel(self) -> None:
        """Let workers stop what is under way."""
        with contextlib.suppress(Exception):  # the scheduler may be lost, and there is nothing to do then
            self._client.cancel(list(self._under_way), force=True)

    def _submit(self, owned: Mapping[str, float]) -> None:
        counts = Counter(name for name, _ in self._under_way.values())
        for name, items in self._waiting.items():
            most = _EACH * max(1, int(owned.get(name, 0)))
            for _ in range(min(len(items), most - counts[name])):
                item = items.popleft()
                future = self._client.submit(*self._call(item), pure=False, resources={name: 1.0})
                self._under_way[future] = name, item
                future.add_done_callback(self._ended.put)

    def _given_up(self, owned: Mapping[str, float]) -> Iterator[tuple[Any, Lost]]:
        """Calls that no worker can make: after a while, and not before all others are done."""
        needed = {name for name, _ in self._under_way.values()} | {n for n, items in self._waiting.items() if items}
        now = time.monotonic()
        self._gone = {name: self._gone.get(name, now) for name in needed if not owned.get(name)}
        if self._gone.keys() != needed or any(now - since < self._patience for since in self._gone.values()):
            return
        left = [(future, own) for future, own in self._under_way.items() if own[0] in self._gone]
        self._client.cancel([future for future, _ in left], force=True)
        for future, (name, item) in left:
            del self._under_way[future]
            yield item, _ownerless(name)
        for name in self._gone:
            while self._waiting[name]:
                yield self._waiting[name].popleft(), _ownerless(name)


def _ownerless(name: str) -> Lost:
    return Lost(f"the worker that owned {name} is gone and did not return")


def _owned(client: Any, scheduler: str) -> dict[str, float]:  # noqa: ANN401 - likewise
    """How much of each resource there is, all workers together."""
    found: Counter[str] = Counter()
    told = client.scheduler_info(n_workers=-1)
    if "workers" not in told:
        raise scheduler_lost(scheduler)
    for worker in told["workers"].values():
        found.update(worker["resources"])
    return dict(found)


def _result(future: Any) -> Any:  # noqa: ANN401 - what the function gives
    try:
        return future.result()
    except distributed_module().scheduler.KilledWorker as error:
        return killed(error)


@contextlib.contextmanager
def while_wanted() -> Iterator[None]:
    """Stop this thread of a worker when the call that it makes was cancelled, or who asked for it is gone."""
    from distributed.worker import get_worker, thread_state

    worker, key = get_worker(), thread_state.key
    request, ended = StopRequest(), threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            task = worker.state.tasks.get(key)
            if task is None or task.state not in {"executing", "long-running"}:
                request.ask()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        with request.heard():
            yield
    finally:
        ended.set()
