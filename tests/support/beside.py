"""Files that lie beside a checkout and in no clone of it: real captures, dumps with ground truth, quoted documents.

A test that reads them is collected only where they are, so that nothing is skipped that nobody can install.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_SHARED = Path(__file__).resolve().parents[3] / "shared"
CAPTURES = _SHARED / "data" / "aie"
"""Traces of AI Engine hardware that the mlir-aie project and forks of it publish."""
DUMPS = _SHARED / "data" / "xnnpack"
"""Programs with ETDumps, and which node each event is of."""
DOCUMENTS = _SHARED / "seeds"
"""The published documents whose promises ``docs/promises.toml`` quotes."""

reads_captures = pytest.mark.beside(CAPTURES)
reads_dumps = pytest.mark.beside(DUMPS)
reads_documents = pytest.mark.beside(DOCUMENTS)


def select_tests(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests whose files are there, and those whose files are not."""
    kept: list[pytest.Item] = []
    absent: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("beside")
        (kept if marker is None or marker.args[0].is_dir() else absent).append(item)
    return kept, absent
