"""What every runner must do on every host: the product of those that run here.

A host is this machine, a device behind a real sshd, a phone behind the real adb, or this machine with QEMU in front. A
runner is the native one, the Python bindings, or the user's build of executor_runner. Builds are scripts, so that
every fault can be asked of them; an emulator runs no scripts.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import sshd
from adb_bench import ADB_REASON, MISSING, adb_server, plugged
from job_variants import run_as
from native_runner import native_cache, native_target, runtime_of
from opscope.bundle.manifest import FailureKind, Target
from opscope.core.errors import BusyError
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import AdbDevice
from opscope.hosts.device import OWN, Device
from opscope.hosts.host import PRINTED, GuardedCommand, Host
from opscope.hosts.lock import LockRequest
from opscope.hosts.process import limit_questions
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address
from opscope.hosts.this_machine import ThisMachine
from opscope.program.structure.exported import Tensor
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from opscope.runtimes.executorch.runners.native import NativeTarget
from opscope.runtimes.executorch.runners.python import python_here, python_on
from opscope.runtimes.native.building import host_architecture
from processes import has_ended
from qemu import qemu_target
from runners import GOOD, write_runner
from texts import RAISE_THE_LIMIT
from waiting import HANG, eventually

HELP_LIMIT = 50.0
"""Seconds: less than the usual limit of a question, which is a minute, and far more than a busy machine takes."""


class Bench(NamedTuple):
    """A host, another way to it as another user has one, and where its files lie, None for this machine."""

    host: Host
    again: Callable[[], Host]
    base: Path | None


@pytest.fixture(params=["here", pytest.param("ssh", marks=pytest.mark.nightly), "adb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Every host that runs what is built for this machine."""
    if request.param == "here":
        here = ThisMachine(Target("runner", "mine"))
        yield Bench(here, lambda: here, None)
    elif request.param == "ssh":
        with sshd.running(tmp_path / "sshd") as server:
            monkeypatch.setenv(VARIABLE, server.options)
            yield _bench(lambda: Device(SshShell(parse_address(server.address)), str(server.home)), server.home / OWN)
    elif MISSING:
        pytest.skip(ADB_REASON)
    else:
        (tmp_path / "home").mkdir()
        with adb_server(tmp_path / "home"), plugged(tmp_path / "phone") as phone:
            yield _bench(lambda: AdbDevice(AdbShell(phone.address)), phone.phone.tmp / "opscope")


def _bench(make: Callable[[], Host], base: Path) -> Bench:
    return Bench(make(), make, base)


@pytest.fixture(params=["native", "python", "build"])
def target(request: pytest.FixtureRequest, bench: Bench, tmp_path: Path) -> RunTarget:
    """Every runner on every host, as far as there is such a thing."""
    if request.param == "build":
        write = "pathlib.Path(options['output_file'] + '-0.bin').write_bytes(struct.pack('4f', 0.5, -1, 2, 3))"
        return _build_on(bench, tmp_path, f"os.unlink('seen'); {write}; {GOOD}")
    if request.param == "python":
        return _python(bench)
    if bench.base is None:
        return native_target()
    runtime_of(host_architecture() or "")
    return NativeTarget.on(bench.host, native_cache())


def _python(bench: Bench) -> RunTarget:
    if bench.base is None:
        return python_here()
    if bench.host.describe().kind == "adb":
        pytest.skip("a phone has no Python")
    return python_on(bench.host, sys.executable)


def _build_on(bench: Bench, directory: Path, script: str) -> ExecutorRunnerTarget:
    return ExecutorRunnerTarget(bench.host, write_runner(directory, script), outputs=[Tensor([1, 4], "float32")])


def _traced_job(program: Path, timeout: float = HANG) -> Job:
    return Job(str(program), run_as([]), 3, 0, timeout)


def _any_program(directory: Path) -> Path:
    path = directory / "model.pte"
    path.write_bytes(b"program")
    return path


@pytest.mark.runtime
def test_a_run_leaves_a_trace_and_outputs_and_nothing_else(
    target: RunTarget, bench: Bench, toy_program: Path, tmp_path: Path
) -> None:
    """Three inferences are in the trace; here stand the log, the trace and the outputs, on a device what is kept."""
    work = tmp_path / "repetition"
    work.mkdir()
    with target.reserved():
        outcome = target.execute(_traced_job(toy_program), work)
        assert outcome.failure is None
        assert bench.base is None or not list((bench.base / "work").iterdir())
    assert len(outcome.measurement.wall_ns) == 3
    assert read_trace(work / "trace.etdump")[0].inferences().height == 3
    assert np.load(work / "outputs.npz")["arr_0"].size >= 4
    assert sorted(path.name for path in work.iterdir()) == ["log.txt", "outputs.npz", "trace.etdump"]


