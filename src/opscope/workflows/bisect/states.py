"""What is bisected: releases of a runtime, options of a session, or two builds of a user's runner."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.analysis.bisection import BisectedState
from opscope.core.errors import UsageError
from opscope.core.system.stages import enter
from opscope.experiment.target_names import TargetName, parse_target
from opscope.hosts.target_kinds import LOCAL, NATIVE, RUNNER
from opscope.runtimes.registry import RUNTIMES
from opscope.runtimes.runtime import AskedCalls
from opscope.workflows.bisect.bisecting import RunState
from opscope.workflows.bisect.releases import between, chosen, environment_of, installed_pythons, releases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.runtimes.runtime import Runtime
    from opscope.workflows.bisect.releases import Release

_FEWEST = 2


def release_states(
    runtime: Runtime, good: str | None, bad: str | None, versions: Sequence[str], limit: int
) -> list[RunState]:
    """A state for each release from a good one to a bad one, or for each of a list.

    Environments are made when a state is first needed.

    Raises:
        UsageError: too few releases are named, or one that there is not.
        MissingDependencyError: the index is not reached.
    """
    package = runtime.package()
    enter(f"listing releases of {package}")
    every = releases(package, installed_pythons())
    if versions:
        found = chosen(package, every, versions)
    elif good and bad:
        found = between(package, every, good, bad)
    else:
        raise UsageError(
            "needs both ends", where="--bad" if good else "--good", hint="or list releases: --versions A,B"
        )
    if len(found) < _FEWEST:
        raise UsageError("needs two releases at least", where="--versions", hint="for example --versions 1.20.1,1.22.0")
    used: list[Path] = []
    return [_release_state(runtime, package, one, limit, used) for one in found]


def _release_state(runtime: Runtime, package: str, release: Release, limit: int, used: list[Path]) -> RunState:
    def made() -> RunState:
        enter(f"preparing {package} {release.version}")
        environment = environment_of(package, release, runtime.importable, limit, used)
        used.append(environment.home)
        address = environment.python.executable
        kind = LOCAL if runtime.importable else NATIVE
        told = BisectedState(
            release.version, wheel=environment.wheel, sha256=environment.sha256, python=environment.python.text
        )
        return RunState(told, runtime.target(TargetName(kind, address)), counted=TargetName(NATIVE, address).text)

    return RunState(BisectedState(release.version), made=made)


def option_states(runtime: Runtime, program: Path, options: Mapping[str, str]) -> list[RunState]:
    """No option, then one more of them in each state, in their order.

    Raises:
        UsageError: the runtime has none of these options.
    """
    if not runtime.has_options:
        able = " or ".join(one.title for one in RUNTIMES if one.has_options)
        raise UsageError(f"{runtime.title} has no options", where="--options", hint=f"{able} has")
    runtime.check_options(options)
    target = runtime.target_for(parse_target("auto"), [program], lambda _: AskedCalls((), ()))
    states, taken = [RunState(BisectedState("default"), target)], dict[str, str]()
    for key, value in options.items():
        taken[key] = value
        name = re.sub(r"[^\w.+-]", "-", f"{key}-{value}")
        states.append(RunState(BisectedState(name), target, dict(taken)))
    return states


def build_states(runtime: Runtime, good: str, bad: str) -> list[RunState]:
    """Two builds of a user's runner.

    Raises:
        UsageError: one is no build, or they are the same.
    """
    sides = [parse_target(text).beside(Path.cwd()) for text in (good, bad)]
    if sides[0] == sides[1]:
        raise UsageError("the good and the bad build are the same", where="--bad", hint="name two builds")
    return [RunState(BisectedState(name), runtime.build(own)) for name, own in zip(_BUILDS, sides, strict=True)]


def names_build(text: str | None) -> bool:
    """Whether an end is a build, not a release."""
    return text is not None and text.startswith(f"{RUNNER.name}:")


_BUILDS = ("good", "bad")
