"""This machine as a host: files are where they are, and every command is a process group of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import BusyError, DeviceError, UsageError
from opscope.core.json import from_json
from opscope.core.system import launch
from opscope.hosts.host import PRINTED, ExitStatus, GuardedCommand
from opscope.hosts.lock import DeviceLock, MachineHold, hold_machine, lock_identity
from opscope.hosts.process import log_tail, run_process
from opscope.hosts.shell import LocalShell
from opscope.machine import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.hosts.lock import LockRequest

_LAUNCH = (sys.executable, "-I", "-S", launch.__file__)
_REPORT = "ended.json"


class ThisMachine:
    """This machine.

    ``target``: what a manifest says of it: the kind of target, and the address where the kind has one.
    """

    remote = False
    restored: Mapping[str, str | None] | None = None

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def name(self) -> str:
        """Return the kind of target, for messages."""
        return self._target.kind

    def describe(self) -> Target:
        """Return the target as it was given."""
        return self._target

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """Return the machine, its Python and the software that runs there."""
        python = {"python": environment.versions()["python"]}
        return msgspec.structs.replace(environment.capture(features), versions={**python, **versions})

    def conditions(self) -> Conditions:
        """Return the state of the machine now."""
        return environment.conditions()

    def storage(self) -> None:
        """Return None: nothing is sent."""

    @contextlib.contextmanager
    def reserved(self, request: LockRequest | None = None) -> Iterator[MachineHold]:
        """Hold this machine as it was asked for; nothing to do where nothing is measured."""
        if request is None:
            yield MachineHold("warn", None)
            return
        lock = DeviceLock(LocalShell())
        try:
            yield _hold_if_possible(lock, request)
        finally:
            lock.release()

    def lock_identity(self) -> str:
        """Return a text that tells this machine from others, whichever way leads to it."""
        return lock_identity(LocalShell())

    def check_program(self, program: Path) -> None:
        """Refuse a file that is not executable."""
        if not os.access(program, os.X_OK):
            raise UsageError("the runner is not executable", where=program, hint=f"chmod +x {program}")

    def provide(self, kind: str, files: Mapping[str, Path], digest: str = "") -> Mapping[str, str]:  # noqa: ARG002 - of the protocol
        """Return the paths of the files where they are."""
        return {name: str(path.resolve()) for name, path in files.items()}

    @contextlib.contextmanager
    def started(self, command: GuardedCommand) -> Iterator[ExitStatus]:
        """Run a command in its directory; all that it started ends with it."""
        if command.foreign:
            yield _launch_program(command)
        else:
            code = run_process(
                [*command.process.prefix, *self._command_words(command)],
                command.into / PRINTED,
                command.timeout,
                environment=command.variables,
                directory=command.into,
            )
            yield ExitStatus(code)

    def _command_words(self, command: GuardedCommand) -> list[str]:
        """Return the words that start a command."""
        return list(command.words)


def _hold_if_possible(lock: DeviceLock, request: LockRequest) -> MachineHold:
    """Return the machine, held; without a lock where there is no place for one, as in a read-only container."""
    try:
        return hold_machine(lock, request)
    except DeviceError as error:
        if request.mode == "fail" or isinstance(error, BusyError):
            raise
        return MachineHold(request.mode, None, problem=error.problem)


def _launch_program(command: GuardedCommand) -> ExitStatus:
    """Start a program through a small process of ours, since it cannot be asked anything itself."""
    report, log = command.into / _REPORT, command.into / PRINTED
    cpus = ",".join(str(cpu) for cpu in command.affinity)
    words = [*command.process.prefix, *_LAUNCH, str(report), str(command.into), cpus, *command.words]
    try:
        code = run_process(words, log, command.timeout, environment=command.variables)
        if code is None or code < 0:
            return ExitStatus(code)
        if code or not report.exists():
            return ExitStatus(code, f"its launcher exited with code {code}{log_tail(log)}")
        return from_json(report.read_bytes(), ExitStatus)
    finally:
        report.unlink(missing_ok=True)
