"""An adapter for EdgeTAM's image encoder: upstream's code is not part of this project.

Upstream (https://github.com/facebookresearch/EdgeTAM, Apache-2.0) has to be cloned by the user, who keeps its
licence and notices; ``OPSCOPE_EDGETAM`` names the clone. Its checkpoint has the weights; the error without one
names the steps to get it.

Source of the interface, read in upstream's ``sam2/modeling/backbones/image_encoder.py`` and ``sam2/configs``:
the encoder takes an image (1, 3, 1024, 1024) and gives a dictionary with ``backbone_fpn``, features at a 4th,
an 8th and a 16th of the size, ``vision_pos_enc``, position encodings of the same shapes that depend on nothing
else, and ``vision_features``, the last of the features.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opscope.core.errors import MissingDependencyError, NotFoundError
from opscope.runtimes.executorch.export.eager import EagerModel
from opscope.runtimes.executorch.export.patterns import recorded_values

CLONE, CHECKPOINT = "OPSCOPE_EDGETAM", "OPSCOPE_EDGETAM_CHECKPOINT"
SIZE = 1024
_SEED = 0
_CONFIG, _WEIGHTS = Path("sam2/configs/edgetam.yaml"), Path("checkpoints/edgetam.pt")
_PREFIX = "image_encoder."
_STEPS = "see docs/how-to/profile-your-own-model.md for the steps"
_NEEDED = {"hydra": "hydra-core", "omegaconf": "omegaconf", "timm": "timm"}


class EdgeTamImageEncoder(nn.Module):
    """The encoder with plain tensors in and out.

    - The dictionary becomes a tuple of the features, largest first: exported programs have an order of outputs.
    - The position encodings become constants, and no outputs, since a caller can keep them. Upstream computes them
      when a size is asked for the first time; an export writes all of that into the program, as portable operators on
      integers (in the stand-in 61 of them instead of 1).

    ``encoder``: upstream's, or one with its interface; ``size``: height and width of the image.
    """

    def __init__(self, encoder: Any, size: int = SIZE) -> None:  # noqa: ANN401 - upstream's class
        super().__init__()
        image = torch.zeros(1, 3, size, size)
        encoder.neck.position_encoding = recorded_values(encoder.neck.position_encoding, lambda: encoder(image))
        self.encoder = encoder

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Features of an image at a 4th, an 8th and a 16th of its height and width."""
        return tuple(self.encoder(image)["backbone_fpn"])


def adapted(encoder: Any, size: int = SIZE) -> EagerModel:  # noqa: ANN401 - likewise
    """Return the model of an encoder, and an image of random numbers."""
    torch.manual_seed(_SEED)
    return EagerModel.of(EdgeTamImageEncoder(encoder.eval(), size).eval(), (torch.randn(1, 3, size, size),))


def build() -> EagerModel:
    """Return upstream's encoder with the weights of its checkpoint."""
    clone = _find_clone()
    checkpoint = Path(os.environ.get(CHECKPOINT) or clone / _WEIGHTS)
    if not checkpoint.is_file():
        hint = f"the upstream repository has it; set {CHECKPOINT} for another path. {_STEPS}"
        raise NotFoundError("EdgeTAM's checkpoint is missing", where=checkpoint, hint=hint)
    encoder = _create_encoder(clone)
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    encoder.load_state_dict({k.removeprefix(_PREFIX): v for k, v in weights.items() if k.startswith(_PREFIX)})
    return adapted(encoder)


def _find_clone() -> Path:
    path = os.environ.get(CLONE)
    if not path:
        hint = f"clone it (see its licence) and set {CLONE} to the directory; {_STEPS}. edgetam_standin needs nothing"
        raise NotFoundError("this model needs EdgeTAM's code, which opscope does not include", where=CLONE, hint=hint)
    clone = Path(path)
    if not (clone / _CONFIG).is_file():
        hint = f"{CLONE} must be the directory of the upstream repository; {_STEPS}"
        raise NotFoundError(f"no EdgeTAM clone found: {_CONFIG} is missing", where=clone, hint=hint)
    return clone


def _create_encoder(clone: Path) -> Any:  # noqa: ANN401 - upstream's class
    """Return the encoder as upstream's configuration describes it, without weights."""
    for module, package in _NEEDED.items():
        if find_spec(module) is None:
            hint = f"pip install {package}; timm needs a torchvision for this torch. {_STEPS}"
            raise MissingDependencyError(f"EdgeTAM's code needs {package}", where=clone, hint=hint)
    sys.path.insert(0, str(clone))
    backbone: Any = importlib.import_module("sam2.modeling.backbones.timm")
    create = backbone.create_model
    # Upstream asks timm to download weights that the checkpoint then replaces.
    backbone.create_model = lambda *args, **options: create(*args, **{**options, "pretrained": False})
    config = importlib.import_module("omegaconf").OmegaConf.load(clone / _CONFIG)
    return importlib.import_module("hydra.utils").instantiate(config.model.image_encoder, _recursive_=True)
