"""Progress of a run on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from opscope.experiment.engine import silent
from opscope.reports.content.console import Text, TextConsole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.bundle.manifest import Repetition
    from opscope.experiment.engine import Progress as RunProgress
    from opscope.runtimes.executorch.export.lower import StepProgress


@contextmanager
def run_progress(*, shown: bool) -> Iterator[RunProgress]:
    """A bar on standard error that moves with every repetition and names those that failed; or nothing."""
    if not shown:
        yield silent
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("processes"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=TextConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("exporting", total=None)

        def move(done: int, total: int, repetition: Repetition | None) -> None:
            bar.update(task, description="running", completed=done, total=total)
            if repetition and repetition.failure:
                bar.console.print(Text(f"{repetition.variant} failed: {repetition.failure.message}"))

        yield move


@contextmanager
def steps_shown(*, shown: bool) -> Iterator[StepProgress]:
    """A line on standard error that tells the step of an export, and is gone at its end; or nothing."""
    if not shown:
        yield lambda _: None
        return
    console = TextConsole(stderr=True)
    with console.status("starting") as status:
        yield lambda step: status.update(Text(step))
