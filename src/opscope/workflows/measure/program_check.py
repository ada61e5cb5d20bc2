"""The gate on two programs: both are measured now, in turns, in one bundle, and one is judged by the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.settings import NOTHING_OFF
from opscope.core.errors import MismatchError, UsageError
from opscope.experiment.engine import silent
from opscope.experiment.settings import Settings
from opscope.experiment.target_names import kind_named
from opscope.machine.clock import SystemClock
from opscope.workflows.analyze.gate import check_sides
from opscope.workflows.measure.experiment_bundle import check_request, new_bundle, resumed_bundle, target_of
from opscope.workflows.measure.experiments import Means, measure
from opscope.workflows.measure.profiling import default_directory, planned_experiment
from opscope.workflows.measure.targets import recorded_target
from opscope.workflows.measure.variants import NEW, OLD

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.gate.gate import ComparisonEvidence
    from opscope.experiment.engine import Progress
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
    notify: Callable[[str], None] | None = None,
) -> ProgramCheck:
    """Measure two programs in one interleaved experiment, and judge the one by the other.

    Every round runs both, each in its own processes, on the same inputs; their outputs are compared. The bundle has
    the variants ``new`` and ``old``, and everything that bundles have.

    Args:
        candidate: what is judged: what can be exported, or the path of a .pte.
        against: the baseline, likewise.
        settings: how both are measured; one thread count, and nothing is switched off.
        out: directory of the bundle; None: ``opscope-out/MODEL-TIME``.
        resume: run what the bundle in ``out`` still lacks.
        threshold: as of :func:`opscope.check`.
        budget: likewise.
        progress: hears of every repetition.
        target: where to run; None: as ``settings.target`` says.
        clock: None: the machine's.
        notify: hears that another run is waited for, as sentences; None: nobody does.

    Raises:
        BusyError: another run measures on the machine, and ``settings.lock`` is ``fail``.
        MismatchError: the programs do not take the same inputs, or the target is emulated.
        UsageError: a setting makes no sense for two programs.
        OpscopeError: of the kind that fits; what was measured before it is kept in ``out``.
    """
    settings = settings or Settings()
    means = Means(progress, target, clock or SystemClock(), lock=settings.lock)
    means = means if notify is None else means._replace(notify=notify)
    path = default_directory(str(candidate), means.clock.now()) if out is None else Path(out)
    _check_settings(settings)
    begun = resumed_bundle(path, str(candidate), str(against)) if resume else None
    planned = planned_experiment(path.name, str(candidate), settings, begun)
    experiment = msgspec.structs.replace(planned, against=str(against), ablate=(NOTHING_OFF,))
    given = recorded_target(begun.manifest) if begun and target is None else target
    if begun is None:
        check_request(path, experiment, given)
    place = target_of(experiment, given=given)
    with place.reserved(means.lock_request()) as hold:
        done = measure(begun or new_bundle(path, experiment, place, means.clock), experiment, place, means, hold)
    decision = check_sides(f"{path}#{NEW}", f"{path}#{OLD}", threshold=threshold, budget=budget)
    return ProgramCheck(decision, done)


def _check_settings(settings: Settings) -> None:
    """Refuse what has no meaning for two programs."""
    if len(settings.thread_counts) != 1:
        raise UsageError("two programs are compared at one thread count", where="--threads", hint="give one number")
    if settings.ladder or settings.ablate not in {(), (NOTHING_OFF,)}:
        raise UsageError("nothing is switched off when two programs are compared", where="--ablate")
    if kind_named(settings.target).emulated:
        from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE

        raise MismatchError(EMULATED, where=settings.target, hint=ON_THE_DEVICE)
