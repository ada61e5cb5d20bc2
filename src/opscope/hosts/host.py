"""A machine that runs programs for opscope, whatever leads to it: this one, or a device behind a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.core.system.usage import ProcessUsage
    from opscope.hosts.lock import LockRequest, MachineHold

PRINTED = "log.txt"
"""File with all that a command printed."""


class Storage(NamedTuple):
    """Room for files on a host.

    Attributes:
        directory: for all that is ours, absolute.
        writable: whether a file could be made in it.
        free: room in bytes; None where the host does not tell.
        said: what it complained of.
    """

    directory: str
    writable: bool
    free: int | None
    said: str


class GuardedCommand(NamedTuple):
    """A command that runs in a directory of its own, and ends with its time.

    Attributes:
        words: program and arguments; paths are absolute on the host, or relative to that directory.
        into: directory here for what it prints, as :data:`PRINTED`, and for the files that it leaves.
        timeout: in seconds; then it is ended with all that it started.
        wanted: whether a file that it leaves is brought here, by its name. On this machine every file is here.
        affinity: CPUs to stay on; empty for all.
        nice: how far it gives way to other processes, as of nice(1).
        libraries: directory of the host with shared libraries that it needs; empty for those of the system.
        variables: of its environment.
        foreign: a program that tells nothing of itself: the host tells its peak memory, why it does not start, and what
            the system recorded of it, where it can.
    """

    words: Sequence[str]
    into: Path
    timeout: float
    wanted: Callable[[str], bool] = lambda _: False
    affinity: Sequence[int] = ()
    nice: int = 0
    libraries: str = ""
    variables: Mapping[str, str] = {}
    foreign: bool = False

    @property
    def priority(self) -> list[str]:
        """What stands before the words of a command that gives way to others; nothing for the usual priority."""
        return ["nice", "-n", str(self.nice)] if self.nice else []


class ExitStatus(NamedTuple):
    """How a command ended.

    Attributes:
        code: exit code; negative for a signal, None when its time was up.
        start_error: why it could not be started, as a sentence; None when it was, or when that is not known.
        peak_rss_bytes: its largest resident memory; None where that is not known.
        records: what the system recorded of it, by names of files: to be kept where it failed.
        usage: what it used of the system; None where that is not known.
    """

    code: int | None
    start_error: str | None = None
    peak_rss_bytes: int | None = None
    records: Mapping[str, str] = {}
    usage: ProcessUsage | None = None


class Host(Protocol):
    """A machine that runs programs. What a device cannot do for want of a connection is a DeviceError."""

    @property
    def name(self) -> str:
        """The host, for messages."""
        ...

    @property
    def remote(self) -> bool:
        """Whether it is another machine: its clock and its files are not ours."""
        ...

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        ...

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """The machine and its software.

        Args:
            features: feature groups that the runtime there sees; None where that is not known.
            versions: of what runs there.
        """
        ...

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        ...

    def storage(self) -> Storage | None:
        """Room for the files that are sent; None where none are, since the host is this machine."""
        ...

    @property
    def restored(self) -> Mapping[str, str | None] | None:
        """Settings that an earlier run had left changed, and that were put back when the host was held.

        None for a host whose settings no run changes.
        """
        ...

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold]:
        """Hold it for us alone and leave it as it was found.

        Args:
            request: what to do when another run measures there. None: nothing is measured now; then another run is no
                matter on this machine, and an error on a device.

        Raises:
            BusyError: another run measures there.
            DeviceError: it cannot be held.
        """
        ...

    def lock_identity(self) -> str:
        """What tells the machine from others, whichever way leads to it; see :func:`opscope.hosts.lock.lock_identity`.

        Raises:
            DeviceError: it cannot be reached.
        """
        ...

    def check_program(self, program: Path) -> None:
        """Refuse a program that cannot run there.

        Args:
            program: the file, here.

        Raises:
            UsageError: it is for another processor, or not executable.
        """
        ...

    def provide(self, kind: str, files: Mapping[str, Path], digest: str = "") -> Mapping[str, str]:
        """Paths on the host of files, which lie in one directory there; sent when the host does not have them.

        Args:
            kind: of files.
            files: here, by their names there.
            digest: of their content; empty: it is computed.

        Returns:
            The paths, by the same names. On this machine those of the files themselves.

        Raises:
            DeviceError: the host refuses to store them.
        """
        ...

    def started(self, command: GuardedCommand) -> AbstractContextManager[ExitStatus]:
        """Run a command to its end. What it left on the host is removed when the context ends.

        Raises:
            DeviceError: the host was lost meanwhile, or is held by another one.
            OSError: there is no room here.
        """
        ...
