"""Where calls are made: in this process, in processes of this machine, or on the workers of a Dask scheduler.

Whoever makes the calls, results come in the order of what was asked, and only so many are under way that memory does
not grow with their number.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opscope.core.errors import ClusterError, MissingDependencyError, UsageError
from opscope.core.install import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_EACH = 4
_CONNECT_SECONDS = 10.0
_RETRY = "restart it and repeat the command (`opscope run` with --resume): finished work is not repeated"


class Lost(NamedTuple):
    """A call that no worker finished, and why."""

    reason: str


class Where(NamedTuple):
    """Where calls are made.

    Attributes:
        scheduler: address of a Dask scheduler; None: on this machine.
        jobs: processes on this machine; 1: this one.
    """

    scheduler: str | None = None
    jobs: int = 1


def calls(
    where: Where,
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
) -> Iterator[_Result | Lost]:
    """The result for each item, in their order."""
    if where.scheduler is not None and where.jobs != 1:
        raise UsageError("the workers set the number", where="--jobs", hint="leave out --jobs or --scheduler")
    if where.scheduler is not None:
        yield from _on_cluster(where.scheduler, function, items)
    elif where.jobs > 1:
        yield from _in_pool(where.jobs, function, items)
    else:
        yield from map(function, items)


def _in_pool(jobs: int, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result | Lost]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    def submitted(item: _Item) -> Future[_Result]:
        with _elsewhere():
            return pool.submit(function, item)

    with _elsewhere():
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    with pool:
        try:
            yield from _in_order(submitted, items, jobs * _EACH, lambda future: future.result())
        except BrokenProcessPool:
            raise ClusterError("a process was killed", where="--jobs", hint=_RETRY) from None


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Not in the current directory while a process is started, which looks there for modules until it has begun.

    It goes back to that directory by itself.
    """
    here = os.open(".", os.O_RDONLY)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def _on_cluster(address: str, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result | Lost]:
    distributed = distributed_module()
    with connected(address) as client:
        workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))

        def submitted(item: _Item) -> Any:  # noqa: ANN401 - a future of Dask
            return client.submit(function, item, pure=False)

        def result(future: Any) -> _Result | Lost:  # noqa: ANN401 - likewise
            try:
                found: _Result = future.result()
            except distributed.scheduler.KilledWorker as error:
                return killed(error)
            return found

        with losses(address):
            yield from _in_order(submitted, items, workers * _EACH, result)


def killed(error: Any) -> Lost:  # noqa: ANN401 - an error of Dask
    """Why a call was given up whose workers were killed."""
    return Lost(f"every worker that tried it was killed, the last {error.last_worker.address}")


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of a scheduler."""
    distributed = distributed_module()
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in {"distributed", "tornado", "asyncio"}:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    _check_certificate(address)
    import dask

    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        hint = "start one with `dask scheduler`, and give the address it prints"
        raise ClusterError(f"no scheduler responds: {error}", where=address, hint=hint) from error
    try:
        # Files of experiments travel in calls, which Dask takes for a mistake from 10 MB on.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            yield client
    finally:
        client.close(timeout=2)


def _check_certificate(address: str) -> None:
    """Refuse an address that asks for a certificate where Dask's configuration names none that can be read."""
    if not address.startswith("tls://"):
        return
    reason = "none named"
    try:
        if distributed_module().Security().get_connection_args("client")["ssl_context"] is not None:
            return
    except OSError as error:
        reason = str(error)
    hint = "name ca-file, client.cert and client.key below distributed.comm.tls in Dask's configuration"
    raise ClusterError(f"the scheduler asks for a certificate: {reason}", where=address, hint=hint)


def scheduler_lost(address: str) -> ClusterError:
    """That the scheduler answers no more, and what to do."""
    return ClusterError("the scheduler was lost", where=address, hint=_RETRY)


@contextlib.contextmanager
def losses(address: str) -> Iterator[None]:
    """Turn what Dask raises when its scheduler is gone into an error that says so."""
    from concurrent.futures import CancelledError

    distributed = distributed_module()
    try:
        yield
    except (CancelledError, distributed.comm.CommClosedError, distributed.client.FutureCancelledError) as error:
        raise scheduler_lost(address) from error


def _in_order(
    submit: Callable[[_Item], Any], items: Iterable[_Item], most: int, result: Callable[[Any], _Result | Lost]
) -> Iterator[_Result | Lost]:
    """Results in the order of the items, with so many under way."""
    waiting: deque[Any] = deque()
    for item in items:
        if len(waiting) >= most:
            yield result(waiting.popleft())
        waiting.append(submit(item))
    while waiting:
        yield result(waiting.popleft())


def distributed_module() -> Any:  # noqa: ANN401 - the module, which may be absent
    """Dask's part that is distributed."""
    try:
        import distributed
    except ImportError:
        hint = install_command("store")
        raise MissingDependencyError("Dask is not installed", where="--scheduler", hint=hint) from None
    return distributed
