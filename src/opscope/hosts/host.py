"""A machine that runs programs for opscope, whatever leads to it: this one, or a device behind a shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from opscope.core.system.usage import ProcessUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.bundle.settings import ExperimentSettings
    from opscope.hosts.lock import LockRequest, MachineHold

PRINTED = "log.txt"
"""File with all that a command printed."""


class Storage(NamedTuple):
    """Room for files on a host."""

    directory: str  # for all that is ours, absolute
    writable: bool  # whether a file could be made in it
    free: int | None  # room in bytes; None where the host does not tell
    said: str  # what it complained of


class ProcessSettings(msgspec.Struct, frozen=True):
    """Settings of an experiment that a host gives every measured process; each has the name that it has there."""

    nice: int = 0  # how far it gives way to other processes, as of nice(1)

    @classmethod
    def of(cls, settings: ExperimentSettings) -> ProcessSettings:
        """Return the settings of an experiment that apply to processes."""
        return cls(**{name: getattr(settings, name) for name in cls.__struct_fields__})

    @property
    def prefix(self) -> list[str]:
        """Return the words before those of a command that has these settings; none for the usual ones."""
        return ["nice", "-n", str(self.nice)] if self.nice else []

    @property
    def emulation(self) -> list[str]:
        """Return further options of the emulator that runs it, where one does."""
        return []

    @property
    def processor(self) -> ProcessSettings | None:
        """Return the settings of a process that sees the same processor; None where that is the machine's own."""
        return None


class GuardedCommand(NamedTuple):
    """A command that runs in a directory of its own, and ends with its time."""

    words: Sequence[str]  # program and arguments; paths are absolute on the host, or relative to that directory
    into: Path  # directory here for what it prints, as :data:`PRINTED`, and for the files that it leaves
    timeout: float  # in seconds; then it is ended with all that it started
    # whether a file that it leaves is brought here, by its name. On this machine every file is here
    is_wanted: Callable[[str], bool] = lambda _: False
    affinity: Sequence[int] = ()  # CPUs to stay on; empty for all
    process: ProcessSettings = ProcessSettings()
    libraries: str = ""  # directory of the host with shared libraries that it needs; empty for those of the system
    variables: Mapping[str, str] = {}  # of its environment
    # a program that tells nothing of itself: the host tells its peak memory, why it does not start, and what the
    # system recorded of it, where it can
    foreign: bool = False


class ExitStatus(msgspec.Struct, frozen=True):
    """Status of a command that ended."""

    code: int | None  # exit code; negative for a signal, None when its time was up
    # why it could not be started, as a sentence; None when it was, or when that is not known
    start_error: str | None = None
    peak_rss_bytes: int | None = (
        None  # its largest resident memory; None where that is not known, or hidden by what started it
    )
    records: Mapping[str, str] = {}  # what the system recorded of it, by names of files: to be kept where it failed
    usage: ProcessUsage | None = None  # what it used of the system; None where that is not known


class Host(Protocol):
    """A machine that runs programs. What a device cannot do for want of a connection is a DeviceError."""

    @property
    def name(self) -> str:
        """Return the host's name, for messages."""

    @property
    def remote(self) -> bool:
        """Return whether it is another machine: its clock and its files are not ours."""

    def describe(self) -> Target:
        """Return kind and address, for the manifest."""

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """Return the machine and its software."""

    def conditions(self) -> Conditions:
        """Return the state of the machine now."""

    def storage(self) -> Storage | None:
        """Return the room for the files that are sent; None where none are, since the host is this machine."""

    @property
    def restored(self) -> Mapping[str, str | None] | None:
        """Return the settings that an earlier run had left changed, and that were put back when the host was held.

        None for a host whose settings no run changes.
        """

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold]:
        """Hold it for us alone and leave it as it was found."""

    def lock_identity(self) -> str:
        """Return a text that tells the machine from others, however it is reached.

        See :func:`opscope.hosts.lock.lock_identity`.
        """

    def check_program(self, program: Path) -> None:
        """Refuse a program that cannot run there."""

    def provide(self, kind: str, files: Mapping[str, Path], digest: str = "") -> Mapping[str, str]:
        """Return paths on the host of files, which lie in or below one directory there; sent when the host lacks them.

        The paths have the same names. On this machine they are those of the files themselves.
        """

    def started(self, command: GuardedCommand) -> AbstractContextManager[ExitStatus]:
        """Run a command to its end. What it left on the host is removed when the context ends."""
