"""An Android device for one host: held with its settings, waited for when it was lost, read into the manifest.

Holding an Android device for one host, with its power settings as that host wants them.

``guard.sh`` runs on the device as long as its standard input is open. When this process ends, however it ends, or the
cable is pulled, it puts the settings back itself and lets go of the device. What it changed also stands in a file on
the device until it was put back: after a reboot the next one to hold the device does it.

What an Android device tells of itself and of its state, read in one command each. What it does not tell is null.

The formats are those of Android's ``dumpsys battery`` (BatteryService.dump), ``dumpsys thermalservice``
(ThermalManagerService.dump, Temperature.toString), ``getprop`` and of the kernel's cpufreq files.

Devices by their addresses: always the same object, so that all experiments on one share what is known of it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import getpass
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.bundle.manifest import Conditions, Environment, Phone, PhoneState
from opscope.core.errors import DeviceError
from opscope.hosts.adb.adb import DIRECTORY, NAMES, PATIENCE, PROFILES, AdbShell, lines_about, runtime_lines
from opscope.hosts.adb.adb import parse_address as parse_serial
from opscope.hosts.adb.errors import refusal, storage_error
from opscope.hosts.device import OWN, Device, prepare
from opscope.hosts.facts import conditions_of, environment_of, parts
from opscope.hosts.host import PRINTED
from opscope.hosts.lock import DeviceLock
from opscope.hosts.scripts import CONDITIONS, FACTS, START
from opscope.hosts.ssh import SshShell, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opscope.bundle.manifest import Target
    from opscope.hosts.adb.adb import Power
    from opscope.hosts.host import ExitStatus, GuardedCommand
    from opscope.hosts.shell import RemoteShell


Told = TypeVar("Told")
LOGCAT = "logcat.txt"
"""What Android's log told of a process that failed."""
_ASK_SECONDS, _BOOT_POLL = 30.0, 0.5
# The script becomes the program, so its number is known; logcat is asked for what came after the time.
_NOTES = """echo $$ >pid
date '+%m-%d %H:%M:%S.000' >began
"""
_COME_BACK = "plug it in or switch it on; what was measured is kept, finish with --resume"
_SCRIPT = Path(__file__).with_name("guard.sh")
_READY_SECONDS = 120.0
_PRINTABLE = re.compile(r"[^\x20-\x7e]")
_MOST_SHOWN = 100
_SETTING = re.compile(r"(saved|restored|stuck) (\w+) (.*)\Z")
_SECURITY = (
    "allow adb to change settings (some vendors have a separate developer option: on Xiaomi, USB debugging "
    "(Security settings)), or leave out --power"
)
_SECONDS = 30.0
_KHZ_PER_MHZ, _TENTHS = 1000, 10
_CPU_TYPE = "0"
STATE = rf"""{CONDITIONS}
part battery; dumpsys battery </dev/null
part thermal; dumpsys thermalservice </dev/null
part online; cat /sys/devices/system/cpu/online
part cpufreq
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
  echo "${{cpu##*/cpu}} $(cat "$cpu/cpufreq/scaling_cur_freq") $(cat "$cpu/cpufreq/scaling_max_freq")"
done
part end
"""
"""What :func:`read_state` runs."""
DEVICE = rf"""{FACTS}
part properties; getprop
part present; cat /sys/devices/system/cpu/present
part online; cat /sys/devices/system/cpu/online
part settings
for name; do echo "$name $(settings get global "$name" </dev/null)"; done
part end
"""
"""What :func:`read_device` runs; its words are the names of settings."""
_PROPERTY = re.compile(r"^\[([\w.\-]+)\]: \[(.*)\]\r?$", re.MULTILINE)
_TEMPERATURE = re.compile(r"Temperature\{mValue=(-?\d{1,3}(?:\.\d{1,9})?), mType=(\d{1,3}),")
_CPUFREQ = re.compile(r"^(\d{1,4}) (\d{0,9}) (\d{0,9})$", re.MULTILINE)
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?\Z")
_LONGEST = 200
PHONE_VERSIONS = {"c library": "glibc from the bundle (experimental, untested on phones)"}
"""Stand in an Android device's manifest; the wheels of runtimes are not made for Android's own C library."""


