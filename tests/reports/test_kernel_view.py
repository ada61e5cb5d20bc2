"""The kernel view: operators by what is known of the kernels behind them, and nothing more."""

from __future__ import annotations

import msgspec
import pytest

from large_content import large_content
from opscope.reports.content.content import ReportContent
from opscope.reports.sections.kernel_view import KernelRow, kernel_rows


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """A model of 20 operators in two blocks, on and off."""
    return large_content(tmp_path_factory.mktemp("kernels"), operators=20, inferences=12)


def renamed(content: ReportContent, **fields: object) -> list[KernelRow]:
    """Rows when the fields of the first operator are others."""
    replace, shown = msgspec.structs.replace, content.shown
    assert shown
    analysis = replace(shown, operators=[replace(shown.operators[0], **fields), *shown.operators[1:]])
    variants = [
        replace(result, analysis=analysis) if result.analysis is shown else result for result in content.variants
    ]
    return kernel_rows(replace(content, variants=variants))


def test_operators_of_one_sort_are_one_row(content: ReportContent) -> None:
    """By operator, algorithm and number types; both blocks together, longest first, without the framework."""
    rows = kernel_rows(content)
    found = {(row.operator, row.algorithm, row.types): row.count for row in rows}
    assert found["Convolution", "IGEMM", "F32"] == 2
    assert found["Convolution", "DWConv", "F32"] == 2
    assert found["Fully Connected", "GEMM", "F32"] == 4
    assert [row.time_ns for row in rows] == sorted((row.time_ns for row in rows), reverse=True)
    assert all(row.kind != "framework" for row in rows)
    assert sum(row.count for row in rows) == 20


def test_types_that_no_name_tells_are_those_of_the_program(content: ReportContent) -> None:
    """Only the layout stands in the name of an activation; a portable operator's name tells nothing."""
    found = {row.operator: row for row in kernel_rows(content)}
    assert (found["HardSwish"].types, found["HardSwish"].algorithm) == ("fp32", None)
    assert (found["native_layer_norm.out"].types, found["native_layer_norm.out"].backend) == ("fp32", "portable")
    unknown = renamed(content, name="HardSwish (NC) #9", dtype=None, weights=None)
    assert None in {row.types for row in unknown if row.operator == "HardSwish"}


def test_no_microkernel_is_made_up(content: ReportContent) -> None:
    """A trace does not say which one ran."""
    assert all(row.kernel is None and row.evidence is None for row in kernel_rows(content))


def test_a_recorded_microkernel_is_shown(content: ReportContent) -> None:
    """It makes a row of its own."""
    name = "xnn_f32_transpose_ukernel__avx2"
    [row] = [row for row in renamed(content, kernel=name) if row.kernel]
    assert (row.kernel, row.evidence, row.count) == (name, "recorded", 1)


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("Convolution (NHWC, PF32) IGEMM #1", "SME family, by its packed types"),
        ("Fully Connected (NC, PQS8, QC8W) GEMM #1", "SME family, by its packed types"),
        ("Fully Connected (NC, QP8, F32, QC4W) GEMM #1", None),
        ("Convolution (NHWC, F32) IGEMM #1", None),
    ],
)
def test_packed_types_are_evidence_of_the_sme_family(content: ReportContent, name: str, evidence: str | None) -> None:
    """QP8 is none: XNNPACK packs it for kernels without SME too."""
    own = [row for row in renamed(content, name=name, time_ns=1e9) if row.time_ns >= 1e9]
    assert [row.evidence for row in own] == [evidence]


def test_rates_and_changes_of_a_sort(content: ReportContent) -> None:
    """Multiply-accumulates over time, an interval where durations are cut off; times of the baseline add up."""
    [row] = [row for row in kernel_rows(content) if row.algorithm == "IGEMM"]
    assert content.shown
    assert content.primary
    own = [o for o in content.shown.operators if "IGEMM" in o.name]
    low = 4_000_000 / sum(o.shown_ns + o.uncertainty_ns for o in own)
    high = 4_000_000 / sum(o.shown_ns for o in own)
    assert row.rate == (f"{low:.1f} to {high:.1f}" if f"{low:.1f}" != f"{high:.1f}" else f"{low:.1f}")
    before = [c.baseline_ns for c in content.primary.operators if "IGEMM" in c.name]
    assert row.baseline_ns == pytest.approx(sum(before))
    assert row.speedup == pytest.approx(sum(before) / row.time_ns)
    assert {r.rate for r in kernel_rows(content) if r.operator == "HardSwish"} == {""}


def test_without_a_result_there_are_no_kernels(content: ReportContent) -> None:
    """Nothing was measured: no rows."""
    empty = [msgspec.structs.replace(result, analysis=None) for result in content.variants]
    assert kernel_rows(msgspec.structs.replace(content, variants=empty, comparisons=[])) == []
