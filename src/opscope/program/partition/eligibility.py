"""Whether XNNPACK can run an operator with the SME or SME2 kernels of KleidiAI, by number types and shape.

Eligible is not used: the CPU must have the extension, and the library must be built with it. The rules:
:mod:`opscope.program.partition.sme_rules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.partition.sme_rules import RULES, SmeRule
from opscope.program.partition.sme_support import Eligibility, Form, SmeSupport
from opscope.program.xnnpack.graph import Convolution
from opscope.program.xnnpack.subgraph import is_matrix_product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.program.xnnpack.graph import XnnGraph, XnnNode, XnnValue


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
    """Verdicts on the nodes of one delegate.

    Args:
        graph: of the delegate.
    """

    def __init__(self, graph: XnnGraph) -> None:
        self._nodes = graph.nodes
        self._values = graph.by_id()

    def of(self, number: int) -> Eligibility | None:
        """Whether a node can run with SME or SME2; None for nodes that do not multiply and accumulate."""
        return eligibility(self._nodes[number], self._values)


def eligibility(node: XnnNode, values: Mapping[int, XnnValue]) -> Eligibility | None:
    """Whether a node can run with SME or SME2; None for nodes that do not multiply and accumulate."""
    form = form_of(node)
    if form is None:
        return None
    names = (*node.inputs[:_FACTORS], *node.outputs[:1])
    types = tuple(values[name].dtype.name for name in names if name in values)
    if form is Form.CONVOLUTION and _single_channels(node):
        return _open(form, types, "unknown whether the library handles it as depthwise")
    found = next((rule for rule in RULES if rule.form is form and _fits(rule, types)), None)
    if found is None:
        return _open(form, types, "no known rule for these number types")
    name = found.types_name or " x ".join(types[:_FACTORS])
    return Eligibility(found.verdict, form, name, found.reason, found.source, found.tried, found.advice)


def form_of(node: XnnNode) -> Form | None:
    """What XNNPACK makes of a node; None for nodes that do not multiply and accumulate.

    A convolution with a window of one element, without stride, padding or groups, is run as a matrix product. Source:
    ``src/subgraph/convolution-2d.c``, xnn_define_convolution_2d.
    """
    return Form.PRODUCT if is_matrix_product(node) else _FORMS.get(node.kind)


def _single_channels(node: XnnNode) -> bool:
    options = node.attributes
    return isinstance(options, Convolution) and options.group_input_channels == options.group_output_channels == 1


def _fits(rule: SmeRule, types: tuple[str, ...]) -> bool:
    if set(rule.types) == {"*"}:
        return True
    pairs = zip(rule.types, types, strict=False)
    return len(types) == len(rule.types) and all(allowed == "*" or name in allowed.split() for allowed, name in pairs)


def _open(form: Form, types: tuple[str, ...], reason: str) -> Eligibility:
    return Eligibility(SmeSupport.UNKNOWN, form, " x ".join(types[:_FACTORS]), reason, None, tried=False)
