"""The texts that users read are found in the source, and nothing else is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def user_texts() -> Iterator[ModuleType]:
    """The script's module, which belongs to no package."""
    sys.path.insert(0, str(ROOT / "docs"))
    yield importlib.import_module("user_texts")
    sys.path.remove(str(ROOT / "docs"))


def found(user_texts: ModuleType, source: str, module: str = "core.example") -> list[tuple[str, str]]:
    """Ids without the module, and texts."""
    return [(one.id.partition(":")[2], one.text) for one in user_texts.module_texts(dedent(source), module)]


def test_a_text_has_the_id_of_the_name_it_is_in(user_texts: ModuleType) -> None:
    """Numbered where there are several; lines do not matter."""
    source = """
    HINT = "give a file"

    class Reader:
        def read(self):
            raise ReadError("the file is empty", hint="copy it again")
    """
    expected = [("HINT", "give a file"), ("Reader.read.1", "the file is empty"), ("Reader.read.2", "copy it again")]
    assert found(user_texts, source) == expected
    assert found(user_texts, f"# moved\n\n{dedent(source)}") == expected


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("f'took {time_text(spent.ns)} in all'", "took {ns} in all"),
        ("f'in {counted_text(len(rows), \"row\")} of it'", "in {n rows} of it"),
        ('f\'it is {"on" if works else "off"} here\'', "it is {on|off} here"),
        ("f'see {name or \"the log\"} of it'", "see {name|the log} of it"),
        ("'two words' ' in one'", "two words in one"),
    ],
)
def test_what_code_fills_in_stands_in_braces(user_texts: ModuleType, written: str, shown: str) -> None:
    """By its name, or by the words that it chooses from."""
    assert found(user_texts, f"TEXT = {written}") == [("TEXT", shown)]


@pytest.mark.parametrize(
    "source",
    [
        '"""Of the module."""',
        'NAMES = "one two three".split()',
        'PATTERN = re.compile(r"no such (file|path)")',
        'ROWS = table.sql("SELECT name FROM runs")',
        'Value: TypeAlias = "str | float"',
        'found = text == "not a text"',
        'value = row["of a key"]',
        'KEY = "word"',
    ],
)
def test_what_only_code_reads_is_no_text(user_texts: ModuleType, source: str) -> None:
    """Docstrings, names, patterns, queries, types, keys."""
    assert found(user_texts, source) == []


def test_heads_and_help_are_texts_also_where_they_are_one_word(user_texts: ModuleType) -> None:
    """Of columns, sections and options."""
    assert found(user_texts, 'TABLE = column("share", Format.SHARE)') == [("TABLE", "share")]
    assert found(user_texts, 'OPTION = typer.Option("--out", help="Directory.")') == [("OPTION", "Directory.")]


def test_docstrings_of_commands_and_rules_are_texts(user_texts: ModuleType) -> None:
    """A user reads both: as help, and in the list of rules."""
    command = 'def command() -> None:\n    """Do it.\n\n    Example: opscope do it\n    """\n'
    assert found(user_texts, command, "cli.do") == [("command", "Do it.\n\nExample: opscope do it")]
    assert found(user_texts, command) == []
    rule = '@declare_rule(Severity.HIGH)\ndef slow(evidence):\n    """Slow operators."""\n'
    assert found(user_texts, rule) == [("slow", "Slow operators.")]


def test_the_texts_are_written_where_a_reviewer_says(user_texts: ModuleType, tmp_path: Path) -> None:
    """One file for each room, with the texts of that room."""
    assert user_texts.main([str(tmp_path / "texts")]) == 0
    written = {path.stem: path.read_text("utf-8") for path in (tmp_path / "texts").iterdir()}
    assert written == user_texts.texts_by_room()
    assert written["cli"].startswith("cli")


def test_ids_are_unique(user_texts: ModuleType) -> None:
    """So that one names its text."""
    ids = [text.id for text in user_texts.user_texts()]
    assert len(set(ids)) == len(ids)
