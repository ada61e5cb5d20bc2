"""A device that is used through a shell: its files are kept by their content, its commands are guarded.

opscope keeps a directory there for itself: it bears a mark, and nothing outside of it is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import DeviceError, OverwriteError, UsageError
from opscope.core.files import sha256_of
from opscope.core.grouping import grouped
from opscope.core.system.capped_log import trim_log
from opscope.core.system.elf import AARCH64, ARM, X86, X86_64, machine_of
from opscope.hosts.facts import conditions_of, environment_of, parts
from opscope.hosts.host import PRINTED, ExitStatus, Storage
from opscope.hosts.lock import DeviceLock, LockRequest, hold_machine, lock_identity
from opscope.hosts.process import log_tail
from opscope.hosts.scripts import CONDITIONS, FACTS, GUARD, PLACE, START, STORAGE
from opscope.hosts.shell import safe_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from subprocess import CompletedProcess

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.hosts.host import GuardedCommand
    from opscope.hosts.lock import MachineHold
    from opscope.hosts.shell import RemoteShell, ShellProcess


class Processor(NamedTuple):
    """A kind of processor, and the machines that its programs may be for."""

    name: str  # as compilers call it
    abi: str  # as the Android NDK calls it
    machines: frozenset[int]  # numbers of an ELF file


_PROCESSORS = {
    "aarch64": Processor("aarch64", "arm64-v8a", frozenset({AARCH64, ARM})),
    "armv8l": Processor("armv7l", "armeabi-v7a", frozenset({ARM})),
    "armv7l": Processor("armv7l", "armeabi-v7a", frozenset({ARM})),
    "x86_64": Processor("x86_64", "x86_64", frozenset({X86_64, X86})),
}
_BUILT = {AARCH64: "aarch64", ARM: "32-bit Arm", X86_64: "x86-64", X86: "32-bit x86"}


def check_processor(program: Path, machine: str, how_to_build: str) -> None:
    """Refuse a program that was built for another processor than a device's; one that does not tell may run."""
    built, known = machine_of(program), _PROCESSORS.get(machine)
    if built is None or known is None or built in known.machines:
        return
    problem = f"the runner was built for {_BUILT.get(built, f'machine {built}')}, the device is {machine}"
    raise UsageError(problem, where=program, hint=how_to_build.format(name=known.name, abi=known.abi))


_ASK_SECONDS, _END_SECONDS = 60.0, 5.0
_WORK = "work"
"""Directory of the runs, on the device."""
_LONGER = 30.0  # than the command may take: to start it, and to say how it ended
_SHOULD_HAVE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}\Z")
_TIMED_OUT, _FILE, _MOST_FILES = "timed-out", "file ", 1000


