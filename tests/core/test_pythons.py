"""The Python of another environment: where it finds packages, told by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opscope.core.errors import UsageError
from opscope.core.system.interpreter import module_command
from opscope.core.system.pythons import HERE, python_at


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without any package."""
    place = tmp_path_factory.mktemp("environments") / "empty"
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(place)], check=True)
    return place


def test_without_an_address_it_is_that_of_this_process() -> None:
    """Which finds what this process finds."""
    assert python_at("") is HERE
    assert (HERE.address, HERE.executable) == ("", sys.executable)
    assert HERE.place("msgspec") is not None
    assert HERE.version("msgspec")
    assert HERE.place("no_such_package") is HERE.version("no-such-package") is None


def test_an_environment_is_named_by_its_directory_or_its_python(empty: Path) -> None:
    """Packages of this process are not among its own."""
    for named in (empty, empty / "bin" / "python"):
        found = python_at(str(named))
        assert found.address == str(empty / "bin" / "python")
        assert found.numbers == sys.version_info[:2]
        assert found.place("msgspec") is found.version("msgspec") is None
    site = next(empty.glob("lib/python*/site-packages"))
    (site / "made").mkdir()
    (site / "made" / "__init__.py").touch()
    (site / "made-1.5.dist-info").mkdir()
    (site / "made-1.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1.5\n")
    assert python_at(str(empty)).place("made") == site / "made"
    assert python_at(str(empty)).version("made") == "1.5"


def test_what_is_no_python_is_refused(tmp_path: Path) -> None:
    """With what to name instead; and one that is too old, too."""
    for text in (str(tmp_path), str(tmp_path / "none"), "/bin/true"):
        with pytest.raises(UsageError, match="not a Python"):
            python_at(text)
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho '[\"/old\", [3, 9], []]'\n")
    old.chmod(0o755)
    with pytest.raises(UsageError, match=r"Python 3\.9 cannot run opscope's processes"):
        python_at(str(old))


def test_its_processes_get_no_variables_of_this_python(empty: Path) -> None:
    """PYTHONPATH names packages of another version."""
    assert "-E" not in module_command("opscope")
    command = module_command("opscope", str(empty / "bin" / "python"))
    assert command[:2] == (str(empty / "bin" / "python"), "-E")
