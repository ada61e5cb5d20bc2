"""The runtime's Python bindings on any host: every repetition is a fresh Python process with ExecuTorch installed."""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Failure, FailureKind, Target
from opscope.core.errors import DeviceError, FeatureError, MissingDependencyError
from opscope.experiment.protocol import LOG, TRACE, ProbeAnswer, ProbeRefusal
from opscope.experiment.target import Capabilities, feature_groups
from opscope.hosts.process import read_answer
from opscope.hosts.target_kinds import LOCAL
from opscope.hosts.this_machine import ThisMachine
from opscope.machine.ceilings_cache import MachineIdentity
from opscope.machine.isa import WITHOUT_SWITCH
from opscope.runtimes.executorch.cpuinfo import switched_libraries
from opscope.runtimes.executorch.installed import installed_runtime
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.executorch.runners.interpreters import CEILINGS_CHILD, CHILD, DevicePython, OwnPython
from opscope.runtimes.package_target import ANSWER, ChildTarget
from opscope.runtimes.switching import LibrarySwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.bundle.manifest import Environment
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import JobOutcome
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.runtimes.executorch.runners.interpreters import Interpreter

_PROGRAM, _VALUES, _DATA = "program.pte", "inputs.npz", "program.ptd"
_PROBE_SECONDS = 120.0


class PythonTarget(ChildTarget):
    """Runs jobs with the Python bindings of the runtime.

    Args:
        host: where.
        python: of that host.
        features: asks for the CPU's features in place of a process of that Python.
        stand_in: why it is used in place of another target, as one sentence; None: it was asked for.
    """

    honours = frozenset({"affinity", "calls", "inputs", "values", "data"})
    child, ceilings_child = CHILD, CEILINGS_CHILD

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
        """Whether the installed runtime writes traces, and what it has registered."""
        return Capabilities(
            untraceable=self._python.untraceable(),
            host=self._host,
            libraries=self._python.libraries(),
            stand_in=self._stand_in,
        )

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime sees them; asked once of a process of its own, nothing is loaded here."""
        return self._probed

    @cached_property
    def _probed(self) -> ProbeAnswer:
        if self._features:
            return self._features()
        self._python.check_installed()
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            place = Path(directory)
            code = self._run(CHILD, ["probe", ANSWER], place, _PROBE_SECONDS)
            answer, log = place / ANSWER, place / LOG
            lacking = self._python.silent(log) if code and not answer.exists() else None
            if lacking is not None:
                raise lacking
            return probe_response(code, answer, log, _PROBE_SECONDS)

    def environment(self) -> Environment:
        """The machine and its software."""
        return self._host.environment(feature_groups(self.probe), self._python.versions())

    def _there(self, job: Job) -> Job:
        """The host gets the program, its weights and its inputs."""
        program = self._host.provide("programs", {_PROGRAM: Path(job.program)})[_PROGRAM]
        values = self._host.provide("inputs", {_VALUES: Path(job.values)})[_VALUES] if job.values else None
        data = self._host.provide("data", {_DATA: Path(job.data)})[_DATA] if job.data else None
        return msgspec.structs.replace(job, program=program, values=values, data=data)

    def _kernels(self, job: Job) -> tuple[str, ...]:
        """Modules of the runtime."""
        return tuple(one.module for one in extra_kernels(Path(job.program)))

    def _command(self, module: str) -> Sequence[str]:
        """The Python that was given."""
        return self._python.start(module)

    def _variables(self) -> Mapping[str, str]:
        """Likewise."""
        return self._python.variables()

    def _switch(self) -> LibrarySwitch:
        libraries = [] if self._host.remote else switched_libraries(installed_runtime())
        return LibrarySwitch(self._host, libraries)

    def _outcome(self, code: int | None, work: Path, timeout: float) -> JobOutcome:
        outcome = super()._outcome(code, work, timeout)
        if self._host.remote and outcome.failure and outcome.failure.kind is FailureKind.STORAGE:
            raise DeviceError(outcome.failure.message, where=self._host.name, hint="free some space there")
        return outcome

    def identity(self) -> MachineIdentity | None:
        """What the ceilings of the host depend on; None for one that does not tell its name."""
        told = self._python.identity()
        return MachineIdentity.of(self.environment(), self.probe().fields, *told) if told else None


def python_here(
    child: Sequence[str] | None = None,
    ceilings_child: Sequence[str] | None = None,
    features: Callable[[], ProbeAnswer] | None = None,
    stand_in: str | None = None,
) -> PythonTarget:
    """The Python bindings on this machine."""
    given = {CHILD: child, CEILINGS_CHILD: ceilings_child}
    commands = {module: command for module, command in given.items() if command}
    return PythonTarget(ThisMachine(Target(LOCAL.name, "")), OwnPython(commands), features, stand_in)


def python_on(device: Device, python: str) -> PythonTarget:
    """The Python bindings on a device."""
    return PythonTarget(device, DevicePython(device, python))


def probe_response(code: int | None, answer: Path, log: Path, timeout: float) -> ProbeAnswer:
    """The features that a process answered with; arguments as of :func:`opscope.hosts.process.read_answer`."""
    kind: type[ProbeAnswer | ProbeRefusal] = ProbeRefusal if code == 1 else ProbeAnswer
    heard = read_answer(code, answer, log, timeout, kind)
    if isinstance(heard, ProbeRefusal):
        refusal = MissingDependencyError if heard.missing else FeatureError
        raise refusal(heard.problem, where=heard.where, hint=heard.hint)
    if isinstance(heard, Failure):
        raise FeatureError(f"the runtime cannot report this CPU's features: {heard.message}", hint=WITHOUT_SWITCH)
    return heard
