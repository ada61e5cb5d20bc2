"""Targets that drive a runtime from Python: every repetition is a fresh Python process."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from opscope.bundle.manifest import FailureKind, Mechanism, Target
from opscope.core.errors import DeviceError, FeatureError, RunError
from opscope.core.files import storage_errors
from opscope.core.system.interpreter import module_command, path_variables
from opscope.core.system.pythons import HERE
from opscope.experiment.guesses import USUAL_INPUTS, guess_inputs, input_words
from opscope.experiment.inputs import make_inputs
from opscope.experiment.protocol import AS_IT_IS, LOG, OUTPUTS, CeilingsRequest, Job, RunRequest
from opscope.experiment.target import Capabilities, SwitchOffer
from opscope.hosts.host import GuardedCommand, ProcessSettings
from opscope.hosts.target_kinds import LOCAL
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment, isa
from opscope.machine.ceilings.cache import MachineIdentity
from opscope.machine.environment import cpu_revision
from opscope.machine.switch.switch import fields_here
from opscope.runtimes.ceilings.process import (
    CEILINGS_CHILD,
    CEILINGS_LIMIT,
    CEILINGS_SECONDS,
    DRIFT_SECONDS,
    ceilings_response,
)
from opscope.runtimes.hosted import HostedTarget, ended_by, outcome_of
from opscope.runtimes.switching import (
    LibrarySwitch,
    cleared_away,
    is_switched_outside,
    nothing_to_clear,
    record_of,
    variables_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.bundle.manifest import Environment, Variant
    from opscope.core.system.pythons import Python
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import JobOutcome
    from opscope.hosts.host import Host
    from opscope.program.ceilings import Ceilings
    from opscope.program.structure.exported import Signature

REQUEST, ANSWER = "request.json", "answer.json"
_ONCE_SECONDS = 300.0
Left = TypeVar("Left")


class ChildTarget(HostedTarget, ABC):
    """A target whose processes are Python modules that follow :mod:`opscope.runtimes.child`."""

    mechanisms = tuple(Mechanism)
    child: str
    """Name of the module that runs programs; its arguments are ``run REQUEST``."""

    def __init__(self, host: Host, trace: str, stand_in: str | None = None) -> None:
        super().__init__(host)
        self._trace, self._stand_in = trace, stand_in

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """Return the offer of a mechanism that switches CPU features for the runtime's libraries."""
        return super().offer(mechanism) if mechanism is Mechanism.CPUINFO else self._library_switch().offer(mechanism)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in its own process group, which ends on a timeout, with the caller, or with the connection."""
        work = directory.resolve()
        try:
            switch = self._library_switch().prepared(job, work) if is_switched_outside(job) else None
            request = RunRequest(
                job=self._with_host_paths(job),
                trace=self._trace if job.traced else None,
                outputs=OUTPUTS,
                answer=ANSWER,
                record=record_of(switch),
                **self._request_fields(job),
            )
            words = ["run", self._send_request(request, work)]
            code = self._run_module(self.child, words, work, job.timeout_seconds, variables_of(switch), job.process)
            return self._read_outcome(code, work, job.timeout_seconds)
        except (FeatureError, DeviceError, OSError) as error:
            return ended_by(error)
        finally:
            cleared_away(work)
            for name in (REQUEST, ANSWER):
                (work / name).unlink(missing_ok=True)

    def _read_outcome(self, code: int | None, work: Path, timeout: float) -> JobOutcome:
        outcome = outcome_of(code, work / ANSWER, work / LOG, timeout)
        if self._host.remote and outcome.failure and outcome.failure.kind is FailureKind.STORAGE:
            raise DeviceError(outcome.failure.message, where=self._host.name, hint="free some space there")
        return outcome

    def ceilings(self, variant: Variant) -> Ceilings:
        """Measure the ceilings of the host with the features and threads of a variant; takes some seconds."""
        return self._measure_ceilings(CeilingsRequest(variant.cleared, variant.threads or 1, CEILINGS_SECONDS, ANSWER))

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """Measure again the ceilings of an earlier sample, with its features and threads.

        Takes some tenths of a second.
        """
        return self._measure_ceilings(CeilingsRequest(sample.cleared, sample.threads, DRIFT_SECONDS, ANSWER, sample))

    def _measure_ceilings(self, request: CeilingsRequest) -> Ceilings:
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory, storage_errors(Path(directory)):
            work = Path(directory).resolve()
            code = self._run_module(CEILINGS_CHILD, [self._send_request(request, work)], work, CEILINGS_LIMIT)
            return ceilings_response(code, request, work / ANSWER, work / LOG)

    @abstractmethod
    def _library_switch(self) -> LibrarySwitch:
        """Return the switch of CPU features for the runtime's libraries."""

    @abstractmethod
    def _with_host_paths(self, job: Job) -> Job:
        """Return a job whose paths are those of the host."""

    def _request_fields(self, job: Job) -> dict[str, Any]:  # noqa: ARG002 - for those that have some
        """Return further fields of the :class:`RunRequest` that the runtime's process reads, by name."""
        return {}

    def _module_command(self, module: str) -> Sequence[str]:
        """Return the command that starts a module of opscope on the host; the module's arguments follow it."""
        return module_command(module)

    def _process_variables(self) -> Mapping[str, str]:
        """Return the environment variables of a process of opscope on the host."""
        return path_variables()

    def _run_module(
        self,
        module: str,
        words: Sequence[str],
        into: Path,
        timeout: float,
        variables: Mapping[str, str] | None = None,
        process: ProcessSettings | None = None,
    ) -> int | None:
        """Run a module of opscope on the host and return its exit code; None if it was ended by the timeout.

        The files that it wrote are in ``into`` afterwards.
        """
        command = GuardedCommand(
            words=[*self._module_command(module), *words],
            into=into,
            timeout=timeout,
            process=process or ProcessSettings(),
            is_wanted=(ANSWER, self._trace, OUTPUTS).__contains__,
            variables={**self._process_variables(), **(variables or {})},
        )
        with self._host.started(command) as ended:
            return ended.code

    def _send_request(self, request: RunRequest | CeilingsRequest, work: Path) -> str:
        """Write a request, provide it to the host, and return its path there."""
        file = work / REQUEST
        file.write_bytes(msgspec.json.encode(request))
        return self._host.provide("requests", {REQUEST: file})[REQUEST]


