"""Phrasings that readers stumble over are found in what users read, and there are none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "docs" / "prose.py"


@pytest.fixture(scope="module")
def prose() -> Iterator[ModuleType]:
    """The script, which belongs to no package, and finds the modules beside it."""
    sys.path.insert(0, str(FILE.parent))
    yield importlib.import_module("prose")
    sys.path.remove(str(FILE.parent))


def test_nothing_that_users_read_has_a_listed_phrasing(prose: ModuleType) -> None:
    """Strings, templates, help texts, pages and skills; and the program's own texts, by their own list."""
    assert [str(slip) for slip in prose.slips(prose.texts())] == []
    assert [str(slip) for slip in prose.slips(prose.program_texts(), "texts")] == []


def test_the_name_of_what_is_filled_in_is_no_phrasing(prose: ModuleType) -> None:
    """A reader does not see it."""
    given = [prose.Text(FILE, 1, text) for text in ("with {beside}", "it stands beside it")]
    assert [slip.found for slip in prose.slips(iter(given), "texts")] == ["beside"]


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("the port is no number", "is not a"),
        ("GEMM takes\nmost: 54 %", "dominates"),
        ("the smallest change that would have shown", "minimum detectable change"),
        ("reports are written anew", "again"),
    ],
)
def test_a_listed_phrasing_is_found(prose: ModuleType, text: str, better: str) -> None:
    """Across a line break too, with what to write instead."""
    (slip,) = prose.slips(iter([prose.Text(FILE, 1, text)]))
    assert better in slip.better


@pytest.mark.parametrize("text", ["there is no number", "it is no longer there", "the one that is no more"])
def test_plain_english_is_not_found(prose: ModuleType, text: str) -> None:
    """``there is no`` and ``no longer`` are as they should be."""
    assert list(prose.slips(iter([prose.Text(FILE, 1, text)]))) == []


def test_strings_are_read_and_docstrings_are_not(prose: ModuleType, tmp_path: Path) -> None:
    """What developers read may be written otherwise; the help of a command is a docstring that users read."""
    code = '"""A value that is no number."""\nWORDS = f"{1} is no number"\n'
    for folder, found in (("core", ["{} is no number"]), ("cli", ["A value that is no number.", "{} is no number"])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(code)
        texts = [one.text for one in prose._strings(tmp_path / folder / "module.py") if " " in one.text]
        assert sorted(texts) == sorted(found)
