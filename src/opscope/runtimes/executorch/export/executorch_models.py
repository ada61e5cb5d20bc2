"""Models of ExecuTorch's own example registry (``executorch.examples.models``), which its package carries.

Which of them build was tried with executorch 1.5.1 and torch 2.13 on a machine without network; the others download
weights or need a package that is named here.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from opscope.core.errors import MissingDependencyError, NotFoundError, did_you_mean
from opscope.core.install import install_command
from opscope.runtimes.executorch.export.foreign import built

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

BUILT_HERE = (
    "add", "add_mul", "conv1d", "deep_autoencoder", "ds_cnn", "linear", "llama", "llama2", "lstm", "mobilenet_v1_025",
    "mul", "qwen3", "resnet8", "sdpa", "smolvlm", "softmax",
)  # fmt: skip
"""Models that build with the executorch extra alone; the llama-like ones have 207 million random weights."""

NEEDS: dict[str, tuple[str, ...]] = {
    "torchvision": ("dl3", "mv2", "mv2_untrained", "mv3", "vit", "ic3", "resnet18", "resnet50"),
    "torchaudio": ("emformer_transcribe", "emformer_predict", "emformer_join", "w2l"),
    "timm": ("ic4", "deit_tiny"),
    "torchsr": ("edsr",),
    "torchtune": ("qwen2_5_1_5b", "phi_4_mini", "smollm2"),
    "ultralytics": ("yolo26",),
    "a download": ("mobilebert", "efficient_sam", "whisper"),
}
"""Models that need more. A package tied to another torch release cannot be used with torch 2.13."""


def executorch_model(name: str) -> EagerModel:
    """Build a model of ExecuTorch's registry."""
    try:
        registry = import_module("executorch.examples.models").MODEL_NAME_TO_MODEL
    except (ModuleNotFoundError, AttributeError) as error:
        problem = "the installed executorch has no registry of example models"
        raise MissingDependencyError(problem, hint=install_command("executorch")) from error
    if name not in registry:
        hint = f"{did_you_mean(name, registry)}; see executorch.examples.models"
        raise NotFoundError(f"ExecuTorch's registry has no model {name!r}", hint=hint)
    module, class_name = registry[name]
    # Weights are never downloaded behind the user's back; a model that wants them says what is missing.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def builder() -> object:
        return getattr(import_module(f"executorch.examples.models.{module}"), class_name)()

    return built(builder, f"executorch:{name}")
