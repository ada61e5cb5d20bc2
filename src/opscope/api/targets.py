"""Where a model is run, by name."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.api.phones import ADB, phone_target
from opscope.errors import MissingDependencyError, UsageError, did_you_mean

if TYPE_CHECKING:
    from opscope.bundle.manifest import Target
    from opscope.run.target import RunTarget

AUTO, LOCAL, NATIVE, RUNNER, SSH, QEMU = "auto", "local", "native", "runner", "ssh", "qemu-aarch64"
TARGETS = (AUTO, LOCAL, NATIVE, RUNNER, SSH, ADB, QEMU)
_NEEDS = {RUNNER: ("which runner?", "name it: runner:PATH"), SSH: ("which device?", "name it: ssh:HOST")}


def target_named(name: str) -> RunTarget:
    """The target of a name.

    Args:
        name: ``native`` for our own runner, built here; ``local`` for the runtime's Python bindings; ``auto`` for the
            first where a compiler is there and else the second; ``runner:PATH`` for an executor_runner of the user's;
            ``ssh:HOST`` for a device that ssh reaches, see :mod:`opscope.run.ssh_address`; ``adb`` or ``adb:SERIAL``
            for an Android device, see :mod:`opscope.run.adb_address`; ``qemu-aarch64`` for 64-bit Arm under an
            emulator, which is never timed.

    Raises:
        UsageError: there is no such target, or a path is missing.
        MissingDependencyError: what the target needs on this machine is missing.
        NotFoundError: the runner does not exist.
        DeviceError: an Android device does not answer, or it is not clear which one is meant.
    """
    kind, _, address = name.partition(":")
    if kind in _NEEDS and not address:
        raise UsageError(_NEEDS[kind][0], where="--target", hint=_NEEDS[kind][1])
    if kind == RUNNER:
        from opscope.run.executor_runner import ExecutorRunnerTarget

        return ExecutorRunnerTarget(Path(address))
    if kind == SSH:
        return _ssh_target(address)
    if kind == ADB:
        return phone_target(address)
    if name not in TARGETS:
        raise UsageError(f"no target {name!r}", where="--target", hint=did_you_mean(name, TARGETS))
    return _emulated() if name == QEMU else _here(name)


def recorded_target(target: Target) -> RunTarget:
    """The target that a manifest tells of.

    Raises:
        UsageError: this version has no such target.
        MissingDependencyError: it is not there any more.
    """
    return target_named(f"{target.kind}:{target.address}" if target.address else target.kind)


@functools.cache
def _ssh_target(address: str) -> RunTarget:
    """The device of an address: always the same, so that all experiments on it share one connection."""
    from opscope.run.remote_native import RemoteNativeTarget
    from opscope.run.remote_python import RemotePythonTarget
    from opscope.run.ssh import SshShell
    from opscope.run.ssh_address import parse_address

    place = parse_address(address)
    if place.python:
        return RemotePythonTarget(SshShell(place), place.directory, place.python)
    return RemoteNativeTarget(SshShell(place), place.directory)


def _emulated() -> RunTarget:
    from opscope.run.qemu import QemuTarget

    return QemuTarget()


def _here(name: str) -> RunTarget:
    from opscope.run.local import NO_RUNNER_HINT, LocalTarget, local_obstacle
    from opscope.run.native import NativeTarget

    obstacle = local_obstacle()
    if name == LOCAL:
        if obstacle:
            raise MissingDependencyError(obstacle, hint=NO_RUNNER_HINT)
        return LocalTarget()
    try:
        return NativeTarget()
    except MissingDependencyError as error:
        if name == NATIVE or (obstacle and obstacle == error.problem):
            raise
        if obstacle:
            raise MissingDependencyError(f"{error.problem}, and {obstacle}", hint=NO_RUNNER_HINT) from None
        return LocalTarget()
