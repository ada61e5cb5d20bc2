"""Hand tasks to the workers of a Dask scheduler, or to processes of this machine, by one interface.

Every task is given to one named worker. So it is known which tasks a dying worker had: each is
repeated once on another worker, and is given up, with the names of both workers, when that one dies as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opscope.core.errors import ClusterError, MissingDependencyError, UsageError
from opscope.core.grouping import grouped
from opscope.core.install import install_command
from opscope.workflows.measure.parallel.processes import THREAD, Processes, local_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_TRIES = 2
_DEPTH = 4
"""Tasks under way for each thread of a worker, so that none waits for the next one."""
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
_RETRY = "restart it and repeat the command (`opscope run` with --resume): finished work is not repeated"


class UnfinishedTask(NamedTuple):
    """A task that no worker finished, and why."""

    reason: str


class Where(NamedTuple):
    """A place where calls are made: a scheduler, or processes of this machine.

    Attributes:
        scheduler: address of a Dask scheduler; None: on this machine.
        jobs: processes on this machine; 1: this one.
    """

    scheduler: str | None = None
    jobs: int = 1


class Task(NamedTuple):
    """A call that one worker makes."""

    name: str  # as notes and errors name it
    argument: Any
    resource: str = THREAD  # what it takes of its worker while it runs


class HandoutSettings(NamedTuple):
    """How tasks are handed out."""

    pack: Callable[[Any], Any] = lambda argument: argument  # makes what is sent of an argument, when it is sent
    hear: Callable[[str, str], None] = lambda _name, _text: None  # hears messages of tasks
    notify: Callable[[str], None] = lambda _text: None  # hears of dead and of busy workers, a sentence each
    patience_seconds: float = _PATIENCE_SECONDS  # how long nothing may run before waiting tasks are given up
    depth: int = 1  # tasks at a worker for each unit of a resource


def run_calls(
    where: Where,
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    notify: Callable[[str], None] = lambda _text: None,
) -> Iterator[_Result | UnfinishedTask]:
    """Yield the result for each item, in their order; memory does not grow with their number.

    Raises:
        UsageError: both a scheduler and a number of processes are named.
        ClusterError: the scheduler cannot be reached or was lost, or a process does not start.
    """
    if where.scheduler is not None and where.jobs != 1:
        raise UsageError("the workers set the number", where="--jobs", hint="leave out --jobs or --scheduler")
    if where.scheduler is None and where.jobs == 1:
        yield from map(function, items)
        return
    tasks = [Task(str(item), item) for item in items]
    ready: dict[int, _Result | UnfinishedTask] = {}
    with local_processes(where.jobs) if where.scheduler is None else dask_workers(where.scheduler) as pool:
        handout = Handout(pool, function, tasks, HandoutSettings(notify=notify, depth=_DEPTH), is_in_order=True)
        with contextlib.closing(handout.results()) as results:
            for number, result in results:
                ready[number] = result
                while handout.first_open in ready:
                    handout.first_open += 1
                    yield ready.pop(handout.first_open - 1)


class Handout:
    """Tasks that wait here, and those that workers have.

    ``pool``: the workers; ``function``: what they call with the argument of a task; ``is_in_order``: the caller
    takes results in the order of the tasks and counts in ``first_open``, so only few tasks after that one are begun.
    """

    def __init__(
        self,
        pool: DaskWorkers | Processes,
        function: Callable[[Any], Any],
        tasks: Sequence[Task],
        terms: HandoutSettings,
        *,
        is_in_order: bool = False,
    ) -> None:
        self._pool, self._function, self._tasks, self._terms = pool, function, tasks, terms
        self._is_in_order, self.first_open = is_in_order, 0
        numbers = grouped(range(len(tasks)), lambda number: tasks[number].resource)
        # Reversed, so that the next one is at the end.
        self._waiting = {resource: group[::-1] for resource, group in numbers.items()}
        self._under_way: dict[Any, tuple[int, str]] = {}  # number and worker, by future, in the order of submission
        self._deaths: dict[int, list[str]] = {}
        self._capacities: dict[str, dict[str, int]] = {}
        self._begun, self._absent = set[tuple[str, str]](), set[str]()  # names and workers; workers that were not seen
        self._looked, self._idle_since = -math.inf, time.monotonic()
        self._queued_resources = set[str]()

    def results(self) -> Generator[tuple[int, Any], None, None]:
        """Yield the number of each task with its result or UnfinishedTask; cancel calls that still run at the end."""
        try:
            while self._under_way or any(self._waiting.values()):
                if time.monotonic() - self._looked > _LOOK_SECONDS:
                    self._look_at_workers()
                self._submit_waiting()
                yield from self._take_results()
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be lost, and there is nothing to do then
                self._pool.cancel(list(self._under_way))

    def _look_at_workers(self) -> None:
        """Learn which workers there are, and report resources that tasks of other clients take; once a second."""
        self._capacities, self._looked = self._pool.list_capacities(), time.monotonic()
        # Normally a signal says that a worker died. A task that was given to a dead worker is seen here alone.
        absent = {worker for _, worker in self._under_way.values()} - self._capacities.keys()
        for worker in absent & self._absent:
            self._pool.signals.put(("dead", worker))
        self._absent = absent
        tasks = [(self._tasks[number], worker) for number, worker in self._under_way.values()]
        running = {task.resource for task, worker in tasks if (task.name, worker) in self._begun}
        silent = {(task.resource, worker) for task, worker in tasks if task.resource not in running | {THREAD}}
        busy_workers = self._pool.find_busy() if silent else set()
        for resource in sorted({resource for resource, worker in silent if worker in busy_workers}):
            if resource not in self._queued_resources:
                self._queued_resources.add(resource)
                self._terms.notify(f"waiting for {resource}: its worker is busy with another run")

    def _submit_waiting(self) -> None:
        loads = Counter((worker, self._tasks[number].resource) for number, worker in self._under_way.values())
        threads = sum(resources.get(THREAD, 0) for resources in self._capacities.values())
        end = self.first_open + 2 * _DEPTH * max(1, threads) if self._is_in_order else math.inf
        for resource, numbers in self._waiting.items():
            while numbers and numbers[-1] < end:
                worker = self._find_worker(numbers[-1], resource, loads)
                if worker is None:
                    break
                number = numbers.pop()
                loads[worker, resource] += 1
                argument = self._terms.pack(self._tasks[number].argument)
                self._under_way[self._pool.submit(worker, self._tasks[number], self._function, argument)] = (
                    number,
                    worker,
                )

    def _find_worker(self, number: int, resource: str, loads: Mapping[tuple[str, str], int]) -> str | None:
        """Find the worker with most room for a task, if possible not one that died in it; None: all are full."""
        room = {
            worker: resources[resource] * self._terms.depth - loads[worker, resource]
            for worker, resources in self._capacities.items()
            if resources.get(resource)
        }
        dead_workers = self._deaths.get(number, [])
        others = [worker for worker in room if worker not in dead_workers] or list(room)
        best = max(others, key=lambda worker: room[worker], default=None)
        return best if best is not None and room[best] > 0 else None

    def _take_results(self) -> Iterator[tuple[int, Any]]:
        """Wait a moment for the next signal; yield results, or UnfinishedTask for what no worker can run."""
        if self._under_way:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since >= self._terms.patience_seconds:
            for resource, numbers in self._waiting.items():
                while numbers:
                    number = numbers.pop()
                    died = "".join(f"; {worker} died in it" for worker in self._deaths.get(number, ()))
                    yield (
                        number,
                        UnfinishedTask(f"no worker with {resource} is left for {self._tasks[number].name}{died}"),
                    )
            return
        with contextlib.suppress(queue.Empty):
            kind, value = self._pool.signals.get(timeout=_LOOK_SECONDS)
            if kind == "dead":
                yield from self._take_back(value)
            elif kind == "begun":
                self._begun.add(value)
            elif kind == "ended":
                self._begun.discard(value)
            elif kind == "said":
                self._terms.hear(*value)
            elif value in self._under_way:
                number, worker = self._under_way.pop(value)
                self._begun.discard((self._tasks[number].name, worker))
                yield number, value.result()

    def _take_back(self, worker: str) -> Iterator[tuple[int, UnfinishedTask]]:
        """Let the tasks of a dead worker wait again; those that had begun there were tried once more."""
        futures = {future: number for future, (number, at) in self._under_way.items() if at == worker}
        self._capacities.pop(worker, None)
        for index, (future, number) in enumerate(futures.items()):
            del self._under_way[future]
            task = self._tasks[number]
            if (index == 0) if self._pool.is_sequential else (task.name, worker) in self._begun:
                deaths = self._deaths.setdefault(number, [])
                deaths.append(worker)
                if len(deaths) == _TRIES:
                    yield number, UnfinishedTask(f"{' and '.join(deaths)} died in {task.name}")
                    continue
                self._terms.notify(f"{worker} died in {task.name}, which is repeated once")
            numbers = self._waiting[task.resource]
            numbers.append(number)
            numbers.sort(reverse=True)
        self._pool.cancel(list(futures), worker)


class DaskWorkers:
    """The workers of a Dask scheduler."""

    is_sequential = False  # a worker may run several tasks at once; each says when it begins

    def __init__(self, client: Any, address: str) -> None:  # noqa: ANN401 - a client of Dask
        self.signals = queue.SimpleQueue[tuple[str, Any]]()
        self.topic = f"opscope-{uuid.uuid4().hex}"
        self._client, self._address, self._count = client, address, 0
        self._futures: dict[Any, Any] = {}  # Dask's, by those that fetch their results
        # The client calls the handlers in a thread of its own.
        client.subscribe_topic(self.topic, self._hear_task)
        client.subscribe_topic("all", self._hear_scheduler)

    def list_capacities(self) -> dict[str, dict[str, int]]:
        """Return how much of each resource the workers have, by their addresses."""
        state = self._client.scheduler_info(n_workers=-1)
        if "workers" not in state:
            raise scheduler_lost(self._address)
        return {
            address: {THREAD: worker["nthreads"], **{name: int(n) for name, n in worker["resources"].items()}}
            for address, worker in state["workers"].items()
        }

    def find_busy(self) -> set[str]:
        """Return the workers that have tasks of other clients of ours."""
        return {
            worker
            for worker, keys in self._client.processing().items()
            if any(key.startswith("opscope-") and not key.startswith(self.topic) for key in map(str, keys))
        }

    def submit(self, worker: str, task: Task, function: Callable[[Any], Any], argument: Any) -> Any:  # noqa: ANN401 - whatever the function takes
        """Give a call to a worker; return its future."""
        self._count += 1
        future = self._client.submit(
            begin_call,
            (self.topic, task.name, function, argument),
            key=f"{self.topic}-{self._count}",
            pure=False,
            workers=[worker],  # and no other one, so that Dask does not repeat it by itself
            resources=None if task.resource == THREAD else {task.resource: 1.0},
        )
        # A result is fetched beside other work: its worker may die with it, and then it never comes.
        fetched = self._client.gather(future, asynchronous=True)
        fetching = asyncio.run_coroutine_threadsafe(fetched, self._client.loop.asyncio_loop)
        self._futures[fetching] = future
        fetching.add_done_callback(lambda fetching: self.signals.put(("done", fetching)))
        fetching.add_done_callback(self._futures.pop)
        return fetching

    def cancel(self, futures: Collection[Any], _dead_worker: str | None = None) -> None:
        """Cancel the calls of some futures on the scheduler."""
        pending = [self._futures.get(fetching) for fetching in futures]
        self._client.cancel([future for future in pending if future is not None], force=True)

    def _hear_task(self, event: tuple[float, Any]) -> None:
        kind, *values = event[1]
        self.signals.put((kind if kind in {"begun", "ended"} else "said", tuple(values)))

    def _hear_scheduler(self, event: tuple[float, Any]) -> None:
        message = event[1]
        if isinstance(message, dict) and message.get("action") == "remove-worker":
            self.signals.put(("dead", message["worker"]))


@contextlib.contextmanager
def dask_workers(address: str) -> Iterator[DaskWorkers]:
    """Have the workers of a scheduler for the block.

    Raises:
        MissingDependencyError: Dask is not installed.
        ClusterError: the scheduler cannot be reached, asks for a certificate that is missing, or was lost.
    """
    from concurrent.futures import CancelledError

    try:
        import dask
        import distributed
    except ImportError:
        raise MissingDependencyError(
            "Dask is not installed", where="--scheduler", hint=install_command("store")
        ) from None
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in {"distributed", "tornado", "asyncio"}:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    _check_certificate(address, distributed)
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        hint = "start one with `dask scheduler`, and give the address it prints"
        raise ClusterError(f"no scheduler responds: {error}", where=address, hint=hint) from error
    try:
        # Files of experiments travel in calls, which Dask takes for a mistake from 10 MB on.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            yield DaskWorkers(client, address)
    except (CancelledError, distributed.comm.CommClosedError, distributed.client.FutureCancelledError) as error:
        raise scheduler_lost(address) from error
    finally:
        client.close(timeout=2)


def _check_certificate(address: str, distributed: Any) -> None:  # noqa: ANN401 - the module
    """Refuse an address that asks for a certificate where Dask's configuration names none that can be read."""
    if not address.startswith("tls://"):
        return
    reason = "none named"
    try:
        if distributed.Security().get_connection_args("client")["ssl_context"] is not None:
            return
    except OSError as error:
        reason = str(error)
    hint = "name ca-file, client.cert and client.key below distributed.comm.tls in Dask's configuration"
    raise ClusterError(f"the scheduler asks for a certificate: {reason}", where=address, hint=hint)


def scheduler_lost(address: str) -> ClusterError:
    """Make the error that the scheduler does not respond any more."""
    return ClusterError("the scheduler was lost", where=address, hint=_RETRY)


def begin_call(call: tuple[str, str, Callable[[Any], Any], Any]) -> Any:  # noqa: ANN401 - whatever the function gives
    """Make the call of a task on a worker, and let the scheduler know before it begins and when it has ended.

    So a worker that dies is known to have died in what it ran, and not in what it had finished and not yet handed over.
    """
    from distributed.utils import sync
    from distributed.worker import get_worker

    topic, name, function, argument = call
    worker = get_worker()

    def log_state(state: str) -> None:
        sync(worker.loop, worker.scheduler.log_event, topic=topic, msg=[state, name, worker.address])

    log_state("begun")
    try:
        return function(argument)
    finally:
        log_state("ended")
