"""A model profiled on an Android device, from the command line to the report, and every way that can be cut short.

The device is an endpoint of the tests behind the real ``adb``; what runs on it is the real native runner, or scripts
that behave like executor_runner. Nothing here was seen on a phone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adb_bench import adb_server, needs_adb, plugged
from command_line import opscope
from native_runner import native_cache, runtime_of
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind, Role, Status
from opscope.core.errors import UsageError
from opscope.experiment.checks import State
from opscope.hosts.adb.adb import DIRECTORY, PROFILES, AdbAddress, AdbShell, parse_address
from opscope.hosts.adb.device import PHONE_VERSIONS, AdbDevice, Hold
from opscope.hosts.device import OWN
from opscope.runtimes.native.building import host_architecture
from opscope.workflows.measure.running import read_experiments, run
from opscope.workflows.measure.targets import on_phone, phone_name, target_checks
from programs import write_tiny_program
from runners import GOOD, write_runner
from texts import NOT_ON_ANDROID
from waiting import HANG, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adb_endpoint import Endpoint

pytestmark = needs_adb

LITERT_MODEL = Path(__file__).parents[1] / "data" / "litert" / "tiny_fp32.tflite"


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with adb_server(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Endpoint]:
    """A phone on the network, in battery saver."""
    with plugged(tmp_path / "phone") as endpoint:
        endpoint.phone.put("low_power", "1")
        yield endpoint


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", AdbAddress()),
        ("R5CT30ABCDE", AdbAddress("R5CT30ABCDE")),
        ("emulator-5554?patience=9", AdbAddress("emulator-5554", patience=9)),
        ("192.168.1.7:5555?power=boost", AdbAddress("192.168.1.7:5555", "boost")),
        (
            "?dir=/data/local/tmp/x&runner=out/executor_runner",
            AdbAddress("", None, "/data/local/tmp/x", "out/executor_runner"),
        ),
    ],
)
def test_an_address_names_the_device_and_how_it_is_used(text: str, address: AdbAddress) -> None:
    """And is found again by what a manifest says."""
    assert parse_address(text) == address
    assert parse_address(address.text()) == address


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-s other", "not the serial number"),
        ("x;rm", "not the serial number"),
        ("x?power=bost", "no power profile 'bost'"),
        ("x?pwer=boost", "unknown option 'pwer'"),
        ("x?boost", "are not options"),
        ("x?patience=long", "is not a time"),
        ("x?dir=tmp", "must be absolute"),
        ("x?dir=/a b", "cannot be a directory"),
    ],
)
def test_an_address_that_is_none(text: str, problem: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError, match=problem):
        parse_address(text)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ((None, None, None), None),
        (("ssh:board", None, None), "ssh:board"),
        ((None, "10.0.0.7:5555", None), "adb:10.0.0.7:5555"),
        (("adb", "10.0.0.7:5555", "boost"), "adb:10.0.0.7:5555?power=boost"),
        (("adb", None, "app-developer"), "adb:?power=app-developer"),
    ],
)
def test_the_options_of_the_command_line_make_one_name(asked: tuple[str | None, ...], name: str | None) -> None:
    """Take a device on the network and a power profile for parts of the target's name."""
    assert phone_name(*asked) == name


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("local", "10.0.0.7:5555", None), "an Android device"),
        (("ssh:board", None, "boost"), "only Android devices have power profiles"),
    ],
)
def test_options_of_a_phone_are_for_phones(asked: tuple[str | None, ...], said: str) -> None:
    """Refuse them for another target."""
    with pytest.raises(UsageError, match=said):
        phone_name(*asked)


def configuration(directory: Path, target: str, script: str = GOOD, **more: object) -> Path:
    """Two builds of a runner, two rounds, beside the program that they run."""
    write_tiny_program(directory)
    for name in ("on", "off"):
        write_runner(directory, script, name=name)
    keys = {"rounds": 2, "runs": 2, "warmup": 1, "untraced": False, "ceilings": False, **more}
    variants = [{"name": "on", "runner": "on"}, {"name": "off", "runner": "off", "role": "baseline"}]
    file = directory / "phone.json"
    file.write_text(json.dumps({"model": "tiny.pte", "target": target, "variants": variants, **keys}))
    return file


def test_builds_of_a_runner_are_compared_on_a_phone(device: Endpoint, tmp_path: Path) -> None:
    """Push and pin each variant's runner; the settings hold meanwhile, and the phone is in the manifest."""
    done = run(configuration(tmp_path, f"adb:{device.address}?power=boost", affinity=[0]), out=tmp_path / "out")
    assert [result.error for result in done.experiments] == [None]
    manifest = Bundle.open(Path(done.experiments[0].path)).manifest
    assert manifest.status is Status.COMPLETE
    assert (manifest.target.kind, manifest.target.address) == ("adb", f"{device.address}?power=boost")
    assert {variant.name: variant.role for variant in manifest.variants} == {"on": Role.CANDIDATE, "off": Role.BASELINE}
    assert manifest.environment.phone.settings["low_power"] == "1"
    state = manifest.repetitions[0].before.phone
    assert (state.thermal_status, state.battery_percent, state.limits_mhz) == (1, 83, [2000.0, 3300.0])
    assert any("taskset 1 " in command for command in device.phone.commands)
    assert device.phone.setting("low_power") == "1"


