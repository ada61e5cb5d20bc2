"""Counting kernels: the real Arm library under QEMU, with SME2, with SME alone, and with neither."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from arm import SME, SME2, arm_library, arm_target
from job_variants import run_as
from native_runner import native_cache, native_target
from opscope.core.errors import FeatureError, MissingDependencyError, TraceFormatError
from opscope.core.system.elf import AARCH64, read_symbols
from opscope.experiment.protocol import OUTPUTS, TRACE, Job
from opscope.measurements.counted_calls import join_calls
from opscope.program.kernels.kernel_calls import KernelCalls
from opscope.readers.kernels import read_kernel_counts
from opscope.readers.registry import read_trace
from opscope.runtimes.counting import kernel_counter
from opscope.runtimes.counting.kernel_counter import COUNTS, build_counter, counter_environment, find_compiler

pytestmark = pytest.mark.runtime
CLEAR = {"sme2": [], "sme": SME2, "neon": SME}
PRODUCTS = {
    ("int8", "sme2"): {
        "kai_run_matmul_clamp_qai8_qai8_qsi8cxp2vlx4sb_1x16vl_sme2_dot": 2,
        "kai_run_matmul_clamp_qai8_qai8p2vlx4_qsi8cxpsb2vlx4_2vlx2vl_sme2_mopa": 640,
    },
    ("int8", "sme"): {"kai_run_matmul_clamp_qai8_qai8p2vlx4_qsi8cxp2vlx4sb_2vlx2vl_sme_mopa": 642},
    ("int8", "neon"): {},
    ("fp32", "sme2"): {
        "kai_run_matmul_clamp_f32_f32_f32p2vlx1b_1x16vl_sme2_mla": 2,
        "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa": 640,
    },
    ("fp32", "sme"): {
        "kai_run_matmul_clamp_f32_f32_f32p2vlx1b_1x8vl_sme_mla": 2,
        "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1b_2vlx2vl_sme_mopa": 640,
    },
    ("fp32", "neon"): {},
}
"""Calls in two inferences of toy_cnn: two convolutions and a linear layer of one row."""


class _Ran(NamedTuple):
    directory: Path
    calls: KernelCalls
    output: np.ndarray


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> dict[str, Path]:
    """toy_cnn in both number types, exported only where they can run."""
    arm_target()
    found: dict[str, Path] = request.getfixturevalue("toy_programs")
    return found


@pytest.fixture(scope="module")
def ran(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], _Ran]:
    """Every program with every instruction set, two inferences each, counted."""
    target, counted = arm_target()
    found = {}
    for dtype, isa in PRODUCTS:
        directory = tmp_path_factory.mktemp(f"{dtype}-{isa}")
        job = Job(str(programs[dtype]), run_as(CLEAR[isa]), 2, 0, 120, counter=str(counted[0].path))
        outcome = target.execute(job, directory)
        assert outcome.failure is None, outcome.failure
        with np.load(directory / OUTPUTS) as outputs:
            found[dtype, isa] = _Ran(directory, read_kernel_counts(directory / COUNTS), outputs["arr_0"])
    return found


@pytest.mark.parametrize(("dtype", "isa"), PRODUCTS)
def test_each_variant_calls_its_own_kernels_and_no_others(
    ran: dict[tuple[str, str], _Ran], dtype: str, isa: str
) -> None:
    """Products by SME2, by SME alone, or by no kernel of KleidiAI at all; the numbers are exact."""
    calls = {name: count for name, count in ran[dtype, isa].calls.totals().items() if "matmul_clamp" in name}
    assert calls == PRODUCTS[dtype, isa]


@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_all_variants_compute_what_x86_computes(
    ran: dict[tuple[str, str], _Ran], programs: dict[str, Path], tmp_path: Path, dtype: str
) -> None:
    """int8 to the bit between the variants; against x86-64 within rounding."""
    outcome = native_target().execute(Job(str(programs[dtype]), run_as([]), 1, 0, 120), tmp_path)
    assert outcome.failure is None, outcome.failure
    with np.load(tmp_path / OUTPUTS) as outputs:
        expected = outputs["arr_0"]
    for isa in CLEAR:
        np.testing.assert_allclose(ran[dtype, isa].output, expected, rtol=1e-5, atol=1e-6)
    if dtype == "int8":
        assert (ran["int8", "sme2"].output == ran["int8", "neon"].output).all()


def test_calls_are_given_to_the_operators_that_made_them(ran: dict[tuple[str, str], _Ran]) -> None:
    """By the trace of the same process: the convolutions and the linear layer have calls, moves and clamps none.

    Packing weights is outside of any operator: it happens once, while the program is loaded.
    """
    own = ran["int8", "sme2"]
    table = read_trace(own.directory / TRACE).table
    joined = join_calls(table, own.calls)
    assert not isinstance(joined, str)
    names = {(place.instruction, place.position): calls for place, calls in joined.items()}
    busy = {key: sum(calls.calls.values()) for key, calls in names.items() if calls.calls}
    assert busy == {(0, 2): 1024, (0, 3): 256, (4, 1): 2}
    assert {calls.runs for calls in names.values()} == {2}
    assert set(own.calls.outside) == {
        "kai_run_rhs_imatmul_pack_kxn_qsi8cxp2vlx4sb_qs8cx_f32_i32_sme",
        "kai_run_rhs_pack_kxn_qsi8cxp2vlx4sb_qs8cx_f32_i32_sme",
    }


def test_counts_are_the_same_with_two_threads(programs: dict[str, Path], tmp_path: Path) -> None:
    """The numbers are added in one step, whichever thread calls."""
    target, counted = arm_target()
    job = Job(str(programs["int8"]), run_as([], 2), 2, 0, 120, counter=str(counted[0].path))
    assert target.execute(job, tmp_path).failure is None
    calls = read_kernel_counts(tmp_path / COUNTS)
    assert calls.problem is None
    assert {name: n for name, n in calls.totals().items() if "matmul_clamp" in name} == PRODUCTS["int8", "sme2"]


def test_a_process_without_the_counter_leaves_no_counts(programs: dict[str, Path], tmp_path: Path) -> None:
    """Counting is asked for; nothing of it is in ordinary runs."""
    target, _ = arm_target()
    assert target.execute(Job(str(programs["int8"]), run_as([]), 1, 0, 120), tmp_path).failure is None
    assert not (tmp_path / COUNTS).exists()


def test_every_kernel_that_the_library_calls_by_name_is_counted() -> None:
    """The list is that of the library's own relocations."""
    library = arm_library()
    symbols = read_symbols(library.read_bytes(), library)
    assert symbols
    assert symbols.machine == AARCH64
    counter = build_counter(library, native_cache())
    assert set(counter.kernels) == {name for name in symbols.called if name.startswith("kai_run_")}
    assert counter.path == build_counter(library, native_cache()).path, "it is built once"


