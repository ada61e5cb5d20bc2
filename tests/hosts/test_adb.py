"""A shell on an Android device: the real ``adb`` against an endpoint that speaks its protocol.

The phone behind the endpoint is a directory with Android's shell and tools (mksh and toybox). Nothing here was seen
on a phone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from adb_bench import adb_server, needs_adb, plugged
from adb_endpoint import Endpoint
from opscope.core.errors import BusyError, DeviceError, MissingDependencyError, OpscopeError, UsageError
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import AdbLock
from texts import NO_ANSWER
from waiting import HANG

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
    """Bytes that are no text and line ends come back, errors apart; of lines like our last only the last counts."""
    shell = AdbShell(device.address)
    told = shell.run(["sh", "-c", "printf 'a\\377\\n\\n'; echo oh >&2; printf b"], HANG)
    assert (told.stdout, told.stderr) == (b"a\xff\n\nb", b"oh\n")
    assert shell.run(["sh", "-c", "echo; echo opscope-ended 0; exit 3"], HANG).returncode == 3
    with pytest.raises(DeviceError, match=NO_ANSWER):
        shell.run(["sleep", "20"], 0.3)


def test_files_go_there_and_come_back(device: Endpoint, tmp_path: Path) -> None:
    """With their permissions, into a directory that is made for them; a name that programs could misread is refused."""
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
    with pytest.raises(DeviceError, match="nothing-here"):
        shell.pull(TMP, ["nothing-here"], tmp_path)
    with pytest.raises(UsageError, match="cannot be a directory"):
        shell.push([blob], "/data/local/tmp/a; rm -r b")


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
    """The client of adb itself ends with code 0 then; over the network there is more to look at."""
    shell = AdbShell(device.address)
    device.unplug_at = lambda command: "sleep" in command
    with pytest.raises(DeviceError, match="lost during") as caught:
        shell.run(["sleep", "5"], HANG)
    assert "--resume" in (caught.value.hint or "")
    with pytest.raises(DeviceError, match=r"offline|no such device"):
        shell.run(["true"], HANG)
    with pytest.raises(DeviceError, match="is unreachable over the network") as caught:
        AdbShell(device.address)
    assert "address and port" in (caught.value.hint or "")


@pytest.mark.parametrize("event", ["plug", "reboot"])
def test_a_device_that_comes_back_is_waited_for(event: str, device: Endpoint) -> None:
    """After it was plugged in again, and after a restart."""
    shell = AdbShell(device.address)
    device.unplug()
    assert not shell.wait(0)
    getattr(device, event)()
    assert shell.wait(HANG)


def test_a_process_is_heard_line_by_line_and_ends_with_its_input_or_is_lost_with_its_device(device: Endpoint) -> None:
    """So a command of ours that reads its input ends when we do; one that is lost has no exit code."""
    shell = AdbShell(device.address)
    process = shell.spawn(["sh", "-c", "echo one; echo; echo two; cat; exit 4"])
    assert [process.read_line(HANG) for _ in range(3)] == ["one", "", "two"]
    assert process.alive()
    assert process.wait(0.01) is None
    process.end()
    assert process.wait(HANG) == 4
    assert process.read_line(0.01) is None
    lost = shell.spawn(["sh", "-c", "echo up; cat"])
    assert lost.read_line(HANG) == "up"
    device.unplug()
    with pytest.raises(DeviceError, match="lost"):
        lost.wait(HANG)
    lost.end()


def test_of_several_devices_one_must_be_named(
    device: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are listed with their states; the environment may name one, as adb itself allows it."""
    AdbShell(device.address)
    assert AdbShell().describe().address == device.address, "the only one needs no name"
    with plugged(tmp_path / "other") as other:
        AdbShell(other.address)
        with pytest.raises(DeviceError, match="there are 2 Android devices") as caught:
            AdbShell()
        assert f"{device.address} (device)" in caught.value.problem
        assert f"{other.address} (device)" in caught.value.problem
        assert "adb:SERIAL" in (caught.value.hint or "")
        monkeypatch.setenv("ANDROID_SERIAL", other.address)
        assert AdbShell().describe().address == other.address


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


@pytest.mark.parametrize(
    ("arguments", "error", "problem", "hint"),
    [
        (("x", ("no-such-adb",)), MissingDependencyError, "adb is not installed", "apt install adb"),
        ((), DeviceError, "there is no Android device", "adb:HOST:PORT"),
        (("ABC123",), DeviceError, "no such device", "adb devices"),
    ],
    ids=["no-adb", "no-device", "no-such-serial"],
)
def test_where_there_is_nothing_to_talk_to(
    arguments: tuple[object, ...], error: type[OpscopeError], problem: str, hint: str
) -> None:
    """It is said what to install, what to plug in or where to look."""
    with pytest.raises(error, match=problem) as caught:
        AdbShell(*arguments)
    assert hint in (caught.value.hint or "")


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
