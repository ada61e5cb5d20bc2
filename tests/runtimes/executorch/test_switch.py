"""The mechanisms that switch features, on the real runtime: what each gives must be what the others give."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from job_variants import run_as
from native_runner import native_cache, native_target
from opscope.bundle.manifest import Measurement, Mechanism, Role
from opscope.core.errors import FeatureError, OpscopeError
from opscope.core.system.elf import symbol_size
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.machine import isa
from opscope.machine.switch.switch import prepared
from opscope.runtimes.executorch.cpuinfo import switched_libraries
from opscope.runtimes.executorch.installed import installed_runtime
from opscope.runtimes.executorch.runners.python import python_here
from opscope.workflows.measure.profiling import profile
from opscope.workflows.measure.variants import chosen_switch

pytestmark = pytest.mark.runtime

PROGRAM = Path(__file__).parents[2] / "data/versions/executorch-1.5.1.pte"
GROUPS = [group.name for group in isa.GROUPS["x86_64"]]
SECONDS = 120.0


@pytest.fixture(autouse=True)
def _trap() -> None:
    """Every test needs the mechanism."""
    try:
        python_here().offer(Mechanism.TRAP)
    except OpscopeError as error:
        pytest.skip(f"needs the trap: {error}")


def cleared(group: str) -> list[str]:
    """The fields of a group on this CPU; the test is skipped where it has none."""
    probed = python_here().probe()
    try:
        return isa.cleared_fields(probed.arch, [group], frozenset(probed.fields))
    except FeatureError as error:
        pytest.skip(str(error))


def measured(target: RunTarget, clear: list[str] | None, switch: Mechanism, place: Path) -> Measurement:
    """What a job reports; its outputs are beside it."""
    place.mkdir()
    job = Job(str(PROGRAM), run_as(clear, switch=switch), 3, 0, SECONDS, traced=False)
    outcome = target.execute(job, place)
    assert outcome.failure is None
    assert not (place / ".switch").exists()
    return outcome.measurement


@pytest.mark.parametrize("group", GROUPS)
def test_the_trap_leaves_the_fields_that_clearing_leaves(group: str, tmp_path: Path) -> None:
    """Read from the runtime's own struct, which it has filled in itself."""
    runtime, fields = installed_runtime(), cleared(group)
    switch = prepared(Mechanism.TRAP, switched_libraries(runtime), fields, tmp_path)
    code = (
        "import json; from opscope.runtimes.executorch.runners.child import *\n"
        "from opscope.machine import isa; from opscope.runtimes.executorch.cpuinfo import _read_sized_struct\n"
        "found, size = _read_sized_struct(installed_runtime().features, 'x86_64')\n"
        "print(json.dumps([name for name, at in isa.LAYOUTS['x86_64'][size].offsets.items() if found[at]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **switch.variables}, capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stdout)) == set(python_here().probe().fields) - set(fields)


@pytest.mark.parametrize(("runner", "group"), [("native", "avx512"), ("native", "sse4"), ("python", "avx2")])
def test_both_mechanisms_compute_the_same_to_the_bit(runner: str, group: str, tmp_path: Path) -> None:
    """The same kernels ran: those of other features round differently."""
    target = python_here() if runner == "python" else native_target()
    fields = cleared(group)
    by = {one: measured(target, fields, one, tmp_path / one.value) for one in (Mechanism.CPUINFO, Mechanism.TRAP)}
    assert by[Mechanism.CPUINFO].output_sha256 == by[Mechanism.TRAP].output_sha256
    proof = by[Mechanism.TRAP].mask
    assert (proof.mechanism, proof.cleared) == (Mechanism.TRAP, fields)
    assert proof.sites >= 10
    assert proof.executions > proof.masked > 0


def test_the_trap_alone_changes_no_output(tmp_path: Path) -> None:
    """Beside a process that nothing was done to."""
    target = native_target()
    alone = measured(target, [], Mechanism.TRAP, tmp_path / "trap")
    untouched = measured(target, None, Mechanism.TRAP, tmp_path / "untouched")
    assert alone.output_sha256 == untouched.output_sha256
    assert untouched.mask is None
    assert (alone.mask.cleared, alone.mask.masked) == ([], 0)


def test_a_process_without_the_trap_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the variable is taken away before the process starts."""
    target = python_here([sys.executable, "-c", _STARTS_WITHOUT, "opscope.runtimes.executorch.runners.child"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    outcome = target.execute(
        Job(str(PROGRAM), run_as(["avx2"], switch=Mechanism.TRAP), 1, 0, SECONDS), tmp_path / "run"
    )
    assert outcome.failure.kind.value == "mask"
    assert "the loader ignored LD_AUDIT" in outcome.failure.message


_STARTS_WITHOUT = (
    "import os, sys; os.environ.pop('LD_AUDIT');os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1:]])"
)


@pytest.fixture
def other_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed package with a ``cpuinfo_isa`` of a size for which no layout is known."""
    runtime = installed_runtime()
    package = runtime.features.parents[1]
    copied = tmp_path / "site/executorch"
    shutil.copytree(package, copied, copy_function=os.symlink, ignore=shutil.ignore_patterns("*.h", "__pycache__"))
    library = copied / "lib" / runtime.features.name
    library.unlink()
    library.write_bytes(resized(runtime.features))
    monkeypatch.syspath_prepend(copied.parent)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(copied.parent), *([path] if path else [])]))
    assert installed_runtime().features == library
    assert symbol_size(library, "cpuinfo_isa") == 84
    return library