def test_the_counter_loads_only_where_it_is_asked_for() -> None:
    """Two variables: what to load, and where the numbers go."""
    assert counter_environment("/x/counter.so", "/x/counts") == {
        "LD_PRELOAD": "/x/counter.so",
        "OPSCOPE_KERNEL_COUNTS": "/x/counts",
    }


def test_a_library_for_x86_is_refused() -> None:
    """Its kernels have no names, and none is called through the loader."""
    from opscope.runtimes.executorch.installed import BACKEND, library_directory, library_path

    library = library_path(library_directory(), BACKEND)
    if read_symbols(library.read_bytes(), library).machine == AARCH64:
        pytest.skip("this machine's library is for 64-bit Arm")
    with pytest.raises(FeatureError, match="64-bit Arm"):
        build_counter(library)


def test_a_library_that_calls_its_kernels_directly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked with -Bsymbolic nothing goes through the loader's table: said, with what can be done instead."""
    import subprocess

    monkeypatch.delenv("OPSCOPE_CC", raising=False)
    try:
        compiler = find_compiler()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    source = tmp_path / "own.c"
    source.write_text("void kai_run_x(void) {} int xnn_invoke_runtime(void) { kai_run_x(); return 0; }\n")
    library = tmp_path / "libown.so"
    subprocess.run([*compiler, "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", library, source], check=True)
    with pytest.raises(FeatureError, match="no call goes through the loader") as caught:
        build_counter(library, tmp_path)
    assert "perf" in str(caught.value.hint)


@pytest.mark.parametrize("size", [0x20, 0x3F, 400])
def test_a_library_that_is_cut_off_is_said_to_be(tmp_path: Path, size: int) -> None:
    """No counter is made for half a library."""
    library = tmp_path / "half.so"
    library.write_bytes(arm_library().read_bytes()[:size])
    with pytest.raises(TraceFormatError, match="truncated or damaged"):
        build_counter(library, tmp_path)


def test_without_a_compiler_for_arm_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler for this machine only is none."""
    monkeypatch.setenv("OPSCOPE_CC", "no-such-compiler")
    with pytest.raises(MissingDependencyError, match="no-such-compiler") as caught:
        find_compiler()
    assert "gcc-aarch64-linux-gnu" in str(caught.value.hint)
    assert kernel_counter.SOURCE.exists()
