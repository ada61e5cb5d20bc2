"""Devices of one file side by side: what runs at the same time, what never does, and what is left when one is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import FakeClock, FakeTarget
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind, Status, device_text
from opscope.core.errors import DeviceError, StorageError, UsageError
from opscope.core.system.stop import pause
from opscope.experiment.protocol import Job
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.hosts.lock import lock_identity
from opscope.hosts.shell import LocalShell
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.run_report import ExperimentResult, RunReport
from opscope.workflows.measure.running import run
from programs import write_tiny_program
from texts import CONNECTION_LOST
from waiting import HANG

_HEAD = """
rounds = 2
runs = 2
warmup = 1
ceilings = false
"""
LOST = Failure(FailureKind.DEVICE, CONNECTION_LOST)


class Gauge:
    """How many jobs were at work at the same time, on all targets that share it."""

    def __init__(self) -> None:
        self._lock, self._now, self.most = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


class Board(FakeTarget):
    """A fake device with an identity.

    Args:
        identity: of its machine.
        gauge: that counts its jobs.
        before: called with the number of a job before it runs.
        fail: as of a fake target.
    """

    def __init__(
        self,
        identity: str,
        gauge: Gauge | None = None,
        before: Callable[[int], object] = lambda _: None,
        fail: Callable[[int], Failure | None] = lambda _: None,
    ) -> None:
        super().__init__(fail=fail)
        self._host = SimpleNamespace(lock_identity=lambda: identity)  # no more of a host
        self._gauge, self._before = gauge or Gauge(), before

    def capabilities(self) -> Capabilities:
        """Where it runs."""
        return Capabilities(host=self._host)  # type: ignore[arg-type]

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job, counted."""
        with self._gauge:
            self._before(len(self.jobs) + 1)
            return super().execute(job, directory)


def ran(
    directory: Path,
    devices: Mapping[str, FakeTarget],
    models: tuple[str, ...] = ("one",),
    finished: Callable[[ExperimentResult, int], None] = lambda *_: None,
    **options: Any,
) -> RunReport:
    """These models on these devices, into ``out``."""
    for name in models:
        write_tiny_program(directory).rename(directory / f"{name}.pte")
    files = ", ".join(f'"{name}.pte"' for name in models)
    text = f"models = [{files}]{_HEAD}" + "".join(f'[devices.{name}]\ntarget = "ssh:{name}"\n' for name in devices)
    (directory / "lab.toml").write_text(text)
    means = Means(clock=FakeClock(), sleep=lambda _: None, devices=devices, finished=finished)
    return run(directory / "lab.toml", out=directory / "out", means=means, **options)


def status(directory: Path, name: str) -> Status:
    """Of the bundle of an experiment."""
    return Bundle.open(directory / "out" / name).manifest.status


