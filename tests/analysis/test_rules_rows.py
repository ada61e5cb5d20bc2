"""Products of one row on CPUs with SME2: before they run, by the program, and by the names of what ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.api import analyze, preflight
from traces import etdump

WILD = Path(__file__).parents[1] / "data" / "wild"
PROGRAM = WILD / "one_of_two.pte"
"""Its method ``text`` is a linear layer of one row."""


def rules_of(operator: str, directory: Path, program: Path = PROGRAM) -> tuple[list[str], list[str]]:
    """Return the rules that found something and those that were asked, for an operator that takes 90 % of a call."""
    trace = directory / "trace.etdump"
    text = f"Method::execute 100000\n  DELEGATE_CALL @0 95000\n    {operator} 90000\n"
    trace.write_bytes(etdump(text, repeat=4))
    analysis = analyze(trace, program=program)
    found = [message.rule for message in analysis.findings]
    return found, [*found, *(message.rule for message in analysis.ruled_out)]


def test_preflight_names_products_of_one_row() -> None:
    """The convolution of the other method has many."""
    rules = {
        method.name: {message.rule for message in method.findings}
        for method in preflight(PROGRAM, cpu="c1-ultra").methods
    }
    assert "single_row" in rules["text"]
    assert "single_row" not in rules["vision"]
    (group,) = next(method for method in preflight(PROGRAM).methods if method.name == "text").matrix.groups
    assert group.single_row_macs == group.macs == 2048


def test_a_product_of_two_rows_is_not_named() -> None:
    """A method of another program has a batch of two."""
    (method,) = (row for row in preflight(WILD / "getters.pte").methods if row.name == "encode")
    assert method.matrix.groups[0].single_row_macs == 0
    assert "single_row" not in {message.rule for message in method.findings}


def test_a_run_with_packed_kernels_finds_it(tmp_path: Path) -> None:
    """Types that XNNPACK packs for SME alone stand in the name of the operator."""
    found, _ = rules_of("Fully Connected (NC, PF32) GEMM #1", tmp_path)
    assert "single_row_products" in found


def test_a_run_without_them_is_not_asked(tmp_path: Path) -> None:
    """NEON ran it, and no report lists a rule on SME."""
    _, known = rules_of("Fully Connected (NC, F32) GEMM #1", tmp_path)
    assert "single_row_products" not in known


@pytest.mark.parametrize(
    "operator", ["Convolution (NHWC, PF32) IGEMM #1", "Fully Connected (NC, QP8, F32, QC8W) GEMM #1"]
)
def test_other_operators_are_not_blamed(operator: str, tmp_path: Path) -> None:
    """A convolution has many rows, and products with data quantised at run time have one name on every CPU."""
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(etdump(f"Method::execute 100000\n  DELEGATE_CALL @0 95000\n    {operator} 90000\n", repeat=4))
    assert "single_row_products" not in {message.rule for message in analyze(trace).findings}
