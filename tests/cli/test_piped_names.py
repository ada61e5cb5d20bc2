"""Rows of tables in a pipe: long names are cut in the middle, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from ended import Command
from traces import etdump

MOST = 72
LONG = "native_call_" + "a_namespace_of_a_plug_in." * 6 + "the_operator.out"


def test_long_names_are_cut_in_a_pipe(command: Command, tmp_path: Path) -> None:
    """Both ends of the name are seen, so rows can be read and told apart; the JSON has the whole name."""
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(etdump(f"Method::execute 100\n  OPERATOR_CALL @0 100\n    {LONG} 100", repeat=4))
    done = command("analyze", trace, "--json", tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("native_call_a_name")]
    name = row.split()[0]
    assert len(name) <= MOST
    assert name.endswith("operator.out")
    assert LONG in (tmp_path / "a.json").read_text()
