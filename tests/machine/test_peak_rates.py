"""Peak rates of a machine: which levels count, what becomes of the runs, and the native program here and on Arm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from fakes import round_ceilings
from opscope.core.errors import MissingDependencyError
from opscope.machine.ceilings.peak_rates import (
    LEVELS,
    PROBE_SOURCE,
    ProbeReport,
    ProbeRuns,
    as_ceilings,
    measure_peak_rates,
    native_program,
    rate_of,
    usable_levels,
)
from opscope.machine.switch.switch import fields_here
from opscope.program.ceilings import Dispatch, Pattern, Rate, drift_sample, unmeasured
from qemu import use_emulator

AVX512 = ["avx", "avx2", "avx512bw", "avx512f", "avx512vnni", "fma3"]
SMALL = 1 << 24
"""Bytes of a machine's memory: its largest working set is 1 MiB."""
CROSS = "aarch64-linux-gnu-g++"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native program, built by the compiler at hand."""
    try:
        return native_program(tmp_path_factory.mktemp("cache"))
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("arch", "fields", "cleared", "levels"),
    [
        ("x86_64", [], [], ["sse2"]),
        ("x86_64", AVX512, [], ["sse2", "avx", "fma3", "avx2", "avx512f", "avx512bw", "avx512vnni"]),
        ("x86_64", AVX512, ["avx512f", "avx512bw", "avx512vnni"], ["sse2", "avx", "fma3", "avx2"]),
        ("x86_64", AVX512, ["fma3", "avx2", "avx512f"], ["sse2", "avx"]),
        ("x86_64", ["amx_tile", "amx_int8"], [], ["sse2", "amx_int8"]),
        ("x86_64", ["amx_int8"], [], ["sse2"]),
        ("aarch64", ["dot", "i8mm", "sme", "sme2"], ["i8mm"], ["neon", "dot", "sme"]),
        ("aarch64", ["dot", "sme", "sme2"], ["sme", "sme2"], ["neon", "dot"]),
        ("riscv64", ["v"], [], []),
    ],
)
def test_a_level_counts_when_the_cpu_has_its_fields_and_none_is_cleared(
    arch: str, fields: list[str], cleared: list[str], levels: list[str]
) -> None:
    """Without AVX-512 the ceiling is that of AVX2, and so on down to what every CPU has."""
    assert usable_levels(arch, fields, cleared) == levels


def test_every_level_has_kernels() -> None:
    """The native program knows each of them by this name."""
    source = PROBE_SOURCE.read_text()
    assert [level for levels in LEVELS.values() for level in levels if f'{{"{level}", "' not in source] == []


@pytest.mark.parametrize(
    ("durations", "rate"),
    [
        ([100], Rate(10_000_000_000, 10_000_000_000, 1, 0.0)),
        ([400, 100, 200], Rate(10_000_000_000, 5_000_000_000, 3, 0.75)),
        ([0], Rate(1_000_000_000_000, 1_000_000_000_000, 1, 0.0)),
    ],
)
def test_the_shortest_run_is_the_ceiling(durations: list[int], rate: Rate) -> None:
    """1000 units of work in 100 ns are 10 a ns; no clock ticks faster than once a ns."""
    assert rate_of(1000, durations) == rate


REPORT = ProbeReport(
    0.97,
    [
        ProbeRuns("mac", "i8", "avx2", 0, 100, [10]),
        ProbeRuns("element", "f32", "avx", 16_384, 100, [20]),
        ProbeRuns("memory", "copy", "avx", 1 << 20, 100, [5]),
        ProbeRuns("memory", "copy", "libc", 1 << 20, 100, [4]),
        ProbeRuns("memory", "read", "avx", 1 << 15, 100, [2]),
        ProbeRuns("handover", "parallel", "", 0, 64, [64_000]),
    ],
)


def test_runs_become_ceilings() -> None:
    """int8 has the name that operators have; the fastest of several copies counts; sets are in ascending order."""
    found = as_ceilings(REPORT, round_ceilings(["avx512f"], 2), 0.0)
    assert [(one.dtype, one.level, one.rate.best) for one in found.compute] == [("qs8", "avx2", 10_000_000_000)]
    assert [(one.dtype, one.level) for one in found.elements] == [("f32", "avx")]
    assert [(one.working_set, one.pattern, one.rate.best) for one in found.memory] == [
        (1 << 15, Pattern.READ, 50_000_000_000),
        (1 << 20, Pattern.COPY, 25_000_000_000),
    ]
    assert [one.dispatch for one in found.dispatch] == [Dispatch.PARALLEL]
    assert (found.dispatch_ns(), found.cpu_share) == (1_000, 0.97)
    assert (found.cleared, found.threads) == (["avx512f"], 2)


def test_measured_again_are_those_that_were_asked_for() -> None:
    """The others of the report are left out."""
    whole = as_ceilings(REPORT, round_ceilings(), 0.0)
    wanted = msgspec.structs.replace(whole, elements=[], memory=whole.memory[:1], dispatch=[])
    again = as_ceilings(REPORT, round_ceilings(), 0.0, wanted)
    assert [unmeasured(one) for one in again.all()] == [unmeasured(one) for one in wanted.all()]


@pytest.mark.everyday("the instructions of the CPU of whoever runs the tests")
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_native_program_measures_every_level_of_this_cpu(threads: int) -> None:
    """Each has a rate, whatever it is; the short probe of a part of them finds all of that part."""
    arch, fields = fields_here()
    if arch not in LEVELS:
        pytest.skip("no level is known for this architecture")
    found = measure_peak_rates([], threads, 0.05, SMALL)
    weakest = next(iter(LEVELS[arch]))
    assert {weakest} <= {one.level for one in found.compute} <= set(usable_levels(arch, fields))
    assert {"f32", "qs8"} <= {one.dtype for one in found.compute}
    assert all(one.rate.best >= one.rate.median > 0 for one in found.all())
    assert {one.working_set for one in found.memory} == {1 << size for size in range(15, 21)}
    assert len(found.memory) == 3 * 6
    assert (found.threads, len(found.dispatch)) == (threads, threads)
    sample = drift_sample(found)
    again = measure_peak_rates([], threads, 0.05, SMALL, sample)
    assert {str(unmeasured(one)) for one in again.all()} == {str(unmeasured(one)) for one in sample.all()}
    left = measure_peak_rates(fields, threads, 0.01, SMALL)
    assert {one.level for one in [*left.compute, *left.elements]} == {weakest}


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run goes on without ceilings."""
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(MissingDependencyError, match="ceilings of this machine cannot be measured"):
        native_program(tmp_path)


@pytest.mark.nightly
def test_every_level_of_arm_runs_under_an_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its rates mean nothing there; that each instruction is one, and each kernel ends, does."""
    use_emulator(monkeypatch)
    if shutil.which(CROSS) is None:
        pytest.skip(f"needs {CROSS}")
    built = tmp_path / "ceilings"
    build = [CROSS, "-O2", "-std=c++17", "-static", "-pthread", str(PROBE_SOURCE), "-o", str(built)]
    subprocess.run(build, check=True)
    from opscope.hosts.emulator import find_emulator

    words = [*find_emulator().command, "-cpu", "max", str(built), "2", "0.05", str(1 << 16), *LEVELS["aarch64"]]
    done = subprocess.run(words, check=True, capture_output=True)
    report = msgspec.json.decode(done.stdout, type=ProbeReport)
    assert {one.level for one in report.probes if one.kind == "mac"} == set(LEVELS["aarch64"])
