"""Profiles of Callgrind with instructions: addresses, files by numbers, and what a call cost, which is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from opscope.core.errors import TraceFormatError
from opscope.readers.instruction_counts import read_callgrind

if TYPE_CHECKING:
    from pathlib import Path

PART = """# callgrind format
positions: instr line
events: Ir
summary: 22

ob=(1) /lib/first.so
fn=(1) main
0x100 0 3
+4 0 3
cob=(2) /lib/second.so
cfn=(2) other
calls=1 0x500 0
* 0 12
-4 0 1
ob=(2)
fn=(2)
0x500 0 10
+2 0 5
"""


def test_instructions_by_address(tmp_path: Path) -> None:
    """The cost of a call stands with the function that is called, whose file is named where it is called first."""
    (tmp_path / "part").write_text(PART)
    names: dict[int, str] = {}
    found = read_callgrind(tmp_path / "part", names)
    first, second = "/lib/first.so", "/lib/second.so"
    assert names == {1: first, 2: second}
    assert found == {
        (first, 0x100): 4,
        (first, 0x104): 3,
        (second, 0x500): 10,
        (second, 0x502): 5,
    }
    (tmp_path / "later").write_text("summary: 1\nob=(2)\n0x500 0 1\n")
    assert list(read_callgrind(tmp_path / "later", names)) == [(second, 0x500)]
    (tmp_path / "unnamed").write_text("summary: 1\nob=(9)\n0x500 0 1\n")
    assert next(iter(read_callgrind(tmp_path / "unnamed", names)))[0] == "???"


def test_the_place_of_a_call_is_no_base_of_addresses(tmp_path: Path) -> None:
    """A call that an earlier part began ends in this one: only its cost has a place before what follows it."""
    text = "summary: 3\nob=(1) /lib/first.so\n0x100 0 1\ncalls=0 0x500 0\n+83 0 20\n+88 0 2\n"
    (tmp_path / "part").write_text(text)
    assert read_callgrind(tmp_path / "part", {}) == {
        ("/lib/first.so", 0x100): 1,
        ("/lib/first.so", 0x100 + 88): 2,
    }


def test_a_part_that_lacks_something_is_refused(tmp_path: Path) -> None:
    """Its sum says so."""
    (tmp_path / "part").write_text(PART.replace("+2 0 5\n", ""))
    with pytest.raises(TraceFormatError, match="17 instructions are listed, but they add up to 22"):
        read_callgrind(tmp_path / "part", {})
