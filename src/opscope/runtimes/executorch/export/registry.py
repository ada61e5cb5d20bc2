"""The registered models, and those of the user's own directory.

Listing loads no torch; a model's module is imported when the model is built.
"""

from __future__ import annotations

import ast
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from opscope.core.errors import BundleError, NotFoundError, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opscope.runtimes.executorch.export.eager import EagerModel


class RegisteredModel(NamedTuple):
    """A registered model."""

    name: str  # on the command line
    summary: str  # what it is, for the list
    builder: str  # `module:function` that returns an EagerModel


def _describe_model(name: str, summary: str, module: str, function: str = "build") -> RegisteredModel:
    return RegisteredModel(name, summary, f"opscope.runtimes.executorch.export.models.{module}:{function}")


MODELS: tuple[RegisteredModel, ...] = (
    _describe_model(
        "toy_cnn",
        "two convolutions, a layer norm that stays portable, layout changes; under a millisecond",
        "toy_cnn",
    ),
    _describe_model(
        "mobilenet_v3_small",
        "MobileNetV3-Small (Howard et al. 2019), 224x224, random weights: depthwise and 1x1 convolutions",
        "mobilenet_v3",
    ),
    _describe_model(
        "vit_tiny",
        "ViT-Tiny (Touvron et al. 2021), 224x224, random weights: attention, layer norms, matrix products",
        "vit",
    ),
    _describe_model(
        "bert_mini",
        "BERT-Mini (Turc et al. 2019), 128 tokens, random weights: a text transformer, embeddings and products",
        "bert",
    ),
    _describe_model(
        "segmenter",
        "SqueezeSAM-like encoder-decoder for image segmentation, 256x256, random weights: channel norms, transposes, "
        "attention at the lowest resolution",
        "segmenter",
    ),
    _describe_model(
        "style_transfer",
        "fast style transfer (Johnson et al. 2016), 256x256, half the channels, random weights: convolutions, "
        "instance norms, reflection padding",
        "style_transfer",
    ),
    _describe_model(
        "style_transfer_delegated",
        "the same network with padding and norms rewritten so they are delegated",
        "style_transfer",
        "build_delegated",
    ),
    _describe_model(
        "decoder_tiny",
        "a small decoder with methods prefill (16 tokens) and decode (1 token), random weights, keys and values as "
        "inputs and outputs",
        "decoder",
    ),
    _describe_model(
        "llama_tiny",
        "ExecuTorch's Llama with its attention and a 1,024-place cache, random weights: prefill (128 tokens) and "
        "decode at positions 10 and 1,000",
        "llama",
    ),
    _describe_model(
        "edgetam_image_encoder",
        "EdgeTAM's image encoder, 1x3x1024x1024: needs upstream's code, and upstream's checkpoint for real weights",
        "edgetam",
    ),
    _describe_model(
        "edgetam_standin",
        "a stand-in for EdgeTAM's image encoder: same interface and shapes, smaller trunk, random weights",
        "edgetam_standin",
    ),
)


def known(name: str) -> bool:
    """Return whether a model of that name is registered."""
    return any(candidate.name == name for candidate in MODELS)


def entry(name: str) -> RegisteredModel:
    """Return the registered model of that name. Raises NotFoundError without one."""
    for candidate in MODELS:
        if candidate.name == name:
            return candidate
    hint = f"{did_you_mean(name, (m.name for m in MODELS))}; or give the path of a .pte; `opscope models` lists them"
    raise NotFoundError(f"no model {name!r}", hint=hint)


def builder(name: str) -> Callable[[], EagerModel]:
    """Return the function that builds a registered model; imports its module."""
    module, _, function = entry(name).builder.partition(":")
    return cast("Callable[[], EagerModel]", getattr(import_module(module), function))


def build(name: str) -> EagerModel:
    """Build a registered model."""
    return builder(name)()


BUILD = "build"
"""Name of the function that gives the model in a file of the directory; it takes no arguments."""
TEMPLATE = '''"""{title}: say in one line what it is; `opscope models` shows this line."""

import torch
from torch import nn

from opscope.runtimes.executorch.export.eager import EagerModel, Quantisation


class Network(nn.Module):
    """Your network, or a wrapper that gives it plain tensors in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.head = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image * scale).mean((2, 3)))


def build() -> EagerModel:
    """Called once, by `opscope export {name}` and `opscope profile {name}`."""
    torch.manual_seed(0)
    network = Network().eval()
    # network.load_state_dict(torch.load("checkpoint.pt", weights_only=True))
    return EagerModel.of(
        network,
        inputs=(torch.randn(1, 3, 64, 64),),
        kwargs={{"scale": torch.ones(1)}},
        # A size that differs between calls: {{"image": {{2: torch.export.Dim("height", max=128)}}, "scale": None}}
        dynamic_shapes=None,
        quantisation=Quantisation(
            # For --dtype int8: real inputs, one tuple of positional inputs each. None: made like the examples.
            calibration=None,
            per_channel=True,
            # Submodules that stay in fp32, by name: ("head",)
            skip=(),
        ),
    )
'''


def model_names(directory: Path) -> list[str]:
    """Return the names of a directory's models, files that define ``build``; none when there is no such directory."""
    files = sorted(directory.glob("*.py")) if directory.is_dir() else []
    return [file.stem for file in files if not file.stem.startswith("_") and _defines_model(file)]


def _defines_model(file: Path) -> bool:
    """Return whether a file is a model, and not code that models share; one that cannot be read is listed, too."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return True
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return BUILD in imported | defined | assigned


def model_file(directory: Path, name: str) -> Path | None:
    """Return the file of a model in a directory; None if there is none."""
    file = directory / f"{name}.py"
    is_valid = bool(name) and file.name == f"{name}.py" and not name.startswith("_")
    return file if is_valid and file.is_file() else None


def user_models(directory: Path) -> list[tuple[str, str]]:
    """Return names and summaries of the models of a directory; their files are read and not run."""
    return [(name, _read_summary(directory / f"{name}.py")) for name in model_names(directory)]


def write_model(directory: Path, name: str) -> Path:
    """Write a template for a new model and return its path. Raises BundleError if the file exists."""
    from opscope.core.writing import write_new

    if not name.isidentifier() or name.startswith("_"):
        hint = "use letters, digits and _, starting with a letter; for example my_model"
        raise UsageError(f"{name!r} is not a valid model name", where="NAME", hint=hint)
    if known(name):
        raise UsageError(f"{name!r} is a registered model", where="NAME", hint="choose another name")
    file = directory / f"{name}.py"
    if not write_new(file, TEMPLATE.format(name=name, title=name.replace("_", " ")).encode()):
        raise BundleError("the file exists and is left unchanged", where=file, hint="edit it, or choose another name")
    return file


def _read_summary(file: Path) -> str:
    try:
        docstring = ast.get_docstring(ast.parse(file.read_bytes()))
    except (SyntaxError, ValueError, OSError):
        return "the file cannot be read as Python"
    return docstring.strip().splitlines()[0] if docstring else "no docstring"
