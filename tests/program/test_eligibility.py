"""What XNNPACK can run with SME and SME2 kernels, by number types and shape.

The cases were run by the library of the aarch64 wheel of ExecuTorch 1.5.1 under an emulator with SME2 and with SME
alone, with calls of its kernels counted; the comments name what ran.
"""

from __future__ import annotations

import pytest

from graphs import graph
from opscope.program.partition.sme_rules import RULES, GraphEligibility, form_of
from opscope.program.partition.verdicts import Eligibility, Form, SmeSupport

YES, NO, OPEN = SmeSupport.ELIGIBLE, SmeSupport.NOT_ELIGIBLE, SmeSupport.UNKNOWN


def verdict_on(kind: str, data: str, weights: str, result: str, options: str = "", role: str = "const") -> Eligibility:
    """What is said of one node between an input and an output."""
    text = f"""
        input x {data} 1x8x8x4
        {role} w {weights} 4x3x3x4
        y {result} 1x8x8x4 = {kind} x w {options}
        output y
    """
    found = GraphEligibility(graph(text)).of(0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("data", "weights", "result", "expected"),
    [
        ("fp32", "fp32", "fp32", YES),  # f32_f32p2vlx1_..._sme2_mopa
        ("fp16", "fp16", "fp16", YES),  # f16_f16p2vlx2_..._sme2_mopa
        ("fp16", "fp32", "fp16", NO),  # Fully Connected (NC, F16)
        ("qint8", "qcint8", "qint8", YES),  # qai8_qai8p2vlx4_..._sme2_mopa
        ("qint8", "qint8", "qint8", NO),  # Fully Connected (NC, QS8)
        ("qdint8", "qcint8", "fp32", YES),  # f32_qai8dxp1vlx4_qsi8cxp4vlx4_..._sme2_mopa
        ("qdint8", "qcint4", "fp32", YES),  # f32_qai8dxp1vlx8_qsi4cxp4vlx8_..._sme2_mopa
        ("qdint8", "qbint4", "fp32", NO),  # f32_qai8dxp4x8_qsi4c32p4x8_..._neon_i8mm
        ("qdint8", "qbint4", "fp16", NO),  # refused to load
        ("bf16", "bf16", "fp32", OPEN),
    ],
)
def test_matrix_products(data: str, weights: str, result: str, expected: SmeSupport) -> None:
    """Fully connected layers, whatever the number of rows."""
    found = verdict_on("FullyConnected", data, weights, result)
    assert (found.form, found.verdict) == (Form.PRODUCT, expected)


@pytest.mark.parametrize(
    ("data", "weights", "result", "expected"),
    [
        ("fp32", "fp32", "fp32", YES),  # Convolution (NHWC, PF32) IGEMM
        ("fp16", "fp32", "fp16", YES),  # Convolution (NHWC, PF16) IGEMM
        ("qint8", "qcint8", "qint8", YES),  # Convolution (NHWC, PQS8, QS8, QC8W) IGEMM
        ("qint8", "qint8", "qint8", YES),  # likewise
        ("qdint8", "qcint8", "fp32", NO),  # Convolution (NHWC, QD8, F32, QC8W) IGEMM
    ],
)
def test_convolutions(data: str, weights: str, result: str, expected: SmeSupport) -> None:
    """Windows of several elements, with groups and without."""
    for options in ("", "groups=2 in=2 out=2"):
        found = verdict_on("Conv2d", data, weights, result, options)
        assert (found.form, found.verdict) == (Form.CONVOLUTION, expected)


def test_a_window_of_one_element_is_a_matrix_product() -> None:
    """XNNPACK runs it as a fully connected layer, so fp16 with the exporter's fp32 weights loses the SME kernel."""
    half = verdict_on("Conv2d", "fp16", "fp32", "fp16", "window=1")
    assert (half.form, half.verdict) == (Form.PRODUCT, NO)
    assert "fp32" in half.reason
    assert half.advice is not None
    assert verdict_on("Conv2d", "qdint8", "qcint8", "fp32", "window=1").verdict is YES
    assert verdict_on("Conv2d", "qint8", "qint8", "qint8", "window=1").verdict is NO
    assert verdict_on("Conv2d", "fp16", "fp32", "fp16", "window=1 groups=2 in=2 out=2").form is Form.CONVOLUTION


@pytest.mark.parametrize("types", [("fp32", "fp32"), ("fp16", "fp32"), ("qint8", "qcint8")])
def test_depthwise_convolutions_have_no_such_kernels(types: tuple[str, str]) -> None:
    """Neither with small windows nor with large ones."""
    for window in (3, 7):
        found = verdict_on("DepthwiseConv2d", *types, types[0], f"window={window} groups=4 in=1 out=1")
        assert (found.form, found.verdict) == (Form.DEPTHWISE, NO)


def test_transposed_convolutions_only_in_static_int8() -> None:
    """The packed kernels of other types are not used for them."""
    assert verdict_on("ConvTranspose2d", "qint8", "qcint8", "qint8").verdict is YES
    assert verdict_on("ConvTranspose2d", "fp32", "fp32", "fp32").verdict is NO
    assert verdict_on("ConvTranspose2d", "fp16", "fp32", "fp16").verdict is NO
    assert verdict_on("ConvTranspose2d", "qdint8", "qcint8", "fp32").verdict is NO
    assert verdict_on("ConvTranspose2d", "quint8", "quint8", "quint8").verdict is OPEN


def test_products_of_two_computed_matrices() -> None:
    """Attention's products need no stored weights."""
    for dtype in ("fp32", "fp16"):
        found = verdict_on("BatchMatrixMultiply", dtype, dtype, dtype, role="input")
        assert (found.form, found.verdict) == (Form.BATCH_PRODUCT, YES)
    assert verdict_on("BatchMatrixMultiply", "qint8", "qint8", "qint8", role="input").verdict is NO


def test_what_was_not_tried_is_said() -> None:
    """A rule that rests on the source alone is marked, and an unknown one has no source."""
    assert not verdict_on("FullyConnected", "quint8", "quint8", "quint8").tried
    assert verdict_on("FullyConnected", "fp32", "fp32", "fp32").tried
    unknown = verdict_on("FullyConnected", "unknown-99", "fp32", "fp32")
    assert (unknown.verdict, unknown.source) == (OPEN, None)
    alone = verdict_on("Conv2d", "fp32", "fp32", "fp32", "groups=4 in=1 out=1")
    assert alone.verdict is OPEN


def test_other_nodes_have_no_verdict() -> None:
    """An addition multiplies and accumulates nothing."""
    text = """
        input x fp32 1x8x8x4
        y fp32 1x8x8x4 = Add x x
        output y
    """
    assert GraphEligibility(graph(text)).of(0) is None
    assert form_of(graph(text).nodes[0]) is None


def test_every_rule_says_why_and_where() -> None:
    """Eligible rules name their kernels, the others a reason; all name the source that decides."""
    for rule in RULES:
        assert rule.reason
        assert rule.source
        assert (rule.kernels is not None) == (rule.verdict is YES)
        assert rule.verdict is not YES or rule.types_name
        if rule.kernels:
            assert all("_sme_" in name for name in rule.kernels.sme.split(", "))
            assert all("_sme2_" in name for name in rule.kernels.sme2.split(", "))


def test_no_two_rules_speak_of_the_same() -> None:
    """Each combination of form and types has one verdict."""
    seen: set[tuple[Form, str, str, str]] = set()
    for rule in RULES:
        data, weights, result = (types.split() for types in rule.types)
        for key in [(rule.form, d, w, r) for d in data for w in weights for r in result]:
            assert key not in seen
            seen.add(key)
