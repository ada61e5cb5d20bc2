"""``opscope run``: errors name the keys of the configuration, and say what to do before ``--resume``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ended import Command
from installed import needs_onnxruntime
from opscope.core.errors import IncompleteError, UsageError
from opscope.experiment.config_words import rename_options

MODELS = Path(__file__).parents[1] / "data" / "onnx"


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        (
            "add --guess-inputs, or --input 'x=f[1]' --input 'y=f[2]'",
            'add guess_inputs = true, or input = ["x=f[1]", "y=f[2]"]',
        ),
        ("leave out --ablate and --ladder", "leave out ablate and ladder"),
        (
            "`opscope doctor --features` lists them, or --ablate none",
            '`opscope doctor --features` lists them, or ablate = ["none"]',
        ),
        ("measure more: --runs 20", "measure more: runs = 20"),
        ("repeat it with --resume, --out or --oversubscribe", "repeat it with --resume, --out or --oversubscribe"),
        ("opscope check NEW --against OLD --rounds 4", "opscope check NEW --against OLD --rounds 4"),
    ],
)
def test_options_become_keys(text: str, renamed: str) -> None:
    """Those that `run` lacks; its own, and those of quoted commands, stay."""
    assert rename_options(text) == renamed


@needs_onnxruntime
def test_what_fails_is_told_in_the_words_of_the_file(command: Command, tmp_path: Path) -> None:
    """An experiment without sizes."""
    shutil.copy(MODELS / "open_sizes.onnx", tmp_path)
    config = tmp_path / "c.toml"
    config.write_text('model = "open_sizes.onnx"\nrounds = 1\nruns = 3\n')
    done = command("run", config, cwd=tmp_path)
    assert done.returncode == UsageError.exit_code
    assert "guess_inputs = true" in done.stderr
    assert "--guess-inputs" not in done.stderr


@needs_onnxruntime
@pytest.mark.nightly  # runs the model that can run
def test_resume_is_advised_after_a_correction(command: Command, tmp_path: Path) -> None:
    """Of two models one lacks sizes: it would fail again."""
    for name in ("open_sizes.onnx", "products.onnx"):
        shutil.copy(MODELS / name, tmp_path)
    config = tmp_path / "c.toml"
    config.write_text('models = ["open_sizes.onnx", "products.onnx"]\nrounds = 1\nruns = 3\nablate = ["none"]\n')
    done = command("run", config, cwd=tmp_path)
    assert done.returncode == IncompleteError.exit_code
    assert "correct what the messages name" in done.stderr
