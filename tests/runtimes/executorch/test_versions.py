"""Every executorch from 0.7 on: its programs are read and attributed, its libraries found and switched."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
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


ENDING = "dylib" if sys.platform == "darwin" else "so"


@pytest.mark.parametrize(
    ("files", "runtime", "libraries"),
    [
        (
            (BINDINGS, "torch/lib/libc10.so"),
            f"features=PosixPath\\('HERE/torch/lib/libc10.*backend=PosixPath\\('HERE/{BINDINGS}'.*traces=False",
            "keeps its runtime inside the Python bindings | --target local",
        ),
        (
            [f"executorch/lib/libexecutorch_{name}.{ENDING}" for name in ("threadpool", "backend_xnnpack")],
            "traces=True",
            "HERE/executorch/lib",
        ),
        (["executorch/exir/readme.txt"], "^MissingDependencyError executorch.*has no runtime for this system", ""),
    ],
    ids=["before 1.5, inside the bindings and torch's libc10", "since 1.5, of their own", "no runtime"],
)
def test_the_libraries_of_every_version_are_found(
    files: Sequence[str], runtime: str, libraries: str, tmp_path: Path
) -> None:
    """Those before 1.5 can be linked by nothing and trace nothing; no reason is given that was not seen."""
    first, second = asked(TOLD, packages(tmp_path, *files)).stdout.replace(str(tmp_path), "HERE").splitlines()
    assert re.search(runtime, first)
    assert libraries in second


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
