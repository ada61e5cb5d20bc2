"""The user's executor_runner on an Android device: what is asked of it, what comes back, and every way it can fail.

The runners are scripts that behave like executor_runner; they run on the phone that the endpoint stands for, through
the real ``adb``. Nothing here was seen on a phone.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adb_bench import adb_server, needs_adb, plugged
from job_variants import run_as
from opscope.bundle.manifest import FailureKind
from opscope.core.errors import DeviceError, FeatureError, NotFoundError, UsageError
from opscope.experiment.protocol import Job
from opscope.experiment.target import JobOutcome
from opscope.hosts.adb.adb import PROFILES, AdbShell, lines_about, runtime_lines
from opscope.hosts.adb.device import AdbDevice
from opscope.program.structure.exported import Tensor
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from runners import FLAGS, GOOD, write_runner
from texts import NO_RUNNER, OWN_FLAG, OWN_RUNNER
from waiting import HANG, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adb_endpoint import Endpoint

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


def job(
    tmp_path: Path,
    *,
    threads: int = 1,
    affinity: tuple[int, ...] = (),
    timeout: float = HANG,
    traced: bool = True,
    **more: object,
) -> Job:
    """Three inferences of a program that a pretended runner does not open."""
    program = tmp_path / "model.pte"
    program.write_bytes(b"program")
    return Job(str(program), run_as([], threads, affinity=affinity), 3, 0, timeout, traced, **more)


def phone(device: Endpoint, power: str | None = None, patience: float = HANG) -> AdbDevice:
    """The device as opscope sees it."""
    return AdbDevice(AdbShell(device.address), PROFILES[power] if power else None, patience=patience)


def execute(target: ExecutorRunnerTarget, asked: Job, directory: Path) -> JobOutcome:
    """One repetition in a directory of its own."""
    directory.mkdir(exist_ok=True)
    return target.execute(asked, directory)


def failure(outcome: JobOutcome) -> tuple[FailureKind, str]:
    """Kind and message of what went wrong."""
    assert outcome.measurement is None
    assert outcome.failure is not None
    return outcome.failure.kind, outcome.failure.message


def test_a_good_run_is_a_measurement_of_what_the_runner_told(device: Endpoint, tmp_path: Path) -> None:
    """Its log, its trace and its time come back; on the device only the cache stays."""
    target = ExecutorRunnerTarget(phone(device), write_runner(tmp_path))
    work = tmp_path / "repetition"
    outcome = execute(target, job(tmp_path), work)
    assert outcome.failure is None
    told = outcome.measurement
    assert told is not None
    assert (told.threads, told.load_ns, told.wall_ns) == (1, 3_250_000, [100_000, 200_000, 300_000])
    assert told.peak_rss_bytes is None
    assert read_trace(work / "trace.etdump").table.inference_times().duration.size == 3
    assert sorted(path.name for path in work.iterdir()) == ["log.txt", "trace.etdump"]
    assert not list((device.phone.tmp / "opscope/work").iterdir())


def test_the_runner_gets_its_flags_its_cpus_and_its_libraries(device: Endpoint, tmp_path: Path) -> None:
    """Words of the user arrive as they are; CPUs are a mask for taskset; libraries beside the runner go with it."""
    (tmp_path / "libxnnpack.so").write_bytes(b"library")
    seen = tmp_path / "told"
    tell = f"pathlib.Path({str(seen)!r}).write_text(repr((words, cpus, os.environ['LD_LIBRARY_PATH'])))"
    runner = write_runner(tmp_path, f"{tell}; {GOOD}")
    target = ExecutorRunnerTarget(phone(device), runner, ["--data_path", "/sdcard/it's $5.ptd"])
    asked = job(tmp_path, threads=2, affinity=(1,), calls=("decode",))
    assert execute(target, asked, tmp_path / "r").failure is None
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
        assert execute(ExecutorRunnerTarget(phone(device), runner), job(tmp_path), tmp_path / "r").failure is None
    assert len(device.phone.pushed) == 2
    runner.write_text(runner.read_text() + "\n")
    assert execute(ExecutorRunnerTarget(phone(device), runner), job(tmp_path), tmp_path / "r").failure is None
    assert len(device.phone.pushed) == 3


def test_output_values_are_read(device: Endpoint, tmp_path: Path) -> None:
    """With a runner that can write them, and types that the program declares."""
    script = GOOD + "; pathlib.Path(options['output_file'] + '-0.bin').write_bytes(struct.pack('4f', 0.5, -1, 2, 3))"
    target = ExecutorRunnerTarget(phone(device), write_runner(tmp_path, script), outputs=[Tensor([1, 4], "float32")])
    assert execute(target, job(tmp_path), tmp_path / "r").failure is None
    assert np.load(tmp_path / "r/outputs.npz")["arr_0"].tolist() == [[0.5, -1.0, 2.0, 3.0]]


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
    outcome = execute(
        ExecutorRunnerTarget(phone(device), write_runner(tmp_path, script + GOOD)), job(tmp_path), tmp_path / "r"
    )
    assert outcome.failure is None
    assert outcome.measurement is not None
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
    outcome = execute(
        ExecutorRunnerTarget(phone(device), write_runner(tmp_path, script)), job(tmp_path), tmp_path / "r"
    )
    kind, message = failure(outcome)
    assert kind is FailureKind.SIGNAL
    assert "SIGSEGV" in message
    assert read_trace(tmp_path / "r/trace.etdump").table.inference_times().duration.size == 3
    kept = (tmp_path / "r/logcat.txt").read_text()
    assert "Fatal signal 11" in kept
    assert "libxnnpack.so" in kept
    assert "account" not in kept


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (
            "start(); infer(); close(); output('OutputX 0: tensor(sizes=[1, 2], [nan, 1.])'); trace(whole())",
            "output",
            "NaN",
        ),
        ("start(); infer(); close(); output(); trace(whole()[:-9])", "trace", "is truncated"),
        ("start(); infer(); close(); output()", "trace", "without event tracing"),
        ("start(); infer()", "exit", "did not report running the model"),
        ("print('boom'); sys.exit(3)", "exit", "exited with code 3; its last output: boom"),
        ("time.sleep(60)", "timeout", "timed out after 1 s"),
    ],
)
def test_a_run_without_a_result_says_why(
    script: str, kind: str, message: str, device: Endpoint, tmp_path: Path
) -> None:
    """Nothing counts that is not whole; the device goes on."""
    asked = job(tmp_path, timeout=1.0 if kind == "timeout" else HANG)
    target = ExecutorRunnerTarget(phone(device), write_runner(tmp_path, script))
    told = failure(execute(target, asked, tmp_path / "r"))
    assert told[0].value == kind
    assert message in told[1]


def test_a_cpu_that_the_device_does_not_have(device: Endpoint, tmp_path: Path) -> None:
    """The words of taskset are passed on."""
    target = ExecutorRunnerTarget(phone(device), write_runner(tmp_path))
    kind, message = failure(execute(target, job(tmp_path, affinity=(60,)), tmp_path / "r"))
    assert kind is FailureKind.EXIT
    assert "taskset" in message


@pytest.mark.parametrize(("machine", "built"), [(183, "aarch64"), (40, "32-bit Arm"), (243, "machine 243")])
def test_a_runner_for_another_processor_is_refused_before_it_is_sent(
    machine: int, built: str, device: Endpoint, tmp_path: Path
) -> None:
    """It is said what to build."""
    runner = tmp_path / "runner"
    runner.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(44))
    with pytest.raises(UsageError, match=f"built for {built}, the device is x86_64") as caught:
        ExecutorRunnerTarget(phone(device), runner)
    assert "NDK for x86_64" in (caught.value.hint or "")
    assert not device.phone.pushed


def test_a_runner_that_cannot_be_started(device: Endpoint, tmp_path: Path) -> None:
    """A program for another system, or one that lacks its libraries, is known by the shell's exit code only."""
    runner = tmp_path / "runner"
    runner.write_text("#!/no/such/linker\n")
    target = ExecutorRunnerTarget(phone(device), runner)
    kind, message = failure(execute(target, job(tmp_path), tmp_path / "r"))
    assert kind is FailureKind.EXIT
    assert "cannot be started" in message
    assert "Android NDK" in message


