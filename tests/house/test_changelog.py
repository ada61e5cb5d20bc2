"""The form of the changelog: versions from the newest down, and a line for each entry."""

from __future__ import annotations

import re

from documents import ROOT
from opscope.core.version import __version__

LINES = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
KINDS = ("Added", "Changed", "Fixed")
_VERSION = re.compile(r"## (\d+)\.(\d+)\.(\d+) - \d{4}-\d\d-\d\d")


def test_versions_go_from_the_newest_down() -> None:
    """What is not released stands on top, then the current version, each with its date."""
    heads = [line for line in LINES if line.startswith("## ")]
    released = heads[heads[0] == "## Unreleased" :]
    matches = [_VERSION.fullmatch(head) for head in released]
    assert all(matches), released
    versions = [tuple(map(int, match.groups())) for match in matches if match]
    assert versions == sorted(set(versions), reverse=True)
    assert ".".join(map(str, versions[0])) == __version__


def test_each_version_says_what_was_added_changed_and_fixed() -> None:
    """In this order, each at most once, and none of them empty."""
    for section in "\n".join(LINES).split("\n## ")[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds
        assert kinds == [kind for kind in KINDS if kind in kinds]
        assert all(re.search(r"^- ", part, re.MULTILINE) for part in section.split("\n### ")[1:])


def test_an_entry_is_a_line() -> None:
    """Of 120 characters at most, and a whole sentence."""
    body = LINES[LINES.index(next(line for line in LINES if line.startswith("## "))) :]
    entries = [line for line in body if line and not line.startswith("#")]
    assert [line for line in entries if not (line.startswith("- ") and line.endswith("."))] == []
    assert [line for line in LINES if len(line) > 120] == []
    assert [line for line in entries if entries.count(line) > 1] == []
