"""The user's build of executor_runner on a Linux device over ssh: by ``profile``, from a file, and in ``doctor``.

The device is a real sshd of the tests; the builds are scripts that behave like executor_runner.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sshd
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind, Manifest, Role, Status
from opscope.core.errors import UsageError
from opscope.experiment.checks import State
from opscope.experiment.planned import Settings
from opscope.experiment.target_names import parse_target
from opscope.hosts.device import OWN
from opscope.hosts.ssh import VARIABLE
from opscope.workflows.measure.profiling import profile
from opscope.workflows.measure.running import read_experiments, run
from opscope.workflows.measure.targets import on_phone, target_checks, target_running
from programs import write_tiny_program
from runners import GOOD, write_runner
from texts import NO_RUNNER, NOT_ON_ANDROID
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """A device that ssh reaches."""
    with sshd.running(tmp_path / "sshd") as server:
        monkeypatch.setenv(VARIABLE, server.options)
        yield server


def profiled(program: Path, settings: Settings, out: Path) -> Manifest:
    """What the bundle of a profile says."""
    profile(str(program), settings=settings, out=out)
    return Bundle.open(out).manifest


def test_a_build_is_profiled_on_a_device(board: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent, every repetition is a process of it there, and the manifest says how it is found from anywhere."""
    program = write_tiny_program(tmp_path)
    write_runner(tmp_path, name="mine")
    monkeypatch.chdir(tmp_path)
    settings = Settings(target=f"ssh:{board.address}&runner=mine", rounds=2, runs=2, warmup=1)
    manifest = profiled(program, settings, tmp_path / "out")
    assert manifest.status is Status.COMPLETE
    assert (manifest.target.kind, manifest.target.address) == ("ssh", f"{board.address}&runner={tmp_path / 'mine'}")
    assert [(variant.name, variant.role) for variant in manifest.variants] == [("runner", Role.CANDIDATE)]
    assert set(manifest.environment.versions) >= {"opscope", "executor_runner", "os"}
    assert manifest.environment.features is None
    assert [r.measurement.load_ns for r in manifest.repetitions if r.measurement] == [3_250_000, 3_250_000]
    assert not list((board.home / OWN / "work").glob("*"))


def test_builds_are_compared_on_a_device(board: sshd.Sshd, tmp_path: Path) -> None:
    """Each variant of a file names its build, which stays on the CPUs of the file."""
    write_tiny_program(tmp_path)
    tell = f"pathlib.Path({str(tmp_path)!r}, 'cpus').write_text(repr(cpus)); "
    for name in ("on", "off"):
        write_runner(tmp_path, tell + GOOD, name=name)
    variants = [{"name": "on", "runner": "on"}, {"name": "off", "runner": "off", "role": "baseline"}]
    keys = {"rounds": 1, "runs": 2, "warmup": 1, "untraced": False, "affinity": [min(os.sched_getaffinity(0))]}
    file = tmp_path / "board.json"
    file.write_text(json.dumps({"model": "tiny.pte", "target": f"ssh:{board.address}", "variants": variants, **keys}))
    done = run(file, out=tmp_path / "out").experiments[0]
    assert done.error is None
    manifest = Bundle.open(Path(done.path)).manifest
    assert (manifest.target.kind, manifest.target.address) == ("ssh", board.address)
    assert {r.variant for r in manifest.repetitions if r.ok} == {"on", "off"}
    assert json.loads((tmp_path / "cpus").read_text()) == keys["affinity"]


def test_doctor_says_whether_a_device_is_ready_for_a_build(board: sshd.Sshd, tmp_path: Path) -> None:
    """Its storage, its load; that nothing can be switched off is not a problem of the device."""
    runner = write_runner(tmp_path)
    checks = {check.name: check for check in target_checks(f"ssh:{board.address}&runner={runner}")}
    assert checks["device"].state is State.OK
    assert checks["storage"].found.startswith(str(board.home))
    assert checks["runtime"].found.startswith("your own build, sha256:")
    assert not [check for check in checks.values() if check.state is State.PROBLEM]
    missing = target_checks(f"ssh:{board.address}&runner={tmp_path / 'none'}")
    assert [(check.state, check.found) for check in missing] == [(State.PROBLEM, f"there is {NO_RUNNER}")]


def test_a_build_for_another_processor_is_refused_before_it_is_sent(board: sshd.Sshd, tmp_path: Path) -> None:
    """It is said what to build."""
    runner = tmp_path / "runner"
    runner.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little") + bytes(44))
    with pytest.raises(UsageError, match="built for aarch64, the device is x86_64") as caught:
        target_running("model.pte", f"ssh:{board.address}&runner={runner}")
    assert caught.value.hint == "build it for Linux on x86_64"
    assert not (board.home / OWN / "runners").exists()


def test_a_connection_that_is_cut_ends_the_build_with_it(board: sshd.Sshd, tmp_path: Path) -> None:
    """The repetition is lost and says so; the next one connects again."""
    write_tiny_program(tmp_path)
    marker = tmp_path / "begun"
    slow = f"""
if not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close()
    time.sleep(60)
"""
    runner = write_runner(tmp_path, slow + GOOD)
    cutter = threading.Thread(target=_when_there, args=(marker, board.cut))
    cutter.start()
    settings = Settings(target=f"ssh:{board.address}&runner={runner}", rounds=2, runs=2, warmup=1)
    manifest = profiled(tmp_path / "tiny.pte", settings, tmp_path / "out")
    cutter.join()
    assert [r.failure.kind for r in manifest.repetitions if r.failure] == [FailureKind.DEVICE]
    assert any(r.ok for r in manifest.repetitions)


def test_a_python_and_a_build_are_two_runs() -> None:
    """One address cannot ask for both."""
    with pytest.raises(UsageError, match="either a Python or a runner"):
        parse_target("ssh:board?python=python3&runner=mine")


def test_the_build_of_a_file_lies_beside_the_file(tmp_path: Path) -> None:
    """As paths of models do; and experiments of another device stay where they are."""
    file = tmp_path / "board.json"
    file.write_text(json.dumps({"model": "m.pte", "target": "ssh:board?runner=a b/mine"}))
    asked = read_experiments(file)
    named = parse_target(asked.experiments[0].target)
    assert named.runner == str(tmp_path / "a b/mine")
    with pytest.raises(UsageError, match=NOT_ON_ANDROID):
        on_phone(asked, "adb:10.0.0.7:5555")


def _when_there(marker: Path, act: Callable[[], None]) -> None:
    eventually(marker.exists)
    act()
