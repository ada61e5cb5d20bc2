"""Progress of a run on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from opscope.experiment.engine import silent

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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("exporting", total=None)

        def move(done: int, total: int, repetition: Repetition | None) -> None:
            bar.update(task, description="running", completed=done, total=total)
            if repetition and repetition.failure:
                bar.console.print(f"{repetition.variant} failed: {repetition.failure.message}", markup=False)

        yield move


@contextmanager
def steps_shown(*, shown: bool) -> Iterator[StepProgress]:
    """A line on standard error that tells the step of an export, and is gone at its end; or nothing."""
    if not shown:
        yield lambda _: None
        return
    console = Console(stderr=True)
    with console.status("starting") as status:
        yield lambda step: status.update(Text(step))
