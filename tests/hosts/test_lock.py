"""One run at a time measures on a machine, whatever leads to it; runs beside each other know of each other."""

from __future__ import annotations

import functools
import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sshd
from opscope.bundle.manifest import Target
from opscope.core.errors import BusyError, DeviceError
from opscope.hosts.device import OWN, Device
from opscope.hosts.lock import DeviceLock, LockRequest, hold_machine
from opscope.hosts.shell import LocalShell
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address
from opscope.hosts.this_machine import ThisMachine
from texts import WAIT_FOR_THE_RUN
from waiting import HANG, eventually

HERE = Target("native", "")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of this test alone."""
    lock = tmp_path / "opscope.lock"
    monkeypatch.setenv("OPSCOPE_LOCK", str(lock))
    return lock


def _lock() -> DeviceLock:
    return DeviceLock(LocalShell())


class _Time:
    """A clock that only sleeping moves, and what happens while somebody sleeps."""

    def __init__(self, **events: object) -> None:
        self.now, self.events, self.said = 0.0, events, []

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)
        for at in list(self.events):
            if self.now >= float(at.removeprefix("at")):
                self.events.pop(at)()

    def request(self, mode: str) -> LockRequest:
        return LockRequest(mode, 60.0, self.said.append, lambda: self.now, self.sleep)


def test_a_free_machine_is_held_and_left_free(place: Path) -> None:
    """Nothing is waited for, nobody is beside; nothing is left behind."""
    with ThisMachine(HERE).reserved(LockRequest("wait")) as hold:
        record = hold.record()
        assert place.is_dir()
    assert (record.held, record.waited_seconds, record.waited_for, record.beside) == (True, 0.0, None, [])
    assert list(place.parent.iterdir()) == []


def test_a_second_run_is_refused_with_fail() -> None:
    """The message names who measures; the exit code is that of a device that cannot be used."""
    first = _lock()
    first.take()
    with pytest.raises(BusyError, match=f"in use by .*process {os.getpid()}, since 20") as caught:
        hold_machine(_lock(), LockRequest("fail"))
    assert (caught.value.exit_code, caught.value.where) == (16, "this machine")
    assert WAIT_FOR_THE_RUN in str(caught.value.hint)
    first.release()


def test_a_second_run_waits_until_the_first_ends() -> None:
    """It then holds the machine alone, and its record says for whom it waited and how long."""
    first, second = _lock(), _lock()
    first.take()
    course = _Time(at3=first.release)
    record = hold_machine(second, course.request("wait")).record()
    assert (record.held, record.beside) == (True, [])
    assert 3.0 <= record.waited_seconds < 5.0
    assert f"process {os.getpid()}" in str(record.waited_for)
    assert [said.partition(": waiting")[2] for said in course.said] == [", for at most 60 s"]
    second.release()


@pytest.mark.parametrize(("mode", "seconds", "messages"), [("wait", 60.0, 2), ("warn", 0.0, 1)], ids=["wait", "warn"])
def test_after_a_minute_or_at_once_it_measures_beside_and_both_know(mode: str, seconds: float, messages: int) -> None:
    """The first run is told, too: its figures were disturbed as much."""
    first, second, course = _lock(), _lock(), _Time()
    alone = hold_machine(first, LockRequest("wait"))
    beside = hold_machine(second, course.request(mode))
    assert (beside.held, beside.record().waited_seconds) == (False, seconds)
    assert (len(course.said), course.said[-1].split()[:2]) == (messages, ["measuring", "alongside"])
    assert len(beside.record().beside) == len(alone.record().beside) == 1
    assert alone.record().held
    second.release()
    assert len(alone.record().beside) == 1, "what has been is not forgotten"
    first.release()


def test_of_three_runs_each_knows_the_two_others() -> None:
    """Also the two that hold nothing."""
    every = [_lock() for _ in range(3)]
    holds = [hold_machine(one, _Time().request("warn")) for one in every]
    assert [(hold.held, len(hold.record().beside)) for hold in holds] == [(True, 2), (False, 2), (False, 2)]
    for one in every:
        one.release()


def test_a_run_that_measures_beside_keeps_the_machine_from_a_third() -> None:
    """Also when the first one has gone: who comes then is not alone, and either waits or says so."""
    first, second, third = _lock(), _lock(), _lock()
    first.take()
    hold_machine(second, _Time().request("warn"))
    first.release()
    with pytest.raises(BusyError):
        third.take()
    record = hold_machine(third, _Time().request("warn")).record()
    assert (record.held, len(record.beside)) == (True, 1)
    second.release()
    third.release()
    third.take()
    assert third.beside() == []
    third.release()


def test_a_lock_that_cannot_be_made_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without a writable /tmp: the run goes on and its record has the reason, unless with fail."""
    monkeypatch.setenv("OPSCOPE_LOCK", str(place.parent / "missing" / "lock"))
    with ThisMachine(HERE).reserved(LockRequest("wait")) as hold:
        assert not hold.held
        assert "cannot write a lock" in str(hold.record().problem)
    with pytest.raises(DeviceError, match="cannot write a lock"), ThisMachine(HERE).reserved(LockRequest("fail")):
        pass


