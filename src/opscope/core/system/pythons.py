"""The Python that runs a package: that of this process, or that of another environment, which tells where it looks."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import UsageError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_SECONDS = 60
_ASKED = "import json, sys; print(json.dumps([sys.executable, list(sys.version_info[:2]), sys.path]))"
_OLDEST = (3, 10)
_BINARIES = ("bin/python", "Scripts/python.exe")


class Python(NamedTuple):
    """A Python, and where it finds packages."""

    executable: str = sys.executable
    path: tuple[str, ...] | None = None  # directories of its modules; None: as this process finds them
    numbers: tuple[int, int] = sys.version_info[:2]

    @property
    def text(self) -> str:
        """Its version, as pip takes it."""
        return ".".join(map(str, self.numbers))

    @property
    def address(self) -> str:
        """By which a target names it; empty for that of this process."""
        return "" if self.path is None else self.executable

    def spec(self, module: str) -> ModuleSpec | None:
        """Where a package is; nothing of it is imported."""
        spec = find_spec(module) if self.path is None else PathFinder.find_spec(module, self.path)
        return spec if spec and spec.submodule_search_locations else None

    def place(self, module: str) -> Path | None:
        """Directory of a package."""
        spec = self.spec(module)
        return Path(next(iter(spec.submodule_search_locations or ()))) if spec else None

    def version(self, package: str) -> str | None:
        """Of an installed package; None for one that does not tell, or is not there."""
        if self.path is not None:
            found = next(iter(Distribution.discover(name=package, path=list(self.path))), None)
            return found.version if found else None
        try:
            return version(package)
        except PackageNotFoundError:
            return None


HERE = Python()
"""That of this process."""


def python_in(place: Path) -> Path:
    """The executable in the directory of an environment; another path is that of an executable itself."""
    return next((path for name in _BINARIES if (path := place / name).exists()), place)


@cache
def python_at(text: str) -> Python:
    """The Python of an environment, by the path of its executable or of its directory; empty: that of this process.

    A UsageError where there is none, or it is older than opscope supports.
    """
    if not text:
        return HERE
    file = python_in(Path(text))
    hint = "name a Python or the directory of a virtual environment"
    try:
        done = subprocess.run(
            [str(file.absolute()), "-I", "-c", _ASKED], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        executable, numbers, path = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"not a Python: {error}", where=text, hint=hint) from None
    if tuple(numbers) < _OLDEST:
        problem = f"Python {'.'.join(map(str, numbers))} cannot run opscope's processes"
        raise UsageError(problem, where=text, hint=f"one of {'.'.join(map(str, _OLDEST))} or newer")
    return Python(executable, tuple(path), (int(numbers[0]), int(numbers[1])))
