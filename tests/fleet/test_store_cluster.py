"""More than one machine, by a real scheduler and real workers: the same results, and nothing lost when one dies."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dask_cluster import ADDRESS, READY, Cluster, Process
from many_bundles import Mint, fleet
from opscope.api import add_to_store, query_store, store_entries
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Status
from opscope.core.errors import ClusterError, UsageError
from opscope.fleet.store.schema import TABLES
from opscope.workflows.measure.parallel.workers import Where, run_calls
from programs import write_tiny_program
from runners import GOOD, write_runner
from stored_rows import stored_rows
from texts import NOTHING_MEASURED

BIN = Path(sys.executable).parent / "opscope"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-on-more-than-one-machine.md"
_CONFIG = """
model = "tiny.pte"
target = "runner"
devices = [{devices}]
rounds = 2
runs = 2
warmup = 1
ceilings = false

[[variants]]
name = "on"
runner = "on"

[[variants]]
name = "off"
runner = "off"
role = "baseline"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers, one of which owns two devices and the machine."""
    with Cluster(2, ["device:one=1", "device:two=1 device:three=1 opscope=1"], ["--no-nanny"]) as running:
        yield running


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten bundles, one of them damaged."""
    work = tmp_path_factory.mktemp("bundles")
    mint = Mint(work / "mint", operators=12, rounds=2, runs=2)
    for made in fleet(10, models=2, devices=2):
        mint.make(work / f"all/{made.number}", made)
    (work / "all/7/manifest.json").write_text("{")
    return work / "all"


def configuration(directory: Path, *devices: str, script: str = GOOD) -> Path:
    """A file of one model on some devices, with runners that do what the script says."""
    write_tiny_program(directory)
    write_runner(directory, script, name="on")
    write_runner(directory, name="off")
    path = directory / "experiments.toml"
    path.write_text(_CONFIG.format(devices=", ".join(f'"{device}"' for device in devices)))
    return path


