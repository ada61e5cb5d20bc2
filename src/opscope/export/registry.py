"""The registered models. Listing them loads no torch; a model's module is imported when the model is built."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from opscope.errors import NotFoundError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable


class EagerModel(Protocol):
    """A PyTorch model with example inputs; both seeded, so that every build is the same."""

    module: Any
    inputs: tuple[Any, ...]


class Entry(NamedTuple):
    """A registered model.

    Attributes:
        name: on the command line.
        summary: what it is, for the list.
        builder: ``module:function`` that returns an EagerModel.
    """

    name: str
    summary: str
    builder: str


MODELS: tuple[Entry, ...] = (
    Entry(
        "toy_cnn",
        "two convolutions, a layer norm that stays portable, layout changes; under a millisecond",
        "opscope.export.models.toy_cnn:build",
    ),
    Entry(
        "mobilenet_v3_small",
        "MobileNetV3-Small (Howard et al. 2019), 224x224, random weights: depthwise and 1x1 convolutions",
        "opscope.export.models.mobilenet_v3:build",
    ),
    Entry(
        "vit_tiny",
        "ViT-Tiny (Touvron et al. 2021), 224x224, random weights: attention, layer norms, matrix products",
        "opscope.export.models.vit:build",
    ),
)


def entry(name: str) -> Entry:
    """The registered model of that name.

    Raises:
        NotFoundError: there is none; near names are listed.
    """
    for candidate in MODELS:
        if candidate.name == name:
            return candidate
    hint = f"{did_you_mean(name, (m.name for m in MODELS))}; or give the path of a .pte; `opscope models` lists them"
    raise NotFoundError(f"no model {name!r}", hint=hint)


def build(name: str) -> EagerModel:
    """Build a registered model.

    Raises:
        NotFoundError: there is none of that name.
    """
    module, _, function = entry(name).builder.partition(":")
    builder = cast("Callable[[], EagerModel]", getattr(import_module(module), function))
    return builder()
