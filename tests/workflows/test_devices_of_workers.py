"""Devices that real workers own: none holds another one up, and one whose worker dies takes nothing with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dask_cluster import Cluster, Process
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.bundle.manifest import Status
from opscope.core.errors import ClusterError
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.run_report import ExperimentResult
from opscope.workflows.measure.running import run
from programs import write_tiny_program
from runners import GOOD, write_runner
from waiting import HANG, eventually

BIN = Path(sys.executable).parent / "opscope"
_CONFIG = """
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


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """A file that a slow device waits for; at the end it is there, so that no process is left."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


def lab(directory: Path) -> Path:
    """A file of two models on two devices, which are workers of this machine with locks of their own."""
    for model in ("one", "two"):
        write_tiny_program(directory).rename(directory / f"{model}.pte")
    write_runner(directory, _SLOW, name="on")
    path = directory / "lab.toml"
    path.write_text(_CONFIG)
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
    file, out = lab(tmp_path), tmp_path / "out"
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
            assert lost.error == "the worker that owned device:slow is gone and did not return"
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
    file, out = lab(tmp_path), tmp_path / "out"
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
