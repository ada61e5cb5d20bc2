"""Every executorch from 0.7 on: its programs are read and attributed, its libraries found and switched."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import opscope
from opscope.program.operators.kinds import Attribution, Category

PROGRAMS = sorted((Path(__file__).parents[2] / "data" / "versions").glob("*.pte"))
"""A convolution, a mean, a layer norm and a linear layer: README.md beside them says how they were made."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_of_every_version_are_attributed_exactly(program: Path) -> None:
    """A trace of executorch 1.5.1, of the program as each version lowered it."""
    found = opscope.analyze(program.with_suffix(".etdump"), warmup=0, program=program)
    work = [one for one in found.operators if one.kind != "framework"]
    assert {one.attribution for one in work} == {Attribution.EXACT}
    computed = {one.name.partition(" (")[0]: one.category for one in work if one.macs}
    assert computed == {"Convolution": Category.CONVOLUTION, "Fully Connected": Category.GEMM}
    assert [one.backend for one in work if "layer_norm" in one.name] == ["portable"]


def asked(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """What a new interpreter prints that finds packages in these directories first."""
    searched = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": searched}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


TOLD = (
    "from opscope.core.errors import OpscopeError\n"
    "from opscope.runtimes.executorch.installed import installed_runtime, library_directory\n"
    "for ask in (installed_runtime, library_directory):\n"
    "    try:\n"
    "        print(ask())\n"
    "    except OpscopeError as error:\n"
    "        print(type(error).__name__, error.problem, '|', error.hint)\n"
)


def packages(directory: Path, *files: str) -> Path:
    """A directory with these empty files, every folder a package."""
    for name in files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for package in ("executorch", "torch"):
        if (directory / package).exists():
            (directory / package / "__init__.py").touch()
    return directory


BINDINGS = "executorch/extension/pybindings/_portable_lib.cpython-311-x86_64-linux-gnu.so"


def test_the_libraries_before_1_5_are_found_inside_the_bindings(tmp_path: Path) -> None:
    """XNNPACK is in the Python bindings, the features are in torch's libc10; nothing can be linked against them."""
    found = packages(tmp_path, BINDINGS, "torch/lib/libc10.so")
    first, second = asked(TOLD, found).stdout.splitlines()
    assert f"features=PosixPath('{found}/torch/lib/libc10." in first
    assert f"backend=PosixPath('{found}/{BINDINGS}')" in first
    assert "traces=False" in first
    assert "keeps its runtime inside the Python bindings | --target local" in second


def test_the_libraries_since_1_5_are_found_beside_the_headers(tmp_path: Path) -> None:
    """Of their own, with the event tracer."""
    ending = "dylib" if sys.platform == "darwin" else "so"
    names = [f"executorch/lib/libexecutorch_{name}.{ending}" for name in ("threadpool", "backend_xnnpack")]
    first, second = asked(TOLD, packages(tmp_path, *names)).stdout.splitlines()
    assert "traces=True" in first
    assert second == f"{tmp_path}/executorch/lib"


def test_a_package_without_a_runtime_is_told_from_none(tmp_path: Path) -> None:
    """No reason is given that was not seen."""
    first, _ = asked(TOLD, packages(tmp_path, "executorch/exir/readme.txt")).stdout.splitlines()
    assert first.startswith("MissingDependencyError executorch")
    assert "has no runtime for this system" in first


@pytest.mark.runtime
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_features_in_torchs_library_are_those_of_the_runtime() -> None:
    """The struct that executorch 0.7 to 1.4.1 reads is proved and holds what the runtime's own says."""
    code = (
        "import opscope.runtimes.executorch.installed as installed\n"
        "from importlib.util import find_spec\n"
        "from pathlib import Path\n"
        "from opscope.runtimes.executorch.cpuinfo import CpuInfo\n"
        "own = installed.installed_runtime()\n"
        "torch = Path(find_spec('torch').submodule_search_locations[0]) / 'lib'\n"
        "old = own._replace(features=installed.library_path(torch, 'libc10'))\n"
        "print(CpuInfo(own).fields() == CpuInfo(old).fields(), len(CpuInfo(old).fields()) > 5)\n"
    )
    done = asked(code)
    assert done.stdout.split() == ["True", "True"], done.stderr
