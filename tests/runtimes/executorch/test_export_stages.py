"""What an export says while it goes on, what took how long, and what an interruption leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from exports import record_of
from opscope.analysis.preflight.exported import ExportStage
from opscope.reports.document.blocks import Sentence
from opscope.reports.exporting import export_document, stages_line
from opscope.workflows.exporting import export
from waiting import HANG, eventually

LOOP = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(8, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]

def build():
    return Net(), (torch.randn(1, 10, 8),)
"""


def test_stages_are_told_longest_first() -> None:
    """Those that take little are left out; minutes are minutes."""
    stages = [
        ExportStage("loading torch", 2.0),
        ExportStage("compiling delegates", 240.0),
        ExportStage("lowering", 58.0),
    ]
    assert stages_line(stages) == "took 5.0 min: compiling delegates 4.0 min, lowering 58.0 s"


@pytest.mark.nightly  # exports
@pytest.mark.runtime
def test_an_export_tells_its_stages_and_what_makes_it_long(tmp_path: Path) -> None:
    """While it goes on, in its record, and in what is printed at the end."""
    (tmp_path / "net.py").write_text(LOOP)
    heard: list[str] = []
    record = export(str(tmp_path / "net.py"), out=tmp_path / "out", heard=heard.append).record
    steps, details = ([one for one in heard if (": " in one) is detail] for detail in (False, True))
    assert [stage.name for stage in record.stages] == steps[:-1]
    assert steps[0] == "loading torch"
    assert steps[-4:] == ["planning memory", "serialising", "running the program", "checking what was written"]
    assert all(stage.seconds >= 0 for stage in record.stages)
    assert details[0] == "lowering to the edge dialect: layer: gru of 10 steps, unrolled"
    assert any(line.startswith("compiling delegates: ") for line in details)
    (layer,) = record.methods[0].method.unrolled
    assert (layer.module, layer.kind, layer.steps) == ("layer", "gru", 10)
    told = [block.text for block in export_document(record, "out").blocks if isinstance(block, Sentence)]
    assert any(line.startswith("took ") for line in told)
    assert any(line.startswith("unrolled: layer (gru, 10 steps): ") for line in told)
    assert any("replace_recurrent" in line for line in told)


@pytest.mark.nightly  # exports
@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_nothing_is_unrolled_where_nothing_recurs(tmp_path: Path) -> None:
    """And records of older versions, which have no stages, are read."""
    record = record_of(tmp_path, "toy_cnn")
    assert record.methods[0].method.unrolled == []
    assert record.stages == []
    older = msgspec.to_builtins(record)
    older.pop("stages")
    assert msgspec.convert(older, type(record)).stages == []


@pytest.mark.nightly  # exports
@pytest.mark.runtime
def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    """Not in the place that was asked for, and not beside it."""
    command = [sys.executable, "-m", "opscope", "export", "toy_cnn", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("running the model"):
                process.send_signal(signal.SIGTERM)
                break
        process.stderr.read()
        assert process.wait(HANG) != 0
    assert eventually(lambda: not list(tmp_path.iterdir()))
