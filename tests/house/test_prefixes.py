"""Files that were cut: some lengths of each fixture here, all of them in ``make fuzz``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opscope.readers.registry import built_in

sys.path.append(str(Path(__file__).resolve().parents[2]))
prefixes = pytest.importorskip("fuzz.prefixes", reason="the fuzzer is not part of a source distribution")
_LENGTHS = 24


@pytest.mark.parametrize("reader", [name for _, name in built_in()])
def test_a_file_that_was_cut_is_known_for_it(reader: str) -> None:
    """It reads the same figures, is refused, or says that it is cut; lines are cut between, too."""
    files = list(prefixes.fixtures(reader))
    assert files
    for data, whole in files[:4]:
        ends = [at + 1 for at, byte in enumerate(data[:-1]) if byte == ord("\n")]
        lengths = {*range(0, len(data), max(1, len(data) // _LENGTHS)), *ends[:: max(1, len(ends) // _LENGTHS)]}
        assert prefixes.silently_other(reader, data, whole, sorted(lengths)) == []
