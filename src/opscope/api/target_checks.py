"""Whether a target elsewhere is ready: a device, or an emulated CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.api.machine import Check, State, governor_check, load_check, virtual_check
from opscope.api.targets import QEMU, target_named
from opscope.errors import OpscopeError, UsageError
from opscope.run import isa
from opscope.run.target import reserved
from opscope.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.bundle.manifest import Environment
    from opscope.run.target import RunTarget

_SPACE_LIMIT = 100 << 20


def target_checks(name: str) -> list[Check]:
    """What a target has, what it lacks, and what would disturb a measurement there.

    Nothing is measured. What the target needs to run models is sent to it.

    Args:
        name: as for ``--target``.

    Raises:
        UsageError: the name is that of no target.
    """
    try:
        target = target_named(name)
        if name == QEMU:
            return _emulated(target)
        with reserved(target):
            return _device(target)
    except UsageError:
        raise
    except OpscopeError as error:
        return [Check(name.partition(":")[0], State.PROBLEM, error.problem, error.hint or "")]


def _device(target: RunTarget) -> list[Check]:
    environment, problem = _tried("runtime", target.environment)
    if environment is None:
        return [Check("device", State.OK, "it answers, and nobody else uses it"), *_storage(target), problem]
    load = load_check(target.conditions())
    return [
        Check("device", State.OK, _what(environment)),
        Check("runtime", State.OK, f"executorch {environment.versions.get('executorch', 'of an unknown version')}"),
        *_storage(target),
        switching_check(target),
        load,
        governor_check(environment),
        virtual_check(environment),
    ]


def _tried(name: str, ask: Callable[[], Environment]) -> tuple[Environment | None, Check]:
    try:
        return ask(), Check(name, State.OK, "")
    except OpscopeError as error:
        return None, Check(name, State.PROBLEM, error.problem, error.hint or "")


def _what(found: Environment) -> str:
    parts = (found.system, found.machine, found.cpu, f"{found.usable_cpus} CPUs" if found.usable_cpus else None)
    return ", ".join(part for part in parts if part)


def _storage(target: RunTarget) -> list[Check]:
    """Room on the device, where it can be asked."""
    from opscope.run.remote_native import RemoteNativeTarget
    from opscope.run.remote_python import RemotePythonTarget

    if not isinstance(target, RemoteNativeTarget | RemotePythonTarget):
        return []
    found = target.storage()
    room = "" if found.free is None else f", {size_text(found.free)} free"
    action = "free some space there, or name another directory: ssh:HOST?dir=PATH"
    if not found.writable:
        return [Check("storage", State.PROBLEM, f"{found.directory} cannot be written to: {found.said}", action)]
    small = found.free is not None and found.free < _SPACE_LIMIT
    return [Check("storage", State.PROBLEM if small else State.OK, f"{found.directory}{room}", action)]


def switching_check(target: RunTarget) -> Check:
    """What can be switched off on the CPU of a target."""
    probed = target.probe()
    fields = frozenset(probed.fields)
    default = isa.strongest(probed.arch, fields)
    if default is None:
        return Check("acceleration switch", State.NOTE, "this CPU has no feature to switch off")
    have = ", ".join(group.name for group in isa.present(probed.arch, fields))
    return Check("acceleration switch", State.OK, f"{have}; --ablate {default.name} is the default")


def _emulated(target: RunTarget) -> list[Check]:
    from opscope.run.qemu import QemuTarget, find_emulator

    assert isinstance(target, QemuTarget)  # noqa: S101 - what its name stands for
    found = find_emulator()
    state = State.NOTE if found.doubt else State.OK
    return [
        Check("qemu", state, found.doubt or f"{found.text}: computes int8 with SME2 right", "install QEMU 11.1"),
        Check("runtime", State.OK, f"executorch {target.runtime.versions['executorch']} for aarch64"),
        switching_check(target),
        Check("times", State.NOTE, "an emulated CPU tells what is computed, never how fast"),
    ]