def test_a_phone_that_is_unplugged_for_good_loses_nothing_measured(device: Endpoint, tmp_path: Path) -> None:
    """What was finished stays, the settings are put back by the phone itself, and --resume finishes the run."""
    count, marker = tmp_path / "count", tmp_path / "third"
    slow = f"""
with open({str(count)!r}, "a+") as file:
    file.write("x"); file.seek(0); number = len(file.read())
if number == 3 and not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close()
    time.sleep(30)
"""
    file = configuration(tmp_path, f"adb:{device.address}?power=boost&patience=1", slow + GOOD)
    puller = threading.Thread(target=lambda: (eventually(marker.exists), device.unplug()))
    puller.start()
    broken = run(file, out=tmp_path / "out").experiments[0]
    puller.join()
    assert "--resume" in (broken.error or "")
    bundle = Bundle.open(tmp_path / "out" / broken.name)
    kept = [repetition.directory for repetition in bundle.manifest.repetitions if repetition.ok]
    assert len(kept) == 2
    assert {r.failure.kind for r in bundle.manifest.repetitions if r.failure} == {FailureKind.DEVICE}
    assert eventually(lambda: device.phone.setting("low_power") == "1")
    device.plug()
    done = run(file, out=tmp_path / "out", resume=True).experiments[0]
    assert done.error is None
    manifest = Bundle.open(tmp_path / "out" / done.name).manifest
    assert manifest.status is Status.COMPLETE
    assert [repetition.directory for repetition in manifest.repetitions if repetition.ok][:2] == kept
    assert device.phone.setting("low_power") == "1"


_PROFILE = """
import sys
from opscope.workflows.measure.running import run
run(sys.argv[1], out=sys.argv[2])
"""


def test_settings_are_put_back_when_a_run_is_killed(device: Endpoint, tmp_path: Path) -> None:
    """By SIGKILL in the middle of a repetition; what ran on the phone ends too, and the phone is free."""
    marker = tmp_path / "running"
    script = f"open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    file = configuration(tmp_path, f"adb:{device.address}?power=boost", script)
    command = [sys.executable, "-c", _PROFILE, str(file), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert eventually(lambda: marker.exists() and marker.read_text() != "")
        assert device.phone.setting("low_power") == "0"
        os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: device.phone.setting("low_power") == "1")
    pid = int(marker.read_text())
    assert eventually(lambda: _ended(pid))
    free = AdbDevice(AdbShell(device.address))
    with free.reserved():
        assert free.restored == {}


def test_settings_that_a_reboot_left_changed_are_put_back_by_doctor(device: Endpoint) -> None:
    """Read on the device what they were, and do nothing else there."""
    shell = AdbShell(device.address)
    gone = Hold(shell, f"{DIRECTORY}/{OWN}", "ada@desk", PROFILES["boost"])
    device.reboot()
    gone.end()
    assert device.phone.setting("low_power") == "0"
    assert shell.wait(HANG)
    done = opscope("doctor", "--target", f"adb:{device.address}", "--restore")
    assert (done.returncode, "low_power 1, stay_on_while_plugged_in unset" in done.stdout) == (0, True)
    assert device.phone.setting("low_power") == "1"
    assert opscope("doctor", "--target", "ssh:board", "--restore").returncode == UsageError.exit_code


@pytest.mark.runtime
def test_doctor_says_whether_a_phone_is_ready(device: Endpoint) -> None:
    """Heat and a low battery are noted; nothing is measured."""
    runtime_of(host_architecture() or "")
    (device.phone.directory / "dumpsys/thermalservice").write_text("Thermal Status: 3\n")
    (device.phone.directory / "dumpsys/battery").write_text("  USB powered: false\n  level: 9\n")
    checks = {check.name: check for check in target_checks(f"adb:{device.address}")}
    assert checks["device"].found.startswith("Android")
    assert (checks["thermal state"].state, checks["thermal state"].found) == (State.NOTE, "status 3: it throttles")
    assert (checks["battery"].state, checks["battery"].found) == (State.NOTE, "9 %, not plugged in")
    assert checks["settings"].found == "no earlier run left settings changed"
    assert checks["storage"].found.startswith("/data/local/tmp/opscope")


