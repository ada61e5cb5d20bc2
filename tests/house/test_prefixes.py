"""Files that were cut: some lengths of each fixture here, all of them in ``make fuzz``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opscope.readers.registry import built_in

sys.path.append(str(Path(__file__).resolve().parents[2]))
prefixes = pytest.importorskip("fuzz.prefixes", reason="the fuzzer is not part of a source distribution")
_LENGTHS = 24


def test_every_reader_has_fixtures_to_cut() -> None:
    """A reader that is added to the registry gets a target of the fuzzer, and none is left of one that went."""
    assert set(prefixes.TARGETS) == {reader for _, reader in built_in()}


@pytest.mark.parametrize("reader", prefixes.TARGETS)
def test_a_file_that_was_cut_is_known_for_it(reader: str) -> None:
    """It reads the same figures, is refused, or says that it is cut; lines are cut between, too."""
    files = list(prefixes.read_fixtures(reader))
    assert files
    for data, whole in files[:4]:
        ends = [at + 1 for at, byte in enumerate(data[:-1]) if byte == ord("\n")]
        lengths = {*range(0, len(data), max(1, len(data) // _LENGTHS)), *ends[:: max(1, len(ends) // _LENGTHS)]}
        assert prefixes.find_silent_cuts(reader, data, whole, sorted(lengths)) == []
