"""What an .onnx tells before it is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import onnx_models as onnx
from installed import needs_onnxruntime
from onnx_counter import counted_macs
from opscope.analysis.preflight.preflight import MethodPreflight
from opscope.api import preflight
from opscope.cli.main import app
from opscope.core.errors import RunError, UsageError
from opscope.runtimes.onnxruntime.preflight import onnx_preflight

MODELS = Path(__file__).parents[2] / "data" / "onnx"


def _only_function(path: Path) -> MethodPreflight:
    (method,) = preflight(path, cpu="apple-m4").methods
    return method


@needs_onnxruntime
def test_work_is_that_of_the_counter() -> None:
    """Of the model as given, with its convolutions by what SME can run."""
    found = _only_function(MODELS / "cnn.onnx")
    inputs = {"image": np.zeros((1, 3, 64, 64), np.float32)}
    assert found.matrix.macs == sum(counted_macs(MODELS / "cnn.onnx", inputs).values())
    verdicts = {(group.form, group.verdict.value) for group in found.matrix.groups}
    assert ("convolution", "eligible") in verdicts
    assert ("depthwise convolution", "not eligible") in verdicts
    assert found.partition.portable_operators == 0
    assert not any(side.unknown for row in found.work for side in (row.delegated, row.portable))


@needs_onnxruntime
def test_integers_are_not_for_sme() -> None:
    """Quantised convolutions are counted, and named as what keeps the model from SME."""
    found = _only_function(MODELS / "quantised.onnx")
    assert found.matrix.eligible == 0
    assert any(message.rule == "not_eligible" for message in found.findings)


@needs_onnxruntime
def test_open_sizes_are_guessed_and_told() -> None:
    """The document says what was run."""
    found = preflight(MODELS / "open_sizes.onnx")
    assert found.ran.endswith("x=float32[1,8]")
    assert found.methods[0].inputs[0].dtype == "float32"
    done = CliRunner().invoke(app, ["preflight", str(MODELS / "open_sizes.onnx")])
    assert done.exit_code == 0
    assert "x=float32[1,8]" in done.output
    assert "(onnx)" in done.output


def test_without_the_package_operators_are_counted() -> None:
    """Their work is not known, which is said."""
    found = onnx_preflight(MODELS / "cnn.onnx", installed=False, cpu=None)
    (method,) = found.methods
    assert found.ran.startswith("nothing ran")
    assert sum(row.delegated.operators for row in method.work) == method.partition.delegated_operators > 0
    assert all(row.delegated.unknown == row.delegated.operators for row in method.work)
    assert method.forecast is None
    assert any(message.rule == "unknown_work" for message in method.findings)


@needs_onnxruntime
def test_what_does_not_run_is_refused(tmp_path: Path) -> None:
    """In the words of the runtime, as profile refuses it; so are inputs that cannot be given."""
    strange = tmp_path / "strange.onnx"
    strange.write_bytes((MODELS / "products.onnx").read_bytes().replace(b"Tanh", b"Tank"))
    with pytest.raises(RunError, match="Tank"):
        preflight(strange)
    texts = onnx.body([onnx.node("Identity", "a", "b")], {"a": ("float32", [1])}, {"b": ("float32", [1])})
    path = tmp_path / "texts.onnx"
    path.write_bytes(
        onnx.model(texts).replace(b"\x08\x01\x12\x04\x0a\x02\x08\x01", b"\x08\x08\x12\x04\x0a\x02\x08\x01")
    )
    with pytest.raises(UsageError, match="string"):
        preflight(path)
