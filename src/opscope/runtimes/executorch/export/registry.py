"""The registered models. Listing them loads no torch; a model's module is imported when the model is built."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from opscope.core.errors import NotFoundError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.runtimes.executorch.export.eager import EagerModel


class RegisteredModel(NamedTuple):
    """A registered model."""

    name: str  # on the command line
    summary: str  # what it is, for the list
    builder: str  # `module:function` that returns an EagerModel


def _own(name: str, summary: str, module: str, function: str = "build") -> RegisteredModel:
    return RegisteredModel(name, summary, f"opscope.runtimes.executorch.export.models.{module}:{function}")


MODELS: tuple[RegisteredModel, ...] = (
    _own(
        "toy_cnn",
        "two convolutions, a layer norm that stays portable, layout changes; under a millisecond",
        "toy_cnn",
    ),
    _own(
        "mobilenet_v3_small",
        "MobileNetV3-Small (Howard et al. 2019), 224x224, random weights: depthwise and 1x1 convolutions",
        "mobilenet_v3",
    ),
    _own(
        "vit_tiny",
        "ViT-Tiny (Touvron et al. 2021), 224x224, random weights: attention, layer norms, matrix products",
        "vit",
    ),
    _own(
        "bert_mini",
        "BERT-Mini (Turc et al. 2019), 128 tokens, random weights: a text transformer, embeddings and products",
        "bert",
    ),
    _own(
        "segmenter",
        "SqueezeSAM-like encoder-decoder for image segmentation, 256x256, random weights: channel norms, transposes, "
        "attention at the lowest resolution",
        "segmenter",
    ),
    _own(
        "style_transfer",
        "fast style transfer (Johnson et al. 2016), 256x256, half the channels, random weights: convolutions, "
        "instance norms, reflection padding",
        "style_transfer",
    ),
    _own(
        "style_transfer_delegated",
        "the same network with padding and norms rewritten so they are delegated",
        "style_transfer",
        "build_delegated",
    ),
    _own(
        "decoder_tiny",
        "a small decoder with methods prefill (16 tokens) and decode (1 token), random weights, keys and values as "
        "inputs and outputs",
        "decoder",
    ),
    _own(
        "llama_tiny",
        "ExecuTorch's Llama with its attention and a 1,024-place cache, random weights: prefill (128 tokens) and "
        "decode at positions 10 and 1,000",
        "llama",
    ),
    _own(
        "edgetam_image_encoder",
        "EdgeTAM's image encoder, 1x3x1024x1024: needs upstream's code, and upstream's checkpoint for real weights",
        "edgetam",
    ),
    _own(
        "edgetam_standin",
        "a stand-in for EdgeTAM's image encoder: same interface and shapes, smaller trunk, random weights",
        "edgetam_standin",
    ),
)


def known(name: str) -> bool:
    """Whether a model of that name is registered."""
    return any(candidate.name == name for candidate in MODELS)


def entry(name: str) -> RegisteredModel:
    """The registered model of that name."""
    for candidate in MODELS:
        if candidate.name == name:
            return candidate
    hint = f"{did_you_mean(name, (m.name for m in MODELS))}; or give the path of a .pte; `opscope models` lists them"
    raise NotFoundError(f"no model {name!r}", hint=hint)


def builder(name: str) -> Callable[[], EagerModel]:
    """What builds a registered model; its module is imported."""
    module, _, function = entry(name).builder.partition(":")
    return cast("Callable[[], EagerModel]", getattr(import_module(module), function))


def build(name: str) -> EagerModel:
    """Build a registered model."""
    return builder(name)()