@pytest.mark.runtime
@pytest.mark.parametrize(
    "runtime", [pytest.param("executorch", marks=pytest.mark.everyday("a runtime over adb")), "litert"]
)
def test_the_native_runner_measures_on_a_phone(
    device: Endpoint, tmp_path: Path, toy_program: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    """From the command line, with its own C library, which the manifest calls experimental."""
    if runtime == "litert":
        pytest.importorskip("ai_edge_litert")
    model = toy_program if runtime == "executorch" else LITERT_MODEL
    runtime_of(host_architecture() or "")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/opscope").symlink_to(native_cache())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out"
    words = ["--rounds", "1", "--runs", "2", "--warmup", "1", "--out", str(out), "--quiet"]
    done = opscope("profile", model, "--remote-device", device.address, "--power", "boost", *words)
    assert (done.returncode, done.stderr) == (0, "")
    manifest = Bundle.open(out).manifest
    assert (manifest.target.kind, manifest.target.address) == ("adb", f"{device.address}?power=boost")
    assert manifest.environment.versions["c library"] == PHONE_VERSIONS["c library"]
    assert (manifest.environment.phone.power, manifest.environment.phone.settings["low_power"]) == ("boost", "1")
    cleared = {r.variant: len(r.measurement.mask.cleared) for r in manifest.repetitions if r.measurement.mask}
    assert cleared["accelerated"] == 0 < cleared["baseline"]
    assert (out / "report.html").exists()
    assert device.phone.setting("low_power") == "1"


def test_a_kit_configuration_runs_on_the_phone_that_is_named(tmp_path: Path) -> None:
    """The kit's file says nothing of the device; its mask of CPUs and its runners stay as they are."""
    (tmp_path / "model.pte").write_bytes(b"program")
    experiment = {"name": "sme2_on", "runner_path": "runner", "cpu_affinity": "0x80"}
    (tmp_path / "kit.json").write_text(json.dumps({"model": str(tmp_path / "model.pte"), "experiments": [experiment]}))
    asked = on_phone(read_experiments(tmp_path / "kit.json"), "adb:10.0.0.7:5555")
    assert [one.target for one in asked.experiments] == ["adb:10.0.0.7:5555"]
    assert asked.experiments[0].variants[0].affinity == [7]
    with pytest.raises(UsageError, match="only an Android device"):
        on_phone(asked, "ssh:board")


def test_kernels_that_a_phone_logs_are_counted(device: Endpoint, tmp_path: Path) -> None:
    """XNNPACK's lines go to logcat; those of the runner's own process come with its log."""
    write_tiny_program(tmp_path)
    script = """
kernel = "Note (XNNPACK): Using gemm microkernel 'xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2'."
with open(os.environ["PHONE"] + "/logcat.txt", "a") as file:
    for pid, name in ((os.getpid(), kernel), (1, kernel.replace("pf32", "f32"))):
        file.write(f"11-21 12:00:00.000 {pid:5} {pid:5} I XNNPACK : {name}\\n")
"""
    write_runner(tmp_path, script + GOOD)
    experiment = {"name": "trace", "runner_path": str(tmp_path / "runner"), "mode": "xnntrace"}
    file = tmp_path / "kit.json"
    file.write_text(json.dumps({"model": str(tmp_path / "tiny.pte"), "experiments": [experiment]}))
    done = run(file, out=tmp_path / "out", target=f"adb:{device.address}")
    assert [(one.failure, one.kernels) for one in done.evidence] == [(None, 1)]


@pytest.mark.parametrize(
    ("target", "variants", "problem"),
    [
        ("adb", [{"name": "on", "runner": "on", "ablate": ["sme2"]}], "fixed when it is built"),
        ("local", [{"name": "on", "runner": "on"}], "only the target runner, ssh or adb"),
        ("local", [], NOT_ON_ANDROID),
    ],
    ids=["features of a build", "a build for no device", "a device for nothing"],
)
def test_a_configuration_that_makes_no_sense(
    target: str, variants: list[dict[str, object]], problem: str, tmp_path: Path
) -> None:
    """Name the key; a device that is named needs an experiment that can run there."""
    file = tmp_path / "phone.json"
    file.write_text(json.dumps({"model": "m.pte", "target": target} | ({"variants": variants} if variants else {})))
    with pytest.raises(UsageError, match=problem):
        run(file, target="adb:10.0.0.7:5555")


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.runtime
def test_doctor_starts_the_loader_and_the_runner_on_a_phone(device: Endpoint) -> None:
    """The first that fails is named: here a loader that the kernel ends for a system call."""
    runtime_of(host_architecture() or "")
    place = f"adb:{device.address}"
    checks = {check.name: check for check in target_checks(place)}
    assert checks["loader"].state is State.OK
    assert "ld.so" in checks["loader"].found
    for loader in list(device.phone.tmp.rglob("ld-linux-*")):
        loader.unlink()
        loader.write_text("#!/bin/sh\nkill -SYS $$\n")
        loader.chmod(0o755)
    checks = {check.name: check for check in target_checks(place)}
    assert checks["loader"].state is State.PROBLEM
    assert "SIGSYS" in checks["loader"].found
    assert "runner=PATH" in checks["loader"].action
