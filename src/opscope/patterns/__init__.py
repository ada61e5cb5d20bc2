"""Modules and functions for your own models, of operators that XNNPACK delegates.

Recipes show when they help: `opscope skills show layer-norm`. Importing this package loads no torch; using a name of it
does. The operators were counted, and the outputs compared, in programs of executorch 1.5.1.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opscope.patterns.attention import MultiheadAttention, replace_attentions
    from opscope.patterns.modules import (
        ELU,
        MASKED,
        InstanceNorm2d,
        LayerNorm,
        Mish,
        ReflectionPad2d,
        Softplus,
        additive_mask,
        masked_attention,
        replace_activations,
        replace_instance_norms,
        replace_layer_norms,
        replace_modules,
        replace_reflection_pads,
        softplus,
        spatial_mean,
    )
    from opscope.patterns.recurrent import Recurrent, replace_recurrent

__all__ = [
    "ELU",
    "MASKED",
    "InstanceNorm2d",
    "LayerNorm",
    "Mish",
    "MultiheadAttention",
    "Recurrent",
    "ReflectionPad2d",
    "Softplus",
    "additive_mask",
    "masked_attention",
    "replace_activations",
    "replace_attentions",
    "replace_instance_norms",
    "replace_layer_norms",
    "replace_modules",
    "replace_recurrent",
    "replace_reflection_pads",
    "softplus",
    "spatial_mean",
]
_ELSEWHERE = {
    **dict.fromkeys(("MultiheadAttention", "replace_attentions"), "attention"),
    **dict.fromkeys(("Recurrent", "replace_recurrent"), "recurrent"),
}

if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute may be anything
        if name not in __all__:
            raise AttributeError(f"module 'opscope.patterns' has no attribute {name!r}")
        return getattr(import_module(f"opscope.patterns.{_ELSEWHERE.get(name, 'modules')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
