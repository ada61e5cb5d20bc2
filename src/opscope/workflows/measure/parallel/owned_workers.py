"""Calls on workers of a Dask scheduler that own what a call needs, such as a device that one call at a time may use.

Results come as they are done, whichever call they are of, and every resource has calls to do as long as there are any:
as many are under way as are owned, and as many again wait at their workers.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, TypeVar

from opscope.core.grouping import grouped
from opscope.core.system.stop import StopRequest
from opscope.workflows.measure.parallel.workers import (
    Lost,
    connected,
    distributed_module,
    killed,
    losses,
    scheduler_lost,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

_Item = TypeVar("_Item")
_Sent = TypeVar("_Sent")
_Result = TypeVar("_Result")
_EACH = 2
_LOOK_SECONDS = 1.0


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
    return Lost(f"the worker that owned {name} is gone, and none came back")


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
