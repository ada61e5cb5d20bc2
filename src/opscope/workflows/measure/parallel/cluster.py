"""Experiments on the workers of a Dask scheduler, each on one that owns its device; their bundles come here.

A worker says what it owns by its resources: ``device:NAME=1`` for each device, ``opscope=1`` for the machine itself. A
resource of 1 is taken by one experiment at a time, so that no two of them disturb each other.

Results come as they are done, and every resource has work as long as there is any: as many experiments are under way as
are owned, and as many again wait at their workers. A worker that lacks files of an experiment says so, and the
experiment comes back to it with them. What a worker tells while it runs comes as events of the scheduler.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import shutil
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.bundle.bundle import Bundle, check_free, is_bundle
from opscope.bundle.manifest import Repetition
from opscope.core.errors import ClusterError, OpscopeError, TraceFormatError, did_you_mean
from opscope.core.files import leads_out, storage_errors, write_atomically
from opscope.core.grouping import grouped
from opscope.core.json import from_json
from opscope.core.system.stages import heard_by
from opscope.core.system.stop import StopRequest
from opscope.experiment.planned import Experiments
from opscope.workflows.measure.experiments import Means, attempt, experiment_target, failed
from opscope.workflows.measure.parallel.carried import (
    Carried,
    Parcel,
    as_named,
    keep_here,
    missing_here,
    placed,
    unpacked,
    with_names,
)
from opscope.workflows.measure.parallel.side_by_side import TURNS
from opscope.workflows.measure.parallel.workers import (
    Lost,
    connected,
    distributed_module,
    killed,
    losses,
    scheduler_lost,
)
from opscope.workflows.measure.program_inputs import program_source
from opscope.workflows.measure.run_report import Attempt, ExperimentResult, RunReport, with_comparisons
from opscope.workflows.reports.reports import REPORT_FORMATS, content_of, write_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from opscope.core.system.stages import StageProgress
    from opscope.experiment.planned import Experiment
    from opscope.hosts.lock import LockMode


MACHINE = "opscope"
_FOLDER = "run"
_EACH = 2
_HERE = {"the worker's machine": "this machine"}
"""What a worker says of where it is, as the client is told."""
_LOOK_SECONDS = 1.0


class Errand(NamedTuple):
    """What a worker needs for an experiment."""

    config: tuple[str, bytes]  # name and content of the file that asked for it
    experiment: Experiment  # as it was read
    carried: tuple[Carried, ...]  # the files that it names
    contents: dict[str, bytes]  # of those that this worker lacks, by hash
    topic: str  # of what is told while it runs
    lock: LockMode  # what to do when another run measures on the machine
    lock_limit: float | None  # longest wait for it, in seconds; None: as usual
    keep_going: bool


class Missing(NamedTuple):
    """Files that a worker lacks for an experiment, which has not begun."""

    worker: str  # its address
    hashes: set[str]


class Brought(NamedTuple):
    """What a worker brings."""

    result: ExperimentResult  # of the experiment
    files: dict[str, bytes]  # of its bundle, by path; empty when there is none
    notes: list[str]  # what could not be had there, one sentence each


class WorkerEvent(msgspec.Struct, frozen=True):
    """What a worker tells of an experiment that it runs: its first word, a stage, a repetition, or a notice."""

    name: str  # of the experiment
    stage: tuple[str, str] | None = None  # with its detail
    moved: tuple[int, int, Repetition | None] | None = None  # how many repetitions are done, of how many, and the last
    notice: str | None = None


class CancelledError(Exception):
    """A task that nobody waits for any more was stopped."""


def run_on_workers(experiments: Experiments, scheduler: str, means: Means, *, resume: bool) -> RunReport:
    """Run experiments on workers; what a worker brings is here, whole, as soon as it is done."""
    timed = [e for e in experiments.experiments if not e.evidence]
    notes = [*experiments.notes]
    notes += [f"{e.name}: workers do not collect kernel evidence" for e in experiments.experiments if e.evidence]
    there = [e for e in timed if resume and is_bundle(experiments.out / e.name)]
    wanted = [e for e in timed if e not in there]
    for experiment in wanted:
        check_free(experiments.out / experiment.name)
        for planned in experiment.all_models:
            program_source(*planned, experiment.models)
    _check_owned(wanted, scheduler)
    experiment_results = {e.name: _there(experiments, e) for e in there}
    with tempfile.TemporaryDirectory(prefix="opscope-") as exports, connected(scheduler) as client, losses(scheduler):
        work = _Work(client, scheduler, wanted, _Sending(experiments, means, Path(exports)))
        with contextlib.closing(work.results()) as done:
            for experiment, brought in done:
                result = experiment_results[experiment.name] = _kept(experiments, experiment, brought, notes)
                means.finished(result, len(timed) - len(experiment_results))
    results = [experiment_results[e.name] for e in timed]
    return RunReport(str(experiments.file), with_comparisons(experiments, results, notes), [], notes)


def run_there(errand: Errand) -> Brought | Missing:
    """Run one experiment on this worker, in a directory of its own that is gone afterwards.

    It takes turns with others of this worker on the same machine, and is stopped when nobody waits for it any more.

    Raises CancelledError: it was stopped. Nothing less would leave the worker to others: Dask ends one on whose thread
    a KeyboardInterrupt arrives.
    """
    try:
        with while_wanted():
            return _run_there(errand)
    except KeyboardInterrupt:
        raise CancelledError from None


def _run_there(errand: Errand) -> Brought | Missing:
    from distributed.worker import get_worker

    experiment = errand.experiment
    _forget_of_nanny(get_worker())
    tell = functools.partial(_tell, get_worker(), errand.topic)
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        out = Path(work) / _FOLDER
        experiments = Experiments(Path(work) / errand.config[0], out, (experiment,))
        try:
            keep_here(errand.contents)
            missing = missing_here(errand.carried)
            if missing:
                return Missing(get_worker().address, missing)
            tell(WorkerEvent(experiment.name))
            experiments.file.write_bytes(errand.config[1])
            places = unpacked(errand.carried, Path(work))
            with heard_by(lambda stage, detail: tell(WorkerEvent(experiment.name, stage=(stage, detail)))):
                done = _attempted(experiments, placed(experiment, places), _means(errand, tell))
            return _brought(done, errand, places, out / experiment.name)
        except OpscopeError as error:  # this worker's disk is full, for example, and others go on
            return Brought(failed(experiments, experiment, error).result, dict(_files(out / experiment.name)), [])


def _forget_of_nanny(worker: Any) -> None:  # noqa: ANN401 - a worker of Dask
    """Drop the variables that Dask's nanny gives a worker, such as a limit of threads: they change what is measured."""
    import dask

    if worker.nanny is not None:
        for name, value in dask.config.get("distributed.nanny.pre-spawn-environ").items():
            if os.environ.get(name) == str(value):
                del os.environ[name]


