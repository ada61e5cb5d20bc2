"""Two runs that measure on one machine at the same time: who waits, and what bundles and reports say of it."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fakes import FakeClock, FakeTarget
from opscope.analysis.findings.message import MessageKind
from opscope.api import Settings as Asked
from opscope.api import profile, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Target
from opscope.core.errors import BusyError, FeatureError
from opscope.hosts.lock import DeviceLock, LockRequest, MachineHold
from opscope.hosts.shell import LocalShell
from opscope.hosts.this_machine import ThisMachine
from opscope.measurements.results import Profiled
from programs import write_tiny_program


@pytest.fixture(autouse=True)
def own_lock_of_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of this test alone."""
    monkeypatch.setenv("OPSCOPE_LOCK", str(tmp_path / "opscope.lock"))


class TargetHere(FakeTarget):
    """A fake target on this machine, which has a lock."""

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold]:
        """Hold this machine."""
        return ThisMachine(Target("native", "")).reserved(request)


def run(directory: Path, lock: str, target: FakeTarget | None = None) -> Profiled:
    """A run of three rounds."""
    return profile(
        write_tiny_program(directory),
        settings=Asked(rounds=3, runs=8, warmup=0, ceilings=False, lock=lock),
        out=directory / lock,
        target=target or TargetHere(clock=FakeClock()),
        clock=FakeClock(),
    )


def reasons(done: Profiled) -> dict[str, str]:
    """What limits a measurement, by the name of the check."""
    return {one.rule: one.title for one in done.content.quality.reasons}


def test_a_run_alone_says_that_it_was_alone(tmp_path: Path) -> None:
    """Say so in its manifest, and as a check that it passed; a target without a lock says nothing of it."""
    done = run(tmp_path, "wait")
    (lock,) = Bundle.open(done.path).manifest.locks
    assert (lock.asked, lock.held, lock.waited_for, lock.beside) == ("wait", True, None, [])
    assert ("one_run", MessageKind.PASSED) in [(one.rule, one.kind) for one in done.content.quality.ruled_out]
    assert "one_run" not in reasons(done)
    assert validate(done.path).valid
    (tmp_path / "without").mkdir()
    done = run(tmp_path / "without", "wait", FakeTarget(clock=FakeClock()))
    assert Bundle.open(done.path).manifest.locks == []
    assert "one_run" not in {one.rule for one in done.content.quality.ruled_out} | reasons(done).keys()


def test_runs_beside_each_other_are_marked_both(tmp_path: Path) -> None:
    """The one that came later, and the one that held the machine; both manifests name the other."""
    (tmp_path / "second").mkdir()
    second: list[Profiled] = []

    def meanwhile(job: int) -> None:
        if job == 3:
            second.append(run(tmp_path / "second", "warn"))

    first = run(tmp_path, "wait", TargetHere(clock=FakeClock(), fail=meanwhile))
    for done, held in ((first, True), (second[0], False)):
        (lock,) = Bundle.open(done.path).manifest.locks
        assert (lock.held, len(lock.beside)) == (held, 1)
        assert "at the same time as another run" in reasons(done)["one_run"]
        assert any("figures may be wrong" in note for note in done.notes)
        assert "at the same time as another run" in (done.path / "report.md").read_text("utf-8")


def test_a_run_that_must_be_alone_is_refused(tmp_path: Path) -> None:
    """Before anything is measured or written."""
    other = DeviceLock(LocalShell())
    other.take()
    with pytest.raises(BusyError, match="in use by"):
        run(tmp_path, "fail")
    assert not (tmp_path / "fail").exists()
    other.release()


@pytest.mark.runtime
def test_what_another_cpu_has_is_refused_before_the_machine_is_waited_for(tmp_path: Path, toy_program: Path) -> None:
    """Of the real runtime, while another run holds the machine; nobody hears that it is waited for."""
    foreign = "amx" if platform.machine() in {"aarch64", "arm64"} else "sme2"
    heard: list[str] = []
    with ThisMachine(Target("native", "")).reserved(LockRequest()), pytest.raises(FeatureError, match=foreign):
        profile(toy_program, settings=Asked(ablate=(foreign,)), out=tmp_path / "out", notify=heard.append)
    assert heard == []
    assert not (tmp_path / "out").exists()
