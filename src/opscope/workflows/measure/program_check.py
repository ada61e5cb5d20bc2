"""The gate on two programs: both are measured now, in turns, in one bundle, and one is judged by the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.experiment.engine import silent
from opscope.machine.clock import SystemClock
from opscope.workflows.analyze.gate import check_sides, read_budgets
from opscope.workflows.measure.profiling import default_directory, profile
from opscope.workflows.measure.variants import NEW, OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.gate.gate import ComparisonEvidence
    from opscope.experiment.engine import Progress
    from opscope.experiment.planned import Settings
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.measurements.results import Profiled


class ProgramCheck(NamedTuple):
    """What became of two programs.

    Attributes:
        decision: of the gate.
        profiled: the bundle and its reports.
    """

    decision: Decision[ComparisonEvidence]
    profiled: Profiled


def check_programs(  # noqa: PLR0913 - all but the programs are by name
    candidate: str | Path,
    against: str | Path,
    *,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    threshold: float | None = None,
    budget: str | Path | None = None,
    progress: Progress = silent,
    target: RunTarget | None = None,
    clock: TimeSource | None = None,
    named: Collection[str] = (),
    notify: Callable[[str], None] | None = None,
) -> ProgramCheck:
    """Measure two programs in one interleaved experiment, and judge the one by the other.

    Args:
        candidate: what is judged: what can be exported, or the path of a .pte.
        against: the baseline, likewise.
        settings: as of :func:`opscope.profile`.
        out: directory of the bundle, with the variants ``new`` and ``old``; None: ``opscope-out/MODEL-TIME``.
        resume: run what the bundle in ``out`` still lacks.
        threshold: as of :func:`opscope.check`.
        budget: likewise; a file that is wrong is refused before anything runs.
        progress: as of :func:`opscope.profile`.
        target: likewise.
        clock: likewise.
        named: likewise.
        notify: likewise.

    Raises:
        OpscopeError: as :func:`opscope.profile` and :func:`opscope.check` do; what was measured before it is kept in
            ``out``.
    """
    if budget is not None:
        read_budgets(Path(budget))
    clock = clock or SystemClock()
    path = default_directory(str(candidate), clock.now()) if out is None else Path(out)
    done = profile(
        candidate,
        against=against,
        settings=settings,
        out=path,
        resume=resume,
        progress=progress,
        target=target,
        clock=clock,
        named=named,
        notify=notify,
    )
    decision = check_sides(f"{path}#{NEW}", f"{path}#{OLD}", threshold=threshold, budget=budget)
    return ProgramCheck(decision, done)
