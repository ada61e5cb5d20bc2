"""Run the runtime's Python bindings on any host: every repetition is a fresh Python process with ExecuTorch installed.

It is the Python of this process, or one of a device. opscope itself is sent to a device, so that both ends have
one version; what is missing there is reported.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from abc import ABC, abstractmethod
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.bundle.manifest import Failure, Target
from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.core.install import install_command
from opscope.core.json import from_json
from opscope.core.system.interpreter import FILE, PACKAGE, module_command, module_words, path_variables
from opscope.experiment.protocol import LOG, TRACE, ProbeAnswer, Refusal
from opscope.experiment.target import Capabilities, feature_groups
from opscope.hosts.process import log_tail, question_seconds, read_answer
from opscope.hosts.target_kinds import LOCAL
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment
from opscope.machine.ceilings.cache import MachineIdentity
from opscope.machine.ceilings.peak_rates import PROBE_SOURCE
from opscope.machine.environment import cpu_revision
from opscope.machine.isa import WITHOUT_SWITCH
from opscope.runtimes.ceilings.process import CEILINGS_CHILD
from opscope.runtimes.executorch.cpuinfo import switched_libraries
from opscope.runtimes.executorch.installed import (
    TRACES_SINCE,
    binding_libraries,
    installed_runtime,
    source_versions,
)
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.package_target import ANSWER, ChildTarget
from opscope.runtimes.switching import LibrarySwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.bundle.manifest import Environment
    from opscope.experiment.protocol import Job
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host


CHILD = "opscope.runtimes.executorch.runners.child"
_PACKAGE = "opscope.zip"
_ASK_SECONDS = 120.0
_EPOCH = (1980, 1, 1, 0, 0, 0)

_INSTALL = "on the device: PYTHON -m pip install executorch==1.5.1 torch==2.13.0 msgspec numpy"


def no_runner_hint() -> str:
    """Return the packages to install so that programs can run here."""
    compiler = "install a C++17 compiler for the native runner (Debian: apt install g++, macOS: xcode-select --install)"
    return f"{compiler}, or torch for the Python bindings ({install_command('executorch')})"


def local_obstacle() -> str | None:
    """Return why the Python bindings cannot run programs here, as one sentence; None if no reason is known."""
    try:
        installed_runtime()
    except MissingDependencyError as error:
        return error.problem
    return None if find_spec("torch") else "torch is not installed, and executorch's Python bindings need it"


class Interpreter(ABC):
    """A Python with the runtime, on some host."""

    @abstractmethod
    def start(self, module: str) -> Sequence[str]:
        """Return the command that starts a module of opscope there; its arguments follow."""

    def variables(self) -> Mapping[str, str]:
        """Return environment variables of such a process that differ from those of its host."""
        return {}

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the versions of what is installed there."""

    def untraceable(self) -> str | None:
        """Return why its runtime traces nothing, as one sentence; None if it does, or if that is not known."""
        return None

    def libraries(self) -> Callable[[], Sequence[Path]] | None:
        """Return a function that lists the libraries that its runtime can load; None if they are unknown."""
        return None

    def check_installed(self) -> None:  # noqa: B027 - where only a process tells, there is nothing to do
        """Raise MissingDependencyError if the runtime is missing, where that is known without starting a process."""

    def silent(self, log: Path) -> MissingDependencyError | None:  # noqa: ARG002 - where something may be missing
        """Return why a process of it may have ended without an answer; None if its log says it."""
        return None

    @abstractmethod
    def identity(self) -> tuple[str, str | None] | None:
        """Return host and revision of its CPU, on which ceilings depend; None if they are unknown."""