def test_what_cannot_be_asked_of_a_foreign_runner(device: Endpoint, tmp_path: Path) -> None:
    """Features, flags that opscope sets itself, a file that is not there."""
    target = ExecutorRunnerTarget(phone(device), write_runner(tmp_path))
    with pytest.raises(FeatureError, match=OWN_RUNNER):
        target.probe()
    with pytest.raises(UsageError, match=f"opscope {OWN_FLAG}"):
        ExecutorRunnerTarget(phone(device), write_runner(tmp_path), ["--cpu_threads=9"])
    with pytest.raises(NotFoundError, match=NO_RUNNER):
        ExecutorRunnerTarget(phone(device), tmp_path / "none")


def test_a_runner_without_a_tracer_runs_untraced_only(device: Endpoint, tmp_path: Path) -> None:
    """What its --help tells is read on the device."""
    runner = write_runner(tmp_path, GOOD, tuple(flag for flag in FLAGS if flag != "etdump_path"))
    target = ExecutorRunnerTarget(phone(device), runner)
    assert target.always_traces is False
    assert failure(execute(target, job(tmp_path), tmp_path / "r"))[0] is FailureKind.TRACE
    assert ExecutorRunnerTarget(phone(device), write_runner(tmp_path)).always_traces is True


def test_settings_hold_while_the_device_is_reserved(device: Endpoint, tmp_path: Path) -> None:
    """And are as they were afterwards."""
    device.phone.put("low_power", "1")
    seen = tmp_path / "low_power"
    script = f"import shutil; shutil.copy(os.environ['PHONE'] + '/settings/global/low_power', {str(seen)!r}); {GOOD}"
    target = ExecutorRunnerTarget(phone(device, "boost"), write_runner(tmp_path, script))
    with target.reserved():
        found = target.environment()
        assert execute(target, job(tmp_path), tmp_path / "r").failure is None
    assert seen.read_text().strip() == "0"
    assert device.phone.setting("low_power") == "1"
    assert found.phone is not None
    assert (found.phone.power, found.phone.settings["low_power"]) == ("boost", "1")