class PackageModules(NamedTuple):
    """Modules of the processes that drive a Python package."""

    child: str  # serves a request to run a model; see child
    honours: frozenset[str]  # fields of a job that the child reads; see RunTarget


class PackageTarget(ChildTarget):
    """Runs jobs with an installed Python package, on this machine.

    ``trace`` is the name of the file with the events of a traced run. ``library`` finds the library that asks for
    the CPU's features. ``stand_in`` says in one sentence why this target replaces another; None if a user chose it.
    """

    def __init__(
        self,
        modules: PackageModules,
        trace: str,
        library: Callable[[], Path],
        versions: Callable[[], Mapping[str, str]],
        stand_in: str | None = None,
        *,
        python: Python = HERE,
    ) -> None:
        super().__init__(ThisMachine(Target(LOCAL.name, python.address)), trace, stand_in)
        self.child, self.honours = modules
        self._library, self._versions, self._python = library, versions, python.executable

    def capabilities(self) -> Capabilities:
        """Return the name of its traces, and which target it stands in for."""
        return Capabilities(host=self._host, trace=self._trace, stand_in=self._stand_in)

    def probe(self) -> ProbeAnswer:
        """Raise FeatureError: the library has no symbols, so the variable with its features cannot be found."""
        raise nothing_to_clear(self._library())

    def environment(self) -> Environment:
        """Describe the machine and its software."""
        return self._host.environment(_read_feature_groups(), self._versions())

    def _library_switch(self) -> LibrarySwitch:
        return LibrarySwitch(self._host, [self._library()])

    def _module_command(self, module: str) -> Sequence[str]:
        return module_command(module, self._python)

    def identity(self) -> MachineIdentity:
        """Return the properties of this machine that its ceilings depend on."""
        _, fields = fields_here()
        return MachineIdentity.of(self.environment(), fields, environment.host(), cpu_revision())

    def _with_host_paths(self, job: Job) -> Job:
        """Return a job with absolute paths, because its process works in another directory."""
        values = str(Path(job.values).resolve()) if job.values else None
        return msgspec.structs.replace(job, program=str(Path(job.program).resolve()), values=values)


def run_once(
    target: PackageTarget,
    title: str,
    program: Path,
    signature: Signature,
    limits: Mapping[str, int],
    read: Callable[[Path], Left],
) -> tuple[Left, str]:
    """Run a program once without measuring, and return what ``read`` takes from its files, and its inputs in words.

    Open input sizes are guessed until the program runs with some. ``limits`` is the number of rows of the table
    that an input indexes, by input name. ``read`` gets the directory of the run. Raises RunError if the program
    does not run with any guess.
    """
    named_tensors = [(tensor.name, tensor) for tensor in signature.inputs]
    problem = ""
    for usual in USUAL_INPUTS:
        asked_inputs = guess_inputs(named_tensors, [], {}, limits, usual)
        made = make_inputs([value for _, value in named_tensors], asked_inputs, 0)
        with tempfile.TemporaryDirectory(prefix="opscope-") as temporary:
            directory, values = Path(temporary), None
            if made.arrays:
                values = str(directory / "inputs.npz")
                np.savez(values, **{f"arr_{number}": array for number, array in made.arrays.items()})  # type: ignore[arg-type]
            job = Job(str(program), AS_IT_IS, 1, 0, _ONCE_SECONDS, inputs=tuple(made.planned), values=values)
            outcome = target.execute(job, directory)
            if outcome.failure is None:
                return read(directory), ", ".join(input_words(named_tensors, asked_inputs))
            problem = problem or outcome.failure.message
    raise RunError(f"{title} cannot run it: {problem}", where=program)


def _read_feature_groups() -> list[str] | None:
    """Return the feature groups of this CPU as it states them; None if it cannot be asked."""
    try:
        arch, fields = fields_here()
    except FeatureError:
        return None
    return [group.name for group in isa.present(arch, frozenset(fields))]