class OwnPython(Interpreter):
    """The Python of this process.

    ``commands``: replacements of the commands that start the children, by the names of their modules.
    """

    def __init__(self, commands: Mapping[str, Sequence[str]] | None = None) -> None:
        self._commands = dict(commands or {})

    def start(self, module: str) -> Sequence[str]:
        """Return the command of this Python with this opscope."""
        return self._commands.get(module) or module_command(module)

    def variables(self) -> Mapping[str, str]:
        """Return PYTHONPATH with absolute entries, since the children run in other directories."""
        return path_variables()

    def versions(self) -> Mapping[str, str]:
        """Return the versions of what is installed here."""
        return {**environment.versions(), **source_versions()}

    def untraceable(self) -> str | None:
        """Return why the installed runtime writes no traces; None if it does."""
        runtime = installed_runtime()
        return None if runtime.traces else f"executorch {runtime.version} writes no traces; {TRACES_SINCE} and later do"

    def libraries(self) -> Callable[[], Sequence[Path]]:
        """Return a function that lists the libraries of the installed package."""
        return binding_libraries

    def check_installed(self) -> None:
        """Raise MissingDependencyError if the package is missing."""
        installed_runtime()

    def identity(self) -> tuple[str, str | None]:
        """Return host and CPU revision of this machine."""
        return environment.host(), cpu_revision()


class DevicePython(Interpreter):
    """A Python of a device, with executorch installed there: for systems without a ready runtime, such as macOS.

    ``python``: relative to the user's home unless it is looked up like any program.
    """

    def __init__(self, device: Device, python: str) -> None:
        self._device, self._asked = device, python

    def start(self, module: str) -> Sequence[str]:
        """Return the command of that Python with this opscope, which is sent."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            package = Path(directory) / _PACKAGE
            package.write_bytes(self._package_content)
            digest = hashlib.sha256(self._package_content).hexdigest()[:16]
            paths = self._device.provide("packages", {_PACKAGE: package, FILE.name: FILE}, digest)
        program = self._device.absolute(self._asked) if "/" in self._asked else self._asked
        return ["env", "PYTHONDONTWRITEBYTECODE=1", program, *module_words(paths[FILE.name], paths[_PACKAGE], module)]

    def versions(self) -> Mapping[str, str]:
        """Return the versions of what is installed there; asked once."""
        return self._device_versions

    @cached_property
    def _device_versions(self) -> dict[str, str]:
        text = self._device.output_of(*self.start(CHILD), "versions", timeout=question_seconds(_ASK_SECONDS))
        try:
            return from_json(text, dict[str, str])
        except msgspec.MsgspecError:
            return {}

    def silent(self, log: Path) -> MissingDependencyError:
        """Return the error that the device's Python lacks what is needed."""
        problem = f"the device's Python cannot run models{log_tail(log)}"
        return MissingDependencyError(problem, where=f"{self._device.name}: {self._asked}", hint=_INSTALL)

    def identity(self) -> tuple[str, str | None] | None:
        """Return host and CPU revision of the device; None if it does not state its name."""
        facts = self._device.facts()
        host = facts.get("host", "")
        return (host, cpu_revision(facts.get("cpuinfo", ""))) if host else None

    @cached_property
    def _package_content(self) -> bytes:
        """Content of this opscope as a zip file, the same bytes each time."""
        root = PACKAGE
        with tempfile.TemporaryFile() as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted([*root.rglob("*.py"), PROBE_SOURCE]):
                    name = path.relative_to(root.parent).as_posix()
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
            file.seek(0)
            return file.read()


_PROGRAM, _VALUES, _DATA = "program.pte", "inputs.npz", "program.ptd"
_PROBE_SECONDS = 120.0