def test_devices_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits in its first job for the other; results are in the order of the file, and come as they are done."""
    both = threading.Barrier(2)

    def wait(job: int) -> None:
        if job == 1:
            both.wait(HANG)

    told: list[tuple[str, int]] = []
    devices = {name: Board(name, before=wait) for name in ("left", "right")}
    done = ran(tmp_path, devices, finished=lambda result, left: told.append((result.name, left)))
    names = ["one-left", "one-right"]
    assert [(result.name, result.error) for result in done.experiments] == [(name, None) for name in names]
    assert (sorted(name for name, _ in told), [left for _, left in told]) == (names, [1, 0])
    assert {status(tmp_path, name) for name in names} == {Status.COMPLETE}


@pytest.mark.parametrize("identities", [("the same", "the same"), ("", "left")], ids=["one machine", "this machine"])
def test_machines_take_turns(identities: tuple[str, str], tmp_path: Path) -> None:
    """Let two names of one machine take turns, however it is reached.

    This machine is measured alone, as what is done here for the others would disturb it.
    """
    gauge = Gauge()
    boards = [Board(identity or lock_identity(LocalShell()), gauge) for identity in identities]
    done = ran(tmp_path, dict(zip(("desk", "other"), boards, strict=True)))
    assert ([result.error for result in done.experiments], gauge.most) == ([None] * 2, 1)


@pytest.mark.parametrize("others", [["alive"], []], ids=["beside another", "the only one"])
def test_a_lost_device_leaves_the_others(others: list[str], tmp_path: Path) -> None:
    """Tell its work, with the code of a lost device; the bundles of the other one are complete.

    Lost twice it is left alone: the third experiment is not tried, and says why.
    """
    dead, models = Board("dead", fail=lambda _: LOST), ("one", "two", "three")
    done = ran(tmp_path, {"dead": dead} | {name: Board(name) for name in others}, models)
    found = {result.name: result for result in done.experiments}
    assert CONNECTION_LOST in (found["one-dead"].error or "")
    assert {found[f"{model}-dead"].exit_code for model in models} == {DeviceError.exit_code}
    assert "skipped: the device failed twice in a row" in (found["three-dead"].error or "")
    assert (len(dead.jobs), (tmp_path / "out" / "three-dead").exists()) == (4, False)
    for name in others:
        assert {status(tmp_path, f"{model}-{name}") for model in models} == {Status.COMPLETE}
    assert status(tmp_path, "one-dead") is Status.INCOMPLETE


def test_a_full_disk_ends_all(tmp_path: Path) -> None:
    """Running on would lose what is measured; the other device's bundle says that it is incomplete."""
    slow = threading.Event()
    devices = {
        "full": Board("a", before=lambda _: slow.wait(HANG), fail=lambda _: Failure(FailureKind.STORAGE, "full")),
        "slow": Board("b", before=lambda job: slow.set() if job == 1 else _until_asked()),
    }
    with pytest.raises(StorageError, match="full"):
        ran(tmp_path, devices)
    assert status(tmp_path, "one-slow") is Status.INCOMPLETE


def test_an_interrupt_keeps_what_was_finished(tmp_path: Path) -> None:
    """Other devices end at once, with their bundles in order; --resume does the rest."""
    quick, slow = threading.Event(), Board("b", before=lambda _: quick.set() or _until_asked())

    def interrupt(_: ExperimentResult, left: int) -> None:  # noqa: ARG001 - how it is called
        quick.wait(HANG)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, {"quick": Board("a"), "slow": slow}, finished=interrupt)
    assert status(tmp_path, "one-quick") is Status.COMPLETE
    assert (tmp_path / "out" / "one-quick" / "report.html").exists()
    assert status(tmp_path, "one-slow") is Status.INCOMPLETE
    assert Bundle.open(tmp_path / "out" / "one-slow").manifest.repetitions == []
    done = ran(tmp_path, {"quick": Board("a"), "slow": Board("b")}, resume=True)
    assert [result.error for result in done.experiments] == [None] * 2


def test_the_name_of_a_device_is_kept(tmp_path: Path) -> None:
    """Keep it in the manifest, in reports, and as what stores call the machine; ``--only`` takes it.

    ``--target`` would run all devices on one, and is refused.
    """
    done = ran(tmp_path, {"left": Board("a"), "right": Board("b")}, only=["left"])
    assert [result.name for result in done.experiments] == ["one-left"]
    manifest = Bundle.open(tmp_path / "out/one-left").manifest
    assert (manifest.device, device_text(manifest)) == ("left", "left")
    assert "| Device | left: Test CPU" in (tmp_path / "out/one-left/report.md").read_text()
    assert "left, Test CPU" in (tmp_path / "out/one-left/report.html").read_text()
    with pytest.raises(UsageError, match="name their own targets") as caught:
        ran(tmp_path, {"left": Board("a")}, target="adb:123")
    assert '[devices.left] and below it target = "adb:123"' in caught.value.hint


def _until_asked() -> None:
    """Wait in parts, as processes are waited for, for a request to stop."""
    pause(HANG)
