"""The main job: a model in, a bundle with its reports out; and the gate on two programs, measured in turns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE
from opscope.bundle.bundle import check_free
from opscope.bundle.settings import MORE_ROUNDS, NOTHING_OFF, PACING, USUAL
from opscope.core.errors import MismatchError, UsageError
from opscope.core.files import storage_errors
from opscope.experiment.config_errors import convert_options
from opscope.experiment.engine import ignore_progress
from opscope.experiment.planned import Experiment, Settings
from opscope.experiment.target_names import kind_named
from opscope.hosts.process import limit_questions
from opscope.machine.clock import SystemClock
from opscope.runtimes.registry import EXPORTER, RUNTIMES, runtime_of
from opscope.workflows.analyze.gate import check_sides, read_budgets
from opscope.workflows.measure.experiment_bundle import check_request, new_bundle, resumed_bundle, target_of
from opscope.workflows.measure.experiments import Means, measure
from opscope.workflows.measure.program_inputs import program_source
from opscope.workflows.measure.resuming import check_agreement, check_options_stated
from opscope.workflows.measure.targets import recorded_target
from opscope.workflows.measure.variants import NEW, OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.gate.gate import ComparisonEvidence
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Manifest
    from opscope.experiment.engine import Progress
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.measurements.results import Profiled

    Module: TypeAlias = Any
    """A ``torch.nn.Module``; torch is not typed here."""
    Tensors: TypeAlias = Any
    """A tensor, or a tuple of tensors."""


def default_directory(model: str, now: datetime) -> Path:
    """Return where a bundle goes when no directory is named: it has the name of the model as the user called it."""
    path = Path(model)
    suffixes = "|".join(
        re.escape(suffix) for suffix in (".py", *(one for runtime in RUNTIMES for one in runtime.suffixes))
    )
    called = path.resolve().name if path.is_dir() else re.sub(rf"({suffixes})(?=:|$)", "", path.name)
    name = re.sub(r"[^\w.-]+", "-", called)
    return Path("opscope-out") / f"{name}-{now:%Y%m%d-%H%M%S}"


def profile(  # noqa: PLR0913 - the one call a notebook makes; all but the first two are by name
    model: str | Path | Module,
    inputs: Tensors | None = None,
    *,
    against: str | Path | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress = ignore_progress,
    target: RunTarget | None = None,
    clock: TimeSource | None = None,
    named: Collection[str] = (),
    notify: Callable[[str], None] | None = None,
) -> Profiled:
    """Profile a model with acceleration on and off, or two programs, and write the bundle with its reports.

    Two programs are measured in one interleaved experiment: every round runs both, each in its own processes, on the
    same inputs, and their outputs are compared. The bundle then has the variants ``new`` and ``old``.

    Args:
        model: what can be exported (see :func:`opscope.api.export`), the path of a .pte, or a PyTorch module.
        inputs: of a module, a tensor or a tuple of them: they tell the shapes that it is exported for. What is measured
            are seeded random numbers of these shapes, the same in every variant.
        against: a second program, the baseline of the first; both run at one thread count, and nothing is switched off.
            None: acceleration is switched off in the baseline.
        settings: how; with ``resume`` those of the bundle count, but for ``ceilings``, and for when to add rounds and
            when to rest where these are given.
        out: directory of the bundle; new or empty, with ``resume`` the one to finish. None: ``opscope-out/MODEL-TIME``.
            The program of a module is kept beside it, in ``OUT-model``.
        resume: run what the bundle in ``out`` still lacks.
        progress: hears of every repetition.
        target: where to run; None: as ``settings.target`` says.
        clock: None: the machine's.
        named: options of the command line that the settings come from, such as ``--seed``: with ``resume`` one that
            contradicts the bundle is an error, and so is ``--dtype`` for a program that is exported already.
        notify: hears that another run is waited for, as sentences; None: nobody does.

    Raises:
        UsageError: an option contradicts the bundle or the model, and the message names both values; or it makes no
            sense for two programs.
        MismatchError: two programs do not take the same inputs, or the target is emulated.
        BusyError: another run measures on the machine, and ``settings.lock`` is ``fail``.
        OpscopeError: of the kind that fits; what was measured before it is kept in ``out``.
    """
    settings = settings or Settings()
    means = Means(
        progress,
        target,
        clock or SystemClock(),
        lock=settings.lock,
        lock_limit=settings.lock_limit,
        keep_going=settings.keep_going,
    )
    means = means if notify is None else means._replace(notify=notify)
    name = str(model) if isinstance(model, str | Path) else type(model).__name__
    path = default_directory(name, means.clock.now()) if out is None else Path(out)
    source = _source(model, inputs, settings, path)
    if against is not None:
        _check_two(settings)
    begun = resumed_bundle(path, source, None if against is None else str(against)) if resume else None
    if isinstance(model, str | Path):
        _check_dtype(source, settings, begun, named)
    experiment = planned_experiment(path.name, source, settings, begun)
    if against is not None:
        experiment = msgspec.structs.replace(experiment, against=str(against), ablate=(NOTHING_OFF,))
    if begun is not None:
        check_agreement(begun, msgspec.structs.replace(experiment, rounds=settings.rounds), named)
        check_options_stated(begun.manifest, experiment)
    with limit_questions(experiment.timeout):
        # A run is finished where it began.
        given = recorded_target(begun.manifest, begun.path, settings.target) if begun and target is None else target
        if begun is None:
            check_request(path, experiment, given)
        place = target_of(experiment, given=given)
        with place.reserved(means.lock_request()) as hold:
            bundle, place = (begun, place) if begun else new_bundle(path, experiment, place, means.clock)
            return measure(bundle, experiment, place, means, hold)


def _check_two(settings: Settings) -> None:
    """Refuse what has no meaning for two programs."""
    if len(settings.thread_counts) != 1:
        raise UsageError("two programs are compared at one thread count", where="--threads", hint="give one number")
    if settings.ladder or settings.ablate not in {(), (NOTHING_OFF,)}:
        where = "--ladder" if settings.ladder else "--ablate"
        raise UsageError(
            "nothing is switched off when two programs are compared", where=where, hint=f"leave out {where}"
        )
    if kind_named(settings.target).emulated:
        raise MismatchError(EMULATED, where=settings.target, hint=ON_THE_DEVICE)


def _check_dtype(source: str, settings: Settings, begun: Bundle | None, named: Collection[str]) -> None:
    """Refuse a number type for a program: it has one."""
    if "--dtype" not in named and settings.dtype == USUAL.dtype:
        return
    models = Path(settings.models) if settings.models else None
    given = begun.manifest.model.given if begun else program_source(source, models=models) is not None
    if given:
        kind = "is exported" if runtime_of(source) is EXPORTER else "is converted"
        problem = f"the number type of a program is fixed when it {kind}, so {settings.dtype} would change nothing"
        hint = "leave it out; for another type, convert or export the model again: opscope export MODEL --dtype TYPE"
        raise UsageError(problem, where="--dtype", hint=hint)


def _settings_of(manifest: Manifest, settings: Settings) -> Settings:
    """The settings with which a bundle is finished: its rounds, and its pacing where no other is given."""
    rounds, request, usual = manifest.plan.rounds, manifest.request, Settings()
    said = {name for name in PACING if getattr(settings, name) != getattr(usual, name)}
    paced: dict[str, Any] = {}
    if request is not None:
        paced = {name: getattr(request, name) for name in PACING if name not in said}
        if said & {"min_seconds", "until"} and "max_rounds" not in said:
            paced["max_rounds"] = None
        elif (request.min_seconds or request.until is not None) and not paced.get("max_rounds", True):
            paced["max_rounds"] = MORE_ROUNDS * request.rounds  # not those that were added since
    settings = msgspec.structs.replace(settings, rounds=rounds, **paced)
    most = None if settings.max_rounds is None else max(settings.max_rounds, rounds)
    return msgspec.structs.replace(settings, max_rounds=most)


def planned_experiment(name: str, source: str, settings: Settings, begun: Bundle | None) -> Experiment:
    """The one experiment that is asked for; of one that has begun, the bundle says how many rounds."""
    if begun is not None:
        settings = _settings_of(begun.manifest, settings)
    models = Path(settings.models) if settings.models else None
    checked = checked_settings(settings)
    return Experiment(name=name, model=source, target=settings.target, models=models, **checked.own())


def _source(model: str | Path | Module, inputs: Tensors | None, settings: Settings, out: Path) -> str:
    """The registered name or the path of the program; a module is exported first."""
    if isinstance(model, str | Path):
        if inputs is not None:
            hint = "leave them out: they come from the seed, in the program's declared shapes"
            raise UsageError("only PyTorch modules take inputs", where="inputs", hint=hint)
        return str(model)
    if inputs is None:
        hint = "give a tensor or a tuple of tensors with the shapes to export for"
        raise UsageError("a PyTorch module needs inputs", where="inputs", hint=hint)
    checked_settings(settings)
    check_free(out)
    directory = out.with_name(f"{out.name}-model")
    check_free(directory)
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return str(EXPORTER.export_live(model, inputs, settings.dtype, directory))


def checked_settings(settings: Settings) -> Settings:
    """The settings, once it is known that they make sense."""
    settings = convert_options(msgspec.structs.asdict(settings), Settings)
    if problem := settings.limit_problem():
        raise UsageError(problem[0], where="--max-rounds", hint=problem[1])
    if NOTHING_OFF in settings.ablate and len(settings.ablate) > 1:
        raise UsageError("none must be the only value", where="--ablate", hint="--ablate none switches nothing off")
    if settings.ladder and settings.ablate:
        raise UsageError("the ladder chooses what to switch off", where="--ladder", hint="leave out --ablate")
    return settings


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
    progress: Progress = ignore_progress,
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