class AdbLock(DeviceLock):
    """The lock of a device, and the hold on its settings, made anew when they were lost.

    Settings (``power``) are those of who holds the lock: a run beside another one leaves them as they are.
    """

    def __init__(self, shell: AdbShell, directory: str, power: Power | None) -> None:
        super().__init__(shell)
        self._device, self._directory, self._power = shell, directory, power
        self._hold: Hold | None = None
        self._owner = f"{owner_text()}, {id(self):x}"
        self.found: dict[str, str | None] = {}
        self.restored: dict[str, str | None] = {}

    def take(self, *, beside: bool = False) -> None:
        """Hold the device and make the settings."""
        with contextlib.suppress(DeviceError):
            self._end_settings()
        super().take(beside=beside)
        try:
            self._make_settings()
        except BaseException:
            super().release()
            raise

    def renew(self) -> bool:
        """Hold it again as before, if that or the hold on its settings was lost; return whether it was."""
        held = self._hold is None or self._hold.alive()
        if super().renew():  # it was taken again, with its settings
            return True
        if held:
            return False
        with contextlib.suppress(DeviceError):
            self._end_settings()
        self._make_settings()
        return True

    def release(self) -> None:
        """Put its settings back and let others have it."""
        try:
            self._end_settings()
        finally:
            super().release()

    def _make_settings(self) -> None:
        """Make the settings, unless another run holds the device."""
        if self.holder is not None:
            return
        self._hold = Hold(self._device, self._directory, self._owner, self._power)
        self.found = self._hold.saved
        self.restored = {**self.restored, **self._hold.restored}

    def _end_settings(self) -> None:
        """Put the settings back."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.end()


class AdbDevice(Device):
    """An Android device.

    ``power`` are settings to make while it is held; ``patience`` is how long it is waited for after it was lost, in
    seconds; ``address`` what a manifest has, by which it is found again; empty for its serial number.
    """

    _built, _build = "with the Android NDK", "build it with the Android NDK for {abi}"
    _start, _notes = f"{_NOTES}{START}", ("pid", "began")

    def __init__(
        self,
        shell: AdbShell,
        power: Power | None = None,
        directory: str = DIRECTORY,
        patience: float = PATIENCE,
        address: str = "",
    ) -> None:
        self._hold = AdbLock(shell, f"{directory}/{OWN}", power)
        super().__init__(shell, directory, self._hold)
        self._adb, self._power, self._patience, self._address = shell, power, patience, address
        self._gone = False

    def describe(self) -> Target:
        """Return kind and address, for the manifest."""
        target = self._adb.describe()
        return msgspec.structs.replace(target, address=self._address or target.address)

    @property
    def restored(self) -> dict[str, str | None]:
        """Return the settings that an earlier run had left changed, and that were put back when the device was held."""
        return self._hold.restored

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """Return the device and its software; see :func:`opscope.hosts.adb.device.read_device`."""
        power = self._power.name if self._power and self._hold.holder is None else None
        environment = self._ask_patiently(lambda: read_device(self._adb, power, features, versions))
        if environment.phone is None:
            return environment
        settings = {**environment.phone.settings, **self._hold.found}  # while it is held they are as we made them
        return msgspec.structs.replace(environment, phone=msgspec.structs.replace(environment.phone, settings=settings))

    def conditions(self) -> Conditions:
        """Return the state it is in; one that was lost is waited for."""
        return self._ask_patiently(lambda: read_state(self._adb))

    def output_of(self, *command: str, timeout: float = _ASK_SECONDS) -> str:
        """Return the output of a small command; the device is waited for when it was lost."""
        return self._ask_patiently(lambda: super(AdbDevice, self).output_of(*command, timeout=timeout))

    def _exit_status(self, code: int | None, command: GuardedCommand) -> ExitStatus:
        """Return how a command ended, with the records of logcat about a foreign one."""
        if command.foreign:
            records = {LOGCAT: "\n".join(self._log_lines(command.into))}
            return msgspec.structs.replace(super()._exit_status(code, command), records=records)
        return super()._exit_status(code, command)

    def _log_lines(self, into: Path) -> list[str]:
        """Return lines of Android's log about a process; the runtime's own are put before its output."""
        pid, began = (_take_file(into / name) for name in self._notes)
        if not pid.isdecimal() or not began:
            return []
        query = ("logcat", "-d", "-v", "threadtime", "-b", "main,system,crash", "-T", began)
        text = self.output_of(*query)
        logged = runtime_lines(text, int(pid))
        if logged:
            log = into / PRINTED
            log.write_bytes("\n".join(logged).encode() + b"\n" + log.read_bytes())
        return lines_about(text, int(pid))

    def _ask_patiently(self, ask: Callable[[], Told]) -> Told:
        """Return an answer of the device, which is waited for when it was lost."""
        try:
            return ask()
        except DeviceError:
            self._wait_for_return()
            return ask()

    def _wait_for_return(self) -> None:
        """Wait until it answers and has started up; its services are not there before that."""
        patience = 0.0 if self._gone else self._patience
        end, self._gone = time.monotonic() + patience, True
        if not self._adb.wait(patience):
            problem = f"the device was lost and did not come back in {self._patience:.0f} s"
            raise DeviceError(problem, where=self.name, hint=_COME_BACK)
        self._gone = False
        while super().output_of("getprop", "sys.boot_completed").strip() != "1" and time.monotonic() < end:
            time.sleep(_BOOT_POLL)


def _take_file(path: Path) -> str:
    """Return the text of a small file, which is removed; empty when there is none."""
    text = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


class Hold:
    """A device that is held, with its settings (``power``) made.

    ``owner`` is who holds it, as :func:`owner_text` tells it; a hold of the same owner is taken over.

    Raises:
        OverwriteError: the directory is somebody else's.
        DeviceError: another host holds it, it cannot be written to, or it refuses a setting.
    """

    def __init__(self, shell: RemoteShell, directory: str, owner: str, power: Power | None = None) -> None:
        self._where = f"{shell.describe().kind}:{shell.describe().address}"
        self.saved: dict[str, str | None] = {}
        self.restored: dict[str, str | None] = {}
        words = power.words() if power else []
        prepare(shell, directory)
        script = _SCRIPT.read_text(encoding="utf-8")
        self._process = shell.spawn(["sh", "-c", script, "opscope-guard", directory, owner, *words])
        try:
            self._read_until_ready()
        except BaseException:
            self._process.end()
            raise

    def alive(self) -> bool:
        """Return whether the device is still held, as far as can be told from here."""
        return self._process.alive()

    def end(self) -> None:
        """Put the settings back and let go of the device; may be repeated."""
        self._process.end()
        stuck = [match for match in map(_SETTING.match, self._guard_lines(0)) if match and match[1] == "stuck"]
        if stuck:
            raise self._error_stuck(stuck[0])

    def _read_until_ready(self) -> None:
        """Read the guard's lines until it is ready; raise an error where it refuses."""
        unknown_lines = []
        for line in self._guard_lines(_READY_SECONDS):
            match = _SETTING.match(line)
            if line == "ready":
                return
            if line.startswith("held "):
                raise self._error_in_use(line.removeprefix("held "))
            if line.startswith("refused "):
                raise DeviceError(
                    f"it refused to change {_printable_word(line[8:])}", where=self._where, hint=_SECURITY
                )
            if match and match[1] == "stuck":
                raise self._error_stuck(match)
            if match:
                (self.saved if match[1] == "saved" else self.restored)[match[2]] = _setting_value(match[3])
            else:
                unknown_lines.append(line)
        raise self._error_not_held("\n".join(unknown_lines).encode())

    def _error_not_held(self, message: bytes) -> DeviceError:
        """Return the error for a guard that ended before it was ready, or did not become ready in time."""
        try:
            code = self._process.wait(0)
        except DeviceError as error:
            return storage_error(self._where, message) if message else error
        if code is None:
            hint = "see what `adb shell settings list global` prints, and rerun"
            return DeviceError(f"it was not ready within {_READY_SECONDS:.0f} s", where=self._where, hint=hint)
        return refusal(self._where, message)

    def _guard_lines(self, timeout: float) -> Iterator[str]:
        """Yield the lines of the guard, until it ends or a time, in seconds, is up."""
        end = time.monotonic() + timeout
        while (line := self._process.read_line(max(0.0, end - time.monotonic()))) is not None:
            yield line

    def _error_in_use(self, owner: str) -> DeviceError:
        """Return the error for a device that another host holds."""
        pid, _, name = _printable_word(owner).partition(" ")
        hint = "wait until that run ends"
        if pid.isdecimal():
            kill = f"adb -s {self._where.partition(':')[2]} shell kill {pid}"
            hint += f"; if its computer is gone, `{kill}` ends it and restores its settings"
        return DeviceError(f"it is in use by {name or 'another host'}", where=self._where, hint=hint)

    def _error_stuck(self, match: re.Match[str]) -> DeviceError:
        """Return the error for a setting that could not be put back."""
        name, value = match[2], _printable_word(match[3])
        put = f"settings delete global {name}" if value == "null" else f"settings put global {name} {value}"
        hint = f"adb shell {put}; or rerun once the device has started up to retry"
        return DeviceError(f"the setting {name} could not be restored", where=self._where, hint=hint)


