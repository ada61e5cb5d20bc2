"""The advisory lock of a machine that is measured: whoever leads to it, one run at a time measures there.

The lock lies on that machine, so that callers on several computers exclude each other, and so do a run here and one
that comes by ssh. It binds nobody: a run may measure beside another one, and then both records say so.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import platform
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from opscope.bundle.manifest import LockRecord
from opscope.core.errors import BusyError, DeviceError
from opscope.core.units import counted_text
from opscope.hosts.scripts import BESIDE, LOCK, TICKET, WHICH

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.hosts.shell import Shell, ShellProcess

LockMode: TypeAlias = Literal["wait", "warn", "fail"]
"""What to do when another run measures there: wait for it a while, measure beside it, or end with an error."""
LOCK_SECONDS = 60.0
"""How long is waited for another run."""
_ANSWER_SECONDS, _POLL_SECONDS, _POLL_MOST_SECONDS = 60.0, 1.0, 5.0
_BUSY = "wait until that run ends, or stop it; that releases its lock"
_REFUSED = "its directory must be writable by everyone, like /tmp"


def _ignore_notice(text: str) -> None:
    """Ignore a notice."""


class LockRequest(NamedTuple):
    """Request to hold a machine."""

    mode: LockMode = "wait"  # what to do when another run measures there
    seconds: float = LOCK_SECONDS  # how long to wait for it; infinite: until it is free
    notify: Callable[[str], None] = _ignore_notice  # hears that it is waited, and that it was waited in vain
    monotonic: Callable[[], float] = time.monotonic  # clock, in seconds
    sleep: Callable[[float], None] = time.sleep  # waits so many seconds
    alone: bool = False  # whether to end with an error after that time, rather than to measure beside the other run


class DeviceLock:
    """The lock of a machine that a shell leads to.

    ``shell``: the way to it.

    Attributes:
        holder: who holds the machine while we measure beside; None when we hold it.
        ahead: how many others stand in line before us, as of the last time that we could not hold it.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell, self._own = shell, _own_name()
        self._process: ShellProcess | None = None
        self._place: ShellProcess | None = None
        self._ticket, self._beside = "", False
        self.holder: str | None = None
        self.ahead = 0

    def take(self, *, beside: bool = False) -> None:
        """Hold the machine."""
        self._end_process()
        self._beside = beside
        mode = "beside" if beside else "alone"
        self._process = self._shell.spawn(["sh", "-c", LOCK, "opscope-lock", self._own, mode, self._ticket])
        text = self._process.read_line(_ANSWER_SECONDS)
        verdict, _, rest = (text or "").partition(" ")
        if verdict in {"taken", "beside"}:
            self.holder = rest if verdict == "beside" else None
            self._leave_queue()
            return
        lost = self._process
        try:
            if text is None:
                lost.wait(0.0)
            raise self._error_not_taken(verdict, rest)
        finally:
            self._end_process()

    def queue(self) -> None:
        """Stand in line until it is held or released; those who come later are behind us. May be repeated.

        Where no ticket can be left, everybody's chance is the same.
        """
        if self._place is not None and self._place.alive():
            return
        self._leave_queue()
        queue_process = self._place = self._shell.spawn(["sh", "-c", TICKET, "opscope-ticket", self._own])
        self._ticket = (queue_process.read_line(_ANSWER_SECONDS) or "").removeprefix("ticket ").removeprefix("none")

    def renew(self) -> bool:
        """Hold it again as before, if that was lost; return whether it was, which is so after a connection was lost."""
        if self._process is not None and self._process.alive():
            return False
        self.take(beside=self._beside)
        return True

    def beside(self) -> list[str]:
        """Return the names of those who measured beside us since the lock was taken."""
        names = {self.holder} if self.holder else set[str]()
        with contextlib.suppress(DeviceError):
            completed = self._shell.run(["sh", "-c", BESIDE, "opscope-beside"], _ANSWER_SECONDS)
            names |= set(filter(None, completed.stdout.decode("utf-8", "replace").splitlines()))
        return sorted(names - {self._own})

    def release(self) -> None:
        """Let others have it. May be repeated."""
        self._end_process()
        self._leave_queue()

    def _end_process(self) -> None:
        """Let go of the lock."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _leave_queue(self) -> None:
        """Stand in line no longer."""
        if self._place is not None:
            self._place.end()
        self._place, self._ticket = None, ""

    def _error_not_taken(self, verdict: str, rest: str) -> DeviceError:
        """Return the error for a lock that was not taken."""
        where = self._shell.describe().name
        if verdict == "held":
            ahead, _, rest = rest.partition(" ")
            self.ahead = int(ahead) if ahead.isdecimal() else 0
            return BusyError(f"the machine is in use {rest}", rest.removeprefix("by "), where=where, hint=_BUSY)
        if verdict == "left":
            lock, _, holder = rest.partition(" ")
            problem = f"a finished run left its lock behind ({holder or 'by an unknown process'})"
            return DeviceError(problem, where=where, hint=f"remove it there: rm -r {lock}")
        if verdict == "foreign":
            problem = f"{rest} exists and is not an opscope lock"
            return DeviceError(problem, where=where, hint="remove it there, or set OPSCOPE_LOCK to another path")
        if verdict == "refused":
            return DeviceError(f"cannot write a lock there: {rest}", where=where, hint=_REFUSED)
        return DeviceError("the machine did not say whether it is free", where=where, hint="try again")


def lock_identity(shell: Shell) -> str:
    """Return a text that tells the lock of a machine from others: two ways that lead to one machine have the same."""
    completed = shell.run(["sh", "-c", WHICH, "opscope-which"], _ANSWER_SECONDS)
    boot, _, path = completed.stdout.decode("utf-8", "replace").partition("\n")
    # A machine that does not tell of its boot, as some Android systems, has its address alone.
    return f"{boot} {path.strip()}" if boot.strip() else shell.describe().name


def _own_name() -> str:
    """Return our name, for another run that finds the machine in use."""
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")  # fine enough to tell two of one process apart
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no name for this user's number
        user = str(os.getuid())
    return f"by {user}@{platform.node()}, process {os.getpid()}, since {now}"


class MachineHold:
    """A machine on which is measured, alone or beside another run.

    ``asked`` says what was to be done when another run measures there, ``busy`` who did at first, ``waited`` for how
    many seconds it was waited; ``problem`` says why there is no lock.
    """

    def __init__(
        self, mode: LockMode, lock: DeviceLock | None, waited: float = 0.0, busy: str | None = None, problem: str = ""
    ) -> None:
        self._asked, self._lock, self._waited, self._busy, self._problem = mode, lock, waited, busy, problem
        self.held = lock is not None and lock.holder is None

    def beside(self) -> list[str]:
        """Return the names of those who measured there at the same time, as far as is known by now."""
        return [text.removeprefix("by ") for text in self._lock.beside()] if self._lock else []

    def record(self) -> LockRecord:
        """Return the record for the manifest, as far as is known by now."""
        return LockRecord(
            asked=self._asked,
            held=self.held,
            waited_seconds=round(self._waited, 1),
            waited_for=self._busy,
            beside=self.beside(),
            problem=self._problem or None,
        )


def hold_machine(lock: DeviceLock, request: LockRequest) -> MachineHold:
    """Take the lock of a machine as it was asked for; who waits stands in line."""
    began, busy, told_ahead = request.monotonic(), None, -1
    try:
        while True:
            waited = request.monotonic() - began
            remaining = request.seconds - waited if request.mode == "wait" else 0.0
            try:
                lock.take(beside=busy is not None and remaining <= 0 and not request.alone)
                if busy and lock.holder:
                    request.notify(f"measuring alongside {lock.holder.removeprefix('by ')}: figures may be wrong")
                return MachineHold(request.mode, lock, waited if busy and request.mode == "wait" else 0.0, busy)
            except BusyError as error:
                if request.mode == "fail" or (request.alone and remaining <= 0):
                    raise
                if remaining > 0:
                    lock.queue()
                    if lock.ahead != told_ahead:
                        told_ahead = lock.ahead
                        request.notify(_waiting_text(error, told_ahead, remaining))
                busy = busy or error.holder
            request.sleep(max(0.0, min(_POLL_SECONDS * (1 + max(0, told_ahead)), _POLL_MOST_SECONDS, remaining)))
    except BaseException:
        lock.release()
        raise


def _waiting_text(error: BusyError, ahead: int, remaining: float) -> str:
    """Return the notice of whom we wait for, and how long."""
    limit = "until it is free" if remaining == math.inf else f"for at most {remaining:.0f} s"
    line = f", {counted_text(ahead, 'run')} ahead in the queue" if ahead else ""
    return f"{error.where} is in use by {error.holder}{line}: waiting, {limit}"