def test_a_device_in_use_by_another_host(device: Endpoint, tmp_path: Path) -> None:
    """Nothing runs there meanwhile; afterwards it is free."""
    first, second = (ExecutorRunnerTarget(phone(device), write_runner(tmp_path)) for _ in range(2))
    with first.reserved(), pytest.raises(DeviceError, match="in use by"), second.reserved():
        pass
    with second.reserved():
        assert execute(second, job(tmp_path), tmp_path / "r").failure is None


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
    target = ExecutorRunnerTarget(phone(device, "boost"), write_runner(tmp_path, slow + GOOD))
    assert target.always_traces
    with target.reserved():
        puller = threading.Thread(target=_when_there, args=(marker, getattr(device, event)))
        puller.start()
        kind, message = failure(execute(target, job(tmp_path), tmp_path / "r1"))
        puller.join()
        assert kind is FailureKind.DEVICE
        assert "--resume" in message
        if event == "unplug":
            device.plug()
        assert target.conditions().phone is not None
        assert execute(target, job(tmp_path), tmp_path / "r2").failure is None
        assert device.phone.setting("low_power") == "0"
    assert device.phone.setting("low_power") == "1"
    assert not _running(tmp_path / "runner")


def _when_there(marker: Path, act: object) -> None:
    eventually(marker.exists)
    act()


def _running(program: Path) -> bool:
    """Whether a process with that name still runs, anywhere on this machine."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    return any(str(program).encode() in line for line in lines)


def test_a_device_that_does_not_come_back_is_not_waited_for_twice(
    device: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do."""
    lost = phone(device, patience=1.0)
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
        target = ExecutorRunnerTarget(phone(device), write_runner(tmp_path, script))
        kind, message = failure(execute(target, job(tmp_path), tmp_path / "r"))
        assert kind is FailureKind.DEVICE
        assert "storage is full" in message
        assert "free some space" in message
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
