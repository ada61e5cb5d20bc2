"""System calls that fail: a few of each kind here, all of them in ``make fuzz``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))
failing = pytest.importorskip("fuzz.failing_calls", reason="the fuzzer is not part of a source distribution")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs a compiler, and preloading as on Linux"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands are given; none is run for it."""
    found = tmp_path_factory.mktemp("failing")
    failing.Materials(found).make([])
    return found


@pytest.mark.parametrize(("command", "kind"), [("report", "mmap"), ("store add", "rename")])
def test_a_call_that_fails_costs_no_byte(command: str, kind: str, place: Path) -> None:
    """The result is absent, true, or completed by the same command; the exit code is one of ours.

    Without memory for a program, a report is not written without its operators.
    """
    row = failing.Row(command, kind)
    assert row.try_call(failing.Materials(place), 1)
    assert row.failures == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", failing.KINDS)
@pytest.mark.parametrize("command", ["report", "store add"])
def test_none_of_the_first_three_costs_a_byte(command: str, kind: str, place: Path) -> None:
    """Of each kind; Delta Lake neither maps nor flushes files to add bundles. ``make fuzz`` tries all calls."""
    row, materials = failing.Row(command, kind), failing.Materials(place)
    all(row.try_call(materials, number) for number in (1, 2, 3))
    unused = {("store add", "mmap"), ("store add", "fsync")}
    assert (row.tried > 0, row.failures) == ((command, kind) not in unused, [])
