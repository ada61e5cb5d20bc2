"""Experiments on several devices side by side: each device in a thread of its own, no machine twice at a time.

What one target is told to do comes one after the other, in the order of the file. Targets that lead to the same
machine, by whatever names, take turns on it. An experiment on this machine runs alone: exporting models and writing
reports for the others would disturb it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING

from opscope.core.errors import BusyError, DeviceError, OpscopeError
from opscope.core.grouping import grouped
from opscope.core.system.stop import StopRequest, check_stop
from opscope.experiment.target_names import kind_named
from opscope.hosts.lock import lock_identity
from opscope.hosts.process import limit_questions
from opscope.hosts.shell import LocalShell
from opscope.workflows.measure.run_report import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from opscope.experiment.planned import Experiment
    from opscope.experiment.target import RunTarget

_LOOK_SECONDS = 0.5
_LEAVE_SECONDS = 30.0
"""How long threads may take to leave things in order after they were asked to stop."""
_TWICE = 2


class MachineTurns:
    """Whose turn it is on which machine."""

    def __init__(self) -> None:
        self._busy: dict[str, bool] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, machine: str, *, alone: bool = False) -> Iterator[None]:
        """Wait for a machine, and have it for the block."""
        with self._changed:
            while machine in self._busy or any(self._busy.values()) or (alone and self._busy):
                self._changed.wait(_LOOK_SECONDS)
                check_stop()
            self._busy[machine] = alone
        try:
            yield
        finally:
            with self._changed:
                del self._busy[machine]
                self._changed.notify_all()

    def attempt(
        self,
        experiment: Experiment,
        target_of: Callable[[Experiment], RunTarget],
        attempt: Callable[[Experiment, RunTarget], Attempt],
        failed: Callable[[Experiment, OpscopeError], Attempt],
    ) -> Attempt:
        """Run an experiment when it is its turn on its machine; see :func:`side_by_side`."""
        try:
            with limit_questions(experiment.timeout):
                target = target_of(experiment)
                machine, here = _machine_key(target), lock_identity(LocalShell())
        except OpscopeError as error:
            return failed(experiment, error)
        with self.taken(machine, alone=machine == here):
            return attempt(experiment, target)


TURNS = MachineTurns()
"""Of this process, whoever runs experiments in it."""


def lanes(experiments: Sequence[Experiment], given: Callable[[Experiment], RunTarget | None]) -> list[list[Experiment]]:
    """Experiments that run one after the other, in the order of the file: of one device, of this machine."""

    def lane(experiment: Experiment) -> str:
        target = given(experiment)
        if target is not None:
            return f"given {id(target)}"
        return experiment.target if kind_named(experiment.target).remote else ""

    return [list(group) for group in grouped(experiments, lane).values()]


def side_by_side(
    lanes: Sequence[Sequence[Experiment]],
    target_of: Callable[[Experiment], RunTarget],
    attempt: Callable[[Experiment, RunTarget], Attempt],
    failed: Callable[[Experiment, OpscopeError], Attempt],
) -> Generator[Attempt, None, None]:
    """Run experiments on several devices at once; yield each attempt as soon as it is over.

    A device that was lost in two experiments in a row is left alone, and the others go on. Whatever ends the iteration
    early, such as Ctrl-C, ends the processes that are at work, and leaves their bundles in order.
    """
    stop, done = StopRequest(), queue.Queue[Attempt | BaseException | None]()

    def one(experiment: Experiment) -> Attempt:
        return TURNS.attempt(experiment, target_of, attempt, failed)

    def work(lane: Sequence[Experiment]) -> None:
        try:
            with stop.heard():
                for told in in_turn(lane, one, failed):
                    done.put(told)
            done.put(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the main thread raises it
            done.put(error)

    threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        yield from _collect_attempts(done, len(threads))
    finally:
        stop.ask()
        end = time.monotonic() + _LEAVE_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


def _collect_attempts(finished: queue.Queue[Attempt | BaseException | None], lanes: int) -> Iterator[Attempt]:
    """Yield what the threads put into the queue, until each has put None, its end; raise their errors."""
    while lanes:
        entry = finished.get()
        if entry is None:
            lanes -= 1
        elif isinstance(entry, Attempt):
            yield entry
        else:
            raise entry


def in_turn(
    lane: Sequence[Experiment],
    one: Callable[[Experiment], Attempt],
    failed: Callable[[Experiment, OpscopeError], Attempt],
) -> Generator[Attempt, None, None]:
    """Run experiments one after the other; yield each attempt.

    Once their device was lost in two of them in a row, the rest is yielded as not run.
    """
    lost = 0
    for experiment in lane:
        check_stop()
        attempt = one(experiment)
        yield attempt
        error = attempt.error
        lost = lost + 1 if isinstance(error, DeviceError) and not isinstance(error, BusyError) else 0
        if lost == _TWICE and error is not None:
            hint = "fix the device, and run what is missing with --resume"
            gone = DeviceError(f"skipped: the device failed twice in a row: {error}", hint=hint)
            yield from (failed(left, gone) for left in lane[lane.index(experiment) + 1 :])
            return


def _machine_key(target: RunTarget) -> str:
    """Return what distinguishes a target's machine; a target that names no machine counts as a machine itself."""
    host = target.capabilities().host
    return f"target {id(target)}" if host is None else host.lock_identity()
