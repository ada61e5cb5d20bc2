"""A shell on an Android device: the real ``adb`` against an endpoint that speaks its protocol.

The phone behind the endpoint is a directory with Android's shell and tools (mksh and toybox). Nothing here was seen
on a phone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adb_bench import adb_server, needs_adb, plugged
from opscope.core.errors import BusyError, DeviceError, MissingDependencyError, UsageError
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import AdbLock
from texts import NO_ANSWER
from waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adb_endpoint import Endpoint

pytestmark = needs_adb
TMP = "/data/local/tmp"


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with adb_server(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Endpoint]:
    """A phone on the network."""
    with plugged(tmp_path / "phone") as endpoint:
        yield endpoint


@pytest.mark.parametrize("features", ["shell_v2,cmd", "cmd"])
def test_words_arrive_as_they_are_and_the_exit_code_comes_back(features: str, tmp_path: Path) -> None:
    """Quotes, blanks, stars and line ends mean nothing on the way, with or without the newer shell protocol."""
    words = ["a b", "it's", '"$HOME"', "*", "`id`", "x\ny", "é", ""]
    with plugged(tmp_path / "phone", features=features) as endpoint:
        shell = AdbShell(endpoint.address)
        told = shell.run(["printf", "[%s]", *words], HANG)
        assert told.stdout.decode() == "".join(f"[{word}]" for word in words)
        assert shell.run(["sh", "-c", "exit 7"], HANG).returncode == 7
        assert shell.run(["sh", "-c", "kill -SEGV $$"], HANG).returncode == 128 + 11
        assert shell.run(["no-such-program"], HANG).returncode == 127


def test_output_is_not_changed(device: Endpoint) -> None:
    """Bytes that are no text, and a missing or doubled last line end, come back; errors come apart."""
    told = AdbShell(device.address).run(["sh", "-c", "printf 'a\\377\\n\\n'; echo oh >&2; printf b"], HANG)
    assert (told.stdout, told.stderr) == (b"a\xff\n\nb", b"oh\n")


def test_a_command_that_prints_our_last_line_does_not_end_itself(device: Endpoint) -> None:
    """Only the very last line counts."""
    told = AdbShell(device.address).run(["sh", "-c", "echo; echo opscope-ended 0; exit 3"], HANG)
    assert told.returncode == 3


def test_files_go_there_and_come_back(device: Endpoint, tmp_path: Path) -> None:
    """With their permissions, into a directory that is made for them."""
    content = os.urandom(300_000)
    script, blob = tmp_path / "run.sh", tmp_path / "blob"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    blob.write_bytes(content)
    shell = AdbShell(device.address)
    shell.push([script, blob], f"{TMP}/new/place")
    assert shell.run(["test", "-x", f"{TMP}/new/place/run.sh"], HANG).returncode == 0
    (tmp_path / "back").mkdir()
    shell.pull(f"{TMP}/new/place", ["blob"], tmp_path / "back")
    assert (tmp_path / "back" / "blob").read_bytes() == content


def test_a_file_that_is_not_there_cannot_be_pulled(device: Endpoint, tmp_path: Path) -> None:
    """It is said which one."""
    with pytest.raises(DeviceError, match="nothing-here"):
        AdbShell(device.address).pull(TMP, ["nothing-here"], tmp_path)


def test_a_directory_that_programs_could_misread_is_refused(device: Endpoint, tmp_path: Path) -> None:
    """Before anything is sent."""
    with pytest.raises(UsageError, match="cannot be a directory"):
        AdbShell(device.address).push([tmp_path / "f"], "/data/local/tmp/a; rm -r b")


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        ("No space left on device", "storage is full", "free some space"),
        ("Read-only file system", "storage is read-only", "/data/local/tmp"),
        ("Permission denied", "denies access", "/data/local/tmp"),
    ],
)
def test_a_device_that_does_not_store_a_file_says_why(
    words: str, problem: str, hint: str, device: Endpoint, tmp_path: Path
) -> None:
    """The words of adb are kept, and what to do is added."""
    device.phone.refusal = OSError(0, words)
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(DeviceError, match=words) as caught:
        AdbShell(device.address).push([tmp_path / "f"], f"{TMP}/d")
    assert problem in caught.value.problem
    assert hint in (caught.value.hint or "")


def test_a_device_that_is_unplugged_in_the_middle_of_a_command_is_noticed(device: Endpoint) -> None:
    """The client of adb itself ends with code 0 then."""
    shell = AdbShell(device.address)
    device.unplug_at = lambda command: "sleep" in command
    with pytest.raises(DeviceError, match="lost during") as caught:
        shell.run(["sleep", "5"], HANG)
    assert "--resume" in (caught.value.hint or "")
    with pytest.raises(DeviceError, match=r"offline|no such device"):
        shell.run(["true"], HANG)


@pytest.mark.parametrize("event", ["plug", "reboot"])
def test_a_device_that_comes_back_is_waited_for(event: str, device: Endpoint) -> None:
    """After it was plugged in again, and after a restart."""
    shell = AdbShell(device.address)
    device.unplug()
    assert not shell.wait(0)
    getattr(device, event)()
    assert shell.wait(HANG)


def test_a_process_is_heard_line_by_line_and_ends_with_its_input(device: Endpoint) -> None:
    """So a command of ours that reads its input ends when we do."""
    process = AdbShell(device.address).spawn(["sh", "-c", "echo one; echo; echo two; cat; exit 4"])
    assert [process.read_line(HANG) for _ in range(3)] == ["one", "", "two"]
    assert process.alive()
    assert process.wait(0.01) is None
    process.end()
    assert process.wait(HANG) == 4
    assert process.read_line(0.01) is None


def test_a_process_whose_device_goes_is_lost(device: Endpoint) -> None:
    """It has no exit code."""
    process = AdbShell(device.address).spawn(["sh", "-c", "echo up; cat"])
    assert process.read_line(HANG) == "up"
    device.unplug()
    with pytest.raises(DeviceError, match="lost"):
        process.wait(HANG)
    process.end()


def test_no_device() -> None:
    """It is said what to plug in, and how to name one on the network."""
    with pytest.raises(DeviceError, match="there is no Android device") as caught:
        AdbShell()
    assert "adb:HOST:PORT" in (caught.value.hint or "")


def test_one_device_needs_no_name(device: Endpoint) -> None:
    """The only one there is."""
    AdbShell(device.address)
    assert AdbShell().describe().address == device.address


def test_of_several_devices_one_must_be_named(device: Endpoint, tmp_path: Path) -> None:
    """All are listed with their states."""
    with plugged(tmp_path / "other") as other:
        AdbShell(device.address)
        AdbShell(other.address)
        with pytest.raises(DeviceError, match="there are 2 Android devices") as caught:
            AdbShell()
        assert f"{device.address} (device)" in caught.value.problem
        assert f"{other.address} (device)" in caught.value.problem
        assert "adb:SERIAL" in (caught.value.hint or "")


def test_the_environment_can_name_the_device(device: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As adb itself allows it."""
    with plugged(tmp_path / "other") as other:
        AdbShell(device.address)
        monkeypatch.setenv("ANDROID_SERIAL", other.address)
        assert AdbShell().describe().address == other.address


