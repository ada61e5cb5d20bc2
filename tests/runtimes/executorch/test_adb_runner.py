"""The user's executor_runner on an Android device: what is asked of it, what comes back, and every way it can fail.

The runners are scripts that behave like executor_runner; they run on the phone that the endpoint stands for, through
the real ``adb``. Nothing here was seen on a phone.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adb_bench import adb_server, needs_adb, plugged
from adb_endpoint import Endpoint
from job_variants import run_as
from opscope.bundle.manifest import FailureKind
from opscope.core.errors import DeviceError, UsageError
from opscope.experiment.protocol import Job
from opscope.experiment.target import JobOutcome
from opscope.hosts.adb.adb import PROFILES, AdbShell, lines_about, runtime_lines
from opscope.hosts.adb.device import AdbDevice
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from runners import GOOD, write_runner
from waiting import HANG, eventually

pytestmark = needs_adb


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with adb_server(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Endpoint]:
    """A phone on the network."""
    with plugged(tmp_path / "phone") as endpoint:
        yield endpoint


def _job(tmp_path: Path, *, threads: int = 1, affinity: tuple[int, ...] = (), **more: object) -> Job:
    """Three inferences of a program that a pretended runner does not open."""
    program = tmp_path / "model.pte"
    program.write_bytes(b"program")
    return Job(str(program), run_as([], threads, affinity=affinity), 3, 0, HANG, **more)


def _phone(device: Endpoint, power: str | None = None, patience: float = HANG) -> AdbDevice:
    return AdbDevice(AdbShell(device.address), PROFILES[power] if power else None, patience=patience)


def _execute(target: ExecutorRunnerTarget, asked: Job, directory: Path) -> JobOutcome:
    directory.mkdir(exist_ok=True)
    return target.execute(asked, directory)


def test_the_runner_gets_its_flags_its_cpus_and_its_libraries(device: Endpoint, tmp_path: Path) -> None:
    """Words of the user arrive as they are; CPUs are a mask for taskset; libraries beside the runner go with it."""
    (tmp_path / "libxnnpack.so").write_bytes(b"library")
    seen = tmp_path / "told"
    tell = f"pathlib.Path({str(seen)!r}).write_text(repr((words, cpus, os.environ['LD_LIBRARY_PATH'])))"
    runner = write_runner(tmp_path, f"{tell}; {GOOD}")
    target = ExecutorRunnerTarget(_phone(device), runner, ["--data_path", "/sdcard/it's $5.ptd"])
    asked = _job(tmp_path, threads=2, affinity=(1,), calls=("decode",))
    assert _execute(target, asked, tmp_path / "r").failure is None
    words, cpus, libraries = eval(seen.read_text())  # noqa: S307 - our own script wrote it
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert device.phone.hidden(told.pop("--model_path").encode()).startswith(b"/data/local/tmp/opscope/programs/")
    assert told == {
        "--num_executions": "3",
        "--cpu_threads": "2",
        "--etdump_path": "trace.etdump",
        "--method_name": "decode",
        "--data_path": "/sdcard/it's $5.ptd",
    }
    assert cpus == [1]
    assert (Path(libraries) / "libxnnpack.so").read_bytes() == b"library"


def test_files_are_sent_once(device: Endpoint, tmp_path: Path) -> None:
    """By their content: another run finds them, changed ones are sent anew."""
    runner = write_runner(tmp_path)
    for _ in range(2):
        assert _execute(ExecutorRunnerTarget(_phone(device), runner), _job(tmp_path), tmp_path / "r").failure is None
    assert len(device.phone.pushed) == 2
    runner.write_text(runner.read_text() + "\n")
    assert _execute(ExecutorRunnerTarget(_phone(device), runner), _job(tmp_path), tmp_path / "r").failure is None
    assert len(device.phone.pushed) == 3


def test_a_log_that_goes_to_logcat_is_read_from_there(device: Endpoint, tmp_path: Path) -> None:
    """ExecuTorch's Android build logs there, not to its output; lines of other processes are left alone."""
    (device.phone.directory / "logcat.txt").write_text(
        "11-21 11:00:00.000     1     1 I ExecuTorch: Iteration 9 of 9: 9 ms\n"
    )
    script = """
def log(text):
    with open(os.environ["PHONE"] + "/logcat.txt", "a") as file:
        file.write(f"11-21 12:00:00.000 {os.getpid():5} {os.getpid():5} I ExecuTorch: {text}\\n")
"""
    outcome = _execute(
        ExecutorRunnerTarget(_phone(device), write_runner(tmp_path, script + GOOD)), _job(tmp_path), tmp_path / "r"
    )
    assert outcome.failure is None
    assert outcome.measurement.wall_ns == [100_000, 200_000, 300_000]
    assert "Iteration 3 of 3" in (tmp_path / "r/log.txt").read_text()


