"""``opscope.bisect``: releases of a runtime, options of a session or two builds, what lies between, and the page."""

from __future__ import annotations

import re
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
from opscope.runtimes.registry import RUNTIMES, runtime_of
from opscope.runtimes.runtime import AskedCalls
from opscope.workflows.bisect.bisecting import RESULT, BisectRequest, RunState, bisected
from opscope.workflows.bisect.releases import between, chosen, environment_of, installed_pythons, releases
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.profiling import checked_settings, default_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.experiment.engine import Progress
    from opscope.runtimes.runtime import Runtime
    from opscope.workflows.bisect.releases import Release


def bisect(  # noqa: PLR0913 - all but the model are by name
    model: str | Path,
    *,
    good: str | None = None,
    bad: str | None = None,
    versions: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    work: bool = True,
    disk: str = KEPT,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress = ignore_progress,
    notify: Callable[[str], None] | None = None,
) -> BisectionResult:
    """Find the release, option or build that made a model slower, and its operators.

    Each release runs in an environment of its own, which pip makes with the user's settings and which is kept. A
    release is measured in turns with both ends; what is left in the end, two neighbours, is measured once more.

    Args:
        model: a program: a .pte, .tflite or .onnx.
        good: a release that is fast, or ``runner:PATH`` for a build of executor_runner.
        bad: one that is slow, likewise.
        versions: releases to measure side by side, all of them, in place of both ends.
        options: session options, in place of releases: each is added to those before it.
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
    chosen = checked_settings(settings or Settings())
    if len(chosen.thread_counts) != 1:
        raise UsageError("releases are compared at one thread count", where="--threads", hint="give one number")
    if not Path(model).is_file():
        raise NotFoundError("no such program", where=model, hint="bisect runs a .pte, .tflite or .onnx as it is")
    runtime, clock = runtime_of(model, chosen.runtime), SystemClock()
    limit, usual = parse_size(disk, "--disk"), chosen.session_options or {}
    kind, states = _states(runtime, Path(model), good, bad, versions, options, usual, limit)
    place = default_directory(str(model), clock.now()) if out is None else Path(out)
    means = Means(progress, clock=clock, lock=chosen.lock, lock_limit=chosen.lock_limit)
    command = ["opscope", "bisect", str(model), "--runtime", runtime.name]
    command += [word for name, text in (("--good", good), ("--bad", bad)) if text for word in (name, text)]
    command += ["--versions", ",".join(versions)] if versions else []
    command += [word for key, value in (options or {}).items() for word in ("--options", f"{key}={value}")]
    command += words_of(chosen, (name for name in ExperimentSettings.__struct_fields__ if name != "runtime"))
    request = BisectRequest(
        model=str(model),
        program=Path(model),
        runtime=runtime.title,
        kind=kind,
        states=states,
        settings=chosen,
        command=shell_command(command),
        work=work,
        listed=bool(versions),
    )
    result = bisected(request, place, means if notify is None else means._replace(notify=notify), resume=resume)
    document = bisection_document(result)
    pages = {"report.html": html_document(document), "report.md": marked_markdown(markdown_document(document))}
    write_outputs({place / RESULT: to_json(result), **{place / name: text.encode() for name, text in pages.items()}})
    return shown_as(BisectionResult, result)


def _states(  # noqa: PLR0913, PLR0917 - the three ways to ask
    runtime: Runtime,
    program: Path,
    good: str | None,
    bad: str | None,
    versions: Sequence[str],
    options: Mapping[str, str] | None,
    usual: Mapping[str, str],
    limit: int,
) -> tuple[str, list[RunState]]:
    """What is bisected, and its states."""
    ways = {"--good": good or bad, "--versions": versions, "--options": options}
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        excluded = f"{' and '.join(given)} exclude each other"
        problem = excluded if given else "name both ends, or a list, or options"
        raise UsageError(problem, where=given[-1] if given else "--good", hint="for example --good 1.20.1 --bad 1.24.1")
    if options:
        return "option", option_states(runtime, program, options, usual)
    if names_build(good) or names_build(bad):
        if not (good and bad):
            raise UsageError("needs both builds", where="--bad" if good else "--good", hint="runner:PATH")
        return "build", build_states(runtime, program, good, bad)
    return "release", release_states(runtime, good, bad, versions, limit)


_FEWEST = 2
_LONGEST = 60
"""Of the name of a state: it is that of a directory."""


def release_states(
    runtime: Runtime, good: str | None, bad: str | None, versions: Sequence[str], limit: int
) -> list[RunState]:
    """A state for each release from a good one to a bad one, or for each of a list.

    Environments are made when a state is first needed.

    Raises:
        UsageError: too few releases are named, or one that there is not.
        MissingDependencyError: the index is not reached.
    """
    if not versions and not (good and bad):
        hint = "or list releases: --versions A,B"
        raise UsageError("needs both ends", where="--bad" if good else "--good", hint=hint)
    package = runtime.package()
    enter(f"listing releases of {package}")
    every = releases(package, installed_pythons())
    found = chosen(package, every, versions) if versions else between(package, every, good or "", bad or "")
    if len(found) < _FEWEST:
        raise UsageError("needs two releases at least", where="--versions", hint="for example --versions 1.20.1,1.22.0")
    return [_release_state(runtime, package, one, limit) for one in found]


def _release_state(runtime: Runtime, package: str, release: Release, limit: int) -> RunState:
    def made() -> RunState:
        enter(f"preparing {package} {release.version}")
        environment = environment_of(package, release, runtime.importable, limit)
        address = environment.python.executable
        kind = LOCAL if runtime.importable else NATIVE
        bisected_state = BisectedState(
            release.version, wheel=environment.wheel, sha256=environment.sha256, python=environment.python.text
        )
        return RunState(
            bisected_state, runtime.target(TargetName(kind, address)), counted=TargetName(NATIVE, address).text
        )

    return RunState(BisectedState(release.version), made=made)


def option_states(
    runtime: Runtime, program: Path, options: Mapping[str, str], usual: Mapping[str, str]
) -> list[RunState]:
    """The options that every state has, then one more of the others in each state, in their order.

    Raises:
        UsageError: the runtime has none of these options.
    """
    if not runtime.has_options:
        able = " or ".join(one.title for one in RUNTIMES if one.has_options)
        raise UsageError(f"{runtime.title} has no options", where="--options", hint=f"{able} has")
    runtime.check_options({**usual, **options})
    target = runtime.target_for(parse_target("auto"), [program], lambda _: AskedCalls((), ()))
    taken = dict(usual)
    states = [RunState(BisectedState("without"), target, dict(taken))]
    for number, (key, value) in enumerate(options.items(), 1):
        taken[key] = value
        name = re.sub(r"[^\w.+-]", "-", f"{number}-{key}-{value}")
        states.append(RunState(BisectedState(name[:_LONGEST]), target, dict(taken)))
    return states


def build_states(runtime: Runtime, program: Path, good: str, bad: str) -> list[RunState]:
    """Two builds of a user's runner.

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
    """Whether an end is a build, not a release."""
    return text is not None and text.startswith(f"{RUNNER.name}:")


_BUILDS = ("good", "bad")
