"""The counter's file, and the names of kernels: what is in them, and what is said of damage."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_files import FILE, NONE, encode
from opscope.core.errors import EmptyTraceError, NotFoundError, OpscopeError, TraceFormatError
from opscope.program.kernels.kernel_calls import KernelCalls, OperatorCalls
from opscope.program.kernels.symbols import IsaClass, parse_symbol
from opscope.readers.kernels import parse_kernel_counts, read_kernel_counts

WHERE = Path("kernels.counts")


def test_calls_are_read_by_operator() -> None:
    """Outside of delegates, then by delegate and position; places that never ended are left out."""
    assert parse_kernel_counts(FILE, WHERE) == KernelCalls(
        kernels=("kai_run_a", "kai_run_b"),
        outside={"kai_run_a": 4},
        operators=(
            OperatorCalls(0, 0, 5, {}),
            OperatorCalls(0, 1, 5, {"kai_run_b": 320}),
            OperatorCalls(1, 0, 5, {"kai_run_b": 1}),
        ),
        delegate_calls=3,
    )


def test_totals_are_of_the_whole_process() -> None:
    """Kernels that were not called are not in them."""
    calls = parse_kernel_counts(encode(["a", "b", "c"], [(NONE, NONE, 0, [1, 0, 0]), (0, 0, 1, [2, 3, 0])]), WHERE)
    assert calls.totals() == {"a": 3, "b": 3}
    assert calls.positions() == {0: [OperatorCalls(0, 0, 1, {"a": 2, "b": 3})]}


@pytest.mark.parametrize(("flags", "said"), [(1, "concurrently"), (2, "too many operators"), (3, "concurrently")])
def test_calls_that_cannot_be_told_apart_are_said_to_be(flags: int, said: str) -> None:
    """The totals stay right."""
    calls = parse_kernel_counts(encode(["a"], [(NONE, NONE, 0, [7])], flags=flags), WHERE)
    assert said in str(calls.problem)
    assert calls.totals() == {"a": 7}


@pytest.mark.parametrize("data", [b"", bytes(4096)])
def test_a_file_without_counts_says_why(data: bytes) -> None:
    """The counter was not loaded, or nothing ran."""
    with pytest.raises(EmptyTraceError, match="no counts") as caught:
        parse_kernel_counts(data, WHERE)
    assert "not loaded" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"OPKCNT02" + FILE[8:], "not a file of kernel counts"),
        (FILE[:30], "not a file of kernel counts"),
        (FILE[:-8], "contradict"),
        (FILE[:8] + struct.pack("<I", 1 << 30) + FILE[12:], "impossible numbers"),
        (FILE[:16] + struct.pack("<I", 99) + FILE[20:], "contradict"),
        (FILE.replace(b"kai_run_b", b"kai_run_a"), "names of the kernels"),
    ],
)
def test_damage_is_named(data: bytes, problem: str) -> None:
    """Before anything of the file is used."""
    with pytest.raises(TraceFormatError, match=problem):
        parse_kernel_counts(data, WHERE)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    """Like every other."""
    with pytest.raises(NotFoundError):
        read_kernel_counts(tmp_path / "none")


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, len(FILE) - 1), junk=st.binary(min_size=1, max_size=8))
def test_any_damage_ends_in_counts_or_in_an_error(at: int, junk: bytes) -> None:
    """Nothing else is raised."""
    try:
        calls = parse_kernel_counts(FILE[:at] + junk + FILE[at + len(junk) :], WHERE)
    except OpscopeError:
        return
    assert len(calls.kernels) == 2


@pytest.mark.parametrize(
    ("name", "library", "operator", "types", "tile", "isa"),
    [
        (
            "kai_run_matmul_clamp_qai8_qai8p2vlx4_qsi8cxpsb2vlx4_2vlx2vl_sme2_mopa",
            *("KleidiAI", "matmul", "qai8_qai8_qsi8", "2vlx2vl", IsaClass.SME2),
        ),
        (
            "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa",
            *("KleidiAI", "matmul", "f32_f32_f32", None, IsaClass.SME2),
        ),
        (
            "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1b_2vlx2vl_sme_mopa",
            *("KleidiAI", "matmul", "f32_f32_f32", "2vlx2vl", IsaClass.SME),
        ),
        (
            "kai_run_matmul_clamp_f32_qai8dxp4x8_qsi4c32p4x8_16x4x32_neon_i8mm",
            *("KleidiAI", "matmul", "f32_qai8_qsi4", "16x4x32", IsaClass.I8MM),
        ),
        ("kai_run_lhs_pack_f32p2vlx1_f32_sme", "KleidiAI", "lhs_pack", "f32_f32", None, IsaClass.SME),
        ("kai_run_lhs_quant_pack_qai8dxp_f32", "KleidiAI", "lhs_quant_pack", "qai8_f32", None, IsaClass.UNKNOWN),
        ("xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2", "XNNPACK", "gemm", "pf32", "32x32", IsaClass.SME2),
        (
            "xnn_qs8_qc8w_gemm_minmax_fp32_ukernel_1x8c8__avx256skx",
            *("XNNPACK", "gemm", "qs8_qc8w", "1x8c8", IsaClass.AVX512),
        ),
        ("xnn_f32_vadd_ukernel__neon_u8", "XNNPACK", "vadd", "f32", None, IsaClass.NEON),
    ],
)
def test_names_tell_operator_types_tile_and_instruction_set(
    name: str, library: str, operator: str, types: str, tile: str | None, isa: IsaClass
) -> None:
    """Of both libraries, by one form."""
    found = parse_symbol(name)
    assert found
    assert (found.library, found.operator, found.types, found.tile, found.isa) == (library, operator, types, tile, isa)
    assert found.name == name


def test_assembly_has_the_name_of_its_function() -> None:
    """Samples fall into the one, calls are counted of the other."""
    found = parse_symbol("kai_kernel_lhs_pack_f32p2vlx1_f32_sme")
    assert found
    assert (found.name, found.packs) == ("kai_run_lhs_pack_f32p2vlx1_f32_sme", True)


@pytest.mark.parametrize(
    "name", ["main", "", "kai_get_m_step_matmul_clamp_f32_sme", "xnn_pf32_gemm_minmax_ukernel_1x32__neonsme2_get_mr"]
)
def test_other_names_are_no_kernels(name: str) -> None:
    """Functions that only tell a kernel's tile are none, either."""
    assert parse_symbol(name) is None