def owner_text() -> str:
    """Return a text that tells another host who holds the device from now on."""
    since = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no name for this user's number
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (process {os.getpid()}, since {since})"


def _setting_value(text: str) -> str | None:
    """Return the value of a setting; None for one that is not set."""
    return None if text == "null" else _printable_word(text)


def _printable_word(text: str) -> str:
    """Return a device's word for a message."""
    return _PRINTABLE.sub("?", text)[:_MOST_SHOWN]


def read_state(shell: RemoteShell) -> Conditions:
    """Return the state of a device now."""
    return state_of(parts(shell.run(["sh", "-c", STATE], _SECONDS).stdout))


def read_device(
    shell: RemoteShell, power: str | None, features: list[str] | None, versions: Mapping[str, str]
) -> Environment:
    """Return a device and its software."""
    reported = parts(shell.run(["sh", "-c", DEVICE, "sh", *NAMES], _SECONDS).stdout)
    return device_of(reported, power, environment_of(reported, features, versions))


def state_of(reported: Mapping[str, str]) -> Conditions:
    """Return the state of a device from the parts of its report."""
    common = conditions_of(reported)
    battery, thermal = reported.get("battery", ""), reported.get("thermal", "")
    rows = sorted((int(number), now, highest) for number, now, highest in _CPUFREQ.findall(reported.get("cpufreq", "")))
    frequencies, limits = [_to_mhz(now) for _, now, _ in rows], [_to_mhz(highest) for _, _, highest in rows]
    tenths = _find_integer(r"^\s*temperature: (-?\d{1,4})$", battery)
    sources = re.findall(r"^\s*(?:AC|USB|Wireless|Dock) powered: (true|false)", battery, re.MULTILINE)
    return msgspec.structs.replace(
        common,
        temperature_celsius=_highest_temperature(thermal) or common.temperature_celsius,
        usable_cpus=_count_cpus(reported.get("online", "")) or common.usable_cpus,
        phone=PhoneState(
            thermal_status=_find_integer(r"^Thermal Status: (\d)$", thermal),
            battery_percent=_find_integer(r"^\s*level: (\d{1,3})$", battery),
            battery_celsius=None if tenths is None else tenths / _TENTHS,
            plugged="true" in sources if sources else None,
            frequencies_mhz=frequencies,
            limits_mhz=limits,
        ),
    )


