"""Whether this machine can run programs and export models."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.experiment.checks import Check, State, problem_check
from opscope.runtimes.executorch.installed import (
    TRACES_SINCE,
    TRIED,
    installed_runtime,
    library_directory,
    runtime_hint,
)
from opscope.runtimes.executorch.runners.interpreters import local_obstacle, no_runner_hint
from opscope.runtimes.native.building import find_compiler


def readiness() -> list[Check]:
    """Of the runtime, of what exports, and of what runs programs."""
    return [_executorch(), _torch(), _runner()]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _executorch() -> Check:
    name, found = "executorch", _installed("executorch")
    if found is None:
        return Check(name, State.PROBLEM, "not installed: traces can be analysed, models cannot be run", runtime_hint())
    try:
        runtime = installed_runtime()
    except MissingDependencyError as error:
        return problem_check(name, error)
    if not runtime.traces:
        limit = f"{found}: it writes no traces, so latency is measured and not split into operators"
        return Check(name, State.NOTE, limit, f"executorch {TRACES_SINCE} and later trace")
    return _tried(name, found)


def _tried(name: str, found: str) -> Check:
    """A version as it is, and whether it is one of those that were tried."""
    tried = TRIED[name]
    if found.partition("+")[0] in tried:
        return Check(name, State.OK, found)
    return Check(name, State.NOTE, f"{found}: not tried with opscope; tried: {', '.join(tried)}")


def _torch() -> Check:
    found = _installed("torch")
    if found is None:
        hint = f"to export models: {install_command('executorch')}"
        return Check("torch", State.NOTE, "not installed: programs (.pte) can be profiled, models not exported", hint)
    return _tried("torch", found)


def _runner() -> Check:
    """What runs programs here: the native runner, else the Python bindings."""
    name = "runner"
    try:
        library_directory()
        compiler = find_compiler()
    except MissingDependencyError as error:
        if local_obstacle():
            return Check(name, State.PROBLEM, f"nothing runs programs here: {error.problem}", no_runner_hint())
        limit = f"Python bindings: {error.problem}; each process takes over a second to start"
        return Check(name, State.NOTE, limit, error.hint or "")
    return Check(name, State.OK, f"native, built with {compiler.version}")
