"""Choose where programs run: native runner, Python or a build of the user's, on each kind of host."""

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


def target_named(target_name: TargetName) -> RunTarget:
    """Return the target of a name, as :meth:`opscope.runtimes.runtime.Runtime.target` describes."""
    if target_name.runner:
        return build_named(target_name)
    if target_name.kind is SSH:
        return _target_on_ssh(target_name.address)
    if target_name.kind is ADB:
        return NativeTarget.on(phone_device(target_name.address), versions=PHONE_VERSIONS)
    if target_name.kind.emulated:
        return NativeTarget.emulated()
    return _target_of_package(target_name) if target_name.address else _target_here(target_name.kind)


def build_named(
    target_name: TargetName, runner: Path | None = None, arguments: Sequence[str] = (), program: Path | None = None
) -> ExecutorRunnerTarget:
    """Return the target of a build of executor_runner, as :meth:`opscope.runtimes.runtime.Runtime.build` describes."""
    build = (runner or Path(target_name.runner)).resolve()
    host = _host_of_build(target_name.beside(Path.cwd()), build)  # a run is finished from anywhere
    inputs, outputs = _declared_tensors(program) if program else ([], [])
    return ExecutorRunnerTarget(host, build, arguments, inputs=inputs, outputs=outputs)


def _host_of_build(target_name: TargetName, build: Path) -> Host:
    """Return the machine of a target's name, for a build."""
    if target_name.kind is SSH:
        return ssh_device(target_name.address)
    if target_name.kind is ADB:
        return phone_device(target_name.address)
    return ThisMachine(Target(target_name.kind.name, str(build)))


def _declared_tensors(program: Path) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and outputs of the first method of a program; no outputs if one of them is not a tensor."""
    plan = read_executable(program).plans[0]
    sides = [[plan.values[number] for number in numbers] for numbers in (plan.inputs, plan.outputs)]
    inputs, outputs = ([Tensor(list(v.sizes), v.dtype.name) for v in s if isinstance(v, PlannedTensor)] for s in sides)
    return inputs, outputs if len(outputs) == len(sides[1]) else []


@functools.cache
def _target_on_ssh(address: str) -> RunTarget:
    """Return the target of an ssh address; it is cached, so that experiments on a device share one connection."""
    device, python = ssh_device(address), parse_address(address).python
    return python_on(device, python) if python else NativeTarget.on(device)


def _target_of_package(target_name: TargetName) -> RunTarget:
    """Return the native runner for the executorch of another environment."""
    if target_name.kind is not NATIVE:
        problem = "programs run with another environment's executorch in the native runner only"
        raise UsageError(problem, where=target_name.text, hint=f"{NATIVE.name}:{target_name.address}")
    return native_here(package=python_at(target_name.address))


def _target_here(kind: TargetKind) -> RunTarget:
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
    """Return why only the Python bindings run these calls of a program; None if any runner does."""
    lacking = [shipped.namespace for shipped in extra_kernels(program) if shipped.library is None]
    if lacking:
        return f"kernels of {', '.join(lacking)} come with executorch's Python package alone"
    methods = {plan.name for plan in read_executable(program).plans}
    return None if methods.issuperset(calls) else "phases of one method are called from Python"


def runs_python(target_name: TargetName) -> bool:
    """Return whether programs run on that target with the Python bindings."""
    return target_name.kind is LOCAL or (target_name.kind is SSH and bool(parse_address(target_name.address).python))


def python_instead(reason: str) -> RunTarget:
    """Return this machine, from Python, as a target that replaces the native runner."""
    obstacle = local_obstacle()
    if obstacle:
        raise MissingDependencyError(f"{obstacle}; {reason}", hint=no_runner_hint())
    return python_here(stand_in=f"{reason}; {_FROM_BINDINGS}")


def readiness() -> list[Check]:
    """Check the runtime, what exports models, and what runs programs."""
    check = _check_executorch()
    return [check] if _find_version("executorch") is None else [check, _check_torch(), _check_runner()]


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_executorch() -> Check:
    name, installed_version = "executorch", _find_version("executorch")
    if installed_version is None:
        lacks = "not installed: cannot run models (.pte) or export PyTorch models"
        return Check(name, State.NOTE, lacks, runtime_hint())
    try:
        runtime = installed_runtime()
    except MissingDependencyError as error:
        return problem_check(name, error)
    problem = loading_problem(str(runtime.features))
    if problem:
        return Check(
            name, State.PROBLEM, f"{installed_version} is installed but cannot be loaded: {problem}", runtime_hint()
        )
    if not runtime.traces:
        limit = f"{installed_version}: it writes no traces, so latency is not split into operators"
        return Check(name, State.NOTE, limit, f"executorch {TRACES_SINCE} and later trace")
    return _check_version(name, installed_version)


def _check_version(name: str, installed_version: str) -> Check:
    """Check whether a version is one of the tested ones."""
    tried = TRIED[name]
    if installed_version.partition("+")[0] in tried:
        return Check(name, State.OK, installed_version)
    return Check(name, State.NOTE, f"{installed_version}: not tested with opscope; tested: {', '.join(tried)}")


def _check_torch() -> Check:
    installed_version = _find_version("torch")
    if installed_version is None:
        hint = f"to export models: {install_command('executorch')}"
        return Check("torch", State.NOTE, "not installed: can profile programs (.pte) but not export models", hint)
    return _check_version("torch", installed_version)


def _check_runner() -> Check:
    """Check what runs programs here: the native runner, else the Python bindings."""
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
