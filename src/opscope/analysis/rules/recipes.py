"""Pages of the documentation with code before and after a next step, and the operators that each is about."""

from __future__ import annotations

from opscope.program.partition.portable_reason import Cause

ACTIVATIONS = "docs/recipes/activations.md"
ATTENTION_MASKS = "docs/recipes/attention-masks.md"
CHANNELS_LAST_INPUTS = "docs/recipes/channels-last-inputs.md"
DYNAMIC_INT8 = "docs/recipes/dynamic-int8.md"
LAYER_NORM = "docs/recipes/layer-norm.md"
SPATIAL_MEAN = "docs/recipes/spatial-mean.md"
SPLIT_AND_CAT = "docs/recipes/split-and-cat.md"
PORTABLE = (ACTIVATIONS, LAYER_NORM, SPATIAL_MEAN, SPLIT_AND_CAT)
"""Those about operators that no delegate took."""

_BY_OPERATOR = {
    "elu.out": ACTIVATIONS,
    "log1p.out": ACTIVATIONS,
    "mean.out": SPATIAL_MEAN,
    "native_layer_norm.out": LAYER_NORM,
    "select_copy.int_out": SPLIT_AND_CAT,
    "split_copy.Tensor_out": SPLIT_AND_CAT,
    "split_with_sizes_copy.out": SPLIT_AND_CAT,
    "squeeze_copy.dims_out": SPLIT_AND_CAT,
    "unbind_copy.int_out": SPLIT_AND_CAT,
}


def recipe_of(operator: str, cause: Cause) -> str | None:
    """The page about an operator that no delegate took; None where there is none."""
    name = operator.removeprefix("native_call_").rpartition("::")[2]
    return _BY_OPERATOR.get(name) if cause in {Cause.NO_RULE, Cause.OPTION} else None
