"""What every target must do, shown on the fake and on the real one; and what the real one does when things go wrong.

The faults are real: processes that crash, hang, talk nonsense or write half a file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import sshd
from fakes import FakeTarget
from job_variants import run_as
from native_runner import native_over_ssh, native_target
from niceness import writes_down
from opscope.bundle.manifest import FailureKind
from opscope.core.errors import TraceFormatError
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.hosts.host import ProcessSettings
from opscope.hosts.ssh import VARIABLE
from opscope.machine import isa
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.runners.python import PythonTarget, python_here
from programs import write_tiny_program
from qemu import qemu_target
from texts import LOADED_BEFORE
from traces import etdump


def job(program: Path, clear: list[str] | None = None, timeout: float = 120.0, inferences: int = 3) -> Job:
    """A small job."""
    return Job(str(program), run_as(clear or []), inferences, 0, timeout_seconds=timeout)


MAKERS = {"fake": FakeTarget, "local": python_here, "native": native_target}
REAL = ("local", "native", "ssh", "qemu-aarch64")


@pytest.fixture(params=["fake", *(pytest.param(kind, marks=pytest.mark.runtime) for kind in REAL)])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunTarget]:
    """Every kind of target."""
    if request.param == "ssh":
        with sshd.running(tmp_path / "sshd") as server:
            monkeypatch.setenv(VARIABLE, server.options)
            yield native_over_ssh(server)
    elif request.param == "qemu-aarch64":
        yield qemu_target(monkeypatch)
    else:
        yield MAKERS[request.param]()


@pytest.fixture
def program(target: RunTarget, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program that the target can run."""
    if isinstance(target, FakeTarget):
        return write_tiny_program(tmp_path)
    path: Path = request.getfixturevalue("toy_program")
    return path


@pytest.mark.everyday("ExecuTorch from Python, native, over ssh and under QEMU")
def test_a_job_leaves_a_trace_with_as_many_inferences_as_asked(
    target: RunTarget, program: Path, tmp_path: Path
) -> None:
    """Three inferences are in the trace, and the process counted as many."""
    outcome = target.execute(job(program), tmp_path)
    assert outcome.failure is None
    assert outcome.measurement is not None
    assert len(outcome.measurement.wall_ns) == 3
    assert read_trace(tmp_path / "trace.etdump")[0].inferences().height == 3
    assert (tmp_path / "outputs.npz").exists()


def test_what_the_system_did_is_told_behind_the_warm_up(target: RunTarget, program: Path, tmp_path: Path) -> None:
    """Of every call its time off the CPU; CPU time, switches and faults of the calls that count, and of them alone."""
    if isinstance(target, FakeTarget):
        pytest.skip("it runs no process")
    asked = msgspec.structs.replace(job(program, inferences=30), warmup=20, traced=False)
    measured = target.execute(asked, tmp_path).measurement
    assert measured is not None
    assert measured.off_cpu_ns is not None
    assert len(measured.off_cpu_ns) == len(measured.wall_ns) == 30
    assert all(0 <= off <= call for off, call in zip(measured.off_cpu_ns, measured.wall_ns, strict=True))
    assert measured.usage is not None
    assert measured.usage.wall_ns >= sum(measured.wall_ns[20:])
    assert measured.usage.thread_cpu_ns
    assert measured.usage.cpu_ns > 0


