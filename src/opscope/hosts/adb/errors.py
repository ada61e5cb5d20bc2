"""Errors of adb and of a device, in words that tell what to do.

The words that they are told by are those of adb's ``transport.cpp``, ``adb_client.cpp`` and
``file_sync_client.cpp``,
and of the C library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Complaint(NamedTuple):
    """Meaning of words: any of the marks, the problem, and what to do."""

    marks: tuple[str, ...]
    problem: str
    hint: str


_CONNECTION = (
    _Complaint(
        ("unauthorized", "failed to authenticate"),
        "the device has not allowed this computer",
        "unlock it and confirm the USB debugging prompt; without a prompt, revoke the authorisations in the "
        "developer options and plug it in again",
    ),
    _Complaint(
        ("still authorizing", "still connecting"),
        "the device is not ready yet",
        "unlock it, confirm the USB debugging prompt if there is one, and rerun",
    ),
    _Complaint(
        ("offline",),
        "the device is offline: unplugged, restarting, or its adb daemon hangs",
        "wait for it, plug it in again, or run `adb reconnect offline`; then finish with --resume",
    ),
    _Complaint(
        ("not found", "no devices"),
        "there is no such device",
        "`adb devices` lists the connected ones; USB debugging must be on in the developer options",
    ),
    _Complaint(
        ("refused", "failed to connect", "no route", "timed out", "unable to connect", "name or service"),
        "the device is unreachable over the network",
        "check its address and port (developer options, wireless debugging), and that both are on one network",
    ),
    _Complaint(
        ("cannot connect to daemon", "could not start server", "failed to check server version"),
        "the adb server does not work",
        "run `adb kill-server`, then `adb devices`, and see the output",
    ),
    _Complaint(
        ("insufficient permissions", "no permissions"),
        "no permission to open the device's USB connection",
        "install the udev rules for Android (Debian: android-sdk-platform-tools-common) and plug it in again",
    ),
)
_LOST = _Complaint(
    (),
    "the connection was lost during a command",
    "check the cable and that the device is on; what was measured is kept, finish with --resume",
)
_STORAGE = (
    _Complaint(
        ("no space left", "disk quota exceeded"),
        "the device's storage is full",
        "free some space on it: `adb shell rm -r /data/local/tmp/opscope` removes opscope's files there",
    ),
    _Complaint(
        ("read-only file system",),
        "the device's storage is read-only",
        "use a writable directory, usually /data/local/tmp; if that is read-only, restart the device",
    ),
    _Complaint(
        ("permission denied", "operation not permitted", "secure_mkdirs failed"),
        "the device denies access",
        "use a directory that adb can write, usually /data/local/tmp; remove root's files there as root",
    ),
)


def connection_error(where: str, words: bytes) -> DeviceError:
    """Return the error for a device that does not answer."""
    message = complaint(words)
    known = _find_meaning(message, _CONNECTION)
    if known is not None:
        return DeviceError(known.problem, where=where, hint=known.hint)
    return DeviceError(f"{_LOST.problem}: {message}" if message else _LOST.problem, where=where, hint=_LOST.hint)


def storage_error(where: str, words: bytes) -> DeviceError:
    """Return the error for a device that does not store, or does not give, a file."""
    return _full_or_denied(where, complaint(words)) or connection_error(where, words)


def refusal(where: str, words: bytes) -> DeviceError:
    """Return the error for a command of ours that failed on a device that is there."""
    message = complaint(words)
    hint = "check it with `adb shell`; opscope needs the shell and tools of Android 8 or newer"
    unknown = DeviceError(f"it cannot be used: {message or 'no message'}", where=where, hint=hint)
    return _full_or_denied(where, message) or unknown


def no_device() -> DeviceError:
    """Return the error for no device that is plugged in."""
    hint = "plug it in with USB debugging on, or name one on the network: adb:HOST:PORT"
    return DeviceError("there is no Android device", where="--target adb", hint=hint)


def several_devices(names: Sequence[str]) -> DeviceError:
    """Return the error for several devices, of which none is named."""
    problem = f"there are {len(names)} Android devices: {', '.join(names)}"
    return DeviceError(problem, where="--target adb", hint="name one: --target adb:SERIAL")


def _full_or_denied(where: str, message: str) -> DeviceError | None:
    """Return the error for a device that refuses to store, if the words say so."""
    known = _find_meaning(message, _STORAGE)
    return DeviceError(f"{known.problem} ({message})", where=where, hint=known.hint) if known else None


def _find_meaning(message: str, table: Sequence[_Complaint]) -> _Complaint | None:
    """Return the first row of a table of which a mark is in the words, if any."""
    return next((row for row in table if any(mark in message.lower() for mark in row.marks)), None)


def complaint(words: bytes) -> str:
    """Return the first line of a complaint, without adb's own prefixes and the greeting of its server."""
    lines = [line.strip() for line in words.decode("utf-8", "replace").splitlines()]
    own_lines = [line for line in lines if line and not line.startswith("*")]
    if not own_lines:
        return ""
    errors = [line for line in own_lines if "error" in line.lower() or "fail" in line.lower()]
    return (errors or own_lines)[0].removeprefix("adb: ").removeprefix("error: ")
