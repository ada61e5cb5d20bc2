"""Ceilings: which one an event falls under, and what they say between the points that were measured."""

from __future__ import annotations

import msgspec
import pytest

from fakes import rate, round_ceilings
from opscope.program.ceilings import (
    Ceilings,
    KernelClass,
    KernelUse,
    MacCeiling,
    MemoryCeiling,
    Pattern,
    Rate,
    kernel_use,
    operator_name,
)

GEMM, IGEMM, DWCONV, BMM = KernelClass.GEMM, KernelClass.IGEMM, KernelClass.DWCONV, KernelClass.BMM


@pytest.mark.parametrize(
    ("event", "dtype", "kernel"),
    [
        ("Fully Connected (NC, F32) GEMM #3", "f32", GEMM),
        ("Dynamic Fully Connected (NC, PF16) GEMM", "f16", GEMM),
        ("Fully Connected (NC, QS8, QC8W) GEMM", "qs8", GEMM),
        ("Fully Connected (NC, PQS8, QC8W) GEMM", "qs8", GEMM),
        ("Fully Connected (NC, QDU8, F32, QC8W) GEMM #1", "qd8", GEMM),
        ("Fully Connected (NC, QP8, F32, QC4W) GEMM", "qd8_qc4w", GEMM),
        ("Fully Connected (NC, QD8, F16, QB4W) GEMM", "qd8_qb4w", GEMM),
        ("Convolution (NHWC, PF32) IGEMM #12", "f32", IGEMM),
        ("Convolution (NHWC, QC8) IGEMM", "qs8", IGEMM),
        ("Convolution (NHWC, PQS8, QS8, QC8W) IGEMM", "qs8", IGEMM),
        ("Convolution (NHWC, F16) DWConv #2", "f16", DWCONV),
        ("Convolution (NHWC, F32) GEMM", "f32", GEMM),
        ("Batch Matrix Multiply (NC, F32) GEMM", "f32", BMM),
        ("Fully Connected (NC, F32, QC8W) GEMM", "f32_qc8w", GEMM),
        ("Deconvolution (NHWC, F32) Subconv2D #1", "f32", KernelClass.SUBCONV),
        ("Deconvolution (NC, QS8, QC8W) Subconv2D", "qs8", KernelClass.SUBCONV),
        ("Deconvolution (NHWC, F32) IGEMM", "f32", IGEMM),
    ],
)
def test_an_event_tells_its_number_type_and_its_kernels(event: str, dtype: str, kernel: KernelClass) -> None:
    """Packed and unsigned forms are those of the plain type; weights of four bits make a type of their own."""
    assert kernel_use(event) == KernelUse(dtype, kernel)


@pytest.mark.parametrize(
    "event", ["Add (ND) #1", "Softmax (NC, F32)", "Copy (NC, X32)", "native_call_add.out", "", "("]
)
def test_events_without_multiply_accumulates_have_no_kernels_of_that_kind(event: str) -> None:
    """Elementwise operators, copies, portable kernels and what is not an event at all."""
    assert kernel_use(event) is None


def test_a_matrix_with_one_row_has_kernels_of_its_own() -> None:
    """The name does not tell the rows; who knows them says so."""
    event = "Fully Connected (NC, F32) GEMM"
    assert kernel_use(event, 1) == KernelUse("f32", KernelClass.GEMV)
    assert kernel_use(event, 2) == KernelUse("f32", GEMM)


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("Sigmoid (NC) #2", "Sigmoid"),
        ("Reciprocal Square Root (NC)", "Reciprocal Square Root"),
        ("Mean (ND) Reduce2 #1", "Mean"),
        ("Convert (NC, F32, QDU8) #1", "Convert to qd8"),
        ("Convert (NC)", "Convert"),
        ("native_call_add.out", "native_call_add.out"),
    ],
)
def test_an_operator_has_a_name_without_types_and_number(event: str, name: str) -> None:
    """Conversions keep their target where it is told."""
    assert operator_name(event) == name