def command(*words: object) -> subprocess.Popen[str]:
    """The command, started."""
    return subprocess.Popen([str(BIN), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


_KILL_WORKER = """
import signal
if {condition}:
    worker = pathlib.Path({directory!r}, os.environ["WORKER"])
    number = int(worker.read_text())
    worker.with_suffix(".killed").touch()
    os.kill(number, signal.SIGKILL)
time.sleep(0.3)
"""


def add_mortal_workers(cluster: Cluster, directory: Path, count: int, resources: str) -> None:
    """Start workers whose processes runners can kill: their numbers stand in files."""
    for number in range(count):
        worker = cluster.add_worker(resources, ["--no-nanny"], {"WORKER": f"worker{number}"})
        (directory / f"worker{number}").write_text(str(worker.process.pid))


def test_workers_store_what_this_process_stores(cluster: Cluster, bundles: Path, tmp_path: Path) -> None:
    """Every view has the same rows, and the damaged bundle is named in the same way."""
    done = command("store", "add", bundles, "--store", tmp_path / "there", "--scheduler", cluster.address)
    _, errors = done.communicate()
    here = add_to_store([bundles], tmp_path / "here")
    assert done.returncode == 11
    assert here.skipped[0].problem in errors
    for name in TABLES:
        assert stored_rows(tmp_path / "there", name) == stored_rows(tmp_path / "here", name)


def test_each_experiment_runs_on_the_worker_that_owns_its_device(cluster: Cluster, tmp_path: Path) -> None:
    """Three devices on two workers: three whole bundles here, with reports, and nothing beside them."""
    file = configuration(tmp_path, "one", "two", "three")
    done = command("run", file, "--out", tmp_path / "out", "--scheduler", cluster.address)
    output, errors = done.communicate()
    assert done.returncode == 0, errors
    names = ["tiny-runner-one", "tiny-runner-three", "tiny-runner-two"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for name in names:
        assert Bundle.open(tmp_path / "out" / name).manifest.status is Status.COMPLETE
        assert f"report: {tmp_path / 'out' / name / 'report.html'}" in output
    again = command("run", file, "--out", tmp_path / "out", "--scheduler", cluster.address, "--resume")
    assert again.communicate()[1] == ""
    assert again.returncode == 0


def test_a_device_that_no_worker_owns_is_said_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """With the command that would start its worker; nothing has run."""
    done = command("run", configuration(tmp_path, "four"), "--out", tmp_path / "out", "--scheduler", cluster.address)
    _, errors = done.communicate()
    assert done.returncode == ClusterError.exit_code
    assert "no worker owns device:four" in errors
    assert f"dask worker {cluster.address} --resources" in errors
    assert not (tmp_path / "out").exists()


def test_what_a_worker_could_not_run_is_told_as_if_it_ran_here(cluster: Cluster, tmp_path: Path) -> None:
    """Runners that crash: the bundle is here with its logs, and the exit code is that of the failure."""
    file = configuration(tmp_path, "one", script="os.abort()")
    write_runner(tmp_path, "os.abort()", name="off")
    done = command("run", file, "--out", tmp_path / "out", "--scheduler", cluster.address)
    _, errors = done.communicate()
    assert done.returncode == 7
    assert NOTHING_MEASURED in errors
    assert list((tmp_path / "out").rglob("log.txt"))


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    """Scheduler, worker, run and store as the page gives them, but for the address."""
    lines = PAGE.read_text().splitlines()
    here = [shlex.split(line) for line in lines if line.startswith("dask ") and "127.0.0.1" in line]
    scheduler, worker = here
    run, add = (shlex.split(line) for line in lines if line.startswith(("opscope run", "opscope store")))
    started = Process([word.replace("8786", "0") for word in scheduler], ADDRESS)
    working = Process([word.replace("tcp://127.0.0.1:8786", started.found) for word in worker], READY)
    try:
        configuration(tmp_path, "pixel8")
        for words in (run, add):
            own = [started.found if "://" in word and "8786" in word else word for word in words[1:]]
            done = subprocess.run([str(BIN), *own], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        for process in (working, started):
            process.stop()
    assert len(store_entries(tmp_path / "runs")) == 1


def test_a_killed_worker_is_replaced_and_a_lost_scheduler_takes_nothing(tmp_path: Path) -> None:
    """Of two workers one is killed by the first runner that it starts: the other one runs its experiment again.

    Then the scheduler is killed: exit code 17, what came before stays, and the same command with --resume completes it.
    """
    once = f"not list(pathlib.Path({str(tmp_path)!r}).glob('*.killed'))"
    script = _KILL_WORKER.format(condition=once, directory=str(tmp_path)) + GOOD
    file = configuration(tmp_path, "one", "two", script=script)
    with Cluster(0) as cluster:
        add_mortal_workers(cluster, tmp_path, 2, "device:one=1 device:two=1")
        done = command("run", file, "--out", tmp_path / "out", "--scheduler", cluster.address)
        errors = done.communicate()[1]
        assert (done.returncode, "failed" in errors, "error" in errors) == (0, False, False), errors
        assert re.search(r"note: +tcp://\S+ died in tiny-runner-(one|two)", errors), errors
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["tiny-runner-one", "tiny-runner-two"]

        more = command("run", file, "--out", tmp_path / "more", "--scheduler", cluster.address)
        while more.poll() is None and not (tmp_path / "more").exists():
            time.sleep(0.01)
        cluster.scheduler.kill()
        _, errors = more.communicate()
        assert more.returncode == ClusterError.exit_code, errors
        assert "the scheduler was lost" in errors
        assert "Traceback" not in errors
    there = [path.name for path in (tmp_path / "more").iterdir() if not path.name.startswith(".")]
    assert there == ["tiny-runner-one"]
    with Cluster(1, ["device:one=1 device:two=1"], ["--no-nanny"]) as cluster:
        again = command("run", file, "--out", tmp_path / "more", "--scheduler", cluster.address, "--resume")
        errors = again.communicate()[1]
        assert (again.returncode, "failed" in errors, "error" in errors) == (0, False, False), errors
    assert len(list((tmp_path / "more").iterdir())) == 2


def test_an_experiment_in_which_two_workers_die_is_an_error_that_names_them(tmp_path: Path) -> None:
    """Its runner kills the worker that started it; the third worker that owns the device is left alone."""
    script = _KILL_WORKER.format(condition=True, directory=str(tmp_path))
    file = configuration(tmp_path, "one", script=script)
    write_runner(tmp_path, script, name="off")
    with Cluster(0) as cluster:
        add_mortal_workers(cluster, tmp_path, 3, "device:one=1")
        done = command("run", file, "--out", tmp_path / "out", "--scheduler", cluster.address)
        _, errors = done.communicate()
        killed = {path.stem for path in tmp_path.glob("*.killed")}
    assert done.returncode == ClusterError.exit_code, errors
    assert len(killed) == 2
    named = re.search(r"(tcp://\S+) and (tcp://\S+) died in tiny-runner-one", " ".join(errors.split()))
    assert named, errors
    assert named[1] != named[2]


def test_a_worker_killed_while_bundles_are_added_loses_none(bundles: Path, tmp_path: Path) -> None:
    """The other worker does its part again; every bundle but the damaged one is stored once."""
    with Cluster(2, kept=["--no-nanny"]) as cluster:
        done = command(
            "store", "add", bundles, "--store", tmp_path / "s", "--scheduler", cluster.address, "--recompute"
        )
        while done.poll() is None and not (tmp_path / "s/_delta_log").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        cluster.workers[0].kill()
        _, errors = done.communicate()
    assert done.returncode == 11
    assert "1 not stored" in errors
    assert len(store_entries(tmp_path / "s")) == 9


def test_a_scheduler_lost_while_bundles_are_added_takes_nothing(bundles: Path, tmp_path: Path) -> None:
    """What was ready before is in the store, whole; the same command without a scheduler completes it."""
    with Cluster(1) as cluster:
        done = command(
            "store", "add", bundles, "--store", tmp_path / "s", "--scheduler", cluster.address, "--recompute"
        )
        while done.poll() is None and not (tmp_path / "s/_delta_log").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        cluster.scheduler.kill()
        _, errors = done.communicate()
    assert done.returncode == ClusterError.exit_code, errors
    query_store("SELECT count(*) FROM operators", tmp_path / "s")
    add_to_store([bundles], tmp_path / "s")
    assert len(store_entries(tmp_path / "s")) == 9


@pytest.mark.parametrize(("named", "told"), [(None, "none named"), ("none.pem", "No such file")])
def test_a_missing_certificate_is_said_before_anything_is_done(
    bundles: Path, tmp_path: Path, named: str | None, told: str
) -> None:
    """Dask would say that it expects another type."""
    import distributed  # brings the settings

    place = named and str(tmp_path / named)
    tls = {"ca-file": place, "client.cert": place, "client.key": place}
    with (
        distributed.client.dask.config.set({f"distributed.comm.tls.{name}": value for name, value in tls.items()}),
        pytest.raises(ClusterError, match=f"asks for a certificate: .*{told}") as caught,
    ):
        add_to_store([bundles], tmp_path / "store", where=Where("tls://127.0.0.1:9"))
    assert "distributed.comm.tls" in str(caught.value.hint)
    assert not list((tmp_path / "store").rglob("*.parquet"))


def test_no_scheduler_is_said_before_anything_is_done(bundles: Path, tmp_path: Path) -> None:
    """An address where nobody answers, or no address at all."""
    with pytest.raises(ClusterError, match="no scheduler responds"):
        add_to_store([bundles], tmp_path / "store", where=Where("tcp://127.0.0.1:9"))
    with pytest.raises(ClusterError, match="no scheduler responds"):
        list(run_calls(Where("what://ever"), str, [1]))
    with pytest.raises(UsageError, match="set the number"):
        list(run_calls(Where("tcp://127.0.0.1:9", jobs=2), str, [1]))
