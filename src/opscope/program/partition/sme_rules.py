"""Decide whether XNNPACK can run an operator with KleidiAI's SME or SME2 kernels, by number types and shape.

Eligible is not used: the CPU must have the extension, and the library must be built with it. The table of rules
holds for ``TABLE``. Each rule names the place in XNNPACK that decides, and the kernels behind it, as the
library of the aarch64 wheel exports them. All but those marked ``tried=False`` were tried: a model of one
operator was run by that library under an emulator with SME2, with SME alone and with neither, and calls of
kernels were counted. SME alone and SME2 take the same operators. There is no least number of rows: a single one
has its own kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.partition.verdicts import Eligibility, Form, SmeSupport
from opscope.program.xnnpack.graph import Convolution
from opscope.program.xnnpack.subgraph import is_matrix_product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.program.xnnpack.graph import XnnGraph, XnnNode, XnnValue


TABLE = "executorch 1.5.1, XNNPACK 92a7ad50"
"""Release whose library was read and tried, and its commit of XNNPACK."""


class Kernels(NamedTuple):
    """KleidiAI kernels of a rule, without ``kai_run_matmul_clamp_``; those for one row follow the comma."""

    sme: str
    sme2: str


class SmeRule(NamedTuple):
    """Rule for one form of node and its number types."""

    form: Form  # of the node
    # of data, weights (or the second factor) and result, each one or several; `*` stands for any
    types: tuple[str, str, str]
    types_name: str  # XNNPACK's name for them in events, or what they are
    kernels: Kernels | None = None  # behind an eligible one
    reason: str = "the library packs the data and has kernels for these types"  # why
    source: str = "src/subgraph.c, xnn_subgraph_optimize_packed_lhs"  # file and function of XNNPACK that decides
    tried: bool = True  # it was run and its kernels were counted; else the source alone says so
    advice: str | None = None  # what would make such an operator eligible; None when nothing simple does
    known: bool = True  # whether it is known at all if it is eligible

    @property
    def verdict(self) -> SmeSupport:
        """Verdict for all operators of the form with these types."""
        if not self.known:
            return SmeSupport.UNKNOWN
        return SmeSupport.ELIGIBLE if self.kernels else SmeSupport.NOT_ELIGIBLE


_F32 = Kernels(
    "f32_f32p2vlx1_f32p2vlx1b_2vlx2vl_sme_mopa, f32_f32_f32p2vlx1b_1x8vl_sme_mla",
    "f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa, f32_f32_f32p2vlx1b_1x16vl_sme2_mla",
)
_F16 = Kernels(
    "f16_f16p2vlx2_f16p2vlx2b_2vlx2vl_sme_mopa, f16_f16_f16p2vlx2b_1x8vl_sme_mla",
    "f16_f16p2vlx2_f16p2vlx2_2vlx2vl_sme2_mopa, f16_f16_f16p2vlx2b_1x16vl_sme2_dot",
)
_QS8 = Kernels(
    "qai8_qai8p2vlx4_qsi8cxp2vlx4sb_2vlx2vl_sme_mopa",
    "qai8_qai8p2vlx4_qsi8cxpsb2vlx4_2vlx2vl_sme2_mopa, qai8_qai8_qsi8cxp2vlx4sb_1x16vl_sme2_dot",
)
_QP8_QC8W = Kernels(
    "f32_qai8dxp1vlx4_qsi8cxp4vlx4_1vlx4vl_sme_mopa, f32_qai8dxp1x4_qsi8cxp4vlx4_1x4vl_sme_dot",
    "f32_qai8dxp1vlx4_qsi8cxp4vlx4_1vlx4vl_sme2_mopa, f32_qai8dxp1x4_qsi8cxp4vlx4_1x4vl_sme2_dot",
)
_QP8_QC4W = Kernels(
    "f32_qai8dxp1vlx4_qsi4cxp4vlx4_1vlx4vl_sme_mopa, f32_qai8dxp1x4_qsi4cxp4vlx4_1x4vl_sme_dot",
    "f32_qai8dxp1vlx8_qsi4cxp4vlx8_1vlx4vl_sme2_mopa, f32_qai8dxp1x4_qsi4cxp4vlx4_1x4vl_sme2_sdot",
)

_ONE_SCALE = "the packed int8 product needs per-channel weight scales"
_PER_CHANNEL = "quantise weights per channel"
_NO_PACKING = "the library does not pack these types"

RULES: tuple[SmeRule, ...] = (
    SmeRule(Form.PRODUCT, ("fp32", "fp32", "fp32"), "PF32", _F32),
    SmeRule(Form.PRODUCT, ("fp32", "fp16", "fp32"), "PF32", _F32, tried=False),
    SmeRule(Form.PRODUCT, ("fp16", "fp16", "fp16"), "PF16", _F16),
    SmeRule(
        Form.PRODUCT,
        ("fp16", "fp32", "fp16"),
        "F16",
        reason="its weights are fp32, as the exporter stores them for convolutions, but the packed fp16 product "
        "needs fp16",
        advice="write 1x1 convolutions as linear layers, or export in fp32 or int8",
    ),
    SmeRule(Form.PRODUCT, ("qint8", "qcint8", "qint8"), "PQS8, QC8W", _QS8),
    SmeRule(Form.PRODUCT, ("qint8", "qint8", "qint8"), "QS8", reason=_ONE_SCALE, advice=_PER_CHANNEL),
    SmeRule(Form.PRODUCT, ("qint8", "qcint4", "qint8"), "QS8, QC4W", reason=_NO_PACKING, tried=False),
    SmeRule(Form.PRODUCT, ("quint8", "*", "quint8"), "QU8", reason=_NO_PACKING, tried=False),
    SmeRule(Form.PRODUCT, ("qdint8", "qcint8", "fp32"), "QP8, F32, QC8W", _QP8_QC8W),
    SmeRule(Form.PRODUCT, ("qdint8", "qcint4", "fp32"), "QP8, F32, QC4W", _QP8_QC4W),
    SmeRule(
        Form.PRODUCT,
        ("qdint8", "qbint4", "fp32"),
        "QP8, F32, QB4W",
        reason="kernels for per-block weight scales use only dot products and i8mm",
        source="src/configs/gemm-config.c, init_qp8_f32_qb4w_gemm_config",
        advice="use per-channel scales for 4-bit weights, or use 8 bits",
    ),
    SmeRule(
        Form.PRODUCT,
        ("qdint8", "qbint4", "fp16"),
        "QD8, F16, QB4W",
        reason="the library packs only for fp32 results; on CPUs with SME it refuses to load a model with this "
        "operator",
        source="src/subgraph.c, xnn_subgraph_optimize_packed_lhs; src/subgraph/rewrites/cvt_to_fp32.cc",
        advice="keep the data in fp32",
    ),
    SmeRule(
        Form.PRODUCT,
        ("qdint8", "qcint8 qcint4", "fp16"),
        "QD8, F16",
        reason="the library packs only for fp32 results",
        tried=False,
        advice="keep the data in fp32",
    ),
    SmeRule(Form.BATCH_PRODUCT, ("fp32", "fp32", "fp32"), "PF32", _F32),
    SmeRule(Form.BATCH_PRODUCT, ("fp16", "fp16", "fp16"), "PF16", _F16),
    SmeRule(Form.BATCH_PRODUCT, ("qdint8", "qcint8", "fp32"), "QP8, F32, QC8W", _QP8_QC8W, tried=False),
    SmeRule(Form.BATCH_PRODUCT, ("qint8", "qint8", "qint8"), "QS8", reason=_ONE_SCALE, tried=False),
    SmeRule(Form.CONVOLUTION, ("fp32", "fp32", "fp32"), "PF32", _F32),
    SmeRule(Form.CONVOLUTION, ("fp32", "fp16", "fp32"), "PF32", _F32, tried=False),
    SmeRule(Form.CONVOLUTION, ("fp16", "fp16", "fp16"), "PF16", _F16, tried=False),
    SmeRule(Form.CONVOLUTION, ("fp16", "fp32", "fp16"), "PF16", _F16),
    SmeRule(Form.CONVOLUTION, ("qint8", "qcint8 qint8", "qint8"), "PQS8, QS8, QC8W", _QS8),
    SmeRule(Form.CONVOLUTION, ("quint8", "*", "quint8"), "QU8", reason=_NO_PACKING, tried=False),
    SmeRule(
        Form.CONVOLUTION,
        ("qdint8", "qcint8", "*"),
        "QD8, QC8W",
        reason="for data quantised at run time, the library packs only matrix products",
        advice="quantise convolutions statically",
    ),
    SmeRule(
        Form.DEPTHWISE,
        ("*", "*", "*"),
        "",
        reason="depthwise convolutions are not matrix products: the library has only vector kernels for them",
        source="src/subgraph/depthwise-convolution-2d.c",
    ),
    SmeRule(Form.DECONVOLUTION, ("qint8", "qcint8 qint8", "qint8"), "PQS8, QS8, QC8W", _QS8),
    SmeRule(
        Form.DECONVOLUTION,
        ("fp32 fp16 qdint8", "*", "*"),
        "",
        reason="for transposed convolutions, the library packs only static int8",
        advice="quantise it statically, or use upsampling and a convolution",
    ),
    SmeRule(
        Form.ATTENTION,
        ("*", "*", "*"),
        "",
        reason="how the library splits this node was not tested",
        source="backends/xnnpack/runtime/XNNCompiler.cpp of ExecuTorch",
        tried=False,
        known=False,
    ),
)


_FORMS = {
    "FullyConnected": Form.PRODUCT,
    "BatchMatrixMultiply": Form.BATCH_PRODUCT,
    "Conv2d": Form.CONVOLUTION,
    "DepthwiseConv2d": Form.DEPTHWISE,
    "ConvTranspose2d": Form.DECONVOLUTION,
    "ScaledDotProductAttention": Form.ATTENTION,
}
_FACTORS = 2


class GraphEligibility:
    """Eligibility of the nodes of one delegate."""

    def __init__(self, graph: XnnGraph) -> None:
        self._nodes = graph.nodes
        self._values = graph.by_id()

    def of(self, number: int) -> Eligibility | None:
        """Return whether a node can run with SME or SME2; None for nodes that do not multiply and accumulate."""
        return eligibility(self._nodes[number], self._values)


def eligibility(node: XnnNode, values: Mapping[int, XnnValue]) -> Eligibility | None:
    """Return whether a node can run with SME or SME2; None for nodes that do not multiply and accumulate."""
    form = form_of(node)
    if form is None:
        return None
    names = (*node.inputs[:_FACTORS], *node.outputs[:1])
    types = tuple(values[name].dtype.name for name in names if name in values)
    if form is Form.CONVOLUTION and _single_channels(node):
        return _unknown_eligibility(form, types, "unknown whether the library handles it as depthwise")
    sme_rule = next((rule for rule in RULES if rule.form is form and _has_types(rule, types)), None)
    if sme_rule is None:
        return _unknown_eligibility(form, types, "no known rule for these number types")
    name = sme_rule.types_name or " x ".join(types[:_FACTORS])
    return Eligibility(sme_rule.verdict, form, name, sme_rule.reason, sme_rule.source, sme_rule.tried, sme_rule.advice)


def form_of(node: XnnNode) -> Form | None:
    """Return the form that XNNPACK gives a node; None for nodes that do not multiply and accumulate.

    A convolution with a window of one element, without stride, padding or groups, is run as a matrix product.
    Source: ``src/subgraph/convolution-2d.c``, xnn_define_convolution_2d.
    """
    return Form.PRODUCT if is_matrix_product(node) else _FORMS.get(node.kind)


def _single_channels(node: XnnNode) -> bool:
    options = node.attributes
    return isinstance(options, Convolution) and options.group_input_channels == options.group_output_channels == 1


def _has_types(rule: SmeRule, types: tuple[str, ...]) -> bool:
    if set(rule.types) == {"*"}:
        return True
    pairs = zip(rule.types, types, strict=False)
    return len(types) == len(rule.types) and all(allowed == "*" or name in allowed.split() for allowed, name in pairs)


def _unknown_eligibility(form: Form, types: tuple[str, ...], reason: str) -> Eligibility:
    return Eligibility(SmeSupport.UNKNOWN, form, " x ".join(types[:_FACTORS]), reason, None, tried=False)
