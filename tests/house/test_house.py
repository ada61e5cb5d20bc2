"""The house as its page draws it: folders taken in at a glance, one meaning a name, recipes that are true."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
PACKAGE = SOURCES / "opscope"
PAGES = (ROOT / "docs" / "design" / "house.md", ROOT / "CONTRIBUTING.md")
MOST_MODULES = 25
_PATH = re.compile(r"`((?:src|tests|docs|bench|fuzz|demo)/[\w./-]+)`")
_NAME = re.compile(r"`(opscope(?:\.\w+)+)`")
PLACEHOLDERS = ("fuzz/findings", "src/opscope/cli/NAME.py", "src/opscope/skills/NAME/SKILL.md", "tests/runtimes/NAME")


def python_folders() -> list[Path]:
    """Every folder of the package."""
    return sorted({path.parent for path in PACKAGE.rglob("*.py")})


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    """Some twenty modules at most; a folder of eighty is as hard to live in as a file of 2,000 lines."""
    sizes = {
        folder: len([path for path in folder.glob("*.py") if path.stem != "__init__"]) for folder in python_folders()
    }
    assert {str(folder): size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_every_folder_says_what_it_holds() -> None:
    """In the docstring of its package."""
    for folder in python_folders():
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), folder


def test_a_public_class_name_means_one_thing() -> None:
    """Defined once in the whole package, so that a reader need not ask which one is meant."""
    homes = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_of_a_page_exists(page: Path) -> None:
    """Files and folders that a recipe sends its reader to."""
    named = set(_PATH.findall(page.read_text(encoding="utf-8"))) - set(PLACEHOLDERS)
    assert len(named) > 20
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_of_a_page_exists(page: Path) -> None:
    """Modules, classes, functions and constants that a recipe names."""
    named = sorted(set(_NAME.findall(page.read_text(encoding="utf-8"))))
    assert len(named) > 10
    assert [name for name in named if not _exists(name)] == []


def _exists(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_room_is_drawn() -> None:
    """In the picture of the layers, which is that of the contract, and in the table."""
    page = PAGES[0].read_text(encoding="utf-8")
    drawn = re.findall(r"\w+", re.search(r"^    (cli > .*)$", page, re.MULTILINE)[1])
    rooms = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()}
    assert set(drawn) == rooms
    assert all(f"| `src/opscope/{room}` |" in page for room in (*rooms, "skills"))
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("]")[0]
    assert re.findall(r"\w+", contract) == drawn