def device_of(reported: Mapping[str, str], power: str | None, common: Environment) -> Environment:
    """Return a device from the parts of its report."""
    properties = {name: value[:_LONGEST] for name, value in _PROPERTY.findall(reported.get("properties", ""))}
    soc = " ".join(filter(None, (properties.get("ro.soc.manufacturer"), properties.get("ro.soc.model"))))
    words = (line.split() for line in reported.get("settings", "").splitlines())
    values = {row[0]: row[1] for row in words if len(row) == 2}  # noqa: PLR2004 - a name and its value
    return msgspec.structs.replace(
        common,
        system="Android" if properties else common.system,
        cpu=soc or properties.get("ro.board.platform") or common.cpu,
        logical_cpus=_count_cpus(reported.get("present", "")) or common.logical_cpus,
        usable_cpus=_count_cpus(reported.get("online", "")) or common.usable_cpus,
        phone=Phone(
            manufacturer=properties.get("ro.product.manufacturer") or None,
            model=properties.get("ro.product.model") or None,
            soc=soc or None,
            android=properties.get("ro.build.version.release") or None,
            build=properties.get("ro.build.fingerprint") or None,
            power=power,
            settings={name: None if values[name] == "null" else values[name] for name in NAMES if name in values},
        ),
    )


def _to_mhz(kilohertz: str) -> float | None:
    """Return kilohertz as megahertz; None for an empty text."""
    return int(kilohertz) / _KHZ_PER_MHZ if kilohertz else None


def _highest_temperature(text: str) -> float | None:
    """Return the highest of the CPUs, else of all sensors; current values of the HAL go before cached ones."""
    cached, _, now = text.partition("Current temperatures from HAL:")
    for part in (now, cached):
        readings = _TEMPERATURE.findall(part)
        values = [float(value) for value, kind in readings if kind == _CPU_TYPE] or [
            float(value) for value, _ in readings
        ]
        if values:
            return max(values)
    return None


def _count_cpus(text: str) -> int | None:
    """Return how many CPUs a list such as ``0-3,7`` names."""
    ranges = [_RANGE.match(part) for part in text.strip().split(",")]
    counts = [int(part[2] or part[1]) - int(part[1]) + 1 if part else 0 for part in ranges]
    return sum(counts) if min(counts) > 0 else None


def _find_integer(pattern: str, text: str) -> int | None:
    """Return the number that a pattern finds in a text, if any."""
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else None


@functools.cache
def ssh_device(address: str) -> Device:
    """Return the device of an address; all builds on it share one connection."""
    ssh_address = parse_address(address)
    return Device(SshShell(ssh_address), ssh_address.directory)


@functools.cache
def phone_device(address: str) -> AdbDevice:
    """Return the device of an address: always the same, so that all experiments on it share what is known of it."""
    adb_address = parse_serial(address)
    shell = AdbShell(adb_address.serial or None)
    power = PROFILES[adb_address.power] if adb_address.power else None
    text = adb_address._replace(serial=shell.serial).text()
    return AdbDevice(shell, power, adb_address.directory, adb_address.patience, text)
