"""One way to compare whatever two paths name: runs, or traces of tiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from aie_gemm import Gemm
from aie_traces import json_text
from opscope.core.errors import OpscopeError
from opscope.measurements.results import ComparisonResult
from opscope.npu.workflows.sides import TilesComparisonResult
from opscope.workflows.analyze.analyses import compare_any
from traces import etdump

TEXT = """
Method::execute 100000
  OPERATOR_CALL @0 15000
    native_call_add.out 14000
"""


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    """A trace of tiles."""
    file = tmp_path / "tiles.json"
    file.write_bytes(b"".join(json_text([Gemm(outputs=4, call=300).tile()])))
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of an ExecuTorch program."""
    file = tmp_path / "trace.etdump"
    file.write_bytes(etdump(TEXT * 3))
    return file


def test_the_result_is_that_of_what_the_paths_name(tiles: Path, trace: Path) -> None:
    """Tiles on both sides, or on none."""
    assert isinstance(compare_any(tiles, tiles), TilesComparisonResult)
    assert isinstance(compare_any(trace, trace, warmup=0), ComparisonResult)


def test_tiles_on_one_side_are_a_comparison_of_tiles_that_the_other_side_refuses(tiles: Path, trace: Path) -> None:
    """Whichever side it is: the file that is at fault is the one that is no trace of tiles."""
    for sides in ((tiles, trace), (trace, tiles)):
        with pytest.raises(OpscopeError) as caught:
            compare_any(*sides)
        assert str(trace) in str(caught.value.where)
