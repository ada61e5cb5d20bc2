"""Devices that real workers own, for one person and for two: none holds another up, and nobody loses anything.

Whatever happens to one of two people who measure on the same workers, the other one goes on.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dask_cluster import Cluster, Process
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.bundle.manifest import Status
from opscope.core.errors import ClusterError, IncompleteError
from opscope.hosts.lock import DeviceLock
from opscope.hosts.shell import LocalShell, ShellProcess
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.run_report import ExperimentResult
from opscope.workflows.measure.running import run
from programs import write_tiny_program
from runners import GOOD, write_runner
from waiting import HANG, eventually

BIN = Path(sys.executable).parent / "opscope"
_SLOW_CONFIG = """
models = ["one.pte", "two.pte"]
rounds = 2
runs = 2
warmup = 1
ceilings = false

[devices.slow]
target = "runner"

[devices.quick]
target = "runner"

[[variants]]
name = "on"
runner = "on"
"""
_SLOW = f"""
pathlib.Path(os.environ["DEVICE_MARK"]).touch()
while not pathlib.Path(os.environ["DEVICE_GO"]).exists():
    time.sleep(0.05)
{GOOD}"""
DEVICES = ("left", "right")
PROCESSES = 3  # of an experiment
_CONFIG = """
models = ["{model}.pte"]
rounds = 3
runs = 2
warmup = 1
ceilings = false

[devices.left]
target = "runner"

[devices.right]
target = "runner"

[[variants]]
name = "on"
runner = "{model}-runner"
"""
_SCRIPT = """
with open({log!r}, "a") as log_file:
    log_file.write(os.path.basename(options["model_path"]).partition(".")[0] + " " + os.environ["DEVICE"] + "\\n")
time.sleep({seconds})
{good}"""


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """A file that a slow device waits for; at the end it is there, so that no process is left."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


def slow_lab(directory: Path) -> Path:
    """A file of two models on two devices, which are workers of this machine with locks of their own."""
    for model in ("one", "two"):
        write_tiny_program(directory).rename(directory / f"{model}.pte")
    write_runner(directory, _SLOW, name="on")
    path = directory / "lab.toml"
    path.write_text(_SLOW_CONFIG)
    return path


def worker(cluster: Cluster, directory: Path, device: str, go: Path) -> Process:
    """The worker of a device, whose processes end when a file is there."""
    variables = {
        "OPSCOPE_LOCK": str(directory / f"lock-{device}"),
        "DEVICE_MARK": str(directory / f"mark-{device}"),
        "DEVICE_GO": str(go),
    }
    return cluster.add_worker(f"device:{device}=1", ["--no-nanny"], variables)


def test_a_worker_that_dies_leaves_the_others(go: Path, tmp_path: Path) -> None:
    """All of a quick device's bundles are there while a slow one, the first in the file, is at its first process.

    Then its worker is killed: its work is told with the code of a lost worker, and is done when it is back.
    """
    file, out = slow_lab(tmp_path), tmp_path / "out"
    with Cluster(0) as cluster:
        worker(cluster, tmp_path, "quick", file)
        dies = worker(cluster, tmp_path, "slow", go)
        there: list[str] = []

        def finished(result: ExperimentResult, left: int) -> None:
            assert is_bundle(Path(result.path)) or result.error
            there.append(result.name)
            if left == 2:
                dies.kill()

        means = Means(scheduler=cluster.address, finished=finished, worker_seconds=1.0)
        done = run(file, out=out, means=means)
        assert there[:2] == ["one-quick", "two-quick"]
        found = {result.name: result for result in done.experiments}
        assert [found[f"{model}-quick"].error for model in ("one", "two")] == [None] * 2
        for model in ("one", "two"):
            lost = found[f"{model}-slow"]
            assert "device:slow" in lost.error
            assert f"{model}-slow" in lost.error
            assert lost.exit_code == ClusterError.exit_code
            assert not (out / f"{model}-slow").exists()
        worker(cluster, tmp_path, "slow", file)
        again = run(file, out=out, resume=True, means=Means(scheduler=cluster.address))
        assert [result.error for result in again.experiments] == [None] * 4
    manifests = [Bundle.open(path).manifest for path in out.iterdir()]
    assert sorted(manifest.device or "" for manifest in manifests) == ["quick"] * 2 + ["slow"] * 2
    assert {manifest.status for manifest in manifests} == {Status.COMPLETE}


def test_an_interrupt_stops_the_workers(go: Path, tmp_path: Path) -> None:
    """What was brought is there, exit code 130, and the device is free again though its process would never end."""
    file, out = slow_lab(tmp_path), tmp_path / "out"
    with Cluster(0) as cluster:
        worker(cluster, tmp_path, "quick", file)
        worker(cluster, tmp_path, "slow", go)
        words = [BIN, "run", file, "--out", out, "--scheduler", cluster.address]
        with subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and not ((tmp_path / "mark-slow").exists() and (out / "two-quick").is_dir()):
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=HANG)[1]
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert eventually(lambda: not (tmp_path / "lock-slow").exists())
    assert sorted(path.name for path in out.iterdir()) == ["one-quick", "two-quick"]


class Placed(LocalShell):
    """A way to this machine whose lock is elsewhere.

    Args:
        lock: its place.
    """

    def __init__(self, lock: Path) -> None:
        super().__init__()
        self._lock = lock

    def spawn(self, command: Sequence[str]) -> ShellProcess:
        """Start it with the place of the lock."""
        return super().spawn(["env", f"OPSCOPE_LOCK={self._lock}", *command])


