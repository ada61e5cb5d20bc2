"""A shell on an Android device through the system's own ``adb``: commands, files, and which device is meant.

``adb shell`` ends with code 0 when the device is unplugged in the middle of a command (seen with version 29.0.6), and
without ``shell_v2`` it never tells an exit code. So every command ends with a line of ours that holds its code, and
one without that line did not end.

Power settings are two profiles of the Arm kit, set before a measurement and put back after it. The values are those of
the kit's instructions (ArmDeveloperEcosystem/sme-executorch-profiling,
``agent_skill_ml_profiling/04_run_profiling.md``: "unconstrained boost mode" and "app developer mode"), the meanings
those of Android's ``Settings.Global`` and ``BatteryManager``. The kit says that 15 for ``stay_on_while_plugged_in``
removes limits of the CPU's frequency; Android documents that it keeps the screen on, no more. The limits that the
kernel tells before and after each repetition stand in the manifest (``PhoneState.limits_mhz``), so that what a profile
did on a device can be seen there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import time
from subprocess import CompletedProcess
from typing import IO, TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from opscope.bundle.manifest import Target
from opscope.core.errors import DeviceError, MissingDependencyError, UsageError, did_you_mean
from opscope.hosts.adb.errors import complaint, connection_error, no_device, several_devices, storage_error
from opscope.hosts.shell import ShellProcess, address_options, safe_path
from opscope.hosts.target_kinds import ADB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Setting(NamedTuple):
    """A global setting."""

    name: str  # as `settings put global` has it
    value: str  # that is set
    meaning: str  # for people


class Power(NamedTuple):
    """A profile."""

    name: str  # that the user gives
    settings: tuple[Setting, ...]  # in the order in which they are set
    # whether the screen is switched on too, by `svc power stayon true`; that sets `stay_on_while_plugged_in` for
    # every source of power that the device knows
    wake: bool

    def words(self) -> list[str]:
        """Return the profile as arguments of ``guard.sh``."""
        return [f"{setting.name}={setting.value}" for setting in self.settings] + (["stayon"] if self.wake else [])


_SAVER = Setting("low_power", "0", "battery saver off: it lowers clocks and defers work")
_ANIMATIONS = (
    ("window_animation_scale", "windows opening and closing"),
    ("transition_animation_scale", "changes between screens"),
    ("animator_duration_scale", "animations of apps"),
)


def _set_animations(value: str, effect: str) -> tuple[Setting, ...]:
    """Return the settings that give all animations one value."""
    return tuple(Setting(name, value, f"{subject}: {effect}") for name, subject in _ANIMATIONS)


PROFILES = {
    profile.name: profile
    for profile in (
        Power(
            "boost",
            (
                _SAVER,
                Setting(
                    "stay_on_while_plugged_in", "15", "screen on with any power: mains 1, USB 2, wireless 4, dock 8"
                ),
                *_set_animations("0", "off"),
            ),
            wake=True,
        ),
        Power(
            "app-developer",
            (
                Setting(
                    "stay_on_while_plugged_in",
                    "1",
                    "screen on with mains power only, so off on a computer's USB",
                ),
                *_set_animations("1", "at their usual speed"),
                _SAVER,
            ),
            wake=False,
        ),
    )
}
NAMES = tuple(dict.fromkeys(setting.name for profile in PROFILES.values() for setting in profile.settings))
"""Every setting that a profile touches; they are read into the manifest with or without a profile."""


def power_named(name: str) -> Power:
    """Return the profile of a name."""
    if name not in PROFILES:
        raise UsageError(f"no power profile {name!r}", where="--power", hint=did_you_mean(name, PROFILES))
    return PROFILES[name]


DIRECTORY = "/data/local/tmp"
"""Where opscope keeps its files on a device; ``/data/local/tmp`` is where adb may write and execute."""


PATIENCE = 120
"""How long, in seconds, a device that was lost is waited for; a reboot takes most of it."""


_OPTIONS = ("power", "dir", "runner", "patience")
_SERIAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-\[\]]*\Z")
_WHOLE = re.compile(r"\d{1,5}\Z")


class AdbAddress(NamedTuple):
    """Address of a device, and how it is used."""

    serial: str = ""  # its serial number, or HOST:PORT; empty for the only one there is
    # name of the power profile that is set while something is measured; None leaves the settings as they are
    power: str | None = None
    directory: str = DIRECTORY  # of the device, in which opscope keeps one of its own
    runner: str | None = None  # an executor_runner here, built with the NDK; None to bring the native runner
    patience: int = PATIENCE  # how long the device is waited for after it was lost, in seconds

    def text(self) -> str:
        """Return the address, with nothing in it that is the default."""
        stated = (
            ("power", self.power),
            ("dir", None if self.directory == DIRECTORY else self.directory),
            ("runner", self.runner),
            ("patience", None if self.patience == PATIENCE else f"{self.patience}"),
        )
        options = {name: value for name, value in stated if value}
        return self.serial + (f"?{urlencode(options, safe='/:')}" if options else "")


def parse_address(text: str) -> AdbAddress:
    """Return the parts of an address."""
    serial, _, query = text.partition("?")
    where = f"--target adb:{text}"
    if serial and not _SERIAL.match(serial):
        hint = "for example adb, adb:R5CT30ABCDE or adb:192.168.1.7:5555; `adb devices` lists them"
        raise UsageError("not the serial number of a device", where=where, hint=hint)
    options = address_options(query, _OPTIONS, where, "power=boost")
    power = power_named(options["power"]).name if "power" in options else None
    directory = safe_path(options.get("dir", DIRECTORY), where).rstrip("/")
    if not directory.startswith("/"):
        raise UsageError("the directory must be absolute", where=where, hint=f"for example ?dir={DIRECTORY}")
    patience = options.get("patience", f"{PATIENCE}")
    if not _WHOLE.match(patience):
        raise UsageError(f"{patience!r} is not a time", where=where, hint="a whole number of seconds: ?patience=60")
    return AdbAddress(serial, power, directory, options.get("runner"), int(patience))


RUNTIME_TAGS = ("ExecuTorch", "XNNPACK")
_LINE = re.compile(r"^\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +(?P<pid>\d+) +\d+ [A-Z] (?P<tag>[^:]*?) *: (?P<text>.*)$")


def runtime_lines(text: str, pid: int) -> list[str]:
    """Return the lines that the runtime logged in one process, as they are."""
    matches = ((line, _LINE.match(line)) for line in text.splitlines())
    return [line for line, m in matches if m and int(m["pid"]) == pid and m["tag"] in RUNTIME_TAGS]


def lines_about(text: str, pid: int) -> list[str]:
    """Return all lines of one process, and of those that tell how it crashed."""
    lines = [(line, match) for line in text.splitlines() if (match := _LINE.match(line))]
    tellers = {int(match["pid"]) for _, match in lines if match["text"].startswith(f"pid: {pid}, tid: ")}
    return [line for line, match in lines if int(match["pid"]) in {pid, *tellers}]


_ENDED = "opscope-ended"
_TRAILER = re.compile(rb"\r?\n" + _ENDED.encode() + rb" (\d{1,3})\r?\n\Z")
_ENDED_LINE = re.compile(_ENDED + r" (\d{1,3})\Z")
_NETWORK = re.compile(r"[^\s/]+:\d{1,5}\Z")
_ASK_SECONDS, _CONNECT_SECONDS, _POLL_SECONDS = 30.0, 30.0, 0.25
_COPY_SECONDS, _SLOWEST_COPY = 60.0, 1 << 20
_END_SECONDS = 30.0
_SLOW = "check whether it is asleep, busy or out of reach, and rerun; `adb reconnect` restarts its connection"
_INSTALL = "install the Android platform tools (Debian: apt install adb, macOS: brew install android-platform-tools)"


class AdbShell:
    """A device, by its serial number or network address.

    ``serial``: of the device, or HOST:PORT of one on the network, which is connected to; None: the only one there is,
    or that of the environment's ``ANDROID_SERIAL``; ``command``: that starts adb.

    Raises MissingDependencyError: adb is not installed; DeviceError: there is no such device, none at all, several of
    them, or it does not let us in.
    """

    def __init__(self, serial: str | None = None, command: Sequence[str] = ("adb",)) -> None:
        self._command = tuple(command)
        if shutil.which(self._command[0]) is None:
            raise MissingDependencyError("adb is not installed", hint=_INSTALL)
        requested = serial or os.environ.get("ANDROID_SERIAL")
        if requested is not None and _NETWORK.match(requested):
            self._connect_network(requested)
        self.serial = requested or self._only_one()
        self.run(["true"], _ASK_SECONDS)

    def describe(self) -> Target:
        """Return kind and serial number."""
        return Target(ADB.name, self.serial)

    def run(self, command: Sequence[str], timeout: float) -> CompletedProcess[bytes]:
        """Run a command and wait for its end; without ``shell_v2`` its errors come in its output."""
        try:
            completed = self._run_adb(["shell", _with_exit_code(command)], timeout)
        except subprocess.TimeoutExpired:
            raise DeviceError(f"no answer within {timeout:.0f} s", where=self._device_name, hint=_SLOW) from None
        match = _TRAILER.search(completed.stdout)
        if match is None:
            raise connection_error(self._device_name, completed.stderr)
        return CompletedProcess(command, int(match[1]), completed.stdout[: match.start()], completed.stderr)

    def spawn(self, command: Sequence[str]) -> AdbProcess:
        """Start a command; Android's adb daemon sends it SIGHUP and closes its input when the connection ends."""
        return AdbProcess([*self._command, "-s", self.serial, "shell", _with_exit_code(command)], self._device_name)

    def push(self, files: Sequence[Path], directory: str) -> None:
        """Copy files into a directory of the device, which is made when it is not there."""
        safe_path(directory, self._device_name)
        size = sum(file.stat().st_size for file in files)
        for file in files:
            self._copy_files(["push", str(file), f"{directory}/{file.name}"], size)

    def pull(self, directory: str, names: Sequence[str], into: Path) -> None:
        """Copy files from a directory of the device into one of ours."""
        safe_path(directory, self._device_name)
        for name in names:
            size = int(self.run(["stat", "-c", "%s", f"{directory}/{name}"], _ASK_SECONDS).stdout or 0)
            self._copy_files(["pull", f"{directory}/{name}", str(into / name)], size)
            if (into / name).stat().st_size != size:
                raise DeviceError(f"{name} arrived incomplete", where=self._device_name, hint="run it again")

    def wait(self, timeout: float) -> bool:
        """Return whether the device answers within a time, in seconds; one on the network is connected to again."""
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(DeviceError):
                if _NETWORK.match(self.serial):
                    self._connect_network(self.serial)
                return self.run(["true"], _ASK_SECONDS).returncode == 0
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_SECONDS)

    @property
    def _device_name(self) -> str:
        """Return the device's name, for messages."""
        return f"{ADB.name}:{self.serial}"

    def _connect_network(self, address: str) -> None:
        """Connect to a device on the network, unless adb lists it as connected."""
        state = self._list_devices().get(address)
        if state == "device":
            return
        if state is not None:  # adb would say that it is connected already, and try again only now and then
            self._run_adb(["disconnect", address], _ASK_SECONDS, serial=None)
        completed = self._run_adb(["connect", address], _CONNECT_SECONDS, serial=None)
        words = complaint(completed.stdout + completed.stderr)
        if "connected to" not in words:
            raise connection_error(f"{ADB.name}:{address}", words.encode())

    def _only_one(self) -> str:
        """Return the serial number of the only device; raise an error where there is none, or several."""
        states = self._list_devices()
        if not states:
            raise no_device()
        if len(states) > 1:
            raise several_devices([f"{serial} ({state})" for serial, state in states.items()])
        return next(iter(states))

    def _list_devices(self) -> dict[str, str]:
        """Return the states of devices by their serial numbers, as ``adb devices`` lists them."""
        lines = self._run_adb(["devices"], _ASK_SECONDS, serial=None).stdout.decode("utf-8", "replace").splitlines()
        words = [line.split("\t") for line in lines if "\t" in line]
        return {serial: state for serial, state, *_ in words}

    def _copy_files(self, arguments: Sequence[str], size: int) -> None:
        """Run a copy of adb; raise an error where it fails or takes too long."""
        limit = _COPY_SECONDS + size / _SLOWEST_COPY
        try:
            completed = self._run_adb(arguments, limit)
        except subprocess.TimeoutExpired:
            problem = f"{arguments[0]} of {size:,} bytes took more than {limit:.0f} s"
            raise DeviceError(problem, where=self._device_name, hint=_SLOW) from None
        if completed.returncode:
            raise storage_error(self._device_name, completed.stderr or completed.stdout)

    def _run_adb(
        self, arguments: Sequence[str], timeout: float, serial: str | None = ""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run adb, for the device unless ``serial`` is None."""
        device = () if serial is None else ("-s", self.serial)
        command = [*self._command, *device, *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
            start_new_session=True,  # the terminal's Ctrl-C would look like a lost device to a thread
        )


class AdbProcess(ShellProcess):
    """A command that runs on the device, its standard input open."""

    errors = subprocess.STDOUT
    end_seconds = _END_SECONDS

    def wait(self, timeout: float) -> int | None:
        """Return the command's exit code; None while it runs."""
        self._listener.join(timeout)
        if self._listener.is_alive():
            return None
        if self._code is None:
            raise connection_error(self._where, self._read_rest())
        return self._code

    def end(self) -> None:
        """Close its input, and the connection when that does not end it."""
        super().end()
        self._listener.join()

    def _read_lines(self, output: IO[bytes]) -> None:
        """Take the lines of its output, and the exit code from the last one."""
        blank = False  # an empty line stands before the code, whether the output ended with a line or within one
        for raw in output:
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            match = _ENDED_LINE.match(text)
            if match:  # the last one counts; what goes to standard error may come after it
                self._code, blank = int(match[1]), False
                continue
            if blank:
                self._lines.put("")
            blank = not text
            if text:
                self._lines.put(text)
        self._process.wait()

    def _read_rest(self) -> bytes:
        """Return the output that nobody has read."""
        lines = []
        while (line := self.read_line(0)) is not None:
            lines.append(line)
        return "\n".join(lines).encode()


def _with_exit_code(command: Sequence[str]) -> str:
    """Return a command for the device's shell, which tells its exit code in a last line."""
    return f"{shlex.join(command)}; c=$?; echo; echo {_ENDED} $c"
