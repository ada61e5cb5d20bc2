"""Devices over ssh, each a real sshd of the tests: side by side, one killed, all interrupted, and builds of the user.

The builds are scripts that behave like executor_runner.
"""

from __future__ import annotations

import json
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
from opscope.bundle.manifest import FailureKind, Manifest, Role, Status
from opscope.core.errors import DeviceError, UsageError
from opscope.experiment.checks import State
from opscope.experiment.planned import Settings
from opscope.experiment.target_names import parse_target
from opscope.hosts.device import OWN, Device
from opscope.hosts.lock import lock_identity
from opscope.hosts.shell import LocalShell
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address
from opscope.workflows.measure.profiling import profile
from opscope.workflows.measure.running import read_experiments, run
from opscope.workflows.measure.targets import on_phone, target_checks, target_running
from programs import write_tiny_program
from runners import GOOD, write_runner
from texts import NO_RUNNER, NOT_ON_ANDROID
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


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """A device that ssh reaches."""
    with sshd.running(tmp_path / "sshd") as server:
        monkeypatch.setenv(VARIABLE, server.options)
        yield server


def profiled(program: Path, settings: Settings, out: Path) -> Manifest:
    """What the bundle of a profile says."""
    profile(str(program), settings=settings, out=out)
    return Bundle.open(out).manifest


def test_a_build_is_profiled_on_a_device(board: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send it; every repetition is a process of it there, and the manifest says how it is found from anywhere."""
    program = write_tiny_program(tmp_path)
    write_runner(tmp_path, name="mine")
    monkeypatch.chdir(tmp_path)
    settings = Settings(target=f"ssh:{board.address}&runner=mine", rounds=2, runs=2, warmup=1)
    manifest = profiled(program, settings, tmp_path / "out")
    assert manifest.status is Status.COMPLETE
    assert (manifest.target.kind, manifest.target.address) == ("ssh", f"{board.address}&runner={tmp_path / 'mine'}")
    assert [(variant.name, variant.role) for variant in manifest.variants] == [("runner", Role.CANDIDATE)]
    assert set(manifest.environment.versions) >= {"opscope", "executor_runner", "os"}
    assert manifest.environment.features is None
    assert [r.measurement.load_ns for r in manifest.repetitions if r.measurement] == [3_250_000, 3_250_000]
    assert not list((board.home / OWN / "work").glob("*"))


def test_builds_are_compared_on_a_device(board: sshd.Sshd, tmp_path: Path) -> None:
    """Each variant of a file names its build, which stays on the CPUs of the file."""
    write_tiny_program(tmp_path)
    tell = f"pathlib.Path({str(tmp_path)!r}, 'cpus').write_text(repr(cpus)); "
    for name in ("on", "off"):
        write_runner(tmp_path, tell + GOOD, name=name)
    variants = [{"name": "on", "runner": "on"}, {"name": "off", "runner": "off", "role": "baseline"}]
    keys = {"rounds": 1, "runs": 2, "warmup": 1, "untraced": False, "affinity": [min(os.sched_getaffinity(0))]}
    file = tmp_path / "board.json"
    file.write_text(json.dumps({"model": "tiny.pte", "target": f"ssh:{board.address}", "variants": variants, **keys}))
    done = run(file, out=tmp_path / "out").experiments[0]
    assert done.error is None
    manifest = Bundle.open(Path(done.path)).manifest
    assert (manifest.target.kind, manifest.target.address) == ("ssh", board.address)
    assert {r.variant for r in manifest.repetitions if r.ok} == {"on", "off"}
    assert json.loads((tmp_path / "cpus").read_text()) == keys["affinity"]


def test_doctor_says_whether_a_device_is_ready_for_a_build(board: sshd.Sshd, tmp_path: Path) -> None:
    """Look at its storage and load; that nothing can be switched off is not a problem of the device.

    A build for another processor is refused before it is sent, with what to build.
    """
    runner = tmp_path / "runner"
    runner.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little") + bytes(44))
    with pytest.raises(UsageError, match="built for aarch64, the device is x86_64") as caught:
        target_running("model.pte", f"ssh:{board.address}&runner={runner}")
    assert caught.value.hint == "build it for Linux on x86_64"
    assert not (board.home / OWN / "runners").exists()
    write_runner(tmp_path)
    checks = {check.name: check for check in target_checks(f"ssh:{board.address}&runner={runner}")}
    assert checks["device"].state is State.OK
    assert checks["storage"].found.startswith(str(board.home))
    assert checks["runtime"].found.startswith("your own build, sha256:")
    assert not [check for check in checks.values() if check.state is State.PROBLEM]
    missing = target_checks(f"ssh:{board.address}&runner={tmp_path / 'none'}")
    assert [(check.state, check.found) for check in missing] == [(State.PROBLEM, f"there is {NO_RUNNER}")]


@pytest.mark.nightly  # waits for a connection to be lost
def test_a_connection_that_is_cut_ends_the_build_with_it(board: sshd.Sshd, tmp_path: Path) -> None:
    """The repetition is lost and says so; the next one connects again."""
    write_tiny_program(tmp_path)
    marker = tmp_path / "begun"
    slow = f"""
if not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close()
    time.sleep(60)
"""
    runner = write_runner(tmp_path, slow + GOOD)
    cutter = threading.Thread(target=lambda: (eventually(marker.exists), board.cut()))
    cutter.start()
    settings = Settings(target=f"ssh:{board.address}&runner={runner}", rounds=2, runs=2, warmup=1)
    manifest = profiled(tmp_path / "tiny.pte", settings, tmp_path / "out")
    cutter.join()
    assert [r.failure.kind for r in manifest.repetitions if r.failure] == [FailureKind.DEVICE]
    assert any(r.ok for r in manifest.repetitions)


def test_the_build_of_a_file_lies_beside_the_file(tmp_path: Path) -> None:
    """Find it as paths of models; experiments of another device stay where they are, and a Python is no build."""
    file = tmp_path / "board.json"
    file.write_text(json.dumps({"model": "m.pte", "target": "ssh:board?runner=a b/mine"}))
    asked = read_experiments(file)
    assert parse_target(asked.experiments[0].target).runner == str(tmp_path / "a b/mine")
    with pytest.raises(UsageError, match=NOT_ON_ANDROID):
        on_phone(asked, "adb:10.0.0.7:5555")
    with pytest.raises(UsageError, match="either a Python or a runner"):
        parse_target("ssh:board?python=python3&runner=mine")