class Lab:
    """Two workers with a device each, one of them with a nanny; and what ran on their devices.

    Args:
        directory: of everything.
        cluster: whose workers they are.
    """

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self._directory, self._log, self.address = directory, directory / "log", cluster.address
        for device, kept in zip(DEVICES, (["--no-nanny"], []), strict=True):
            own = {"OPSCOPE_LOCK": str(directory / f"lock-{device}"), "DEVICE": device}
            own["OPSCOPE_CACHE"] = str(directory / f"cache-{device}")
            self.worker = cluster.add_worker(f"device:{device}=1", kept, own)

    def user(self, name: str, seconds: float, *more: str) -> subprocess.Popen[str]:
        """The run of one person on both devices, each of whose processes takes that long."""
        home = self._directory / name
        home.mkdir(exist_ok=True)
        write_tiny_program(home).rename(home / f"{name}.pte")
        script = _SCRIPT.format(log=str(self._log), seconds=seconds, good=GOOD)
        write_runner(home, script, name=f"{name}-runner")
        (home / "lab.toml").write_text(_CONFIG.format(model=name))
        words = [str(BIN), "run", "lab.toml", "--out", f"out-{time.monotonic_ns()}", "--scheduler", self.address, *more]
        return subprocess.Popen(words, cwd=home, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def ran(self) -> Counter[str]:
        """Processes that began, by person and device."""
        return Counter(self._log.read_text().splitlines()) if self._log.exists() else Counter()

    def bundles(self, name: str) -> list[Bundle]:
        """What one person has now."""
        return [Bundle.open(path.parent) for path in (self._directory / name).glob("out-*/*/manifest.json")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """The two workers."""
    with Cluster(0) as cluster:
        yield Lab(tmp_path, cluster)


def end(process: subprocess.Popen[str], how: signal.Signals) -> str:
    """End a run; what it had said."""
    process.send_signal(how)
    return process.communicate(timeout=HANG)[1]


def lines_until(process: subprocess.Popen[str], words: str, count: int = 1) -> list[str]:
    """What a run says until so many of its lines hold these words."""
    told: list[str] = []
    while sum(words in line for line in told) < count:
        told.append(process.stderr.readline())
        assert told[-1], f"it ended: {told}"
    return told


def check_whole(lab: Lab, process: subprocess.Popen[str], name: str) -> None:
    """Let the run of one person end: everything is there, and no process ran more than once."""
    errors = process.communicate(timeout=HANG)[1]
    assert process.returncode == 0, errors
    assert {key: count for key, count in lab.ran().items() if key.startswith(name)} == {
        f"{name} {device}": PROCESSES for device in DEVICES
    }
    bundles = lab.bundles(name)
    assert sorted(bundle.manifest.device or "" for bundle in bundles) == sorted(DEVICES)
    assert {bundle.manifest.status for bundle in bundles} == {Status.COMPLETE}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_who_is_interrupted_leaves_the_workers_to_the_other(lab: Lab, how: signal.Signals) -> None:
    """The other one waits, is told so, and then has the workers as they were: the same processes of the system."""
    anna = lab.user("anna", 1000.0)
    assert eventually(lambda: lab.ran() == {"anna left": 1, "anna right": 1})
    ben = lab.user("ben", 0.0)
    lines_until(ben, "waiting for device:", count=len(DEVICES))
    assert not lab.bundles("ben")
    end(anna, how)
    check_whole(lab, ben, "ben")
    assert lab.worker.process.poll() is None


def test_who_waits_is_told_while_another_device_is_at_work(lab: Lab) -> None:
    """What one device tells keeps nobody from hearing that another one is waited for."""
    anna = lab.user("anna", 1000.0, "--only", "left")
    assert eventually(lambda: lab.ran() == {"anna left": 1})
    ben = lab.user("ben", 0.8)
    assert any("waiting for device:left" in line for line in lines_until(ben, "ben-right: analysing"))
    end(anna, signal.SIGINT)
    check_whole(lab, ben, "ben")


def test_what_a_worker_says_is_shown_while_it_runs(lab: Lab) -> None:
    """Stages of both devices, by the names of their experiments."""
    text = lab.user("anna", 0.0).communicate(timeout=HANG)[1]
    assert "anna-left: running 3 processes" in text
    assert "anna-right: analysing" in text


def test_a_device_that_a_run_beside_the_workers_uses_is_waited_for_and_that_is_told(lab: Lab, tmp_path: Path) -> None:
    """With who uses it; a limit ends the wait, and the other device's bundle is there."""
    other = DeviceLock(Placed(tmp_path / "lock-left"))
    other.take()
    try:
        limited = lab.user("anna", 0.0, "--lock-limit", "1")
        errors = limited.communicate(timeout=HANG)[1]
        assert limited.returncode == IncompleteError.exit_code, errors
        assert "the worker's machine: the machine is in use by" in errors
        ben = lab.user("ben", 0.0)
        last = lines_until(ben, "ben-left: the worker's machine is in use by")[-1]
        assert last.endswith("waiting, until it is free\n")
    finally:
        other.release()
    check_whole(lab, ben, "ben")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_whenever_one_is_ended_the_other_loses_nothing(lab: Lab, seed: int) -> None:
    """At any moment, by Ctrl-C or a crash; who was ended begins again beside the other, and may be ended again."""
    draw = random.Random(seed)
    names = ["anna", "ben"]
    draw.shuffle(names)
    stays, goes = names
    process = lab.user(stays, 0.4)
    while process.poll() is None:
        other = lab.user(goes, 0.4)
        time.sleep(draw.uniform(0.0, 5.0))
        end(other, draw.choice([signal.SIGINT, signal.SIGKILL]))
    check_whole(lab, process, stays)
