"""The user's own directory of models: one file a model, each with a function ``build``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import BundleError, UsageError
from opscope.runtimes.executorch.export.registry import known

if TYPE_CHECKING:
    from pathlib import Path

BUILD = "build"
"""What a file of the directory defines, without arguments: it gives the model."""
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


class UserModel(NamedTuple):
    """A file in the user's directory: its name without suffix, and the first line of its docstring."""

    name: str
    summary: str


def model_names(directory: Path) -> list[str]:
    """Names of the models in a directory, files that define ``build``; none when there is no such directory."""
    files = sorted(directory.glob("*.py")) if directory.is_dir() else []
    return [file.stem for file in files if not file.stem.startswith("_") and _builds(file)]


def _builds(file: Path) -> bool:
    """Whether a file is a model, and not code that models share; one that cannot be read is listed with that."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return True
    named = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    given = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return BUILD in named | defined | given


def model_file(directory: Path, name: str) -> Path | None:
    """The file of a model in a directory; None when there is none."""
    file = directory / f"{name}.py"
    inside = bool(name) and file.name == f"{name}.py" and not name.startswith("_")
    return file if inside and file.is_file() else None


def user_models(directory: Path) -> list[UserModel]:
    """The models of a directory; their files are read and not run."""
    return [UserModel(name, _summary(directory / f"{name}.py")) for name in model_names(directory)]


def write_model(directory: Path, name: str) -> Path:
    """Write a file to begin with.

    Returns:
        The file.
    """
    from opscope.core.files import write_new

    if not name.isidentifier() or name.startswith("_"):
        hint = "use letters, digits and _, starting with a letter; for example my_model"
        raise UsageError(f"{name!r} is not a valid model name", where="NAME", hint=hint)
    if known(name):
        raise UsageError(f"{name!r} is a registered model", where="NAME", hint="choose another name")
    file = directory / f"{name}.py"
    if not write_new(file, TEMPLATE.format(name=name, title=name.replace("_", " ")).encode()):
        raise BundleError("the file exists and is left unchanged", where=file, hint="edit it, or choose another name")
    return file


def _summary(file: Path) -> str:
    try:
        docstring = ast.get_docstring(ast.parse(file.read_bytes()))
    except (SyntaxError, ValueError, OSError):
        return "the file cannot be read as Python"
    return docstring.strip().splitlines()[0] if docstring else "no docstring"
