"""The help screen: commands in groups, each with one line that is not cut."""

from __future__ import annotations

from command_line import opscope
from opscope.cli.main import COMMANDS, GROUPS


def test_every_command_is_in_one_group_with_a_line_of_its_own() -> None:
    """On 80 columns, the five for every day first."""
    lines = opscope("--help").stdout.splitlines()
    shown = {line.split()[0]: line for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS}
    assert list(shown) == [name for names in GROUPS.values() for name in names]
    assert [line[:-1] for line in lines if line.endswith(":") and line[:-1] in GROUPS] == list(GROUPS)
    assert all(line.endswith(".") and len(line) <= 80 for line in shown.values())
