"""Where programs are run: with the native runner, from Python, or with a build of the user's, on each kind of host."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Target, Tensor
from opscope.core.errors import MissingDependencyError
from opscope.hosts.adb.device import PHONE_VERSIONS, phone_device, ssh_device
from opscope.hosts.ssh import parse_address
from opscope.hosts.target_kinds import ADB, LOCAL, NATIVE, SSH
from opscope.hosts.this_machine import ThisMachine
from opscope.program.structure.plan import PlannedTensor
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from opscope.runtimes.executorch.runners.interpreters import local_obstacle, no_runner_hint
from opscope.runtimes.executorch.runners.native import native_emulated, native_here, native_on
from opscope.runtimes.executorch.runners.python import python_here, python_on
from opscope.runtimes.hosted import FROM_PYTHON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.hosts.host import Host
    from opscope.hosts.target_kinds import TargetKind

_FROM_BINDINGS = f"{FROM_PYTHON} and torch, and loading the method counts in the first inference"


def target_named(named: TargetName) -> RunTarget:
    """The target of a name, as :meth:`opscope.runtimes.runtime.Runtime.target` says."""
    if named.runner:
        return build_named(named)
    if named.kind is SSH:
        return _on_ssh(named.address)
    if named.kind is ADB:
        return native_on(phone_device(named.address), versions=PHONE_VERSIONS)
    return native_emulated() if named.kind.emulated else _here(named.kind)


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
    return python_on(device, python) if python else native_on(device)


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
