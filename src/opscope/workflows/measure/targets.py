"""Where a model is run, by name."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Target
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.experiment.target_names import parse_target
from opscope.experiment.variant_targets import VariantTargets
from opscope.hosts.target_kinds import ADB, AUTO, LOCAL, NATIVE, QEMU, SSH, TargetKind, forms
from opscope.runtimes.registry import EXPORTER, runtime_of
from opscope.workflows.measure.phones import PHONE_VERSIONS, phone_device, phone_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.bundle.manifest import Manifest, Tensor
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
    from opscope.runtimes.runtime import Runtime


def target_named(name: str) -> RunTarget:
    """The target of a name.

    Args:
        name: of one of :data:`opscope.hosts.target_kinds.KINDS`.

    Raises:
        UsageError: there is no such target, or a path is missing.
        MissingDependencyError: what the target needs on this machine is missing.
        NotFoundError: the runner does not exist.
        DeviceError: an Android device does not answer, or it is not clear which one is meant.
    """
    named = parse_target(name)
    kind, address = named
    if named.runner:
        return build_target(named)
    if kind is SSH:
        return _ssh_target(address)
    if kind is ADB:
        return phone_target(address)
    return _emulated() if kind is QEMU else _here(kind)


def build_target(
    named: TargetName,
    runner: Path | None = None,
    arguments: Sequence[str] = (),
    inputs: Sequence[Tensor] = (),
    outputs: Sequence[Tensor] = (),
) -> ExecutorRunnerTarget:
    """A build of executor_runner on the host that a name tells of.

    Args:
        named: of a kind that takes builds.
        runner: the build; None for that of the name.
        arguments: further arguments for it.
        inputs: of the program's method.
        outputs: likewise.

    Raises:
        NotFoundError: there is no such runner.
        UsageError: it cannot be used there.
        MissingDependencyError: ssh or adb is not installed.
        DeviceError: the device does not answer.
    """
    from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget

    build = (runner or Path(named.runner)).resolve()
    host = _host(named.beside(Path.cwd()), build)  # a run is finished from anywhere
    return ExecutorRunnerTarget(host, build, arguments, inputs=inputs, outputs=outputs)


def _host(named: TargetName, build: Path) -> Host:
    """The machine of a name, for a build."""
    if named.kind is SSH:
        return _ssh_device(named.address)
    if named.kind is ADB:
        return phone_device(named.address)
    from opscope.hosts.this_machine import ThisMachine

    return ThisMachine(Target(named.kind.name, str(build)))


@functools.cache
def _ssh_device(address: str) -> Device:
    """The device of an address: always the same, so that all builds on it share one connection."""
    from opscope.hosts.device import Device
    from opscope.hosts.ssh import SshShell, parse_address

    place = parse_address(address)
    return Device(SshShell(place), place.directory)


def target_running(model: str, name: str) -> RunTarget:
    """The target of a name for a model: that of its runtime.

    Args:
        model: as it was named, or the path of a program.
        name: of one of :data:`opscope.hosts.target_kinds.KINDS`.

    Raises:
        UsageError: there is no such target, or the model's runtime does not run there.
        MissingDependencyError: what the target needs on this machine is missing.
        OpscopeError: likewise, see :func:`target_named`.
    """
    runtime = runtime_of(model)
    return target_named(name) if runtime is EXPORTER else _package_target(runtime, name)


def _package_target(runtime: Runtime, name: str) -> RunTarget:
    """The package of another runtime."""
    from opscope.runtimes.onnxruntime.target import onnxruntime_here

    named = parse_target(name)
    if runtime.chooses_delegate:
        return _litert_target(named, name, runtime.title)
    if named.kind not in (AUTO, LOCAL):
        hint = f"leave out --target: {AUTO.name} and {LOCAL.name} run it on this machine"
        raise UsageError(f"{runtime.title} models run on this machine only, not on {name}", where="--target", hint=hint)
    return onnxruntime_here()


def _litert_target(named: TargetName, name: str, title: str) -> RunTarget:
    """LiteRT with its native runner, or from Python on this machine.

    Raises:
        UsageError: such models do not run there.
    """
    from opscope.hosts.ssh import parse_address
    from opscope.runtimes.litert.native.target import native_litert_emulated, native_litert_here, native_litert_on
    from opscope.runtimes.litert.target import litert_here

    kind, address = named
    if named.runner or kind.only_builds:
        hint = f"leave out the runner; {forms((NATIVE, SSH, ADB))} run it with opscope's own"
        raise UsageError(f"builds of executor_runner do not run {title} models", where=name, hint=hint)
    if kind is SSH:
        if parse_address(address).python:
            problem = f"a Python of a device runs no {title} models"
            raise UsageError(problem, where=name, hint="leave out ?python=: opscope sends its own runner")
        return native_litert_on(_ssh_device(address))
    if kind is ADB:
        return native_litert_on(phone_device(address), versions=PHONE_VERSIONS)
    if kind is QEMU:
        return native_litert_emulated()
    if kind is LOCAL:
        return litert_here()
    try:
        return native_litert_here()
    except MissingDependencyError as error:
        if kind is NATIVE:
            raise
        return litert_here(stand_in=f"{error.problem}; {_FROM_PYTHON}")


def recorded_target(manifest: Manifest) -> RunTarget:
    """The target that a manifest tells of, for its program.

    Raises:
        UsageError: this version has no such target.
        MissingDependencyError: it is not there any more.
    """
    if not manifest.programs:
        return target_running(manifest.model.program, manifest.target.name)
    return targets_running(
        {v.name: (manifest.model_of(v.name).program, manifest.target_of(v.name).name) for v in manifest.variants}
    )


def targets_running(variants: Mapping[str, tuple[str, str]]) -> RunTarget:
    """The target of several variants: one for each runtime among their models.

    Args:
        variants: model and name of the target of each, at least one.

    Raises:
        OpscopeError: as of :func:`target_running`.
    """
    made: dict[tuple[str, str], RunTarget] = {}
    for model, name in variants.values():
        if (runtime_of(model).name, name) not in made:
            made[runtime_of(model).name, name] = target_running(model, name)
    if len(made) == 1:
        return next(iter(made.values()))
    return VariantTargets({own: made[runtime_of(model).name, name] for own, (model, name) in variants.items()})


@functools.cache
def _ssh_target(address: str) -> RunTarget:
    """The device of an address: always the same, so that all experiments on it share one connection."""
    from opscope.hosts.ssh import parse_address
    from opscope.runtimes.executorch.runners.native import native_on
    from opscope.runtimes.executorch.runners.python import python_on

    device, python = _ssh_device(address), parse_address(address).python
    return python_on(device, python) if python else native_on(device)


def _emulated() -> RunTarget:
    from opscope.runtimes.executorch.runners.native import native_emulated

    return native_emulated()


def _here(kind: TargetKind) -> RunTarget:
    from opscope.runtimes.executorch.runners.interpreters import NO_RUNNER_HINT, local_obstacle
    from opscope.runtimes.executorch.runners.native import native_here
    from opscope.runtimes.executorch.runners.python import python_here

    obstacle = local_obstacle()
    if kind is LOCAL:
        if obstacle:
            raise MissingDependencyError(obstacle, hint=NO_RUNNER_HINT)
        return python_here()
    try:
        return native_here()
    except MissingDependencyError as error:
        if kind is NATIVE or (obstacle and obstacle == error.problem):
            raise
        if obstacle:
            raise MissingDependencyError(f"{error.problem}, and {obstacle}", hint=NO_RUNNER_HINT) from None
        return python_here(stand_in=f"{error.problem}; {_FROM_BINDINGS}")


_FROM_PYTHON = "models ran from Python instead (target local): memory and start-up include Python"
_FROM_BINDINGS = f"{_FROM_PYTHON} and torch, and loading the method counts in the first inference"