def test_a_process_gives_way_as_it_is_asked(
    target: RunTarget, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By nice(1), which stands before every process of a job; another user's PATH is not ours to change."""
    if isinstance(target, FakeTarget) or target.describe().kind == "ssh":
        pytest.skip("it runs no process here")
    told = writes_down(tmp_path, monkeypatch)
    for number, nice in enumerate((7, 0)):
        asked = msgspec.structs.replace(job(program), process=ProcessSettings(nice), traced=False)
        (tmp_path / str(number)).mkdir()
        assert target.execute(asked, tmp_path / str(number)).failure is None
    assert told.read_text() == "-n 7\n"


def test_cleared_features_come_back_proved(target: RunTarget, program: Path, tmp_path: Path) -> None:
    """The measurement says what was cleared, that the backend was not there before, and that it reads the same."""
    probed = target.probe()
    fields = frozenset(probed.fields)
    clear = isa.cleared_fields(probed.arch, [isa.default_ablation(probed.arch, fields).name], fields)
    outcome = target.execute(job(program, clear), tmp_path)
    assert outcome.measurement is not None
    assert outcome.measurement.mask.cleared == clear
    assert not outcome.measurement.mask.backend_loaded_before
    assert outcome.measurement.mask.same_symbol


def test_a_target_describes_itself_and_its_machine(target: RunTarget) -> None:
    """The manifest gets a kind, a machine and its state."""
    assert target.describe().kind
    assert target.environment().usable_cpus >= 1
    assert target.conditions() is not None


CHILD = "import os, signal, sys, time, pathlib, json\nrequest = json.load(open(sys.argv[2]))\n"


def failing(script: str) -> PythonTarget:
    """A target whose process runs this script instead of the runtime."""
    return python_here([sys.executable, "-c", CHILD + script])


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", FailureKind.SIGNAL, "SIGSEGV"),
        ("os.abort()", FailureKind.SIGNAL, "SIGABRT"),
        ("print('no such kernel'); sys.exit(3)", FailureKind.EXIT, "exited with code 3.*no such kernel"),
        ("pass", FailureKind.EXIT, "exited with code 0 and no answer"),
        ("pathlib.Path(request['answer']).write_text('nonsense')", FailureKind.EXIT, "answer is damaged"),
        ("sys.exit(9)", FailureKind.STORAGE, "disk is full"),
    ],
)
def test_a_process_that_fails_is_an_outcome_with_its_reason(
    script: str, kind: FailureKind, message: str, tmp_path: Path
) -> None:
    """Crash, abort, error, silence, nonsense and a full disk are told apart; none is an exception."""
    failure = failing(script).execute(job(tmp_path / "any.pte"), tmp_path).failure
    assert failure is not None
    assert failure.kind is kind
    assert re.search(message, failure.message)


def test_a_process_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """After the time limit neither the process nor its child is left."""
    script = "child = os.fork()\npathlib.Path(request['trace'] + f'.{os.getpid()}').touch()\ntime.sleep(600)\n"
    failure = failing(script).execute(job(tmp_path / "any.pte", timeout=2.0), tmp_path).failure
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    pids = [int(path.name.rpartition(".")[2]) for path in tmp_path.glob("trace.etdump.*")]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    """Whether a process still runs, given a moment to be gone; a zombie does not."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.1)
    return True


def test_what_the_process_printed_is_kept(tmp_path: Path) -> None:
    """The log stays beside the trace, the request and the answer do not."""
    failing("print('hello'); sys.exit(1)").execute(job(tmp_path / "any.pte"), tmp_path)
    assert (tmp_path / "log.txt").read_text() == "hello\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt"]


def test_half_a_trace_is_refused_when_it_is_read(tmp_path: Path) -> None:
    """A trace that was cut while it was written is a format error, whatever the process said."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(etdump("Method::execute 100", repeat=5)[:-40])
    with pytest.raises(TraceFormatError, match="truncated"):
        read_trace(path)


@pytest.mark.runtime
def test_clearing_after_the_backend_was_loaded_is_refused(toy_program: Path, tmp_path: Path) -> None:
    """The backend has then taken its copy of the features: the mask would silently do nothing."""
    script = (
        "import torch, runpy\n"
        "from executorch.extension.pybindings import _C\n"
        "sys.argv = ['child', *sys.argv[1:]]\n"
        "runpy.run_module('opscope.runtimes.executorch.runners.child', run_name='__main__')\n"
    )
    probed = python_here().probe()
    fields = frozenset(probed.fields)
    clear = isa.cleared_fields(probed.arch, [isa.default_ablation(probed.arch, fields).name], fields)
    late = python_here([sys.executable, "-c", "import os, sys\n" + script])
    failure = late.execute(job(toy_program, clear), tmp_path).failure
    assert failure is not None
    assert failure.kind is FailureKind.MASK
    assert LOADED_BEFORE in failure.message


@pytest.mark.runtime
def test_what_the_runtime_refuses_is_told(tmp_path: Path) -> None:
    """A program whose delegate has no data is refused by the runtime with its own words."""
    failure = python_here().execute(job(write_tiny_program(tmp_path)), tmp_path).failure
    assert failure is not None
    assert failure.kind in (FailureKind.EXIT, FailureKind.SIGNAL)
    assert failure.message


def test_a_child_ends_with_its_parent() -> None:
    """The parent's death ends the child on Linux, so no orphan disturbs the next measurement."""
    if sys.platform != "linux":
        pytest.skip("prctl is Linux's")
    parent = (
        "import subprocess, sys, time\n"
        "code = 'from opscope.runtimes.executorch.runners.child import end_with_parent; import time; end_with_parent();"
        " print(1, flush=True); time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
        "child.stdout.read(1)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        os.kill(process.pid, 9)
        process.wait()
    assert not alive(pid)
