"""Progress of a run on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from opscope.cli.output import say
from opscope.core.printable import printable
from opscope.experiment.engine import silent
from opscope.reports.content.console import Text, TextConsole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID

    from opscope.bundle.manifest import Repetition
    from opscope.experiment.engine import Progress as RunProgress
    from opscope.runtimes.executorch.export.lower import StepProgress


_COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("processes"),
    TimeRemainingColumn(),
)


@contextmanager
def run_progress(*, shown: bool) -> Iterator[RunProgress]:
    """A bar on standard error that moves with every repetition and names those that failed; or nothing."""
    if not shown:
        yield silent
        return
    with Progress(*_COLUMNS, console=TextConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("exporting", total=None)

        def move(done: int, total: int, repetition: Repetition | None) -> None:
            bar.update(task, description="running", completed=done, total=total)
            if repetition and repetition.failure:
                bar.console.print(Text(f"{repetition.variant} failed: {repetition.failure.message}"))

        yield move


class ExperimentBars:
    """A bar for each experiment that is at work, on standard error; names of those that fail go above them.

    Args:
        bars: of Rich; None: nothing is shown.
    """

    def __init__(self, bars: Progress | None) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def of(self, name: str) -> RunProgress:
        """What moves the bar of an experiment."""
        bars = self._bars
        if bars is None:
            return silent
        task = self._tasks[name] = bars.add_task(printable(name), total=None)

        def move(done: int, total: int, repetition: Repetition | None) -> None:
            bars.update(task, completed=done, total=total)
            if repetition and repetition.failure:
                bars.console.print(Text(f"{name}, {repetition.variant} failed: {repetition.failure.message}"))

        return move

    def end(self, name: str) -> None:
        """Take the bar of an experiment away."""
        task = self._tasks.pop(name, None)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)

    def tell(self, line: str) -> None:
        """Say a line on standard error, above the bars."""
        if self._bars is None:
            say(line, err=True)
        else:
            self._bars.console.print(Text(line))


@contextmanager
def experiment_bars(*, shown: bool) -> Iterator[ExperimentBars]:
    """Bars of the experiments of a file, or nothing."""
    if not shown:
        yield ExperimentBars(None)
        return
    with Progress(*_COLUMNS, console=TextConsole(stderr=True), transient=True) as bars:
        yield ExperimentBars(bars)


@contextmanager
def steps_shown(*, shown: bool) -> Iterator[StepProgress]:
    """A line on standard error that tells the step of an export, and is gone at its end; or nothing."""
    if not shown:
        yield lambda _: None
        return
    console = TextConsole(stderr=True)
    with console.status("starting") as status:
        yield lambda step: status.update(Text(step))
