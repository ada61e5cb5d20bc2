"""Weights beside a program: the keys of a .ptd, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import TraceFormatError
from opscope.runtimes.executorch.program_files import data_keys

WEIGHTS = Path(__file__).parents[2] / "data" / "looked.ptd"


def test_the_keys_of_data_are_read(tmp_path: Path) -> None:
    """From a file as it was written, and from one with something behind it."""
    assert data_keys(WEIGHTS) == {"embedding.weight"}
    (tmp_path / "longer.ptd").write_bytes(WEIGHTS.read_bytes() + bytes(16))
    assert data_keys(tmp_path / "longer.ptd") == {"embedding.weight"}


@pytest.mark.parametrize("left", [0, 5, 47, 100, WEIGHTS.stat().st_size - 1])
def test_a_truncated_file_is_refused(left: int, tmp_path: Path) -> None:
    """By its identifier or its length: the last byte counts too."""
    cut = tmp_path / "cut.ptd"
    cut.write_bytes(WEIGHTS.read_bytes()[:left])
    with pytest.raises(TraceFormatError) as caught:
        data_keys(cut)
    assert caught.value.where == str(cut)
