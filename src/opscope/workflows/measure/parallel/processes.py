"""Processes of this machine that take tasks as the workers of a Dask scheduler do."""

from __future__ import annotations

import contextlib
import os
import queue
from typing import TYPE_CHECKING, Any

from opscope.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from concurrent.futures import Future, ProcessPoolExecutor

THREAD = "thread"
"""Resource that every worker has: as many as it has threads."""


class Processes:
    """Processes of this machine, each an executor of its own, so that it is known whose task a death ended."""

    is_sequential = True  # each process runs its tasks one after the other, in the order of submission

    def __init__(self, jobs: int) -> None:
        self.signals = queue.SimpleQueue[tuple[str, Any]]()
        self._executors: dict[str, ProcessPoolExecutor] = {}
        self._start_processes(jobs)

    def list_capacities(self) -> dict[str, dict[str, int]]:
        """Return how much of each resource the workers have, by the name of the worker."""
        return {worker: {THREAD: 1} for worker in self._executors}

    def find_busy(self) -> set[str]:
        """Return no workers: these processes have tasks of nobody else."""
        return set()

    def submit(self, worker: str, _task: object, function: Callable[[Any], Any], argument: Any) -> Any:  # noqa: ANN401 - whatever the function takes
        """Give a call to a process; return its future."""
        from concurrent.futures import Future
        from concurrent.futures.process import BrokenProcessPool

        def send_signal(future: Future[Any]) -> None:
            is_dead = not future.cancelled() and isinstance(future.exception(), BrokenProcessPool)
            self.signals.put(("dead", worker) if is_dead else ("done", future))

        future: Future[Any]
        try:
            future = self._executors[worker].submit(function, argument)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(send_signal)
        return future

    def cancel(self, _futures: Collection[Any], dead_worker: str | None = None) -> None:
        """Stop calls; replace a process that died."""
        executors = self._executors
        if dead_worker in executors:
            executors.pop(dead_worker).shutdown()
            self._start_processes(1)
        elif dead_worker is None:
            for executor in executors.values():
                executor.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Wait until the processes are at their end."""
        for executor in self._executors.values():
            executor.shutdown(cancel_futures=True)

    def _start_processes(self, count: int) -> None:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        context = multiprocessing.get_context("spawn")
        with _outside_current_directory():
            executors = [ProcessPoolExecutor(1, context) for _ in range(count)]
            started = [executor.submit(os.getpid) for executor in executors]
        try:
            self._executors.update({f"process {f.result()}": e for f, e in zip(started, executors, strict=True)})
        except BrokenProcessPool:
            raise ClusterError(
                "a process was killed while it started",
                where="--jobs",
                hint="run it with --jobs 1, which says what is wrong",
            ) from None


@contextlib.contextmanager
def local_processes(jobs: int) -> Iterator[Processes]:
    """Have processes of this machine for the block."""
    pool = Processes(jobs)
    try:
        yield pool
    finally:
        pool.close()


@contextlib.contextmanager
def _outside_current_directory() -> Iterator[None]:
    """Leave the current directory while a process is started, which looks there for modules until it has begun.

    The process goes back to that directory by itself.
    """
    directory = os.open(".", os.O_RDONLY)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(directory)
        os.close(directory)