_HOLDER = """
import sys, time
from opscope.hosts.shell import LocalShell
from opscope.hosts.lock import DeviceLock, LockRequest, hold_machine
hold_machine(DeviceLock(LocalShell()), LockRequest(sys.argv[1]))
print("here", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("mode", ["wait", "warn"])
def test_a_run_that_is_killed_keeps_nobody_out(mode: str) -> None:
    """Whether it held the machine or measured beside: SIGKILL leaves nothing that lasts."""
    first = _lock()
    if mode == "warn":
        first.take()
    with subprocess.Popen([sys.executable, "-c", _HOLDER, mode], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        with pytest.raises(BusyError):
            _lock().take()
        process.send_signal(signal.SIGKILL)
    first.release()
    again = _lock()
    assert hold_machine(again, LockRequest("wait", HANG)).held
    again.release()


def test_a_mark_of_a_process_that_is_gone_counts_for_nothing(place: Path) -> None:
    """It is swept away, as is one of an earlier boot."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    for number in (gone.pid, os.getpid()):
        place.with_name(f"{place.name}.guest.{number}").symlink_to("an-earlier-boot by somebody")
    held = _lock()
    held.take()
    assert held.beside() == []
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    held.release()


@pytest.fixture
def board(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """This machine as another one sees it: a server of ssh with the same lock."""
    with sshd.running(tmp_path / "sshd", {"OPSCOPE_LOCK": str(place)}) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        yield server


def _device(server: sshd.Sshd) -> Device:
    place = parse_address(server.address)
    return Device(SshShell(place), place.directory)


def test_a_run_here_and_one_that_comes_by_ssh_exclude_each_other(board: sshd.Sshd) -> None:
    """The machine that is measured is the same, whoever leads to it."""
    with ThisMachine(HERE).reserved(LockRequest("wait")), pytest.raises(BusyError), _device(board).reserved():
        pass
    with _device(board).reserved(LockRequest("wait")) as there:
        assert there.held
        with pytest.raises(BusyError), ThisMachine(HERE).reserved(LockRequest("fail")):
            pass


def test_two_hosts_beside_each_other_have_directories_of_their_own(board: sshd.Sshd) -> None:
    """One that begins or ends removes nothing of the other."""
    first, second, base = _device(board), _device(board), board.home / OWN
    with first.reserved(LockRequest("wait")) as alone:
        (base / "work").mkdir()
        (base / "work" / "mine").touch()
        with second.reserved(LockRequest("warn")) as beside:
            assert not beside.held
            assert second.guarded(["true"], f"{second.base}/{second._work}/0", 5.0)[0] == 0
            assert len(list(base.glob("work*"))) == 2
        assert (base / "work" / "mine").exists()
        assert len(alone.record().beside) == 1
    assert list(base.glob("work*")) == []


class _Waiting:
    """A run in a thread that waits for the machine, and then holds it until it is told to go on."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.said: list[str] = []
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(name, order), daemon=True)
        self._thread.start()

    def _run(self, name: str, order: list[str]) -> None:
        request = LockRequest("wait", HANG, self.said.append, sleep=lambda seconds: time.sleep(min(seconds, 0.05)))
        hold_machine(lock := _lock(), request)
        order.append(name)
        self._go.wait(HANG)
        lock.release()

    def end(self) -> None:
        self._go.set()
        self._thread.join(HANG)


def test_those_who_wait_have_their_turn_in_the_order_in_which_they_came(place: Path) -> None:
    """Each is told how many stand before it; one that comes without waiting takes nothing from them."""
    holder, order, names = _lock(), list[str](), ["first", "second", "third"]
    holder.take()
    runs = []
    for number, name in enumerate(names):
        runs.append(_Waiting(name, order))
        assert eventually(lambda: bool(runs[-1].said)), "it is told at once"
        assert re.findall(r"(\d+) runs? ahead in the queue", runs[-1].said[0]) == ([str(number)] if number else [])
    holder.release()
    assert eventually(lambda: order == ["first"])
    for number, run in enumerate(runs):
        with pytest.raises(BusyError):
            hold_machine(_lock(), LockRequest("fail"))
        run.end()
        assert eventually(functools.partial(order.__eq__, names[: number + 2]))
    assert list(place.parent.iterdir()) == []


def test_a_lock_that_is_free_is_kept_for_who_waits() -> None:
    """A run that came later finds the machine in use by the one that waits; that one takes it."""
    waits, late = _lock(), _lock()
    waits.queue()
    with pytest.raises(BusyError, match=f"process {os.getpid()}") as caught:
        late.take()
    assert late.ahead == 1
    assert caught.value.holder.startswith(f"{getpass.getuser()}@")
    waits.take()
    waits.release()
    late.take()
    late.release()


def test_who_is_not_first_in_line_never_tries_to_take_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock may be released at any moment: one that tried just then would come before those who stand in line."""
    holder, waits, late = _lock(), _lock(), _lock()
    holder.take()
    waits.queue()
    tools, attempts = tmp_path / "bin", tmp_path / "attempts"
    tools.mkdir()
    (tools / "mkdir").write_text(f'#!/bin/sh\necho "$@" >>{attempts}\nexec {shutil.which("mkdir")} "$@"\n')
    (tools / "mkdir").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(BusyError):
        late.take()
    assert not attempts.exists()
    holder.release()
    waits.take()
    assert attempts.exists(), "the first in line takes it so"
    waits.release()


def test_a_place_in_the_queue_ends_with_its_run(place: Path) -> None:
    """One that is killed while it waits keeps nobody out, and names that are no tickets count for nothing."""
    program = (
        "import time\nfrom opscope.hosts.shell import LocalShell\nfrom opscope.hosts.lock import DeviceLock\n"
        "lock = DeviceLock(LocalShell())\nlock.queue()\nprint('queued', flush=True)\ntime.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "queued\n"
        (ticket,) = place.parent.glob("*.ticket.*")
        process.kill()
    foreign = [place.parent / f"{place.name}.ticket.{name}" for name in ("9", "1.", ".1", "1.2.3", "0.1;ls", "9" * 30)]
    foreign += [place.parent / f"{place.name}.ticket.0.{os.getpid()}"]
    for path in foreign:
        path.symlink_to("nothing here")
    earlier = place.parent / f"{place.name}.ticket.1.{os.getpid()}"
    earlier.symlink_to("another-boot by nobody@nowhere, process 1, since yesterday")
    late = _lock()
    assert eventually(lambda: not ticket.is_symlink())
    late.queue()
    late.take()
    late.release()
    assert not earlier.is_symlink(), "of an earlier boot"
    assert all(path.is_symlink() for path in foreign), "what is no ticket stays"


def test_a_limit_ends_the_wait_for_a_machine_that_must_be_had_alone() -> None:
    """As a device with a name: figures that were measured beside another run are of no use there."""
    first, second, course = _lock(), _lock(), _Time()
    first.take()
    with pytest.raises(BusyError, match="in use by"):
        hold_machine(second, course.request("wait")._replace(seconds=5.0, alone=True))
    assert 5.0 <= course.now < 8.0
    first.release()
