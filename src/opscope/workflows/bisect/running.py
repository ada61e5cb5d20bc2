"""``opscope.bisect``: releases of a runtime or two builds, what lies between, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.analysis.bisection import BisectedState
from opscope.bundle.settings import ExperimentSettings, words_of
from opscope.core.errors import NotFoundError, UsageError
from opscope.core.json import to_json
from opscope.core.outputs import marked_markdown, write_outputs
from opscope.core.printable import shell_command
from opscope.core.system.cache import KEPT
from opscope.core.system.memory import parse_size
from opscope.core.system.stages import enter
from opscope.experiment.engine import ignore_progress
from opscope.experiment.planned import Settings
from opscope.experiment.target_names import TargetName, parse_target
from opscope.hosts.target_kinds import LOCAL, NATIVE, RUNNER
from opscope.machine.clock import SystemClock
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import BisectionResult
from opscope.reports.bisection import bisection_document
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.runtimes.registry import runtime_of
from opscope.workflows.bisect.bisecting import RESULT, BisectRequest, RunState, run_bisection
from opscope.workflows.bisect.releases import (
    installed_pythons,
    list_releases,
    obtain_environment,
    select_releases,
    select_releases_between,
)
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.profiling import checked_settings, default_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.experiment.engine import Progress
    from opscope.runtimes.runtime import Runtime
    from opscope.workflows.bisect.releases import Release


def bisect(  # noqa: PLR0913 - all but the model are by name
    model: str | Path,
    *,
    good: str | None = None,
    bad: str | None = None,
    versions: Sequence[str] = (),
    work: bool = True,
    disk: str = KEPT,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress = ignore_progress,
    notify: Callable[[str], None] | None = None,
) -> BisectionResult:
    """Find the release or build that made a model slower, and its operators.

    Each release runs in an environment of its own, which pip makes with the user's settings and which is kept. A
    release is measured in turns with both ends; what is left in the end, two neighbours, is measured once more.

    Args:
        model: a program: a .pte, .tflite or .onnx.
        good: a release that is fast, or ``runner:PATH`` for a build of executor_runner.
        bad: one that is slow, likewise.
        versions: releases to measure side by side, all of them, in place of both ends.
        work: whether exact work is counted, where it can be; it leads to the release where it tells of the change.
        disk: limit for all environments that are kept, as ``10GiB``.
        settings: how each is measured.
        out: directory of all bundles and of the page; None: ``opscope-out/MODEL-TIME``.
        resume: take what was measured already in ``out``.
        progress: hears of every repetition.
        notify: hears what is measured next, as sentences.

    Raises:
        UsageError: the ends make no sense.
        NotFoundError: there is no such program or release.
        MissingDependencyError: pip finds no index, or a release that cannot be installed here.
        OpscopeError: of the kind that fits; what was measured before it is kept in ``out``.
    """
    explicit_settings = checked_settings(settings or Settings())
    if len(explicit_settings.thread_counts) != 1:
        raise UsageError("releases are compared at one thread count", where="--threads", hint="give one number")
    if not Path(model).is_file():
        raise NotFoundError("no such program", where=model, hint="bisect runs a .pte, .tflite or .onnx as it is")
    runtime, clock = runtime_of(model, explicit_settings.runtime), SystemClock()
    limit = parse_size(disk, "--disk")
    kind, states = _plan_states(runtime, Path(model), good, bad, versions, limit)
    directory = default_directory(str(model), clock.now()) if out is None else Path(out)
    means = Means(progress, clock=clock, lock=explicit_settings.lock, lock_limit=explicit_settings.lock_limit)
    command = ["opscope", "bisect", str(model), "--runtime", runtime.name]
    command += [word for name, text in (("--good", good), ("--bad", bad)) if text for word in (name, text)]
    command += ["--versions", ",".join(versions)] if versions else []
    command += words_of(explicit_settings, (name for name in ExperimentSettings.__struct_fields__ if name != "runtime"))
    request = BisectRequest(
        model=str(model),
        program=Path(model),
        runtime=runtime.title,
        kind=kind,
        states=states,
        settings=explicit_settings,
        command=shell_command(command),
        work=work,
        listed=bool(versions),
    )
    result = run_bisection(
        request, directory, means if notify is None else means._replace(notify=notify), resume=resume
    )
    document = bisection_document(result)
    pages = {"report.html": html_document(document), "report.md": marked_markdown(markdown_document(document))}
    write_outputs(
        {directory / RESULT: to_json(result), **{directory / name: text.encode() for name, text in pages.items()}}
    )
    return shown_as(BisectionResult, result)


def _plan_states(
    runtime: Runtime, program: Path, good: str | None, bad: str | None, versions: Sequence[str], limit: int
) -> tuple[str, list[RunState]]:
    """Return the kind of the states, in a word, and the states."""
    hint = "for example --good 1.20.1 --bad 1.24.1"
    if versions and (good or bad):
        raise UsageError("--good and --versions exclude each other", where="--versions", hint=hint)
    if not (versions or good or bad):
        raise UsageError("name both ends, or a list", where="--good", hint=hint)
    if names_build(good) or names_build(bad):
        if not (good and bad):
            raise UsageError("needs both builds", where="--bad" if good else "--good", hint="runner:PATH")
        return "build", plan_build_states(runtime, program, good, bad)
    return "release", plan_release_states(runtime, good, bad, versions, limit)


_FEWEST = 2


def plan_release_states(
    runtime: Runtime, good: str | None, bad: str | None, versions: Sequence[str], limit: int
) -> list[RunState]:
    """Return a state for each release from a good one to a bad one, or for each of a list.

    Environments are made when a state is first needed.

    Raises:
        UsageError: too few releases are named.
        NotFoundError: there is no release of a name.
        MissingDependencyError: the index is not reached.
    """
    if not versions and not (good and bad):
        hint = "or list releases: --versions A,B"
        raise UsageError("needs both ends", where="--bad" if good else "--good", hint=hint)
    package = runtime.package()
    enter(f"listing releases of {package}")
    all_releases = list_releases(package, installed_pythons())
    chosen_releases = (
        select_releases(package, all_releases, versions)
        if versions
        else select_releases_between(package, all_releases, good or "", bad or "")
    )
    if len(chosen_releases) < _FEWEST:
        raise UsageError("needs two releases at least", where="--versions", hint="for example --versions 1.20.1,1.22.0")
    return [_plan_release_state(runtime, package, release, limit) for release in chosen_releases]


def _plan_release_state(runtime: Runtime, package: str, release: Release, limit: int) -> RunState:
    def make_state() -> RunState:
        enter(f"preparing {package} {release.version}")
        environment = obtain_environment(package, release, runtime.importable, limit)
        address = environment.python.executable
        kind = LOCAL if runtime.importable else NATIVE
        bisected_state = BisectedState(
            release.version, wheel=environment.wheel, sha256=environment.sha256, python=environment.python.text
        )
        return RunState(
            bisected_state, runtime.target(TargetName(kind, address)), counted=TargetName(NATIVE, address).text
        )

    return RunState(BisectedState(release.version), make=make_state)


def plan_build_states(runtime: Runtime, program: Path, good: str, bad: str) -> list[RunState]:
    """Return the states of two builds of a user's runner.

    Raises:
        UsageError: one is no build, or they are the same.
    """
    sides = [parse_target(text).beside(Path.cwd()) for text in (good, bad)]
    if sides[0] == sides[1]:
        raise UsageError("the good and the bad build are the same", where="--bad", hint="name two builds")
    return [
        RunState(BisectedState(name), runtime.build(target_name, program=program))
        for name, target_name in zip(_BUILDS, sides, strict=True)
    ]


def names_build(text: str | None) -> bool:
    """Return whether an end is a build, not a release."""
    return text is not None and text.startswith(f"{RUNNER.name}:")


_BUILDS = ("good", "bad")