def resized(library: Path) -> bytes:
    """A library whose symbol table states 84 bytes for ``cpuinfo_isa``."""
    data = bytearray(library.read_bytes())
    size = symbol_size(library, "cpuinfo_isa")
    assert size is not None
    names = data.index(b"\0cpuinfo_isa\0") + 1
    # An entry of the table of symbols: name, kind, visibility, section, address, size. The name counts from the table
    # of names, whose beginning is the one that fits.
    for at in range(0, len(data) - 24, 8):
        name, info, other, section, _, stated = struct.unpack_from("<IBBHQQ", data, at)
        begins = names - name
        if (info, other, stated) == (0x11, 0, size) and 0 < section < 64 and data[begins : begins + 1] == b"\0":
            struct.pack_into("<Q", data, at + 16, 84)
            return bytes(data)
    raise AssertionError("no such symbol")


def test_a_layout_that_is_not_known_is_no_obstacle(other_layout: Path, tmp_path: Path) -> None:
    """``auto`` takes the trap, which needs none; the bundle says so."""
    target = python_here()
    with pytest.raises(FeatureError, match="84 bytes"):
        target.probe()
    chosen = chosen_switch(python_here())
    assert chosen.mechanism is Mechanism.TRAP
    clear = isa.cleared_fields("x86_64", ["sse4"], frozenset(chosen.probe.fields))
    found = measured(python_here(), clear, Mechanism.TRAP, tmp_path / "trap")
    assert found.mask.struct_size == 84
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].partition(os.pathsep)[2])
        patch.setattr(sys, "path", [one for one in sys.path if one != str(other_layout.parents[2])])
        expected = measured(python_here(), clear, Mechanism.CPUINFO, tmp_path / "expected")
    assert found.output_sha256 == expected.output_sha256


def test_a_bundle_of_the_trap_shows_that_it_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variant without it is in no comparison, and the report says what it showed."""
    native_target()
    monkeypatch.setenv("OPSCOPE_CACHE", str(native_cache()))
    settings = Settings(target="native", switch="trap", rounds=2, runs=3, warmup=1, ceilings=False, untouched=True)
    done = profile(PROGRAM, settings=settings, out=tmp_path / "bundle")
    manifest = done.content.manifest
    assert [(v.name, v.role, v.switch) for v in manifest.variants] == [
        ("accelerated", Role.ACCELERATED, Mechanism.TRAP),
        ("baseline", Role.BASELINE, Mechanism.TRAP),
        ("untouched", Role.CONTROL, None),
    ]
    assert [(c.baseline.label, c.candidate.label) for c in done.content.comparisons] == [("baseline", "accelerated")]
    (control,) = done.content.controls
    assert (control.baseline.label, control.candidate.label) == ("untouched", "accelerated")
    assert control.outputs.max_abs_error == 0.0
    masks = {
        rep.variant: rep.measurement.mask.mechanism if rep.measurement and rep.measurement.mask else None
        for rep in manifest.repetitions
    }
    assert masks == {"accelerated": Mechanism.TRAP, "baseline": Mechanism.TRAP, "untouched": None}
    report = (tmp_path / "bundle/report.md").read_text(encoding="utf-8")
    assert "trap with all features on, compared with a run without it: outputs identical, time " in report
    end = control.end_to_end  # beside busy processes the ratio is withheld, and says so
    assert (end.speedup is None) is (end.reason is not None)
    assert msgspec.json.decode((tmp_path / "bundle/manifest.json").read_bytes())["request"]["switch"] == "trap"
