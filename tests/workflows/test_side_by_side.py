"""Devices of one file side by side: what runs at the same time, what never does, and what is left when one is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock, FakeTarget
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind, Status, device_text
from opscope.core.errors import DeviceError, StorageError, UsageError
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


class Host:
    """A machine with an identity, and no more of a host."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    def lock_identity(self) -> str:
        """As it was given."""
        return self._identity


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
        self._host, self._gauge, self._before = Host(identity), gauge or Gauge(), before

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
    assert sorted(name for name, _ in told) == names
    assert [left for _, left in told] == [1, 0]
    assert {status(tmp_path, name) for name in names} == {Status.COMPLETE}


def test_two_names_of_one_machine_take_turns(tmp_path: Path) -> None:
    """However it is reached."""
    gauge = Gauge()
    done = ran(tmp_path, {name: Board("the same", gauge) for name in ("desk", "loopback")})
    assert [result.error for result in done.experiments] == [None] * 2
    assert gauge.most == 1


def test_this_machine_is_measured_alone(tmp_path: Path) -> None:
    """What is done here for the others would disturb it."""
    gauge = Gauge()
    here = lock_identity(LocalShell())
    ran(tmp_path, {"desk": Board(here, gauge), "left": Board("left", gauge)})
    assert gauge.most == 1


def test_a_lost_device_leaves_the_others(tmp_path: Path) -> None:
    """Its work is told, with the code of a lost device; the bundles of the other one are complete."""
    done = ran(tmp_path, {"dead": Board("dead", fail=lambda _: LOST), "alive": Board("alive")}, ("one", "two"))
    found = {result.name: result for result in done.experiments}
    assert CONNECTION_LOST in (found["one-dead"].error or "")
    assert {found[f"{model}-dead"].exit_code for model in ("one", "two")} == {DeviceError.exit_code}
    assert [status(tmp_path, f"{model}-alive") for model in ("one", "two")] == [Status.COMPLETE] * 2
    assert status(tmp_path, "one-dead") is Status.INCOMPLETE


def test_a_device_that_was_lost_twice_is_left_alone(tmp_path: Path) -> None:
    """The third experiment is not tried, and says why; also where it is the only device."""
    dead = Board("dead", fail=lambda _: LOST)
    done = ran(tmp_path, {"dead": dead}, ("one", "two", "three"))
    told = done.experiments[2]
    assert told.name == "three-dead"
    assert "skipped: the device failed twice in a row" in (told.error or "")
    assert told.exit_code == DeviceError.exit_code
    assert len(dead.jobs) == 4
    assert not (tmp_path / "out" / "three-dead").exists()


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
    """In the manifest, in reports, and as what stores call the machine; ``--only`` takes it."""
    done = ran(tmp_path, {"left": Board("a"), "right": Board("b")}, only=["left"])
    assert [result.name for result in done.experiments] == ["one-left"]
    manifest = Bundle.open(tmp_path / "out/one-left").manifest
    assert (manifest.device, device_text(manifest)) == ("left", "left")
    assert "| Device | left: Test CPU" in (tmp_path / "out/one-left/report.md").read_text()
    assert "left, Test CPU" in (tmp_path / "out/one-left/report.html").read_text()


def test_devices_that_say_where_they_are_are_not_moved(tmp_path: Path) -> None:
    """``--target`` would run all of them on one."""
    with pytest.raises(UsageError, match="name their own targets") as caught:
        ran(tmp_path, {"left": Board("a")}, target="adb:123")
    assert caught.value.hint is not None
    assert '[devices.left] and below it target = "adb:123"' in caught.value.hint


def _until_asked() -> None:
    """Wait in parts, as processes are waited for, for a request to stop."""
    from opscope.core.system.stop import pause

    pause(HANG)
