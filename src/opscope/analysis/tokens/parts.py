"""Which part of a language model an operator belongs to, by the path of its module and by what it computes.

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
    """Parts of a language model."""

    EMBEDDING = "embedding"
    """Looking up the vectors of tokens."""
    NORMS = "norms"
    PROJECTIONS = "projections"
    """Products that make queries, keys and values, and the one behind attention."""
    ATTENTION = "attention"
    """Positions, scores, their softmax and what they sum up."""
    CACHE = "cache"
    """Writing keys and values, and moving those of earlier tokens."""
    FEED_FORWARD = "feed-forward"
    HEAD = "head"
    """Scores of all words."""
    COPIES = "copies"
    """Moving and laying out data that the parts pass on."""
    OTHER = "other"
    """Operators of which neither path nor kind tells the part."""
    FRAMEWORK = "framework"
    """The runtime's own time, which no operator claims."""


class Place(NamedTuple):
    """Where an operator belongs."""

    layer: int | None  # number of the layer; None outside of all
    part: TokenPart


_LAYER = re.compile(r"(?:^|[./_])(?:layers?|blocks?|h)[._](\d{1,4})(?=[./_]|$)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|[./])(\d{1,4})(?=[./]|$)")
"""A path that leaves out what holds the layers: ``module.3.atten_func``."""
_FINAL = re.compile(r"final_?(?:layer_?)?norm", re.IGNORECASE)
"""ONNX Runtime's builder numbers the norm behind the last layer as one more."""
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
    """Where an operator belongs; what it does with a cache says more than its path."""
    path = operator.module or ""
    match = _LAYER.search(path) or _NUMBERED.search(path) or _CACHE_LAYER.search(path)
    layer = int(match.group(1)) if match and not _FINAL.search(path) else None
    if operator.kind == "framework":
        return Place(None, TokenPart.FRAMEWORK)
    if (cache is not None and not cache.reads) or _CACHE_NAMES.search(operator.name):
        return Place(layer, TokenPart.CACHE)
    return Place(layer, _part(operator, path, inside=match is not None))


def _part(operator: Operator, path: str, *, inside: bool) -> TokenPart:
    steps = [step for step in re.split(r"[./]", path) if step and not step.isdecimal()]
    named = next((part for step in reversed(steps) if (part := _named(step, inside=inside)) is not None), None)
    product = operator.kind in _PRODUCTS
    if operator.category is Category.DATA_MOVEMENT and not (named is TokenPart.EMBEDDING and operator.kind == "gather"):
        return TokenPart.COPIES
    if named is TokenPart.ATTENTION:
        return TokenPart.PROJECTIONS if product and _projects(operator, steps) else named
    if named is TokenPart.PROJECTIONS and not product:
        return TokenPart.ATTENTION
    if named is not None:
        return named
    return TokenPart.ATTENTION if operator.kind in {"attention", "softmax"} and inside else TokenPart.OTHER


def _projects(operator: Operator, steps: list[str]) -> bool:
    """Whether a product of attention is one with weights; scores are products of two computed tensors."""
    return operator.kind == "linear" or bool(steps and _PROJECTION.match(steps[-1])) or bool(operator.weight_bytes)


def _named(step: str, *, inside: bool) -> TokenPart | None:
    """The part that one step of a path names; the innermost that names one counts."""
    by_name = (
        (_NORM, TokenPart.NORMS),
        (_ROTARY, TokenPart.ATTENTION),
        (_ATTENTION, TokenPart.ATTENTION),
        (_FEED_FORWARD, TokenPart.FEED_FORWARD),
        (_PROJECTION, TokenPart.PROJECTIONS) if inside else (_HEAD, TokenPart.HEAD),
        (_EMBEDDING, TokenPart.EMBEDDING),
    )
    return next((part for pattern, part in by_name if pattern.search(step)), None)