def test_a_crash_keeps_the_trace_that_was_written_and_what_logcat_told(device: Endpoint, tmp_path: Path) -> None:
    """The repetition does not count, and its trace can be looked at."""
    (device.phone.directory / "logcat.txt").write_text("11-21 11:00:00.000   900   900 I Banking : account 12345\n")
    script = """
start(); infer(); close(); finish()
with open(os.environ["PHONE"] + "/logcat.txt", "a") as file:
    file.write(f"11-21 12:00:01.000 {os.getpid():5} {os.getpid():5} F libc    : Fatal signal 11 (SIGSEGV)\\n")
    file.write(f"11-21 12:00:01.000   777   777 F DEBUG   : pid: {os.getpid()}, tid: 5, name: runner\\n")
    file.write("11-21 12:00:01.000   777   777 F DEBUG   :       #00 pc 0000  /data/local/tmp/libxnnpack.so\\n")
os.kill(os.getpid(), signal.SIGSEGV)
"""
    outcome = _execute(
        ExecutorRunnerTarget(_phone(device), write_runner(tmp_path, script)), _job(tmp_path), tmp_path / "r"
    )
    assert outcome.failure.kind is FailureKind.SIGNAL
    assert "SIGSEGV" in outcome.failure.message
    assert read_trace(tmp_path / "r/trace.etdump").table.inference_times().duration.size == 3
    kept = (tmp_path / "r/logcat.txt").read_text()
    assert "Fatal signal 11" in kept
    assert "libxnnpack.so" in kept
    assert "account" not in kept


@pytest.mark.parametrize(("machine", "built"), [(183, "aarch64"), (40, "32-bit Arm"), (243, "machine 243")])
def test_a_runner_for_another_processor_is_refused_before_it_is_sent(
    machine: int, built: str, device: Endpoint, tmp_path: Path
) -> None:
    """It is said what to build."""
    runner = tmp_path / "runner"
    runner.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(44))
    with pytest.raises(UsageError, match=f"built for {built}, the device is x86_64") as caught:
        ExecutorRunnerTarget(_phone(device), runner)
    assert "NDK for x86_64" in (caught.value.hint or "")
    assert not device.phone.pushed


@pytest.mark.parametrize(
    ("line", "affinity", "words"),
    [("#!/no/such/linker\n", (), "cannot be started.*Android NDK"), ("", (60,), "taskset")],
    ids=["of another system", "on a CPU that is not there"],
)
def test_a_runner_that_cannot_be_started(
    line: str, affinity: tuple[int, ...], words: str, device: Endpoint, tmp_path: Path
) -> None:
    """A program that lacks its libraries is known by the shell's exit code only; the words of taskset are passed on."""
    runner = write_runner(tmp_path)
    runner.write_text(line or runner.read_text())
    target = ExecutorRunnerTarget(_phone(device), runner)
    failure = _execute(target, _job(tmp_path, affinity=affinity), tmp_path / "r").failure
    assert failure.kind is FailureKind.EXIT
    assert re.search(words, failure.message)