@pytest.mark.runtime
def test_a_target_declares_its_host(target: RunTarget, bench: Bench) -> None:
    """Its machine, its room for files and its settings are asked of it, whatever its class."""
    able = target.capabilities()
    assert target.environment().usable_cpus
    assert target.conditions().load_average is not None
    assert able.host.remote == (bench.base is not None)
    room = able.host.storage()
    assert (room is None) == (bench.base is None)
    if room is not None:
        there = "/data/local/tmp/opscope" if "phone" in bench.base.parts else str(bench.base)
        assert (room.writable, room.directory) == (True, there)


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("start(); os.kill(os.getpid(), signal.SIGSEGV)", FailureKind.SIGNAL, "SIGSEGV.*Model loaded"),
        ("print('boom'); sys.exit(3)", FailureKind.EXIT, "exited with code 3; its last output: boom"),
        ("start(); infer(); close(); output('OutputX 0: tensor(sizes=[1], [nan])'); trace(whole())", "output", "NaN"),
        ("start(); infer(); close(); output()", FailureKind.TRACE, "without event tracing"),
        ("start(); infer(); close(); output(); trace(whole()[:200])", FailureKind.TRACE, "is truncated"),
    ],
)
def test_a_build_that_fails_is_told_in_the_same_way_everywhere(
    script: str, kind: str, message: str, bench: Bench, tmp_path: Path
) -> None:
    """A crash, an error, a NaN, no trace and half of one."""
    (tmp_path / "r").mkdir()
    failure = _build_on(bench, tmp_path, script).execute(_traced_job(_any_program(tmp_path)), tmp_path / "r").failure
    assert failure.kind == kind
    assert re.search(message, failure.message)
    assert bench.base is None or not list((bench.base / "work").iterdir())


def test_a_build_that_hangs_is_ended_with_all_it_started(bench: Bench, tmp_path: Path) -> None:
    """After the time limit neither it nor its child is left, which is in a group of its own, as of `timeout`."""
    pids = tmp_path / "pids"
    pids.mkdir()
    leave = "child = os.fork(); child or os.setpgid(0, 0)"
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = f"{leave}; {ignore}; pathlib.Path({str(pids)!r}, str(os.getpid())).touch(); time.sleep(600)"
    (tmp_path / "r").mkdir()
    target = _build_on(bench, tmp_path, script)
    failure = target.execute(_traced_job(_any_program(tmp_path), timeout=2.0), tmp_path / "r").failure
    assert failure.kind is FailureKind.TIMEOUT
    assert RAISE_THE_LIMIT in failure.message
    assert len(list(pids.iterdir())) == 2
    assert all(eventually(lambda path=path: has_ended(int(path.name))) for path in pids.iterdir())


def test_a_build_that_does_not_even_list_its_flags_is_refused(bench: Bench, tmp_path: Path) -> None:
    """It is asked first, and no longer than one process of the experiment may take."""
    (tmp_path / "r").mkdir()
    target = _build_on(bench, tmp_path, "")
    path = tmp_path / "runner"
    path.write_text(path.read_text().replace("import os,", "import time; time.sleep(600)\nimport os,", 1))
    began = time.monotonic()
    with limit_questions(1.0):
        failure = target.execute(_traced_job(_any_program(tmp_path)), tmp_path / "r").failure
    assert "--help within 1 s" in failure.message
    assert time.monotonic() - began < HELP_LIMIT


def test_a_host_is_held_by_one_at_a_time(bench: Bench) -> None:
    """It refuses another host meanwhile and is free afterwards; where nothing is measured, this machine is not held."""
    if bench.base is None:
        with bench.host.reserved(), bench.again().reserved():
            pass
    asked = LockRequest("fail")
    with bench.host.reserved(asked), pytest.raises(BusyError, match="in use"), bench.again().reserved(asked):
        pass
    with bench.again().reserved(asked):
        pass


def test_two_runs_beside_each_other_both_work(bench: Bench, tmp_path: Path) -> None:
    """The one that came later keeps its files apart, and both are told of the other."""
    alone, beside = bench.host, bench.again()
    with alone.reserved(LockRequest("wait")) as first, beside.reserved(LockRequest("warn")) as second:
        for number, host in enumerate((alone, beside)):
            (tmp_path / str(number)).mkdir()
            command = GuardedCommand(["sh", "-c", "echo done"], tmp_path / str(number), 20.0)
            with host.started(command) as status:
                assert status.code == 0
            assert (tmp_path / str(number) / PRINTED).read_text().strip() == "done"
        assert (first.held, second.held) == (True, False)
        assert len(first.record().beside) == len(second.record().beside) == 1


def test_files_lie_in_one_directory_under_their_names(bench: Bench, tmp_path: Path) -> None:
    """And are sent once: what is there by its content is not sent again."""
    files = {name: tmp_path / name for name in ("one.bin", "two.bin")}
    for name, path in files.items():
        path.write_text(name)
    there = bench.host.provide("files", files)
    assert {name: path.rpartition("/")[2] for name, path in there.items()} == {name: name for name in files}
    assert len({path.rpartition("/")[0] for path in there.values()}) == 1
    assert bench.again().provide("files", files) == there


def test_a_command_runs_in_a_directory_of_its_own(bench: Bench, tmp_path: Path) -> None:
    """What it prints and the wanted files come here; its environment and its exit code are its own."""
    words = ["sh", "-c", 'echo "$TOLD"; echo made >made.txt; exit 7']
    command = GuardedCommand(words, tmp_path, HANG, lambda name: name == "made.txt", variables={"TOLD": "it's $1"})
    with bench.host.started(command) as ended:
        assert (ended.code, ended.start_error) == (7, None)
    assert (tmp_path / "log.txt").read_text().strip() == "it's $1"
    assert (tmp_path / "made.txt").read_text() == "made\n"
    with bench.host.started(command._replace(words=["sh", "-c", "kill -SEGV $$"])) as ended:
        assert ended.code == -11


@pytest.mark.runtime
def test_the_native_runner_under_an_emulator(
    toy_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same runner on this machine with QEMU in front leaves the same."""
    target = qemu_target(monkeypatch)
    assert target.execute(_traced_job(toy_program, timeout=300.0), tmp_path).failure is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "outputs.npz", "trace.etdump"]
    assert target.describe().emulated
    assert target.environment().machine == "aarch64"
