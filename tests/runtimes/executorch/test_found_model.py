"""Which model a file holds that is named without a callable, and what is to be written where it does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import NotFoundError, UsageError
from opscope.runtimes.executorch.export.sources import load

pytestmark = [pytest.mark.runtime, pytest.mark.filterwarnings("ignore")]

HEAD = "import torch\nfrom torch import nn\n"
NET = """
class Net(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.layer = nn.Linear(3, width)

    def forward(self, x):
        return self.layer(x)
"""
BLOCK = NET.replace("Net", "Block").replace("width=5", "width")
OTHER = NET.replace("Net", "Other")
INPUTS = "example_inputs = (torch.randn(2, 3),)\n"


@pytest.mark.parametrize(
    ("text", "width"),
    [
        (f"{NET}\ndef build():\n    return Net(7), (torch.randn(2, 3),)\n", 7),
        (f"{NET}\nmodel = Net(8)\n{INPUTS}", 8),
        (f"{NET}\nmodel = Net(8)\nexample_inputs = torch.randn(2, 3)\n", 8),
        (f"{NET}\nmodel = lambda: Net(9)\ndef example_inputs():\n    return torch.randn(2, 3)\n", 9),
        (f"{NET}{INPUTS}", 5),
        (f"{BLOCK}{NET}{INPUTS}", 5),
        (f"from torch.nn import ReLU\n{NET}{INPUTS}", 5),
    ],
    ids=[
        "build",
        "model",
        "one tensor",
        "functions",
        "one class",
        "a class with arguments next to it",
        "imported ones",
    ],
)
def test_the_model_of_a_file_is_found(tmp_path: Path, text: str, width: int) -> None:
    """First ``build``, then ``model``, then the one class that needs nothing; inputs stand beside it."""
    (tmp_path / "net.py").write_text(HEAD + text)
    method = load(str(tmp_path / "net.py")).methods["forward"]
    assert method.module(*method.inputs).shape == (2, width)


def test_inputs_beside_a_class_serve_one_that_is_named(tmp_path: Path) -> None:
    """Of several."""
    (tmp_path / "net.py").write_text(HEAD + NET + OTHER + INPUTS)
    assert type(load(f"{tmp_path / 'net.py'}:Other").methods["forward"].module).__name__ == "Other"


def test_several_classes_are_named_with_their_commands(tmp_path: Path) -> None:
    """No one is guessed."""
    file = tmp_path / "net.py"
    file.write_text(HEAD + NET + OTHER + INPUTS)
    with pytest.raises(UsageError, match="several classes could be the model: Net, Other") as raised:
        load(str(file))
    assert f"opscope export {file}:Net; opscope export {file}:Other" in (raised.value.hint or "")


def test_the_class_with_the_interface_of_example_models_is_the_model(tmp_path: Path) -> None:
    """As in the model.py of Arm's kit: beside the network, a class gives it with its inputs."""
    giver = (
        "class NetModel:\n"
        "    def get_eager_model(self): return Net(width=4)\n"
        "    def get_example_inputs(self): return (torch.randn(2, 3),)\n"
    )
    (tmp_path / "model.py").write_text(HEAD + NET + giver)
    method = load(str(tmp_path / "model.py")).methods["forward"]
    assert method.module.layer.out_features == 4
    assert [tuple(tensor.shape) for tensor in method.inputs] == [(2, 3)]


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        (NET, "Net has no example inputs", "write example_inputs = (torch.randn(1, 3),) next to it"),
        (NET.replace("self, x)", "self, x, mask)"), "Net has no", "one tensor per argument of forward (x, mask)"),
        (BLOCK, "no class can be built without arguments: Block", "add to it: model = Block(width=...) and"),
        ("x = 1\n", "no build, no model and no module class", "add to it: def build(): return module, (torch.randn("),
        ("model = None\n", "no build, no model and no module class", "def build()"),
    ],
)
def test_the_first_message_says_what_to_write(tmp_path: Path, text: str, problem: str, hint: str) -> None:
    """As code, with sizes that fit the first layer."""
    (tmp_path / "net.py").write_text(HEAD + text)
    with pytest.raises((UsageError, NotFoundError)) as raised:
        load(str(tmp_path / "net.py"))
    assert problem in raised.value.problem
    assert hint in (raised.value.hint or "")
