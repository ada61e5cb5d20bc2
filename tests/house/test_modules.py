"""``import opscope.any.module`` works as Python promises, and the functions of the package stay what they are."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import opscope

NEEDS_TORCH = "opscope.runtimes.executorch.export.models."
PROGRAMS = ("opscope.__main__",)
"""Modules that do their work when they are imported."""


def modules() -> list[str]:
    """Every module of the package, by its name."""
    found = pkgutil.walk_packages(opscope.__path__, "opscope.")
    return [one.name for one in found if one.name not in PROGRAMS and not one.name.startswith(NEEDS_TORCH)]


def test_every_module_is_reached_by_its_attributes() -> None:
    """Imported, and then walked to from the package, as ``import a.b.c`` followed by ``a.b.c`` does."""
    names = modules()
    assert len(names) > 300
    for name in names:
        module = importlib.import_module(name)
        reached = opscope
        for part in name.split(".")[1:]:
            reached = getattr(reached, part)
        assert reached is module, name


def test_no_room_bears_the_name_of_a_function() -> None:
    """So nothing has to be replaced: binding a submodule to its package hides nothing."""
    rooms = {one.name for one in pkgutil.iter_modules(opscope.__path__)}
    assert rooms.isdisjoint(opscope.__all__)


def test_no_name_becomes_a_module() -> None:
    """What is public stays what it is, after every module was imported, in its own process."""
    script = (
        "import importlib, inspect, pkgutil, opscope\n"
        "for one in pkgutil.iter_modules(opscope.__path__, 'opscope.'):\n"
        f"    one.name in {PROGRAMS!r} or importlib.import_module(one.name)\n"
        "for name in opscope.__all__:\n"
        "    assert not inspect.ismodule(getattr(opscope, name)), name\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
