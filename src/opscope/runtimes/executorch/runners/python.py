"""The runtime's Python bindings on any host: every repetition is a fresh Python process with ExecuTorch installed."""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Failure, FailureKind, Mechanism, Target
from opscope.core.errors import DeviceError, FeatureError, MissingDependencyError
from opscope.core.files import storage_errors
from opscope.experiment.protocol import (
    LOG,
    OUTPUTS,
    TRACE,
    CeilingsRequest,
    ProbeAnswer,
    ProbeRefusal,
    RunRequest,
)
from opscope.experiment.target import Capabilities, JobOutcome, SwitchOffer, feature_groups
from opscope.hosts.host import GuardedCommand
from opscope.hosts.process import read_answer
from opscope.hosts.target_kinds import LOCAL
from opscope.hosts.this_machine import ThisMachine
from opscope.machine.ceilings_cache import MachineIdentity
from opscope.machine.layout import WITHOUT_SWITCH
from opscope.runtimes.ceilings.process import CEILINGS_LIMIT, CEILINGS_SECONDS, DRIFT_SECONDS, ceilings_response
from opscope.runtimes.executorch.cpuinfo import switched_libraries
from opscope.runtimes.executorch.installed import installed_runtime
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.executorch.runners.interpreters import CEILINGS_CHILD, CHILD, DevicePython, OwnPython
from opscope.runtimes.hosted import HostedTarget, ended_by, outcome_of
from opscope.runtimes.switching import (
    LibrarySwitch,
    cleared_away,
    is_switched_outside,
    variables_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.bundle.manifest import Environment
    from opscope.experiment.protocol import Job
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.program.ceilings.ceilings import Ceilings
    from opscope.runtimes.executorch.runners.interpreters import Interpreter

_REQUEST, _ANSWER, _PROGRAM = "request.json", "answer.json", "program.pte"
_VALUES, _DATA = "inputs.npz", "program.ptd"
_PROBE_SECONDS = 120.0


class PythonTarget(HostedTarget):
    """Runs jobs with the Python bindings of the runtime.

    Args:
        host: where.
        python: of that host.
        features: asks for the CPU's features in place of a process of that Python.
        stand_in: why it is used in place of another target, as one sentence; None: it was asked for.
    """

    honours = frozenset({"affinity", "calls", "inputs", "values", "data", "nice"})
    mechanisms = tuple(Mechanism)

    def __init__(
        self,
        host: Host,
        python: Interpreter,
        features: Callable[[], ProbeAnswer] | None = None,
        stand_in: str | None = None,
    ) -> None:
        super().__init__(host)
        self._python, self._features, self._stand_in = python, features, stand_in

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
            code = self._run(CHILD, ["probe", _ANSWER], place, _PROBE_SECONDS)
            answer, log = place / _ANSWER, place / LOG
            lacking = self._python.silent(log) if code and not answer.exists() else None
            if lacking is not None:
                raise lacking
            return probe_response(code, answer, log, _PROBE_SECONDS)

    def environment(self) -> Environment:
        """The machine and its software."""
        return self._host.environment(feature_groups(self.probe), self._python.versions())

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own, which ends with its time, the caller, or the connection."""
        work = directory.resolve()
        try:
            switch = self._switch().prepared(job, work) if is_switched_outside(job) else None
            asked = RunRequest.of(
                job,
                program=self._host.provide("programs", {_PROGRAM: Path(job.program)})[_PROGRAM],
                values=self._host.provide("inputs", {_VALUES: Path(job.values)})[_VALUES] if job.values else None,
                data=self._host.provide("data", {_DATA: Path(job.data)})[_DATA] if job.data else None,
                trace=TRACE if job.traced else None,
                outputs=OUTPUTS,
                answer=_ANSWER,
                kernels=tuple(one.module for one in extra_kernels(Path(job.program))),
                record=str(switch.record) if switch else None,
            )
            words = ["run", self._sent(asked, work)]
            code = self._run(CHILD, words, work, job.timeout_seconds, variables_of(switch), job.nice)
            return self._outcome(code, work, job.timeout_seconds)
        except (FeatureError, DeviceError, OSError) as error:
            return ended_by(error)
        finally:
            cleared_away(work)
            for name in (_REQUEST, _ANSWER):
                (work / name).unlink(missing_ok=True)

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the runtime's libraries."""
        return SwitchOffer(self.probe()) if mechanism is Mechanism.CPUINFO else self._switch().offer(mechanism)

    def _switch(self) -> LibrarySwitch:
        libraries = [] if self._host.remote else switched_libraries(installed_runtime())
        return LibrarySwitch(self._host, libraries)

    def _outcome(self, code: int | None, work: Path, timeout: float) -> JobOutcome:
        outcome = outcome_of(code, work / _ANSWER, work / LOG, timeout)
        if self._host.remote and outcome.failure and outcome.failure.kind is FailureKind.STORAGE:
            raise DeviceError(outcome.failure.message, where=self._host.name, hint="free some space there")
        return outcome

    def ceilings(self, clear: list[str] | None, threads: int) -> Ceilings:
        """The ceilings of the host with these features and threads; takes some four seconds."""
        return self._measured(CeilingsRequest(clear, threads, CEILINGS_SECONDS, _ANSWER))

    def identity(self) -> MachineIdentity | None:
        """What the ceilings of the host depend on; None for one that does not tell its name."""
        told = self._python.identity()
        return MachineIdentity.of(self.environment(), self.probe().fields, *told) if told else None

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """The same ceilings as these, measured again; takes some tenths of a second."""
        return self._measured(CeilingsRequest(sample.cleared, sample.threads, DRIFT_SECONDS, _ANSWER, sample))

    def _measured(self, asked: CeilingsRequest) -> Ceilings:
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory, storage_errors(Path(directory)):
            place = Path(directory)
            code = self._run(CEILINGS_CHILD, [self._sent(asked, place)], place, CEILINGS_LIMIT)
            return ceilings_response(code, asked, place / _ANSWER, place / LOG)

    def _run(
        self,
        module: str,
        words: Sequence[str],
        into: Path,
        timeout: float,
        variables: Mapping[str, str] | None = None,
        nice: int = 0,
    ) -> int | None:
        """Exit code of a module that runs there; what it left is here then."""
        command = GuardedCommand(
            words=[*self._python.start(module), *words],
            into=into,
            timeout=timeout,
            nice=nice,
            wanted=(_ANSWER, TRACE, OUTPUTS).__contains__,
            variables={**self._python.variables(), **(variables or {})},
        )
        with self._host.started(command) as ended:
            return ended.code

    def _sent(self, request: RunRequest | CeilingsRequest, work: Path) -> str:
        """Path on the host of a request."""
        file = work / _REQUEST
        file.write_bytes(msgspec.json.encode(request))
        return self._host.provide("requests", {_REQUEST: file})[_REQUEST]


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
        raise FeatureError(f"the runtime cannot tell this CPU's features: {heard.message}", hint=WITHOUT_SWITCH)
    return heard
