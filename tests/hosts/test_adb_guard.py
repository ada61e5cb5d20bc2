"""Holding an Android device: one host at a time, its settings put back however the hold ends.

The guard is the script that runs on a device, run here by Android's shell (mksh) over the real ``adb``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adb_bench import adb_server, needs_adb, plugged
from adb_endpoint import Endpoint
from opscope.core.errors import DeviceError
from opscope.hosts.adb.adb import NAMES, AdbShell, power_named
from opscope.hosts.adb.device import Hold, owner_text
from opscope.hosts.device import MARK, OWN
from waiting import HANG, eventually

pytestmark = needs_adb
DIRECTORY = "/data/local/tmp/opscope"
BOOST = {
    "low_power": "0",
    "stay_on_while_plugged_in": "15",
    "window_animation_scale": "0",
    "transition_animation_scale": "0",
    "animator_duration_scale": "0",
}
FOUND = {
    "low_power": "1",
    "stay_on_while_plugged_in": "2",
    "window_animation_scale": "0.5",
    "transition_animation_scale": None,
    "animator_duration_scale": None,
}


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with adb_server(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Endpoint]:
    """A phone whose owner has some settings of his own."""
    with plugged(tmp_path / "phone") as endpoint:
        for name, value in FOUND.items():
            if value is not None:
                endpoint.phone.put(name, value)
        yield endpoint


def _settings(device: Endpoint) -> dict[str, str | None]:
    return {name: device.phone.setting(name) for name in NAMES}


def _hold(device: Endpoint, power: str | None = "boost", owner: str | None = None) -> Hold:
    """The device, held with a profile, by somebody else each time unless an owner is named."""
    who = owner or f"{owner_text()}, {time.monotonic_ns()}"
    return Hold(AdbShell(device.address), DIRECTORY, who, power_named(power) if power else None)


@pytest.mark.parametrize(
    ("power", "made"),
    [("boost", BOOST), ("app-developer", dict.fromkeys(BOOST, "1") | {"low_power": "0"}), (None, FOUND)],
    ids=["boost", "app-developer", "none"],
)
def test_settings_are_made_and_put_back(power: str | None, made: dict[str, str | None], device: Endpoint) -> None:
    """Values as they were; a setting that was not set is not set again, and without a profile nothing is touched."""
    held = _hold(device, power)
    assert _settings(device) == made
    assert held.saved == (FOUND if power else {})
    commands = [command for command in device.phone.commands if "opscope-guard" not in command]
    assert not any("settings put" in command for command in commands)
    held.end()
    assert _settings(device) == FOUND


_HOLDER = """
import sys, time
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import Hold, owner_text
from opscope.hosts.adb.adb import PROFILES
held = Hold(AdbShell(sys.argv[1]), sys.argv[2], "a@b", PROFILES["boost"])
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_settings_are_put_back_when_this_process_is_ended(number: signal.Signals, device: Endpoint) -> None:
    """The guard on the device finds its input closed, whatever ended us; then the device is free."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, device.address, DIRECTORY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert _settings(device) == BOOST
        os.kill(holder.pid, number)
    assert eventually(lambda: _settings(device) == FOUND)
    _hold(device, None).end()


def test_settings_are_put_back_when_the_cable_is_pulled(device: Endpoint) -> None:
    """The guard ignores the SIGHUP that adbd sends, and finds its input closed."""
    held = _hold(device)
    device.unplug()
    assert eventually(lambda: _settings(device) == FOUND)
    assert eventually(lambda: not held.alive())
    held.end()


def test_after_a_reboot_the_next_hold_puts_settings_back(device: Endpoint) -> None:
    """Nothing on the device could; the file that tells what they were has stayed."""
    gone = _hold(device)
    device.reboot()
    assert _settings(device) == BOOST
    assert AdbShell(device.address).wait(HANG)
    held = _hold(device, None)
    assert _settings(device) == FOUND == held.restored
    held.end()
    gone.end()
    last = _hold(device, None)
    last.end()
    assert last.restored == {}


def test_a_crash_on_the_device_while_settings_are_made_loses_none(device: Endpoint) -> None:
    """They are written down before the first one is changed, and only the first values count."""
    gone = _hold(device)
    pid = int((device.phone.tmp / "opscope/owner").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    gone.end()
    held = _hold(device, "app-developer")
    assert held.restored == FOUND == held.saved
    held.end()
    assert _settings(device) == FOUND


def test_a_device_that_another_host_holds(device: Endpoint) -> None:
    """It is said who, and how to end it; that ends it properly."""
    first = _hold(device)
    with pytest.raises(DeviceError, match=r"in use by \w+@") as caught:
        _hold(device)
    assert _settings(device) == BOOST
    hint = caught.value.hint or ""
    command = hint[hint.index("adb -s") : hint.rindex("`")].split()
    subprocess.run(command, check=True, capture_output=True)
    assert eventually(lambda: _settings(device) == FOUND)
    second = _hold(device, None)
    second.end()
    first.end()


def test_a_hold_of_our_own_that_was_lost_is_taken_over(device: Endpoint) -> None:
    """When a network fails the phone may hear of it much later than we do; what it found first is what is put back."""
    lost = _hold(device, owner="ada@desk (process 7)")
    again = _hold(device, owner="ada@desk (process 7)")
    assert eventually(lambda: not lost.alive())
    assert again.saved == FOUND
    assert _settings(device) == BOOST
    again.end()
    assert _settings(device) == FOUND
    lost.end()


def test_a_device_that_is_too_old(device: Endpoint) -> None:
    """It lacks a tool that Android has had since version 7."""
    (device.phone.directory / "system/bin/flock").unlink()
    with pytest.raises(DeviceError, match="flock does not work here") as caught:
        _hold(device)
    assert "Android 8" in (caught.value.hint or "")
    assert _settings(device) == FOUND


def test_a_device_that_refuses_to_change_settings(device: Endpoint) -> None:
    """Some makers guard them; nothing stays half changed, and the device is free."""
    (device.phone.directory / "settings.denied").touch()
    with pytest.raises(DeviceError, match="refused to change low_power") as caught:
        _hold(device)
    assert "USB debugging (Security settings)" in (caught.value.hint or "")
    (device.phone.directory / "settings.denied").unlink()
    assert _settings(device) == FOUND
    _hold(device, None).end()


def test_settings_that_cannot_be_put_back_are_not_forgotten(device: Endpoint) -> None:
    """It is said how to do it by hand, and the next hold tries again."""
    held = _hold(device)
    (device.phone.directory / "settings.denied").touch()
    with pytest.raises(DeviceError, match="low_power could not be restored") as caught:
        held.end()
    assert "settings put global low_power 1" in (caught.value.hint or "")
    with pytest.raises(DeviceError, match="could not be restored"):
        _hold(device, None)
    (device.phone.directory / "settings.denied").unlink()
    last = _hold(device, None)
    last.end()
    assert last.restored == FOUND


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
@pytest.mark.parametrize(("options", "problem"), [("size=4k,nr_inodes=4", "storage is full"), ("ro", "read-only")])
def test_a_device_that_cannot_be_written_to(options: str, problem: str, device: Endpoint) -> None:
    """Full or mounted read-only: nothing is changed there."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(device.phone.tmp)], check=False)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        if options != "ro":
            (device.phone.tmp / OWN).mkdir()
            for name in (MARK, "lock"):
                (device.phone.tmp / OWN / name).touch()
        with pytest.raises(DeviceError, match=problem):
            _hold(device)
        assert _settings(device) == FOUND
    finally:
        subprocess.run(["umount", str(device.phone.tmp)], check=True)
