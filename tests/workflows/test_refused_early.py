"""What can be known without running is refused while another run holds the machine, which is never waited for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from installed import needs_litert, needs_onnxruntime, needs_openvino
from opscope.api import profile
from opscope.core.errors import FeatureError, NotFoundError, OpscopeError, UsageError
from opscope.experiment.planned import Settings
from opscope.hosts.lock import DeviceLock
from opscope.hosts.shell import LocalShell

DATA = Path(__file__).parents[1] / "data"
DEMO = Path(__file__).parents[2] / "demo" / "mobilenet_v3_small_xnnpack_fp32.pte"
ONNX, OPENVINO, LITERT = DATA / "onnx" / "cnn.onnx", DATA / "openvino" / "cnn.xml", DATA / "litert" / "tiny_fp32.tflite"
MODULE = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, image): return image\n"


@pytest.fixture(autouse=True)
def _held_machine(own_lock: Path) -> Iterator[None]:
    """Another run holds the machine: who asks for it before the mistake is told gets a BusyError."""
    lock = DeviceLock(LocalShell())
    lock.take()
    yield
    lock.release()
    assert not own_lock.exists()


@pytest.mark.parametrize(
    ("model", "settings", "error", "words"),
    [
        (DEMO, {"input": ("nosuch=ones",)}, UsageError, "no input has the name 'nosuch'"),
        (DEMO, {"methods": ("nosuch",)}, UsageError, "no method 'nosuch'"),
        (DEMO, {"dim": {"height": 3}}, UsageError, "no input has a dynamic size 'height'"),
        (DEMO, {"inputs": "nosuch.npz"}, NotFoundError, "no such file"),
        (DEMO, {"ablate": ("avx9",)}, FeatureError, "unknown feature group 'avx9'"),
        (DEMO, {"threads": 900}, UsageError, "900 threads"),
        (Path("nosuch.pte"), {}, NotFoundError, "no such file"),
        (Path("mobilenet_v9"), {}, NotFoundError, "no model 'mobilenet_v9'"),
        pytest.param(
            ONNX, {"input": ("nosuch=float32[1]",)}, UsageError, "no input has the name", marks=needs_onnxruntime
        ),
        pytest.param(
            ONNX, {"input": ("float32[1,3,7]",)}, UsageError, "has the sizes [1,3,7]", marks=needs_onnxruntime
        ),
        pytest.param(OPENVINO, {"input": ("float32[7]",)}, UsageError, "has the sizes [7]", marks=needs_openvino),
        pytest.param(LITERT, {"input": ("float32[7]",)}, UsageError, "has the sizes [7]", marks=needs_litert),
        pytest.param(ONNX, {"runtime": "litert"}, UsageError, "LiteRT does not run", marks=needs_onnxruntime),
    ],
)
def test_a_mistake_is_told_before_the_machine_is_asked_for(
    model: Path, settings: dict[str, Any], error: type[OpscopeError], words: str, tmp_path: Path
) -> None:
    """Inputs, methods, sizes, files, features, threads and runtimes; no bundle is begun."""
    with pytest.raises(error, match=re.escape(words)):
        profile(model, settings=Settings(lock="fail", **settings), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MODULE, "Net has no example inputs"),
        (MODULE.replace("image): return", "image, mask=None): return"), "Net has no example inputs"),
        ("def build(:\n", "syntax error in line 1"),
    ],
)
def test_a_python_file_is_read_before_it_is_run(text: str, words: str, tmp_path: Path) -> None:
    """Torch is not imported for it; the hint has the argument of forward, and an input to begin with."""
    file = tmp_path / "net.py"
    file.write_text(text)
    for model in (str(file), f"{file}:Net"):
        with pytest.raises(UsageError, match=words) as caught:
            profile(model, settings=Settings(lock="fail"), out=tmp_path / "out")
        if "inputs" in words:
            assert "forward (image)" in caught.value.hint
            assert "torch.randn(1, 3, 224, 224)" in caught.value.hint


@pytest.mark.parametrize(
    "more",
    [
        "example_inputs = (torch.ones(1),)\n",
        "def build(): return Net(), (torch.ones(1),)\n",
        "model = Net()\n",
        "from elsewhere import *\n",
        "class Other(torch.nn.Module): pass\n",
        "from elsewhere import get_example_inputs\n",
    ],
)
def test_what_the_text_leaves_open_is_left_to_the_import(more: str, tmp_path: Path) -> None:
    """Only what is certain is refused by the text alone: these files may give inputs."""
    file = tmp_path / "net.py"
    file.write_text(MODULE + more)
    with pytest.raises(OpscopeError) as caught:
        profile(str(file), settings=Settings(lock="fail"), out=tmp_path / "out")
    assert "has no example inputs" not in caught.value.problem
