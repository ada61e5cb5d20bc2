"""Whole runs on devices over ssh: a device that restarts, several devices, two hosts, what doctor says.

The devices are real sshd processes on the loopback interface; one of them is switched off in the middle.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import sshd
from command_line import opscope
from native_runner import native_cache, native_over_ssh, runtime_of
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind, Repetition, Status
from opscope.core.errors import DeviceError
from opscope.experiment.planned import Settings
from opscope.hosts.ssh import VARIABLE
from opscope.runtimes.native.building import host_architecture
from opscope.workflows.measure.profiling import profile
from texts import WAIT_FOR_THE_RUN

pytestmark = pytest.mark.runtime


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """A device; runtimes are built once for all tests."""
    arch = host_architecture()
    if arch is None:
        pytest.skip("cannot download the runtime for a device is built on Linux")
    runtime_of(arch)
    with sshd.running(tmp_path / "board") as server:
        monkeypatch.setenv(VARIABLE, server.options)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "opscope").symlink_to(native_cache())
        yield server


SETTINGS = Settings(ablate=(), rounds=2, runs=2, warmup=1, untraced=False, ceilings=False)


def test_a_device_that_starts_anew_loses_nothing_and_is_finished_with_resume(
    board: sshd.Sshd, toy_program: Path, tmp_path: Path
) -> None:
    """It goes off after the second of four repetitions: an error with the next step, two kept; then the others run."""

    def off_after_two(done: int, total: int, repetition: Repetition | None) -> None:
        assert total == 4
        if done == 2 and repetition:
            board.stop()

    out = tmp_path / "out"
    with pytest.raises(DeviceError, match=r"lost|refused|closed") as caught:
        profile(str(toy_program), settings=SETTINGS, out=out, target=native_over_ssh(board), progress=off_after_two)
    assert "finish with --resume" in str(caught.value.hint)
    kept = Bundle.open(out).manifest
    assert kept.status is Status.INCOMPLETE
    assert [repetition.ok for repetition in kept.repetitions] == [True, True]
    board.start()
    profile(str(toy_program), settings=SETTINGS, out=out, target=native_over_ssh(board), resume=True)
    whole = Bundle.open(out).manifest
    assert whole.status is Status.COMPLETE
    assert whole.repetitions[:2] == kept.repetitions
    assert (whole.target.kind, whole.target.address) == ("ssh", board.address)


def test_a_cut_in_the_middle_of_a_round_fails_one_repetition_only(
    board: sshd.Sshd, toy_program: Path, tmp_path: Path
) -> None:
    """It is in the manifest as the device's failure, and the round goes on."""
    cutters = []

    def cut_the_second(done: int, total: int, repetition: Repetition | None) -> None:
        if done == 1 and repetition and total == 4:
            cutters.append(threading.Thread(target=lambda: board.waits_for_run() and board.cut()))
            cutters[0].start()

    settings = msgspec.structs.replace(SETTINGS, runs=600)
    profile(
        str(toy_program),
        settings=settings,
        out=tmp_path / "out",
        target=native_over_ssh(board),
        progress=cut_the_second,
    )
    cutters[0].join()
    manifest = Bundle.open(tmp_path / "out").manifest
    assert [repetition.ok for repetition in manifest.repetitions] == [True, False, True, True]
    assert manifest.failures()[0].failure.kind is FailureKind.DEVICE
    assert manifest.status is Status.INCOMPLETE


def test_of_several_devices_one_that_is_off_does_not_stop_the_others(
    board: sshd.Sshd, toy_program: Path, tmp_path: Path
) -> None:
    """Each becomes its own bundle; what is missing is said, and by the exit code."""
    config = tmp_path / "devices.json"
    targets = ["ssh:board:1", f"ssh:{board.address}"]
    effort = {"rounds": 1, "runs": 2, "warmup": 1, "untraced": False, "ceilings": False}
    config.write_text(json.dumps({"model": str(toy_program), "targets": targets, "out": "o", **effort}))
    done = opscope("run", config)
    assert done.returncode == 11
    assert f"{toy_program.stem}-ssh-board-1 failed: ssh:board:1: it is unreachable" in done.stderr
    assert [path.name for path in (tmp_path / "o").iterdir()] == [f"{toy_program.stem}-ssh-board"]
    manifest = Bundle.open(tmp_path / "o" / f"{toy_program.stem}-ssh-board").manifest
    assert manifest.status is Status.COMPLETE
    assert manifest.target.address == board.address


def test_a_device_in_use_is_refused_before_anything_is_written(
    board: sshd.Sshd, toy_program: Path, tmp_path: Path
) -> None:
    """Exit code 16, who uses it, what to do."""
    with native_over_ssh(board).reserved():
        words = ["--target", f"ssh:{board.address}", "--lock", "fail", "--out", tmp_path / "out"]
        done = opscope("profile", toy_program, *words)
    assert done.returncode == 16
    assert "the machine is in use by" in done.stderr
    assert WAIT_FOR_THE_RUN in done.stderr
    assert not (tmp_path / "out").exists()


def test_doctor_looks_at_a_device(board: sshd.Sshd) -> None:
    """What it is, the runtime that runs there, its room, what can be switched off; nothing is left running."""
    done = opscope("doctor", "--target", f"ssh:{board.address}")
    assert done.returncode == 0
    assert f"device               Linux, {os.uname().machine}" in done.stdout
    assert "runtime              executorch" in done.stdout
    assert f"storage              {board.home}" in done.stdout
    assert "is the default" in done.stdout
    board.stop()
    done = opscope("doctor", "--target", f"ssh:{board.address}")
    assert done.returncode == 12
    assert "it is unreachable" in done.stdout