@pytest.mark.parametrize(
    ("dtype", "gigamacs"),
    [("f32", 100), ("f16", 100), ("bf16", 200), ("f32_qc8w", 100), ("qs8", None), ("qd8_qc4w", None), ("u2", None)],
)
def test_a_number_type_has_the_best_level_of_what_it_may_be_computed_in(dtype: str, gigamacs: int | None) -> None:
    """Narrow floats fall under wider ones where those are faster; weights of fewer bits under their activations."""
    found = round_ceilings().mac_ceiling(dtype)
    assert (found and found.rate.best // 1_000_000_000) == gigamacs


@pytest.mark.parametrize("dtype", ["qs8", "qd8", "qd8_qb4w"])
def test_every_form_of_eight_bits_has_the_ceiling_of_int8(dtype: str) -> None:
    """Whether it is quantised at run time does not change the instructions."""
    ceiling = MacCeiling(dtype="qs8", level="avx512vnni", rate=rate(7))
    assert msgspec.structs.replace(round_ceilings(), compute=[ceiling]).mac_ceiling(dtype) == ceiling


def test_elements_have_a_ceiling_by_number_type() -> None:
    """Half precision that is computed as single has that of single; integers were not measured."""
    ceilings = round_ceilings()
    assert ceilings.element_ceiling("f16") == ceilings.element_ceiling("f32") == ceilings.elements[0]
    assert ceilings.element_ceiling("qs8") is None


@pytest.mark.parametrize(
    ("working_set", "gigabytes"),
    [(1, 100), (1 << 15, 100), (1 << 18, 100), (1 << 24, 31.6), (1 << 28, 10), (1 << 40, 10)],
)
def test_bandwidth_is_interpolated_on_logarithmic_scales(working_set: int, gigabytes: float) -> None:
    """Halfway from 1 MiB to 256 MiB is halfway from 100 to 10, both by factors; the nearest counts beyond the ends."""
    found = round_ceilings().bandwidth(working_set)
    assert found is not None
    assert found / 1e9 == pytest.approx(gigabytes, abs=0.1)


def test_updates_in_place_are_another_bandwidth() -> None:
    """They are not mixed with copies and sums; without any there is no figure."""
    ceilings = round_ceilings()
    update = MemoryCeiling(pattern=Pattern.UPDATE, working_set=1 << 15, rate=rate(200_000_000_000))
    with_update = msgspec.structs.replace(ceilings, memory=[*ceilings.memory, update])
    assert ceilings.bandwidth(1 << 15, in_place=True) is None
    assert with_update.bandwidth(1 << 15, in_place=True) == 200e9
    assert with_update.bandwidth(1 << 15) == 100e9
    assert msgspec.structs.replace(ceilings, memory=[]).bandwidth(1) is None


def test_the_fixed_cost_is_that_of_the_thread_count() -> None:
    """An operator for one thread costs 100 ns, one that is shared out among several 1000 ns."""
    assert round_ceilings(threads=1).dispatch_ns() == 100
    assert round_ceilings(threads=2).dispatch_ns() == 1000


def test_scattering_ceilings_are_counted() -> None:
    """One of ten scatters by half of its median."""
    ceilings = round_ceilings()
    assert ceilings.unsteady() == 0
    scattered = [msgspec.structs.replace(ceilings.elements[0], rate=Rate(10, 5, 10, 0.5))]
    share = msgspec.structs.replace(ceilings, elements=scattered).unsteady()
    assert share == pytest.approx(1 / 10)


def test_ceilings_survive_the_way_through_a_file() -> None:
    """Encoded and decoded they are the same, under the schema's name."""
    encoded = msgspec.json.encode(round_ceilings())
    assert msgspec.json.decode(encoded, type=Ceilings) == round_ceilings()
    assert msgspec.json.decode(encoded)["schema"] == "opscope.ceilings/2"