class PythonTarget(ChildTarget):
    """Runs jobs with the Python bindings of the runtime.

    ``features`` asks for the CPU's features in place of a process of that Python; ``stand_in`` says why this target
    replaces another.
    """

    honours = frozenset({"affinity", "calls", "inputs", "values", "data"})
    child = CHILD

    def __init__(
        self,
        host: Host,
        python: Interpreter,
        features: Callable[[], ProbeAnswer] | None = None,
        stand_in: str | None = None,
    ) -> None:
        super().__init__(host, TRACE, stand_in)
        self._python, self._features = python, features

    def capabilities(self) -> Capabilities:
        """Return whether the installed runtime writes traces, and what it has registered."""
        return Capabilities(
            untraceable=self._python.untraceable(),
            host=self._host,
            libraries=self._python.libraries(),
            stand_in=self._stand_in,
        )

    def probe(self) -> ProbeAnswer:
        """Return the CPU's features as the runtime sees them.

        Asked once in a separate process, nothing is loaded here.
        """
        return self._probed_features

    @cached_property
    def _probed_features(self) -> ProbeAnswer:
        if self._features:
            return self._features()
        self._python.check_installed()
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            temporary = Path(directory)
            seconds = question_seconds(_PROBE_SECONDS)
            code = self._run_module(CHILD, ["probe", ANSWER], temporary, seconds)
            answer, log = temporary / ANSWER, temporary / LOG
            lacking = self._python.silent(log) if code and not answer.exists() else None
            if lacking is not None:
                raise lacking
            return probe_response(code, answer, log, seconds)

    def environment(self) -> Environment:
        """Describe the machine and its software."""
        return self._host.environment(feature_groups(self.probe), self._python.versions())

    def _with_host_paths(self, job: Job) -> Job:
        """Send the program, its weights and its inputs to the host, and return the job with their paths there."""
        program = self._host.provide("programs", {_PROGRAM: Path(job.program)})[_PROGRAM]
        values = self._host.provide("inputs", {_VALUES: Path(job.values)})[_VALUES] if job.values else None
        data = self._host.provide("data", {_DATA: Path(job.data)})[_DATA] if job.data else None
        return msgspec.structs.replace(job, program=program, values=values, data=data)

    def _request_fields(self, job: Job) -> dict[str, Any]:
        return {"kernels": tuple(shipped.module for shipped in extra_kernels(Path(job.program)))}

    def _module_command(self, module: str) -> Sequence[str]:
        """Return the command that starts a module with the given Python."""
        return self._python.start(module)

    def _process_variables(self) -> Mapping[str, str]:
        """Return the environment variables of the given Python."""
        return self._python.variables()

    def _library_switch(self) -> LibrarySwitch:
        libraries = [] if self._host.remote else switched_libraries(installed_runtime())
        return LibrarySwitch(self._host, libraries)

    def identity(self) -> MachineIdentity | None:
        """Return the properties of the host that ceilings depend on; None if it does not state its name."""
        host_and_revision = self._python.identity()
        return (
            MachineIdentity.of(self.environment(), self.probe().fields, *host_and_revision)
            if host_and_revision
            else None
        )


def python_here(
    child: Sequence[str] | None = None,
    ceilings_child: Sequence[str] | None = None,
    features: Callable[[], ProbeAnswer] | None = None,
    stand_in: str | None = None,
) -> PythonTarget:
    """Return the Python bindings on this machine as a target."""
    replacements = {CHILD: child, CEILINGS_CHILD: ceilings_child}
    commands = {module: command for module, command in replacements.items() if command}
    return PythonTarget(ThisMachine(Target(LOCAL.name, "")), OwnPython(commands), features, stand_in)


def python_on(device: Device, python: str) -> PythonTarget:
    """Return the Python bindings on a device as a target."""
    return PythonTarget(device, DevicePython(device, python))


def probe_response(code: int | None, answer: Path, log: Path, timeout: float) -> ProbeAnswer:
    """Return the features that a process answered with; arguments as of :func:`opscope.hosts.process.read_answer`.

    Raises MissingDependencyError or FeatureError if it answered with none.
    """
    kind: type[ProbeAnswer | Refusal] = Refusal if code == 1 else ProbeAnswer
    response = read_answer(code, answer, log, timeout, kind)
    if isinstance(response, Refusal):
        kind_of_error = MissingDependencyError if response.kind == MissingDependencyError.__name__ else FeatureError
        raise kind_of_error(response.problem, where=response.where, hint=response.hint)
    if isinstance(response, Failure):
        raise FeatureError(f"the runtime cannot report this CPU's features: {response.message}", hint=WITHOUT_SWITCH)
    return response
