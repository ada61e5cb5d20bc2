"""Where programs are run: with the native runner, from Python, or with a build of the user's, on each kind of host."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Target
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.install import install_command
from opscope.core.system.pythons import python_at
from opscope.experiment.checks import Check, State, problem_check
from opscope.hosts.adb.device import PHONE_VERSIONS, phone_device, ssh_device
from opscope.hosts.ssh import parse_address
from opscope.hosts.target_kinds import ADB, LOCAL, NATIVE, SSH
from opscope.hosts.this_machine import ThisMachine
from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import PlannedTensor
from opscope.runtimes.executorch.installed import (
    TRACES_SINCE,
    TRIED,
    installed_runtime,
    library_directory,
    runtime_hint,
)
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from opscope.runtimes.executorch.runners.native import NativeTarget, native_here
from opscope.runtimes.executorch.runners.python import local_obstacle, no_runner_hint, python_here, python_on
from opscope.runtimes.hosted import FROM_PYTHON
from opscope.runtimes.loading import loading_problem
from opscope.runtimes.native.building import find_compiler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.hosts.host import Host
    from opscope.hosts.target_kinds import TargetKind


_FROM_BINDINGS = f"{FROM_PYTHON} and torch; the first inference includes loading the method"


def target_named(named: TargetName) -> RunTarget:
    """The target of a name, as :meth:`opscope.runtimes.runtime.Runtime.target` says."""
    if named.runner:
        return build_named(named)
    if named.kind is SSH:
        return _on_ssh(named.address)
    if named.kind is ADB:
        return NativeTarget.on(phone_device(named.address), versions=PHONE_VERSIONS)
    if named.kind.emulated:
        return NativeTarget.emulated()
    return _of_package(named) if named.address else _here(named.kind)


def build_named(
    named: TargetName, runner: Path | None = None, arguments: Sequence[str] = (), program: Path | None = None
) -> ExecutorRunnerTarget:
    """A build of executor_runner, as :meth:`opscope.runtimes.runtime.Runtime.build` says."""
    build = (runner or Path(named.runner)).resolve()
    host = _host(named.beside(Path.cwd()), build)  # a run is finished from anywhere
    inputs, outputs = _tensors(program) if program else ([], [])
    return ExecutorRunnerTarget(host, build, arguments, inputs=inputs, outputs=outputs)


def _host(named: TargetName, build: Path) -> Host:
    """The machine of a name, for a build."""
    if named.kind is SSH:
        return ssh_device(named.address)
    if named.kind is ADB:
        return phone_device(named.address)
    return ThisMachine(Target(named.kind.name, str(build)))


def _tensors(program: Path) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of the first method of a program; none where one is not a tensor."""
    plan = read_executable(program).plans[0]
    sides = [[plan.values[number] for number in numbers] for numbers in (plan.inputs, plan.outputs)]
    inputs, outputs = ([Tensor(list(v.sizes), v.dtype.name) for v in s if isinstance(v, PlannedTensor)] for s in sides)
    return inputs, outputs if len(outputs) == len(sides[1]) else []


@functools.cache
def _on_ssh(address: str) -> RunTarget:
    """Always the same, so that all experiments on a device share one connection."""
    device, python = ssh_device(address), parse_address(address).python
    return python_on(device, python) if python else NativeTarget.on(device)


def _of_package(named: TargetName) -> RunTarget:
    """The native runner for the executorch of another environment."""
    if named.kind is not NATIVE:
        problem = "programs run with another environment's executorch in the native runner only"
        raise UsageError(problem, where=named.text, hint=f"{NATIVE.name}:{named.address}")
    return native_here(package=python_at(named.address))


def _here(kind: TargetKind) -> RunTarget:
    obstacle = local_obstacle()
    if kind is LOCAL:
        if obstacle:
            raise MissingDependencyError(obstacle, hint=no_runner_hint())
        return python_here()
    try:
        return native_here()
    except MissingDependencyError as error:
        if kind is NATIVE or (obstacle and obstacle == error.problem):
            raise
        if obstacle:
            raise MissingDependencyError(f"{error.problem}, and {obstacle}", hint=no_runner_hint()) from None
        return python_here(stand_in=f"{error.problem}; {_FROM_BINDINGS}")


def python_needed(program: Path, calls: Sequence[str]) -> str | None:
    """Why only the Python bindings run these calls of a program; None where any runner does."""
    lacking = [one.namespace for one in extra_kernels(program) if one.library is None]
    if lacking:
        return f"kernels of {', '.join(lacking)} come with executorch's Python package alone"
    methods = {plan.name for plan in read_executable(program).plans}
    return None if methods.issuperset(calls) else "phases of one method are called from Python"


def runs_python(named: TargetName) -> bool:
    """Return whether programs run there with the Python bindings."""
    return named.kind is LOCAL or (named.kind is SSH and bool(parse_address(named.address).python))


def python_instead(why: str) -> RunTarget:
    """This machine, from Python, in place of the native runner."""
    obstacle = local_obstacle()
    if obstacle:
        raise MissingDependencyError(f"{obstacle}; {why}", hint=no_runner_hint())
    return python_here(stand_in=f"{why}; {_FROM_BINDINGS}")


def readiness() -> list[Check]:
    """Of the runtime, of what exports, and of what runs programs."""
    check = _executorch()
    return [check] if _installed("executorch") is None else [check, _torch(), _runner()]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _executorch() -> Check:
    name, found = "executorch", _installed("executorch")
    if found is None:
        lacks = "not installed: cannot run models (.pte) or export PyTorch models"
        return Check(name, State.NOTE, lacks, runtime_hint())
    try:
        runtime = installed_runtime()
    except MissingDependencyError as error:
        return problem_check(name, error)
    problem = loading_problem(str(runtime.features))
    if problem:
        return Check(name, State.PROBLEM, f"{found} is installed but cannot be loaded: {problem}", runtime_hint())
    if not runtime.traces:
        limit = f"{found}: it writes no traces, so latency is not split into operators"
        return Check(name, State.NOTE, limit, f"executorch {TRACES_SINCE} and later trace")
    return _tried(name, found)


def _tried(name: str, found: str) -> Check:
    """A version as it is, and whether it is one of those that were tried."""
    tried = TRIED[name]
    if found.partition("+")[0] in tried:
        return Check(name, State.OK, found)
    return Check(name, State.NOTE, f"{found}: not tested with opscope; tested: {', '.join(tried)}")


def _torch() -> Check:
    found = _installed("torch")
    if found is None:
        hint = f"to export models: {install_command('executorch')}"
        return Check("torch", State.NOTE, "not installed: can profile programs (.pte) but not export models", hint)
    return _tried("torch", found)


def _runner() -> Check:
    """What runs programs here: the native runner, else the Python bindings."""
    name = "runner"
    try:
        library_directory()
        compiler = find_compiler()
    except MissingDependencyError as error:
        if local_obstacle():
            return Check(name, State.PROBLEM, f"cannot run programs here: {error.problem}", no_runner_hint())
        limit = f"Python bindings: {error.problem}; each process takes over a second to start"
        return Check(name, State.NOTE, limit, error.hint or "")
    return Check(name, State.OK, f"native, built with {compiler.version}")