def test_settings_hold_while_the_device_is_reserved(device: Endpoint, tmp_path: Path) -> None:
    """And are as they were afterwards."""
    device.phone.put("low_power", "1")
    seen = tmp_path / "low_power"
    script = f"import shutil; shutil.copy(os.environ['PHONE'] + '/settings/global/low_power', {str(seen)!r}); {GOOD}"
    target = ExecutorRunnerTarget(_phone(device, "boost"), write_runner(tmp_path, script))
    with target.reserved():
        found = target.environment()
        assert _execute(target, _job(tmp_path), tmp_path / "r").failure is None
    assert seen.read_text().strip() == "0"
    assert device.phone.setting("low_power") == "1"
    assert (found.phone.power, found.phone.settings["low_power"]) == ("boost", "1")


@pytest.mark.parametrize("event", ["unplug", "reboot"])
def test_a_device_that_goes_in_the_middle_of_a_run(event: str, device: Endpoint, tmp_path: Path) -> None:
    """That repetition is lost and says so; when the device is back, the next one runs with its settings."""
    device.phone.put("low_power", "1")
    marker = tmp_path / "running"
    slow = f"""
if not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close()
    time.sleep(30)
"""
    target = ExecutorRunnerTarget(_phone(device, "boost"), write_runner(tmp_path, slow + GOOD))
    assert target.always_traces
    with target.reserved():
        puller = threading.Thread(target=lambda: eventually(marker.exists) and getattr(device, event)())
        puller.start()
        failure = _execute(target, _job(tmp_path), tmp_path / "r1").failure
        puller.join()
        assert failure.kind is FailureKind.DEVICE
        assert "--resume" in failure.message
        if event == "unplug":
            device.plug()
        assert target.conditions().phone is not None
        assert _execute(target, _job(tmp_path), tmp_path / "r2").failure is None
        assert device.phone.setting("low_power") == "0"
    assert device.phone.setting("low_power") == "1"
    assert not _running(tmp_path / "runner")


def _running(program: Path) -> bool:
    """Whether a process with that name still runs, anywhere on this machine."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    return any(str(program).encode() in line for line in lines)


def test_a_device_that_does_not_come_back_is_not_waited_for_twice(
    device: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do."""
    lost = _phone(device, patience=1.0)
    target = ExecutorRunnerTarget(lost, write_runner(tmp_path))
    device.unplug()
    with pytest.raises(DeviceError, match="did not come back in 1 s") as caught:
        target.conditions()
    assert "--resume" in (caught.value.hint or "")
    monkeypatch.setattr(lost, "_patience", HANG)
    with pytest.raises(DeviceError):
        target.conditions()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
def test_a_device_whose_storage_fills_up_during_the_run(device: Endpoint, tmp_path: Path) -> None:
    """The trace is not whole, as executor_runner looks at no error when it writes it; the reason is named."""
    script = """
import contextlib
start(); infer(); close(); output()
with contextlib.suppress(OSError), open("fill", "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
with contextlib.suppress(OSError):
    trace(whole())
"""
    place = device.phone.tmp
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        target = ExecutorRunnerTarget(_phone(device), write_runner(tmp_path, script))
        failure = _execute(target, _job(tmp_path), tmp_path / "r").failure
        assert failure.kind is FailureKind.DEVICE
        assert re.search("storage is full.*free some space", failure.message)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_lines_of_other_programs_stay_on_the_phone() -> None:
    """By the number of the process; a crash is told by another one."""
    text = """\
--------- beginning of main
11-21 12:00:00.000  42  42 I ExecuTorch: Model loaded in 3.2 ms.
11-21 12:00:00.000  42  43 D XNNPACK: Using gemm microkernel 'xnn_f32_gemm__neon'.
11-21 12:00:00.000  42  42 W linker  : unused DT entry
11-21 12:00:00.000  43  43 I ExecuTorch: of another process
11-21 12:00:00.000 900 900 F DEBUG   : pid: 42, tid: 42, name: runner  >>> ./runner <<<
11-21 12:00:00.000 900 900 F DEBUG   : signal 6 (SIGABRT)
11-21 12:00:00.000 901 901 F DEBUG   : pid: 421, tid: 42, name: other
"""
    lines = text.splitlines()
    assert runtime_lines(text, 42) == lines[1:3]
    assert lines_about(text, 42) == [*lines[1:4], *lines[5:7]]
    assert runtime_lines("", 42) == lines_about("\x00\n: :", 42) == []
