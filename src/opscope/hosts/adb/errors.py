"""What adb and a device say when something is wrong, as errors that tell what to do.

The words are those of adb's ``transport.cpp``, ``adb_client.cpp`` and ``file_sync_client.cpp``, and of the C library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Said(NamedTuple):
    """What words mean: any of them, the problem, and what to do."""

    marks: tuple[str, ...]
    problem: str
    hint: str


_CONNECTION = (
    _Said(
        ("unauthorized", "failed to authenticate"),
        "the device has not allowed this computer",
        "unlock it and confirm the USB debugging prompt; without a prompt, revoke the authorisations in the "
        "developer options and plug it in again",
    ),
    _Said(
        ("still authorizing", "still connecting"),
        "the device is not ready yet",
        "unlock it, confirm the USB debugging prompt if there is one, and rerun",
    ),
    _Said(
        ("offline",),
        "the device is offline: unplugged, restarting, or its adb daemon hangs",
        "wait for it, plug it in again, or run `adb reconnect offline`; then finish with --resume",
    ),
    _Said(
        ("not found", "no devices"),
        "there is no such device",
        "`adb devices` lists the connected ones; USB debugging must be on in the developer options",
    ),
    _Said(
        ("refused", "failed to connect", "no route", "timed out", "unable to connect", "name or service"),
        "the device is unreachable over the network",
        "check its address and port (developer options, wireless debugging), and that both are on one network",
    ),
    _Said(
        ("cannot connect to daemon", "could not start server", "failed to check server version"),
        "the adb server does not work",
        "run `adb kill-server`, then `adb devices`, and see the output",
    ),
    _Said(
        ("insufficient permissions", "no permissions"),
        "no permission to open the device's USB connection",
        "install the udev rules for Android (Debian: android-sdk-platform-tools-common) and plug it in again",
    ),
)
_LOST = _Said(
    (),
    "the connection was lost during a command",
    "check the cable and that the device is on; what was measured is kept, finish with --resume",
)
_STORAGE = (
    _Said(
        ("no space left", "disk quota exceeded"),
        "the device's storage is full",
        "free some space on it: `adb shell rm -r /data/local/tmp/opscope` removes opscope's files there",
    ),
    _Said(
        ("read-only file system",),
        "the device's storage is read-only",
        "use a writable directory, usually /data/local/tmp; if that is read-only, restart the device",
    ),
    _Said(
        ("permission denied", "operation not permitted", "secure_mkdirs failed"),
        "the device denies access",
        "use a directory that adb can write, usually /data/local/tmp; remove root's files there as root",
    ),
)


def connection_error(where: str, words: bytes) -> DeviceError:
    """Why a device does not answer."""
    said = complaint(words)
    known = _meaning(said, _CONNECTION)
    if known is not None:
        return DeviceError(known.problem, where=where, hint=known.hint)
    return DeviceError(f"{_LOST.problem}: {said}" if said else _LOST.problem, where=where, hint=_LOST.hint)


def storage_error(where: str, words: bytes) -> DeviceError:
    """Why a device does not store, or does not give, a file."""
    return _stored(where, complaint(words)) or connection_error(where, words)


def refusal(where: str, words: bytes) -> DeviceError:
    """Why a command of ours failed on a device that is there."""
    said = complaint(words)
    hint = "check it with `adb shell`; opscope needs the shell and tools of Android 8 or newer"
    unknown = DeviceError(f"it cannot be used: {said or 'no message'}", where=where, hint=hint)
    return _stored(where, said) or unknown


def no_device() -> DeviceError:
    """Nothing is plugged in."""
    hint = "plug it in with USB debugging on, or name one on the network: adb:HOST:PORT"
    return DeviceError("there is no Android device", where="--target adb", hint=hint)


def several_devices(names: Sequence[str]) -> DeviceError:
    """It is not clear which one is meant."""
    problem = f"there are {len(names)} Android devices: {', '.join(names)}"
    return DeviceError(problem, where="--target adb", hint="name one: --target adb:SERIAL")


def _stored(where: str, said: str) -> DeviceError | None:
    known = _meaning(said, _STORAGE)
    return DeviceError(f"{known.problem} ({said})", where=where, hint=known.hint) if known else None


def _meaning(said: str, table: Sequence[_Said]) -> _Said | None:
    return next((row for row in table if any(mark in said.lower() for mark in row.marks)), None)


def complaint(words: bytes) -> str:
    """The first line that says what is wrong, without adb's own prefixes and what its server says when it starts."""
    lines = [line.strip() for line in words.decode("utf-8", "replace").splitlines()]
    said = [line for line in lines if line and not line.startswith("*")]
    if not said:
        return ""
    errors = [line for line in said if "error" in line.lower() or "fail" in line.lower()]
    return (errors or said)[0].removeprefix("adb: ").removeprefix("error: ")