def _means(errand: Errand, tell: Callable[[WorkerEvent], None]) -> Means:
    name = errand.experiment.name
    return Means(
        progress=lambda done, total, last: tell(WorkerEvent(name, moved=(done, total, last))),
        notify=lambda text: tell(WorkerEvent(name, notice=with_names(text, _HERE))),
        lock=errand.lock,
        lock_limit=errand.lock_limit,
        keep_going=errand.keep_going,
    )


def _attempted(experiments: Experiments, experiment: Experiment, means: Means) -> Attempt:
    """What becomes of an experiment whose files are here, when it is its turn."""
    experiments = msgspec.structs.replace(experiments, experiments=(experiment,))
    return TURNS.attempt(
        experiment,
        lambda e: experiment_target(e, experiments.out / e.name, means),
        lambda e, target: attempt(experiments, e, means, target),
        lambda e, error: failed(experiments, e, error),
    )


def _brought(done: Attempt, errand: Errand, places: Mapping[str, str], path: Path) -> Brought:
    """What is brought, with the files under the names that they have at the client, in reports as well."""
    result, told = done.result, {**places, **_HERE}
    if result.error is not None:
        result = msgspec.structs.replace(result, error=with_names(result.error, told))
    if is_bundle(path):
        bundle = Bundle.open(path)
        bundle.restate(as_named(bundle.manifest, errand.experiment, errand.carried, places))
        if result.content is not None:
            content = content_of(bundle)
            write_reports(path, content, REPORT_FORMATS)
            result = msgspec.structs.replace(result, content=content)
    return Brought(result, dict(_files(path)), [with_names(note, told) for note in done.notes])


def _tell(worker: Any, topic: str, event: WorkerEvent) -> None:  # noqa: ANN401 - a worker of Dask
    worker.log_event(topic, msgspec.json.encode(event).decode())


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


