"""Progress of long work on standard error: a bar on a terminal, elsewhere a line for each stage."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from opscope.bundle.manifest import TracingMode
from opscope.cli.output import say
from opscope.core.system.stages import heard_by
from opscope.core.units import time_text
from opscope.experiment.engine import ignore_progress
from opscope.reports.document.console import Text, TextConsole, moves_cursor
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Task

    from opscope.bundle.manifest import Repetition
    from opscope.core.system.stages import StageProgress, StepProgress
    from opscope.experiment.engine import Progress as RunProgress

_BESIDE = 36
"""Columns of a bar and of the time behind it."""
_SO_FAR = 3
"""Variants whose latencies are shown while they run."""
_A_SECOND = 4
"""How often bars are drawn: what is measured shares the processor with them."""


class Watch(Protocol):
    """Shows what one piece of work is at."""

    def stage(self, stage: str, detail: str) -> None:
        """A stage, or a step in it, as of :class:`opscope.core.system.stages.StageProgress`."""
        ...

    def move(self, done: int, total: int, repetition: Repetition | None) -> None:
        """Repetitions, as of :class:`opscope.experiment.engine.Progress`."""
        ...

    def end(self) -> None:
        """Show nothing more."""
        ...


class StageLines:
    """A line for each stage, for files, pipes and logs.

    ``name``: stands in front of each line; empty where only one thing is running; ``steps``: with a line for each step
    in a stage.
    """

    def __init__(self, name: str = "", *, steps: bool = False) -> None:
        self._front, self._steps = f"{name}: " if name else "", steps
        self._last = ""

    def stage(self, stage: str, detail: str) -> None:
        """Say it, unless it was said last."""
        text = _words(stage, detail if self._steps else "")
        if text != self._last:
            self._say(text)
        self._last = text

    def move(self, done: int, total: int, repetition: Repetition | None) -> None:
        """Say how many there are, and those that fail."""
        if done == 0 and total:
            self.stage(f"running {total} {'process' if total == 1 else 'processes'}", "")
        if repetition and repetition.failure:
            self._say(_failure(repetition))

    def end(self) -> None:
        """Lines stay."""

    def _say(self, line: str) -> None:
        say(f"{self._front}{line}", err=True)


class StageBar:
    """A bar that is gone at the end: how many repetitions are done, and the time that stages take.

    ``name``: stands in front; empty where only one thing is running.
    """

    def __init__(self, bars: Progress, name: str = "") -> None:
        self._bars, self._front = bars, f"{name}: " if name else ""
        self._task, self._stage = bars.add_task(self._cut("preparing"), total=None), ""
        self._medians: dict[str, list[float]] = {}

    def stage(self, stage: str, detail: str) -> None:
        """Show it, with the time since its start."""
        if stage == self._stage and detail:
            self._bars.update(self._task, description=self._cut(_words(stage, detail)))
            return
        self._stage = stage
        self._bars.reset(self._task, description=self._cut(_words(stage, detail)))
        for task in self._bars.tasks:
            if task.id == self._task:
                task.total = None  # which neither reset nor update can say

    def move(self, done: int, total: int, repetition: Repetition | None) -> None:
        """Show which repetition runs, of how many."""
        self._note(repetition)
        text = self._cut(f"running {min(done + 1, total)} of {total} processes{self._so_far()}")
        if done == 0 and total:
            self._bars.reset(self._task, total=total, description=text)
        elif total:
            self._bars.update(self._task, completed=done, total=total, description=text, refresh=True)
        if repetition and repetition.failure:
            self._bars.console.print(Text(f"{self._front}{_failure(repetition)}"))

    def _note(self, repetition: Repetition | None) -> None:
        """Keep the median of an untraced process, of which the answer will be, without its first half."""
        if repetition and repetition.measurement and repetition.arm is TracingMode.TIMED:
            times = repetition.measurement.wall_ns
            self._medians.setdefault(repetition.variant, []).append(median(times[len(times) // 2 :]))

    def _so_far(self) -> str:
        """Latencies of the processes that ran, for somebody who waits."""
        found = [f"{plain(name, 20)} {time_text(median(own))}" for name, own in self._medians.items()]
        return f"; so far {', '.join(found[:_SO_FAR])}" if found else ""

    def end(self) -> None:
        """Take the bar away."""
        self._bars.remove_task(self._task)

    def _cut(self, words: str) -> str:
        return plain(f"{self._front}{words}", max(_BESIDE, self._bars.console.width - _BESIDE))


class _Time(ProgressColumn):
    """The time that is left where that can be told, else the time since the start of the stage."""

    def render(self, task: Task) -> Text:
        """To the second."""
        left = task.time_remaining if task.total else None
        seconds = task.elapsed or 0.0 if left is None else left
        text = str(timedelta(seconds=int(seconds)))
        return Text(text if left is None else f"{text} left", style="cyan")


def _words(stage: str, detail: str) -> str:
    return f"{stage}: {detail}" if detail else stage


def _failure(repetition: Repetition) -> str:
    return f"{repetition.variant} failed: {repetition.failure.message if repetition.failure else ''}"


def _animated() -> bool:
    return moves_cursor(os.environ, terminal=sys.stderr.isatty())


def _new_bars() -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), _Time())
    return Progress(*columns, console=TextConsole(stderr=True), transient=True, refresh_per_second=_A_SECOND)


@contextmanager
def run_progress(*, shown: bool) -> Iterator[RunProgress]:
    """What a run is at, on standard error, with the repetitions that fail; or nothing."""
    if not shown:
        yield ignore_progress
        return
    with ExitStack() as stack:
        watch: Watch = StageBar(stack.enter_context(_new_bars())) if _animated() else StageLines()
        stack.enter_context(heard_by(watch.stage))
        yield watch.move


_BEFORE = ""
"""In place of the name of an experiment: what comes before all of them."""


class ExperimentWatches:
    """What each experiment that is running is at, on standard error.

    ``bars``: of Rich; None: lines are printed; ``shown``: False: nothing is shown, but what is told.
    """

    def __init__(self, bars: Progress | None, *, shown: bool) -> None:
        self._bars, self._shown = bars, shown
        self._watches: dict[str, Watch] = {}

    def progress_of(self, name: str) -> RunProgress:
        """What hears of the repetitions of an experiment."""
        return self._of(name).move if self._shown else ignore_progress

    def stages_of(self, name: str) -> StageProgress | None:
        """What hears of its stages."""
        return self._of(name).stage if self._shown else None

    def before(self, stage: str, detail: str) -> None:
        """Show what comes before the first experiment, such as building a runner for all of them."""
        self._of(_BEFORE).stage(stage, detail)

    def end(self, name: str) -> None:
        """Show no more of an experiment."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.end()

    def tell(self, line: str) -> None:
        """Say a line on standard error, above the bars."""
        if self._bars is None:
            say(line, err=True)
        else:
            self._bars.console.print(Text(line))

    def _of(self, name: str) -> Watch:
        if name != _BEFORE:
            self.end(_BEFORE)
        if name not in self._watches:
            self._watches[name] = StageLines(name) if self._bars is None else StageBar(self._bars, name)
        return self._watches[name]


@contextmanager
def experiments_watched(*, shown: bool) -> Iterator[ExperimentWatches]:
    """What the experiments of a file are at; or nothing."""
    with ExitStack() as stack:
        watches = ExperimentWatches(stack.enter_context(_new_bars()) if shown and _animated() else None, shown=shown)
        stack.enter_context(heard_by(watches.before if shown else None))
        yield watches


@contextmanager
def steps_shown(*, shown: bool) -> Iterator[StepProgress]:
    """The step of an export on standard error, which is gone at its end on a terminal; or nothing."""
    if not shown:
        yield lambda _: None
        return
    with ExitStack() as stack:
        watch: Watch = StageBar(stack.enter_context(_new_bars())) if _animated() else StageLines(steps=True)
        yield lambda step: watch.stage(*step.partition(": ")[::2])
