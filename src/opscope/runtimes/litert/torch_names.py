"""Recover modules of PyTorch from the names that litert-torch gives tensors.

A node is named after its modules, from the model on, each ``package.Class_attribute`` but the first, which is
the model itself: ``net.Net/torch.nn.modules.container.Sequential_features/torch.nn.modules.conv.Conv2d_0;`` is
``features.0`` (``litert_torch/backend/debuginfo/_build.py``, ``_get_hierarchy``, of 0.10.0). Nodes that became
one operator stand side by side. If a name has several underscores, the attribute begins at the first one that
no capital follows: classes are written in capitals, attributes are not.
"""

from __future__ import annotations

import re

from opscope.program.model import NamedLayer

_TYPE = r"[A-Za-z_][\w<>]*(?:\.[\w<>]+)*"
_MODEL = re.compile(rf"{_TYPE}\.\w+")
_STEP = re.compile(rf"(?P<type>{_TYPE}\._*[A-Za-z][A-Za-z0-9]*(?:_[A-Z][A-Za-z0-9]*)*)_(?P<attribute>\w+)")
_PRODUCTS = {
    "CONV_2D": "Conv",
    "DEPTHWISE_CONV_2D": "Conv",
    "CONV_3D": "Conv",
    "TRANSPOSE_CONV": "ConvTranspose",
    "FULLY_CONNECTED": "Linear",
}
"""Operators that absorb the operators after them, and the prefixes of the classes that they implement."""


def torch_layer(operator: str, name: str) -> NamedLayer | None:
    """Return the module of an operator, by the name of its output; None if no converter from PyTorch gave that name.

    A matrix product is named last, after the normalisation and the activation that it absorbed; other operators
    first.
    """
    nodes = [layer for part in name.split(";") if (layer := _parse_module(part)) is not None]
    if not nodes:
        return None
    first = _PRODUCTS.get(operator)
    if first is None:
        return nodes[0]
    layers = [layer_ for layer_ in nodes if layer_.types and layer_.types[-1].rpartition(".")[2].startswith(first)]
    return (layers or nodes)[-1]


def _parse_module(part: str) -> NamedLayer | None:
    model, *steps = part.split("/")
    step_matches = [_STEP.fullmatch(step) for step in steps]
    if not _MODEL.fullmatch(model) or None in step_matches:
        return None
    matches = [match for match in step_matches if match]
    return NamedLayer(".".join(match["attribute"] for match in matches), tuple(match["type"] for match in matches))
