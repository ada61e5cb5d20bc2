"""Nobody knows a runtime by name but the registry of runtimes: all others ask what is registered."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from opscope.runtimes.registry import EXPORTER, RUNTIMES
from opscope.runtimes.runtime import Runtime

PACKAGE = Path(__file__).parents[2] / "src" / "opscope"
ROOM = PACKAGE / "runtimes"
NAMED = {path.parent.name for path in ROOM.glob("*/runtime.py")}


def test_every_folder_of_a_runtime_is_registered() -> None:
    """Its object is in the folder's ``runtime.py``."""
    assert len(NAMED) > 2
    assert sorted(type(one).__module__ for one in RUNTIMES) == sorted(
        f"opscope.runtimes.{name}.runtime" for name in NAMED
    )


def test_only_the_registry_imports_a_named_runtime() -> None:
    """At the top of a module, inside of a function, for types, or by the name of a module in a string."""
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in PACKAGE.rglob("*.py")
        if (names := sorted(set(_named_in(path)) - {_own(path)}))
    }
    assert found == {"runtimes/registry.py": sorted(NAMED)}


def _own(path: Path) -> str:
    return path.relative_to(ROOM).parts[0] if path.is_relative_to(ROOM) else ""


def _named_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        for name in names:
            head, _, rest = name.partition("opscope.runtimes.")
            if not head and rest.partition(".")[0] in NAMED:
                yield rest.partition(".")[0]


@pytest.mark.parametrize("runtime", [one for one in RUNTIMES if one is not EXPORTER], ids=lambda one: one.name)
def test_a_runtime_has_no_public_members_of_its_own(runtime: Runtime) -> None:
    """What others may ask is in the base class, with what holds for runtimes that lack it; only exporting is not."""
    assert {name for name in dir(runtime) if not name.startswith("_")} <= {*dir(Runtime), *Runtime.__annotations__}


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda one: one.name)
def test_formats_are_named_as_their_readers_name_them(runtime: Runtime) -> None:
    """Two places, since telling the runtime of a format must load no reader."""
    from importlib import import_module

    for name, (module, reader) in runtime.readers.items():
        assert getattr(import_module(module), reader).name == name
