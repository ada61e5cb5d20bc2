"""PyTorch's own layers: recipes keep what they compute, and their attentions are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from opscope.program.operators.kinds import AttentionPart
from opscope.program.xnnpack.attention import attention_parts
from opscope.runtimes.registry import EXPORTER
from replayed import exported
from stock_layers import STOCK, TRANSFORMERS, build

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.runtime, pytest.mark.filterwarnings("ignore")]  # exports


@pytest.mark.parametrize("name", list(STOCK))
def test_the_advice_changes_no_output(name: str) -> None:
    """Apart from what rounding does."""
    import torch

    (theirs, inputs), (ours, _) = build(name), build(name, advised=True)
    with torch.no_grad():
        torch.testing.assert_close(ours(*inputs), theirs(*inputs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", list(STOCK))
def test_every_attention_is_found_in_its_program(name: str, tmp_path: Path) -> None:
    """And none in a recurrence."""
    assert bool(_masks(exported(name, tmp_path)["before"])) is (name in TRANSFORMERS)


def _masks(program: Path) -> list[int]:
    """Instructions of a program that mask an attention."""
    method = EXPORTER.usable_model(program, None)[0].methods["forward"]
    parts = attention_parts(method.plan, method.graphs)
    return [number for number, part in parts.items() if part is AttentionPart.MASKING]
