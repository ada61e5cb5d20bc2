"""Where models are run: with the native runner, or from Python on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import MissingDependencyError, UsageError
from opscope.hosts.devices import PHONE_VERSIONS, phone_device, ssh_device
from opscope.hosts.ssh import parse_address
from opscope.hosts.target_kinds import ADB, LOCAL, NATIVE, SSH, forms
from opscope.runtimes.hosted import FROM_PYTHON
from opscope.runtimes.litert.native.target import native_litert_emulated, native_litert_here, native_litert_on
from opscope.runtimes.litert.target import litert_here

if TYPE_CHECKING:
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName


def target_named(named: TargetName) -> RunTarget:
    """The target of a name.

    Raises:
        UsageError: such models do not run there.
    """
    kind, address = named
    if named.runner or kind.only_builds:
        hint = f"leave out the runner; {forms((NATIVE, SSH, ADB))} run it with opscope's own"
        raise UsageError("builds of executor_runner do not run LiteRT models", where=named.text, hint=hint)
    if kind is SSH:
        if parse_address(address).python:
            hint = "leave out ?python=: opscope sends its own runner"
            raise UsageError("a Python of a device runs no LiteRT models", where=named.text, hint=hint)
        return native_litert_on(ssh_device(address))
    if kind is ADB:
        return native_litert_on(phone_device(address), versions=PHONE_VERSIONS)
    if kind.emulated:
        return native_litert_emulated()
    if kind is LOCAL:
        return litert_here()
    try:
        return native_litert_here()
    except MissingDependencyError as error:
        if kind is NATIVE:
            raise
        return litert_here(stand_in=f"{error.problem}; {FROM_PYTHON}")
