"""The Python that runs the runtime's bindings: that of this process, or one of a device.

opscope itself is sent to a device, so that both ends are of one version; what is missing there is said.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.core.json import from_json
from opscope.core.system.interpreter import FILE, PACKAGE, module_command, module_words, path_variables
from opscope.hosts.process import log_tail
from opscope.machine import environment
from opscope.machine.ceilings_cache import fingerprint
from opscope.machine.environment import cpu_revision
from opscope.runtimes.executorch.installed import (
    BACKEND,
    TRACES_SINCE,
    binding_libraries,
    installed_runtime,
    library_directory,
    library_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.hosts.device import Device

CHILD, CEILINGS_CHILD = "opscope.runtimes.executorch.runners.child", "opscope.runtimes.executorch.ceilings.child"
_PACKAGE = "opscope.zip"
_ASK_SECONDS = 120.0
_EPOCH = (1980, 1, 1, 0, 0, 0)

_INSTALL = "on the device: PYTHON -m pip install executorch==1.5.1 torch==2.13.0 msgspec numpy"


def no_runner_hint() -> str:
    """What runs programs here, once it is installed."""
    compiler = "install a C++17 compiler for the native runner (Debian: apt install g++, macOS: xcode-select --install)"
    return f"{compiler}, or torch for the Python bindings ({install_command('executorch')})"


def local_obstacle() -> str | None:
    """Why the Python bindings cannot run programs here, as one sentence; None when nothing is known against it."""
    try:
        installed_runtime()
    except MissingDependencyError as error:
        return error.problem
    return None if find_spec("torch") else "torch is not installed, and executorch's Python bindings need it"


class Interpreter(Protocol):
    """A Python with the runtime, on some host."""

    def start(self, module: str) -> Sequence[str]:
        """What starts a module of opscope there; its arguments come behind."""
        ...

    def variables(self) -> Mapping[str, str]:
        """Variables of such a process that differ from those of its host."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Versions of what is installed there."""
        ...

    def untraceable(self) -> str | None:
        """Why its runtime traces nothing, as one sentence; None where it does, or where that is not known."""
        ...

    def libraries(self) -> Callable[[], Sequence[Path]] | None:
        """Tells the libraries that its runtime can load; None where that is not known."""
        ...

    def check_installed(self) -> None:
        """Make sure that the runtime is there, where that can be told without starting a process."""
        ...

    def silent(self, log: Path) -> MissingDependencyError | None:
        """Why a process of it may have ended without an answer; None where its log says all."""
        ...

    def identity(self) -> tuple[str, str | None, str] | None:
        """Host, revision of its CPU and fingerprint of its library, on which ceilings depend; None: not known."""
        ...


class OwnPython:
    """The Python of this process.

    Args:
        commands: in place of those that start the children, by the names of their modules.
    """

    def __init__(self, commands: Mapping[str, Sequence[str]] | None = None) -> None:
        self._commands = dict(commands or {})

    def start(self, module: str) -> Sequence[str]:
        """This very Python, with this opscope."""
        return self._commands.get(module) or module_command(module)

    def variables(self) -> Mapping[str, str]:
        """The children run in directories of their own, and relative entries of PYTHONPATH are meant from here."""
        return path_variables()

    def versions(self) -> Mapping[str, str]:
        """Versions of what is installed here."""
        return environment.versions()

    def untraceable(self) -> str | None:
        """Whether the installed runtime writes traces."""
        runtime = installed_runtime()
        return None if runtime.traces else f"executorch {runtime.version} writes no traces; {TRACES_SINCE} and later do"

    def libraries(self) -> Callable[[], Sequence[Path]]:
        """Those of the installed package."""
        return binding_libraries

    def check_installed(self) -> None:
        """The installed package tells."""
        installed_runtime()

    def silent(self, log: Path) -> None:
        """The log says all."""

    def identity(self) -> tuple[str, str | None, str]:
        """Of this machine and its library."""
        return environment.host(), cpu_revision(), fingerprint(library_path(library_directory(), BACKEND))


class DevicePython:
    """A Python of a device, with executorch installed there: for systems without a ready runtime, such as macOS.

    Args:
        device: of which.
        python: relative to the user's home unless it is looked up like any program.
    """

    def __init__(self, device: Device, python: str) -> None:
        self._device, self._asked = device, python

    def start(self, module: str) -> Sequence[str]:
        """That Python, with this opscope, which is sent."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            package = Path(directory) / _PACKAGE
            package.write_bytes(self._package)
            digest = hashlib.sha256(self._package).hexdigest()[:16]
            there = self._device.provide("packages", {_PACKAGE: package, FILE.name: FILE}, digest)
        program = self._device.absolute(self._asked) if "/" in self._asked else self._asked
        return ["env", "PYTHONDONTWRITEBYTECODE=1", program, *module_words(there[FILE.name], there[_PACKAGE], module)]

    def variables(self) -> Mapping[str, str]:
        """Those of the device."""
        return {}

    def versions(self) -> Mapping[str, str]:
        """Versions of what is installed there; asked once."""
        return self._versions

    @cached_property
    def _versions(self) -> dict[str, str]:
        told = self._device.output_of(*self.start(CHILD), "versions", timeout=_ASK_SECONDS)
        try:
            return from_json(told, dict[str, str])
        except msgspec.MsgspecError:
            return {}

    def untraceable(self) -> None:
        """Not known."""

    def libraries(self) -> None:
        """Not known."""

    def check_installed(self) -> None:
        """Only a process tells."""

    def silent(self, log: Path) -> MissingDependencyError:
        """It lacks what is needed."""
        problem = f"the device's Python cannot run models{log_tail(log)}"
        return MissingDependencyError(problem, where=f"{self._device.name}: {self._asked}", hint=_INSTALL)

    def identity(self) -> tuple[str, str | None, str] | None:
        """Of the device; None for one that does not tell its name."""
        facts = self._device.facts()
        host = facts.get("host", "")
        return (host, cpu_revision(facts.get("cpuinfo", "")), "") if host else None

    @cached_property
    def _package(self) -> bytes:
        """This opscope as one file, the same bytes each time."""
        root = PACKAGE
        with tempfile.TemporaryFile() as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(root.rglob("*.py")):
                    name = path.relative_to(root.parent).as_posix()
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
            file.seek(0)
            return file.read()