class _Sending:
    """What is sent to workers for experiments, and where what they tell is heard.

    ``asked``: what the file asks for; ``exports``: directory for models that are exported.
    """

    def __init__(self, asked: Experiments, means: Means, exports: Path) -> None:
        self._config = (asked.file.name, asked.file.read_bytes())
        self._exports, self._parcels = exports, dict[str, Parcel]()
        self.means, self.topic = means, f"opscope-{uuid.uuid4().hex}"

    def errand(self, experiment: Experiment, hashes: set[str]) -> Errand:
        """What a worker needs, with the contents of those files, which it lacks."""
        parcel = self._parcels.get(experiment.name)
        if parcel is None:
            with heard_by(self._stages(experiment.name)):
                parcel = self._parcels[experiment.name] = Parcel(experiment, self._exports)
        return Errand(
            self._config,
            experiment,
            parcel.carried,
            parcel.contents(hashes & parcel.hashes),
            self.topic,
            self.means.lock,
            self.means.lock_limit,
            self.means.keep_going,
        )

    def hear(self, event: WorkerEvent) -> None:
        """Pass on what a worker told."""
        if event.stage is not None and (stages := self._stages(event.name)):
            stages(*event.stage)
        if event.moved is not None:
            progress_of = self.means.progress_of
            (progress_of(event.name) if progress_of else self.means.progress)(*event.moved)
        if event.notice is not None:
            self.means.notify(f"{event.name}: {event.notice}")

    def _stages(self, name: str) -> StageProgress | None:
        return self.means.stages_of(name) if self.means.stages_of else None


