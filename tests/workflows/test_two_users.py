"""Two people measure on the same workers: whatever happens to one of them, the other one loses nothing."""

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

from dask_cluster import Cluster
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Status
from opscope.core.errors import IncompleteError
from opscope.hosts.lock import DeviceLock
from opscope.hosts.shell import LocalShell, RemoteProcess
from programs import write_tiny_program
from runners import GOOD, write_runner
from waiting import HANG, eventually

BIN = Path(sys.executable).parent / "opscope"
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


class Placed(LocalShell):
    """A way to this machine whose lock is elsewhere.

    Args:
        lock: its place.
    """

    def __init__(self, lock: Path) -> None:
        super().__init__()
        self._lock = lock

    def spawn(self, command: Sequence[str]) -> RemoteProcess:
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


def whole(lab: Lab, name: str) -> None:
    """Everything of one person is there, and no process ran more than once."""
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
    assert ben.stderr is not None
    told: list[str] = []
    while sum("waiting for device:" in line for line in told) < len(DEVICES):
        told.append(ben.stderr.readline())
        assert told[-1], f"it ended: {told}"
    assert not lab.bundles("ben")
    end(anna, how)
    told.append(ben.communicate(timeout=HANG)[1])
    assert ben.returncode == 0, told
    whole(lab, "ben")
    assert lab.worker.process.poll() is None


def test_who_waits_is_told_while_another_device_is_at_work(lab: Lab) -> None:
    """What one device tells keeps nobody from hearing that another one is waited for."""
    anna = lab.user("anna", 1000.0, "--only", "left")
    assert eventually(lambda: lab.ran() == {"anna left": 1})
    ben = lab.user("ben", 0.8)
    assert ben.stderr is not None
    told: list[str] = []
    while not any("ben-right: analysing" in line for line in told):
        told.append(ben.stderr.readline())
        assert told[-1], f"it ended: {told}"
    assert any("waiting for device:left" in line for line in told)
    end(anna, signal.SIGINT)
    errors = ben.communicate(timeout=HANG)[1]
    assert ben.returncode == 0, errors
    whole(lab, "ben")


def test_a_file_comes_to_a_worker_once(lab: Lab, tmp_path: Path) -> None:
    """The second run of the same files sends none of them; what a worker tells is shown while it runs."""
    kept = []
    for _ in range(2):
        text = lab.user("anna", 0.0).communicate(timeout=HANG)[1]
        assert "anna-left: running 3 processes" in text
        assert "anna-right: analysing" in text
        files = [path for device in DEVICES for path in (tmp_path / f"cache-{device}" / "carried").iterdir()]
        kept.append({path: path.stat().st_ino for path in files if path.suffix != ".sha256"})
    assert len(kept[0]) == 2 * len(DEVICES), "the program and the runner on each"
    assert kept[0] == kept[1]


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
        assert ben.stderr is not None
        while "ben-left: the worker's machine is in use by" not in (line := ben.stderr.readline()):
            assert line
        assert line.endswith("waiting, until it is free\n")
    finally:
        other.release()
    errors = ben.communicate(timeout=HANG)[1]
    assert ben.returncode == 0, errors
    whole(lab, "ben")


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
    errors = process.communicate()[1]
    assert process.returncode == 0, errors
    whole(lab, stays)
