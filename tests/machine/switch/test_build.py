"""Which compiler builds the libraries that switch features off, and when one is built anew."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from opscope.bundle.manifest import Mechanism
from opscope.core.errors import MissingDependencyError
from opscope.machine.switch.switch import switch_library

LOG = "calls"


def compiler(place: Path, name: str, version: str = "one 1.0", code: int = 0) -> None:
    """A program that tells its version, and writes its own name where a library is asked for."""
    file = place / name
    file.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version) echo "{version}"; exit 0;; esac\n'
        f'echo {name} >> "{place}/{LOG}"\n'
        'while [ "$#" -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done\n'
        f'echo {name} > "$out"\n'
        f'[ {code} = 0 ] || echo "the error of {name}" >&2\n'
        f"exit {code}\n"
    )
    file.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the only programs that are found, on 64-bit Intel."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    for name in ("CXX", "OPSCOPE_CXX_X86_64", "OPSCOPE_CXX_AARCH64"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return tools


def built_by(place: Path, mechanism: Mechanism) -> str:
    """The compiler of a library, in an empty cache."""
    library = switch_library(mechanism, place.parent / f"cache-{len(list(place.parent.iterdir()))}")
    return library.read_text().strip()


def test_this_machine_has_its_usual_compiler_and_others_a_cross_compiler(place: Path) -> None:
    """The trap is for Intel, the capabilities for Arm: g++ before gcc, and never that of this machine."""
    compiler(place, "c++")
    assert built_by(place, Mechanism.TRAP) == "c++"
    with pytest.raises(MissingDependencyError, match="aarch64"):
        built_by(place, Mechanism.HWCAP)
    compiler(place, "aarch64-linux-gnu-gcc")
    assert built_by(place, Mechanism.HWCAP) == "aarch64-linux-gnu-gcc"
    compiler(place, "aarch64-linux-gnu-g++")
    assert built_by(place, Mechanism.HWCAP) == "aarch64-linux-gnu-g++"


@pytest.mark.parametrize("mechanism", [Mechanism.TRAP, Mechanism.HWCAP])
def test_a_named_compiler_is_the_only_one(place: Path, mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its architecture; when it does not answer, no other takes its place."""
    for name in ("c++", "aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc", "mine"):
        compiler(place, name)
    variable = {Mechanism.TRAP: "OPSCOPE_CXX_X86_64", Mechanism.HWCAP: "OPSCOPE_CXX_AARCH64"}[mechanism]
    monkeypatch.setenv(variable, "mine -m64")
    assert built_by(place, mechanism) == "mine"
    monkeypatch.setenv(variable, "absent")
    with pytest.raises(MissingDependencyError, match="absent"):
        built_by(place, mechanism)


def test_a_library_is_built_once_for_each_compiler(place: Path) -> None:
    """One of another version builds its own; one that was damaged is built again."""
    cache = place.parent / "cache"
    compiler(place, "c++")
    first = switch_library(Mechanism.TRAP, cache)
    assert switch_library(Mechanism.TRAP, cache) == first
    assert (place / LOG).read_text().split() == ["c++"]
    first.write_text("damaged")
    assert switch_library(Mechanism.TRAP, cache).read_text() == "c++\n"
    compiler(place, "c++", version="one 2.0")
    assert switch_library(Mechanism.TRAP, cache) != first
    assert (place / LOG).read_text().split() == ["c++"] * 3


def test_what_a_compiler_says_is_told(place: Path) -> None:
    """The line with the error; nothing is kept."""
    compiler(place, "c++", code=1)
    with pytest.raises(MissingDependencyError, match="the error of c"):
        switch_library(Mechanism.TRAP, place.parent / "cache")
    assert list((place.parent / "cache").rglob("*.so")) == []
