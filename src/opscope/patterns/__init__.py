"""Modules and functions for your own models, of operators that XNNPACK delegates; docs/recipes shows when they help.

Importing this package loads no torch; using a name of it does. The operators were counted, and the outputs compared, in
programs of executorch 1.5.1.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opscope.patterns.activations import ELU, Mish, Softplus, replace_activations, softplus
    from opscope.patterns.attention import MASKED, additive_mask, masked_attention
    from opscope.patterns.normalisation import LayerNorm, replace_layer_norms
    from opscope.patterns.pooling import spatial_mean
    from opscope.patterns.replacing import replace_modules

__all__ = [
    "ELU",
    "MASKED",
    "LayerNorm",
    "Mish",
    "Softplus",
    "additive_mask",
    "masked_attention",
    "replace_activations",
    "replace_layer_norms",
    "replace_modules",
    "softplus",
    "spatial_mean",
]

_MODULES = {
    "opscope.patterns.activations": ("ELU", "Mish", "Softplus", "replace_activations", "softplus"),
    "opscope.patterns.attention": ("MASKED", "additive_mask", "masked_attention"),
    "opscope.patterns.normalisation": ("LayerNorm", "replace_layer_norms"),
    "opscope.patterns.pooling": ("spatial_mean",),
    "opscope.patterns.replacing": ("replace_modules",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute may be anything
        if name not in _HOME:
            raise AttributeError(f"module 'opscope.patterns' has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
