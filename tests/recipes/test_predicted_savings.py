"""What findings on PyTorch's own layers predict, held against what their recipes save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from opscope.program.operators.kinds import AttentionPart
from opscope.program.xnnpack.attention import attention_parts
from opscope.runtimes.registry import EXPORTER
from replayed import ENOUGH, RULES, exported, replay, share_close
from stock_layers import RECURRENT, STOCK, TRANSFORMERS, build

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.runtime, pytest.mark.filterwarnings("ignore")]  # exports, and measures


FEWEST = 10


@pytest.mark.parametrize("name", list(STOCK))
def test_the_advice_changes_no_output(name: str) -> None:
    """Apart from what rounding does."""
    import torch

    (theirs, inputs), (ours, _) = build(name), build(name, advised=True)
    with torch.no_grad():
        torch.testing.assert_close(ours(*inputs), theirs(*inputs), atol=1e-4, rtol=1e-4)


def test_predicted_savings_come_true(tmp_path: Path) -> None:
    """At least four of five are within 30 % of what was saved, of at least ten models.

    Every attention is found in its program. Where other work on the machine keeps a trace from being split, there is no
    prediction.
    """
    rows = []
    for name in STOCK:
        programs = exported(name, tmp_path / name)
        assert bool(_masks(programs["before"])) is (name in TRANSFORMERS)
        rows += replay(name, programs, tmp_path / f"{name}-run")
    assert sum(not row.is_limit for row in rows) >= FEWEST
    assert all(row.saved_ns <= row.predicted_ns for row in rows if row.is_limit)
    assert share_close(rows) >= ENOUGH, [(row.model, row.rule, row.ratio) for row in rows]
    assert all(row.rule == RULES[row.model in RECURRENT] for row in rows)


def _masks(program: Path) -> list[int]:
    """Instructions of a program that mask an attention."""
    method = EXPORTER.usable_model(program, None)[0].methods["forward"]
    parts = attention_parts(method.plan, method.graphs)
    return [number for number, part in parts.items() if part is AttentionPart.MASKING]
