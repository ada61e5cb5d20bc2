"""Two devices over ssh in one file, each a real sshd of the tests: side by side, one killed, all interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sshd
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.bundle.manifest import Status
from opscope.core.errors import DeviceError
from opscope.hosts.device import Device
from opscope.hosts.lock import lock_identity
from opscope.hosts.shell import LocalShell
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address
from opscope.workflows.measure.running import run
from programs import write_tiny_program
from runners import GOOD, write_runner
from waiting import eventually

BIN = Path(sys.executable).parent / "opscope"
_CONFIG = """
models = ["one.pte", "two.pte"]
rounds = 2
runs = 2
warmup = 1
untraced = false

[devices.left]
target = "ssh:{left}"

[devices.right]
target = "ssh:{right}"

[[variants]]
name = "mine"
runner = "mine"
"""
# Tells that it runs, and waits for a file where the directory of the device has one of its own.
_RUNNER = f"""
device = pathlib.Path.cwd().parents[2].parent.name
pathlib.Path({{place!r}}, "runs-" + device).touch()
while pathlib.Path({{place!r}}, "hold-" + device).exists():
    time.sleep(0.02)
{GOOD}"""


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, sshd.Sshd]]:
    """Two devices that ssh finds by their names, with locks of their own."""
    with sshd.running(tmp_path / "left", host="left") as left, sshd.running(tmp_path / "right", host="right") as right:
        (tmp_path / "ssh_config").write_text(left.client.read_text() + right.client.read_text())
        monkeypatch.setenv(VARIABLE, f"-F {tmp_path / 'ssh_config'}")
        yield {"left": left, "right": right}


def lab(directory: Path, boards: dict[str, sshd.Sshd]) -> Path:
    """A file of two models on both devices, with a runner that can be held up."""
    for model in ("one", "two"):
        write_tiny_program(directory).rename(directory / f"{model}.pte")
    write_runner(directory, _RUNNER.format(place=str(directory)), name="mine")
    path = directory / "lab.toml"
    path.write_text(_CONFIG.format(**{name: board.address for name, board in boards.items()}))
    return path


def test_ways_to_one_machine_have_one_identity(boards: dict[str, sshd.Sshd], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices have different locks; two addresses of one share theirs, as do ssh and this machine itself."""

    def identity(address: str) -> str:
        return Device(SshShell(parse_address(address)), "unused").lock_identity()

    left, right = boards["left"], boards["right"]
    assert identity("left") == identity(f"left?dir={left.home}")
    assert len({identity("left"), identity("right"), lock_identity(LocalShell())}) == 3
    monkeypatch.setenv("OPSCOPE_LOCK", str(right.home.parent / "lock"))
    assert identity("right") == lock_identity(LocalShell())


def test_a_device_that_dies_leaves_the_other(boards: dict[str, sshd.Sshd], tmp_path: Path) -> None:
    """Both are at work when one is switched off: its work is told, and all of the other's bundles are complete.

    The exit code says that something is missing; when the device is back, --resume does it.
    """
    file, out = lab(tmp_path, boards), tmp_path / "out"
    (tmp_path / "hold-left").touch()
    (tmp_path / "hold-right").touch()

    def kill() -> None:
        both = eventually(lambda: (tmp_path / "runs-left").exists() and (tmp_path / "runs-right").exists())
        boards["left"].stop()
        (tmp_path / "hold-left").unlink()
        if both:
            (tmp_path / "hold-right").unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    done = subprocess.run([str(BIN), "run", str(file), "--out", str(out)], capture_output=True, text=True, check=False)
    killer.join()
    assert done.returncode == 11, done.stderr
    # The other device may have done both of its experiments by the time that the loss is noticed.
    assert re.search("note:  one-left failed, [1-3] more to go: ssh:left", done.stderr), done.stderr
    assert "error: " in done.stderr
    assert "2 missing: one-left failed" in done.stderr
    assert [status(out, f"{model}-right") for model in ("one", "two")] == [Status.COMPLETE] * 2
    assert status(out, "one-left") is Status.INCOMPLETE
    boards["left"].start()
    (again,) = run(file, out=out, resume=True, only=["one-left"]).experiments
    assert (again.error, status(out, "one-left")) == (None, Status.COMPLETE)


def test_an_interrupt_keeps_the_bundles_that_are_done(boards: dict[str, sshd.Sshd], tmp_path: Path) -> None:
    """One device is done with a model, the other one at work for ever: exit code 130, and both are free again.

    Nothing is told of the device as lost, though ssh itself may be ended by the same signal.
    """
    file, out = lab(tmp_path, boards), tmp_path / "out"
    (tmp_path / "hold-left").touch()
    with subprocess.Popen(
        [str(BIN), "run", str(file), "--out", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        begun = lambda: (tmp_path / "runs-left").exists() and (out / "one-right/report.html").exists()  # noqa: E731
        assert eventually(lambda: begun() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        errors = process.communicate()[1]
    assert process.returncode == 130, errors
    assert f"opscope run {file} --out {out} --resume" in errors
    assert status(out, "one-right") is Status.COMPLETE
    assert status(out, "one-left") is Status.INCOMPLETE
    assert Bundle.open(out / "one-left").manifest.repetitions == []
    assert "failed" not in errors
    assert eventually(lambda: not any((board.home.parent / "lock").exists() for board in boards.values()))
    assert eventually(lambda: not at_work(str(tmp_path)))


def test_a_device_that_is_off_is_told_of_by_its_own_experiments(boards: dict[str, sshd.Sshd], tmp_path: Path) -> None:
    """It does not keep the others from beginning."""
    file = lab(tmp_path, boards)
    boards["right"].stop()
    done = run(file, out=tmp_path / "out", only=["one-left", "one-right"])
    assert [result.exit_code for result in done.experiments] == [None, DeviceError.exit_code]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one-left"]


def status(out: Path, name: str) -> Status:
    """Of the bundle of an experiment."""
    assert is_bundle(out / name)
    return Bundle.open(out / name).manifest.status


def at_work(place: str) -> list[int]:
    """Runners that are left of a test."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if place in words and "num_executions" in words:
            found.append(int(line.parent.name))
    return [pid for pid in found if pid != os.getpid()]