def _files(bundle: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a bundle but its lock."""
    for file in sorted(bundle.rglob("*")):
        if file.is_file() and file.name != ".lock":
            yield file.relative_to(bundle).as_posix(), file.read_bytes()


def _there(experiments: Experiments, experiment: Experiment) -> ExperimentResult:
    """The result of a bundle that is there already."""
    from opscope.workflows.reports.reports import content

    path = experiments.out / experiment.name
    return ExperimentResult(experiment.name, str(path), content(path))


def _kept(
    experiments: Experiments, experiment: Experiment, brought: Brought | Lost, notes: list[str]
) -> ExperimentResult:
    """Put a bundle in its place in one step, and say where it is now."""
    path = experiments.out / experiment.name
    if isinstance(brought, Lost):
        return ExperimentResult(experiment.name, str(path), error=brought.reason, exit_code=ClusterError.exit_code)
    notes += brought.notes
    if brought.files:
        with storage_errors(path):
            experiments.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{experiment.name}-", dir=experiments.out) as folder:
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


class _Work:
    """Experiments that wait here, and those that are under way.

    ``client``: of the scheduler; ``experiments``: all of them; ``sending``: what is sent for each, and who hears what
    workers tell.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - a client of Dask
        scheduler: str,
        experiments: Sequence[Experiment],
        sending: _Sending,
    ) -> None:
        self._client, self._scheduler, self._sending = client, scheduler, sending
        self._waiting = {name: deque(own) for name, own in grouped(experiments, _resource).items()}
        self._under_way: dict[Any, Experiment] = {}
        self._begun: set[str] = set()
        self._told: set[str] = set()
        self._gone: dict[str, float] = {}
        self._owned, self._looked = dict[str, float](), -math.inf
        self._sent: dict[tuple[str, str], list[Any]] = {}
        self._ended = queue.SimpleQueue[Any]()
        self._heard = queue.SimpleQueue[WorkerEvent]()

    def results(self) -> Generator[tuple[Experiment, Brought | Lost], None, None]:
        """What becomes of each, as soon as it is done; what is under way when the iteration ends is cancelled."""
        topic = self._sending.topic
        self._client.subscribe_topic(topic, self._receive)
        try:
            while self._under_way or any(self._waiting.values()):
                yield from self._done()
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be lost, and there is nothing to do then
                self._client.cancel(list(self._under_way), force=True)
                self._client.unsubscribe_topic(topic)

    def _receive(self, event: tuple[float, str]) -> None:
        """Keep what a worker told for the thread that shows it; the client calls this in a thread of its own."""
        self._heard.put(from_json(event[1], WorkerEvent))
        self._ended.put(None)

    def _done(self) -> Iterator[tuple[Experiment, Brought | Lost]]:
        """The next one that is done within a moment, with what came of it; else those that are given up."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._owned, self._looked = _owned(self._client, self._scheduler), time.monotonic()
            self._tell_waiting()
        self._submit(self._owned)
        with contextlib.suppress(queue.Empty):
            future = self._ended.get(timeout=_LOOK_SECONDS)
            self._hear()
            if future in self._under_way:
                experiment = self._under_way.pop(future)
                found = _result(future)
                if not isinstance(found, Missing):
                    yield experiment, found
                elif lost := self._keeps_nothing(found):
                    yield experiment, lost
                else:
                    self._send(experiment, found)
            return
        yield from self._given_up(self._owned)

    def _hear(self) -> None:
        """Pass on what workers told of experiments that are under way."""
        running = {experiment.name for experiment in self._under_way.values()}
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._heard.get_nowait()
                self._begun.add(event.name)
                if event.name in running:
                    self._sending.hear(event)

    def _tell_waiting(self) -> None:
        """Say of a resource for which nothing of ours runs that others have its worker; asked about once a second."""
        quiet = {_resource(experiment) for experiment in self._under_way.values()} - self._told - self._gone.keys()
        quiet -= {_resource(experiment) for experiment in self._under_way.values() if experiment.name in self._begun}
        if not quiet:
            return
        ours = {future.key: _resource(experiment) for future, experiment in self._under_way.items()}
        for keys in self._client.processing().values():
            others = any(str(key).startswith(f"{run_there.__name__}-") and key not in ours for key in keys)
            for name in sorted(quiet.intersection(ours.get(key, "") for key in keys) if others else ()):
                self._told.add(name)
                self._sending.means.notify(f"waiting for {name}: its worker is busy with another run")

    def _submit(self, owned: Mapping[str, float]) -> None:
        counts = Counter(_resource(experiment) for experiment in self._under_way.values())
        for name, items in self._waiting.items():
            most = _EACH * max(1, int(owned.get(name, 0)))
            for _ in range(min(len(items), most - counts[name])):
                self._send(items.popleft())

    def _send(self, experiment: Experiment, missing: Missing | None = None) -> None:
        """Give an experiment to the scheduler; again with the files that the worker lacks which it had come to."""
        keys = [(missing.worker, sha256) for sha256 in missing.hashes] if missing else []
        # What is on its way to a worker comes before this does.
        coming = {key[1] for key in keys if any(one in self._under_way for one in self._sent.get(key, ()))}
        errand = self._sending.errand(experiment, missing.hashes - coming if missing else set())
        where = {"workers": [missing.worker], "allow_other_workers": True} if missing else {}
        future = self._client.submit(run_there, errand, pure=False, resources={_resource(experiment): 1.0}, **where)
        for key in keys:
            if key[1] not in coming:
                self._sent.setdefault(key, []).append(future)
        self._under_way[future] = experiment
        future.add_done_callback(self._ended.put)

    def _keeps_nothing(self, missing: Missing) -> Lost | None:
        """Why a worker is given up that lacks what was sent to it again and again; None while it may be tried."""
        tried = max(len(self._sent.get((missing.worker, sha256), ())) for sha256 in missing.hashes)
        return Lost(f"{missing.worker} does not keep the files that are sent to it") if tried > _EACH else None

    def _given_up(self, owned: Mapping[str, float]) -> Iterator[tuple[Experiment, Lost]]:
        """Those that no worker can run: after a while, and not before all others are done."""
        needed = {_resource(own) for own in self._under_way.values()} | {
            n for n, items in self._waiting.items() if items
        }
        now, patience = time.monotonic(), self._sending.means.worker_seconds
        self._gone = {name: self._gone.get(name, now) for name in needed if not owned.get(name)}
        if self._gone.keys() != needed or any(now - since < patience for since in self._gone.values()):
            return
        left = [(future, own) for future, own in self._under_way.items() if _resource(own) in self._gone]
        self._client.cancel([future for future, _ in left], force=True)
        for future, experiment in left:
            del self._under_way[future]
            yield experiment, _ownerless(_resource(experiment))
        for name in self._gone:
            while self._waiting[name]:
                yield self._waiting[name].popleft(), _ownerless(name)


def _ownerless(name: str) -> Lost:
    return Lost(f"the worker that owned {name} is gone and did not return")


def _owned(client: Any, scheduler: str) -> dict[str, float]:  # noqa: ANN401 - likewise
    """How much of each resource there is, all workers together."""
    counts: Counter[str] = Counter()
    told = client.scheduler_info(n_workers=-1)
    if "workers" not in told:
        raise scheduler_lost(scheduler)
    for worker in told["workers"].values():
        counts.update(worker["resources"])
    return dict(counts)


def _result(future: Any) -> Brought | Missing | Lost:  # noqa: ANN401 - a future of Dask
    try:
        found: Brought | Missing = future.result()
    except distributed_module().scheduler.KilledWorker as error:
        return killed(error)
    return found


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