class Device:
    """A device: a host that a shell leads to.

    ``parent`` is the directory there in which opscope has one of its own; ``lock`` is held while it is used.
    """

    remote = True
    _built, _build = "for this device", "build it for Linux on {name}"
    """How a program must have been built to run there, and what to do for a processor, for messages."""
    _start = START
    """Script that becomes a foreign program; its words are the directory of its libraries and the command."""
    _notes: tuple[str, ...] = ()
    """Files that this script leaves."""

    def __init__(self, shell: RemoteShell, parent: str, lock: DeviceLock | None = None) -> None:
        self._shell, self._parent = shell, parent
        self._kept: set[str] = set()
        self._hashes: dict[tuple[str, int, int], str] = {}
        self._lock = lock or DeviceLock(shell)
        self._reserved, self._work = False, _WORK
        self._numbers = itertools.count()

    def describe(self) -> Target:
        """Return kind and address, for the manifest."""
        return self._shell.describe()

    @property
    def restored(self) -> Mapping[str, str | None] | None:
        """Return None: no run changes settings of the device."""
        return None

    @property
    def name(self) -> str:
        """Return the device's name, for messages."""
        return self._shell.describe().name

    @cached_property
    def base(self) -> str:
        """Return the directory for all that is ours, absolute, made and marked."""
        absolute = self.absolute(f"{self._parent}/{OWN}")
        prepare(self._shell, absolute)
        return absolute

    def absolute(self, path: str) -> str:
        """Return a path of the device that begins at the user's home, or is absolute already."""
        completed = self._shell.run(["sh", "-c", PLACE, "opscope", path], _ASK_SECONDS)
        return safe_path(completed.stdout.decode("utf-8", "replace").strip(), f"{self.name}: {path}")

    def facts(self) -> Mapping[str, str]:
        """Return the facts that the device tells of itself; see ``FACTS``."""
        return self._run_parts(FACTS)

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """Return the device and its software."""
        return environment_of(self.facts(), features, versions)

    def conditions(self) -> Conditions:
        """Return the state it is in."""
        return conditions_of(self._run_parts(CONDITIONS))

    def storage(self) -> Storage:
        """Return whether files can be kept on it, and the room there."""
        completed = self._shell.run(["sh", "-c", STORAGE, "opscope", self.base], _ASK_SECONDS)
        lines = completed.stdout.decode("utf-8", "replace").strip().splitlines()
        words = lines[-1].split() if lines else []
        free = int(words[3]) * 1024 if len(words) > 3 and words[3].isdecimal() else None  # noqa: PLR2004 - POSIX df
        complaints = completed.stderr.decode("utf-8", "replace").strip().splitlines()
        return Storage(self.base, "writable" in lines, free, complaints[0] if complaints else "")

    @contextlib.contextmanager
    def reserved(self, request: LockRequest | None = None) -> Iterator[MachineHold]:
        """Hold the device for this host alone; what earlier runs left in their working directories is removed.

        A run beside another one has a working directory of its own.
        """
        base = self.base
        hold = hold_machine(self._lock, request or LockRequest("fail"))
        is_alone = hold.held and not hold.beside()
        self._reserved, self._work = True, _WORK if is_alone else f"{_WORK}-{os.getpid()}-{time.monotonic_ns()}"
        try:
            if is_alone:
                remove(self._shell, base, [_WORK, f"{_WORK}-*"])
            yield hold
        finally:
            self._reserved = False
            with contextlib.suppress(DeviceError):
                remove(self._shell, base, [self._work])
            self._lock.release()

    def lock_identity(self) -> str:
        """Return a text that tells the device from others, whichever way leads to it."""
        return lock_identity(self._shell)

    def check_program(self, program: Path) -> None:
        """Refuse a program for another processor."""
        check_processor(program, self.output_of("uname", "-m").strip(), self._build)

    def output_of(self, *command: str, timeout: float = _ASK_SECONDS) -> str:
        """Return the output of a small command."""
        return self._shell.run(command, timeout).stdout.decode("utf-8", "replace")

    def provide(self, kind: str, files: Mapping[str, Path], digest: str = "") -> Mapping[str, str]:
        """Return paths of files on the device, which are sent when it does not have them."""
        relative = f"{kind}/{digest or self._digest_of_files(files)}"
        absolute = f"{self.base}/{relative}"
        if absolute not in self._kept:
            if self._run_script('[ -d "$1" ]', absolute).returncode:
                self._send_files(files, relative)
            self._kept.add(absolute)
        return {name: f"{absolute}/{name}" for name in files}

    def _digest_of_files(self, files: Mapping[str, Path]) -> str:
        """Return a name of a set of files by their names and content."""
        lines = "".join(f"{self._cached_hash(path)} {name}\n" for name, path in sorted(files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def started(self, command: GuardedCommand) -> Iterator[ExitStatus]:
        """Run a command and bring what it leaves; its directory there is removed when the context ends."""
        relative = f"{self._work}/{next(self._numbers)}"
        work = f"{self.base}/{relative}"
        code, files = self.guarded(self._command_words(command), work, command.timeout)
        brought = (PRINTED, *self._notes)
        self.pull(work, [name for name in files if name in brought or command.is_wanted(name)], command.into)
        (command.into / PRINTED).touch()
        trim_log(command.into / PRINTED)
        status = self._exit_status(code, command)
        try:
            yield status
        finally:
            remove(self._shell, self.base, [relative])

    def _command_words(self, command: GuardedCommand) -> list[str]:
        """Return the words that start a command on the device."""
        pinned = ["taskset", f"{sum(1 << cpu for cpu in command.affinity):x}"] if command.affinity else []
        texts = [f"{name}={value}" for name, value in command.variables.items()]
        words = [*(["env", *texts] if texts else []), *command.process.prefix, *pinned, *command.words]
        return ["sh", "-c", self._start, "opscope-run", command.libraries, *words] if command.foreign else words

    def _exit_status(self, code: int | None, command: GuardedCommand) -> ExitStatus:
        """Return how a command ended; of a foreign one a shell tells by its code that it could not start it."""
        if not command.foreign or code not in _CANNOT_START:
            return ExitStatus(code)
        reason = log_tail(command.into / PRINTED).removeprefix("; its last words: ") or f"exit code {code}"
        return ExitStatus(code, f"{reason}; was it built {self._built}, and are its libraries next to it?")

    def _cached_hash(self, path: Path) -> str:
        """Return the hash of a file, of one that stays as it is computed once."""
        state = path.stat()
        key = (str(path), state.st_mtime_ns, state.st_size)
        if key not in self._hashes:
            self._hashes[key] = sha256_of(path)
        return self._hashes[key]

    def _send_files(self, files: Mapping[str, Path], relative: str) -> None:
        """Send files under another name, and give them theirs when all are there."""
        absolute, part_relative = f"{self.base}/{relative}", f"{relative}.{os.getpid()}-{time.monotonic_ns()}.part"
        part = f"{self.base}/{part_relative}"
        try:
            self._raise_if_failed(self._run_script('mkdir -p "${1%/*}" && mkdir "$1"', part))
            with tempfile.TemporaryDirectory(prefix="opscope-") as links_directory:
                for folder, names in grouped(files, lambda name: name.rpartition("/")[0]).items():
                    links = [Path(links_directory) / name for name in names]
                    for link, name in zip(links, names, strict=True):
                        link.parent.mkdir(parents=True, exist_ok=True)
                        link.symlink_to(files[name].resolve())
                    if folder:
                        self._raise_if_failed(self._run_script('mkdir -p "$1"', f"{part}/{folder}"))
                    self._shell.push(links, f"{part}/{folder}".removesuffix("/"))
            self._raise_if_failed(self._run_script('[ -d "$2" ] || mv "$1" "$2"', part, absolute))
        except DeviceError as error:
            raise self._storage_error(error, part_relative) from error

    def _storage_error(self, error: DeviceError, relative: str) -> DeviceError:
        """Return the error, with the part that the device's storage has in it."""
        with contextlib.suppress(DeviceError):
            storage = self.storage()
            remove(self._shell, self.base, [relative])
            room = "" if storage.free is None else f", {storage.free >> 20} MiB free"
            reason = error.problem if storage.writable else storage.said or error.problem
            problem = f"cannot keep files in {self.base} on the device{room}: {reason}"
            return DeviceError(problem, where=self.name, hint=_STORE_HINT)
        return error

    def guarded(self, command: Sequence[str], work: str, timeout: float) -> tuple[int | None, list[str]]:
        """Run a command in a directory of its own; it and all it started end with its time or with the connection.

        Returns its exit code, negative for a signal and None when its time was up, and the names of the files in its
        directory, :data:`opscope.hosts.host.PRINTED` among them.
        """
        if self._reserved and self._lock.renew():
            self._kept.clear()  # the connection was lost: the device may have restarted
        guard = ["sh", "-c", GUARD, "opscope", f"{max(1, round(timeout))}", work, *command]
        process = self._shell.spawn(guard)
        try:
            files = _read_files(process, timeout + _LONGER)
            code = process.wait(_END_SECONDS)
        finally:
            process.end()
        if code is None or _TIMED_OUT in files:
            return None, files
        if code == _NO_DIRECTORY and not files:
            relative = work.removeprefix(f"{self.base}/")
            raise self._storage_error(DeviceError("cannot create a directory for the run", where=self.name), relative)
        return code if code <= _SIGNALS else _SIGNALS - code, files

    def pull(self, work: str, names: Sequence[str], into: Path) -> None:
        """Copy files of a run here."""
        plain = [name for name in names if _SHOULD_HAVE.match(name)]
        if plain:
            self._shell.pull(work, plain, into)

    def _run_parts(self, script: str) -> Mapping[str, str]:
        """Return the output of a script by its headings."""
        return parts(self._shell.run(["sh", "-c", script, "opscope"], _ASK_SECONDS).stdout)

    def _run_script(self, script: str, *words: str) -> CompletedProcess[bytes]:
        """Run a script with the device's shell."""
        return self._shell.run(["sh", "-c", script, "opscope", *words], _ASK_SECONDS)

    def _raise_if_failed(self, completed: CompletedProcess[bytes]) -> None:
        """Raise an error if a command failed."""
        if completed.returncode:
            complaint = completed.stderr.decode("utf-8", "replace").strip()
            raise DeviceError(complaint or f"exit code {completed.returncode}", where=self.name)


_CANNOT_START = (126, 127)
_STORE_HINT = "free some space there, or name another directory with ?dir=PATH in the address"
_SIGNALS, _NO_DIRECTORY = 128, 125


def _read_files(process: ShellProcess, timeout: float) -> list[str]:
    """Return the names of files that a guarded command tells of at its end."""
    end = time.monotonic() + timeout
    files: list[str] = []
    while len(files) < _MOST_FILES:
        line = process.read_line(max(0.0, end - time.monotonic()))
        if line is None:
            return files
        if line.startswith(_FILE):
            files.append(line.removeprefix(_FILE))
    return files


OWN = "opscope"
"""Name of the directory, below the one that a target names."""
MARK = ".opscope-device"
"""File in it that says whose it is."""
_SECONDS = 60.0
_MARKED = f"""
marked() {{
  [ -f "$1/{MARK}" ] && [ ! -L "$1/{MARK}" ]
}}
"""
# $1 directory: made and marked where nothing is there, taken where it is empty or marked. Says "foreign" of all others.
_PREPARE = f"""{_MARKED}
dir=$1
marked "$dir" && exit 0
if [ -d "$dir" ]; then
  if [ -n "$(ls -A "$dir" 2>/dev/null)" ] && ! marked "$dir"; then
    echo foreign
    exit 1
  fi
elif [ -e "$dir" ] || [ -L "$dir" ]; then
  echo foreign
  exit 1
else
  mkdir -p "$dir" || exit 1
fi
echo 'opscope keeps its files in this directory, and removes them.' >"$dir/{MARK}"
"""
# $1 directory, $2... names in it, patterns of the shell.
_REMOVE = f"""{_MARKED}
dir=$1
shift
marked "$dir" || {{ echo "$dir bears no mark of opscope" >&2; exit 1; }}
for name; do
  case /$name/ in */../* | //*) exit 1 ;; esac
  for path in "$dir"/$name; do
    rm -rf "$path" || exit 1
  done
done
"""


def prepare(shell: RemoteShell, directory: str) -> None:
    """Make the directory where it is missing, and mark it; one that cannot be made is told by what is kept in it."""
    completed = shell.run(["sh", "-c", _PREPARE, "opscope-prepare", directory], _SECONDS)
    if completed.stdout.strip() == b"foreign":
        problem = f"{directory} exists, and opscope did not create it"
        hint = f"name a directory where opscope can create {OWN}, with ?dir=PATH in the address"
        raise OverwriteError(problem, where=shell.describe().name, hint=hint)


def remove(shell: RemoteShell, directory: str, names: Sequence[str]) -> CompletedProcess[bytes]:
    """Remove files and directories of opscope's; nothing where the directory bears no mark."""
    return shell.run(["sh", "-c", _REMOVE, "opscope-remove", directory, *names], _SECONDS)