def test_a_serial_number_that_is_not_there() -> None:
    """The answer of adb, and where to look."""
    with pytest.raises(DeviceError, match="no such device") as caught:
        AdbShell("ABC123")
    assert "adb devices" in (caught.value.hint or "")


def test_a_device_that_has_not_allowed_this_computer(tmp_path: Path) -> None:
    """The owner has to confirm."""
    with (
        plugged(tmp_path / "phone", state="unauthorized") as endpoint,
        pytest.raises(DeviceError, match="not allowed this computer") as caught,
    ):
        AdbShell(endpoint.address)
    assert "unlock" in (caught.value.hint or "")


def test_a_device_that_is_offline(tmp_path: Path) -> None:
    """It is listed and does not answer; adb gives up connecting after ten seconds."""
    with plugged(tmp_path / "phone", state="silent") as endpoint:
        with pytest.raises(DeviceError, match="unreachable"):
            AdbShell(endpoint.address)
        with pytest.raises(DeviceError, match="is offline") as caught:
            AdbShell()
    assert "adb reconnect offline" in (caught.value.hint or "")


def test_an_address_where_nobody_listens(device: Endpoint) -> None:
    """Over the network there is more to look at."""
    device.unplug()
    with pytest.raises(DeviceError, match="is unreachable over the network") as caught:
        AdbShell(device.address)
    assert "address and port" in (caught.value.hint or "")


def test_without_adb() -> None:
    """How to install it."""
    with pytest.raises(MissingDependencyError, match="adb is not installed") as caught:
        AdbShell("x", command=("no-such-adb",))
    assert "apt install adb" in (caught.value.hint or "")


def test_a_device_that_does_not_answer_in_time(device: Endpoint) -> None:
    """It is not waited for longer than asked."""
    shell = AdbShell(device.address)
    with pytest.raises(DeviceError, match=NO_ANSWER):
        shell.run(["sleep", "20"], 0.3)


def test_runs_stand_in_line_for_a_device(device: Endpoint) -> None:
    """On Android's shell, and with the settings that a phone has: the first that came is the next that has it."""
    first, second, late = (AdbLock(AdbShell(device.address), f"{TMP}/opscope", None) for _ in range(3))
    first.take()
    with pytest.raises(BusyError):
        second.take()
    second.queue()
    with pytest.raises(BusyError):
        late.take()
    assert late.ahead == 1
    late.queue()
    first.release()
    with pytest.raises(BusyError):
        late.take()
    second.take()
    with pytest.raises(BusyError):
        late.take()
    assert late.ahead == 0
    second.release()
    late.take()
    late.release()
    left = AdbShell(device.address).run(["sh", "-c", f"ls -d {TMP}/opscope.lock*"], HANG)
    assert left.stdout == b""
