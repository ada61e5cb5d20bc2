"""Parts of a language model that operators belong to, by their paths, kinds and use of the cache.

Paths are those of the exporters: ``layers.3.attention.wq`` of ExecuTorch's Llama, ``model.layers.3.attn.q_proj`` of
ONNX Runtime's builder, ``transformer_blocks.3.atten_func.qkv_projection`` of LiteRT's generative layers.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.operators.kinds import Category

if TYPE_CHECKING:
    from opscope.analysis.operators.operators import Operator
    from opscope.program.cost.cache import CacheUse


class TokenPart(str, enum.Enum):
    """Part of a language model."""

    EMBEDDING = "embedding"
    """Look-up of the vectors of tokens."""
    NORMS = "norms"
    PROJECTIONS = "projections"
    """Products that make queries, keys and values, and the product after attention."""
    ATTENTION = "attention"
    """Positions, scores, their softmax and the weighted sum."""
    CACHE = "cache"
    """Writes of keys and values, and moves of those of earlier tokens."""
    FEED_FORWARD = "feed-forward"
    HEAD = "head"
    """Scores of all words."""
    COPIES = "copies"
    """Moves and layout changes of data that the parts pass on."""
    OTHER = "other"
    """Operators whose part neither path nor kind shows."""
    FRAMEWORK = "framework"
    """Time of the runtime itself, which no operator claims."""


class Place(NamedTuple):
    """Layer and part that an operator belongs to."""

    layer: int | None  # number of the layer; None outside of all
    part: TokenPart


_LAYER = re.compile(r"(?:^|[./_])(?:layers?|blocks?|h)[._](\d{1,4})(?=[./_]|$)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|[./])(\d{1,4})(?=[./]|$)")
"""Pattern of a path that leaves out the container of the layers: ``module.3.atten_func``."""
_FINAL = re.compile(r"final_?(?:layer_?)?norm", re.IGNORECASE)
"""Pattern of the norm after the last layer, which ONNX Runtime's builder numbers as one more layer."""
_NORM = re.compile(r"norm|(?:^|_)ln(?:_|\d|$)", re.IGNORECASE)
_ROTARY = re.compile(r"rope|rotary", re.IGNORECASE)
_ATTENTION = re.compile(r"att(?:e?n)|sdpa", re.IGNORECASE)
_PROJECTION = re.compile(
    r"^(?:[qkvo]|w[qkvo]|qkv|query|key|value|out|output|dense|c_attn)(?:_?proj(?:ection)?)?$", re.IGNORECASE
)
_FEED_FORWARD = re.compile(r"mlp|ffn?$|^ffn?|feed_?forward|^w[123]$|(?:gate|up|down)_?proj", re.IGNORECASE)
_EMBEDDING = re.compile(r"embed|^wte$|^wpe$", re.IGNORECASE)
_HEAD = re.compile(r"head|logits|^output$", re.IGNORECASE)
_PRODUCTS = frozenset({"linear", "matmul"})
_CACHE_LAYER = re.compile(r"(?:kv_?cache_[kv]|past_key_values|present)[._](\d{1,4})(?=[._]|$)")
_CACHE_NAMES = re.compile(r"update_cache|DYNAMIC_UPDATE_SLICE|past|present|kv_?cache", re.IGNORECASE)


def place_of(operator: Operator, cache: CacheUse | None) -> Place:
    """Return the layer and part of an operator; its use of a cache decides before its path."""
    path = operator.module or ""
    match = _LAYER.search(path) or _NUMBERED.search(path) or _CACHE_LAYER.search(path)
    layer = int(match.group(1)) if match and not _FINAL.search(path) else None
    if operator.kind == "framework":
        return Place(None, TokenPart.FRAMEWORK)
    if (cache is not None and not cache.reads) or _CACHE_NAMES.search(operator.name):
        return Place(layer, TokenPart.CACHE)
    return Place(layer, _find_part(operator, path, in_layer=match is not None))


def _find_part(operator: Operator, path: str, *, in_layer: bool) -> TokenPart:
    steps = [step for step in re.split(r"[./]", path) if step and not step.isdecimal()]
    part_by_path = next(
        (part for step in reversed(steps) if (part := _part_of_step(step, in_layer=in_layer)) is not None), None
    )
    product = operator.kind in _PRODUCTS
    if operator.category is Category.DATA_MOVEMENT and not (
        part_by_path is TokenPart.EMBEDDING and operator.kind == "gather"
    ):
        return TokenPart.COPIES
    if part_by_path is TokenPart.ATTENTION:
        return TokenPart.PROJECTIONS if product and _is_projection(operator, steps) else part_by_path
    if part_by_path is TokenPart.PROJECTIONS and not product:
        return TokenPart.ATTENTION
    if part_by_path is not None:
        return part_by_path
    return TokenPart.ATTENTION if operator.kind in {"attention", "softmax"} and in_layer else TokenPart.OTHER


def _is_projection(operator: Operator, steps: list[str]) -> bool:
    """Return whether a product of attention multiplies by weights; scores multiply two computed tensors."""
    return operator.kind == "linear" or bool(steps and _PROJECTION.match(steps[-1])) or bool(operator.weight_bytes)


def _part_of_step(step: str, *, in_layer: bool) -> TokenPart | None:
    """Return the part that one step of a path names; None if it names none."""
    by_name = (
        (_NORM, TokenPart.NORMS),
        (_ROTARY, TokenPart.ATTENTION),
        (_ATTENTION, TokenPart.ATTENTION),
        (_FEED_FORWARD, TokenPart.FEED_FORWARD),
        (_PROJECTION, TokenPart.PROJECTIONS) if in_layer else (_HEAD, TokenPart.HEAD),
        (_EMBEDDING, TokenPart.EMBEDDING),
    )
    return next((part for pattern, part in by_name if pattern.search(step)), None)
