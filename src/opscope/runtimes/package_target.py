"""A runtime of a Python package on this machine: every repetition is a fresh Python process that drives its library."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import Mechanism, Target
from opscope.core.errors import DeviceError, FeatureError
from opscope.core.files import storage_errors
from opscope.core.system.interpreter import module_command, path_variables
from opscope.experiment.protocol import LOG, OUTPUTS, CeilingsRequest, ProbeAnswer, RunRequest
from opscope.experiment.target import Capabilities, SwitchOffer
from opscope.hosts.host import GuardedCommand
from opscope.hosts.target_kinds import LOCAL
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment, isa
from opscope.machine.ceilings_cache import MachineIdentity, fingerprint
from opscope.machine.environment import cpu_revision
from opscope.machine.switch.switch import fields_here, obstacle
from opscope.runtimes.ceilings.process import CEILINGS_LIMIT, CEILINGS_SECONDS, DRIFT_SECONDS, ceilings_response
from opscope.runtimes.hosted import HostedTarget, ended_by, outcome_of
from opscope.runtimes.switching import (
    LibrarySwitch,
    cleared_away,
    is_switched_outside,
    nothing_to_clear,
    variables_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opscope.bundle.manifest import Environment
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import JobOutcome
    from opscope.machine.switch.switch import PreparedSwitch
    from opscope.program.ceilings.ceilings import Ceilings

_REQUEST, _ANSWER = "request.json", "answer.json"


class PackageModules(NamedTuple):
    """Modules of the processes that drive a package."""

    child: str  # serves a request to run a model; see child
    ceilings: str  # measures ceilings; see process
    honours: frozenset[str]  # fields of a job that the child reads; see RunTarget


class PackageTarget(HostedTarget):
    """Runs jobs with an installed package, on this machine.

    Args:
        modules: of the processes.
        trace: name of the file with the events of a traced run.
        library: tells the library that asks for the CPU's features.
        versions: tells those of the package.
        stand_in: why it is used in place of another target, as one sentence; None: it was asked for.
    """

    mechanisms = tuple(Mechanism)

    def __init__(
        self,
        modules: PackageModules,
        trace: str,
        library: Callable[[], Path],
        versions: Callable[[], Mapping[str, str]],
        stand_in: str | None = None,
    ) -> None:
        super().__init__(ThisMachine(Target(LOCAL.name, "")))
        self.honours = modules.honours
        self._modules, self._trace, self._library, self._versions = modules, trace, library, versions
        self._stand_in = stand_in

    def capabilities(self) -> Capabilities:
        """The name of its traces, and what it stands in for."""
        return Capabilities(host=self._host, trace=self._trace, stand_in=self._stand_in)

    def probe(self) -> ProbeAnswer:
        """Features cannot be cleared in the library: it has no symbols, so that its variable cannot be found."""
        raise nothing_to_clear(self._library())

    def environment(self) -> Environment:
        """The machine and its software."""
        return self._host.environment(_features(), self._versions())

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the library."""
        return SwitchOffer(self.probe()) if mechanism is Mechanism.CPUINFO else self._switch().offer(mechanism)

    def _switch(self) -> LibrarySwitch:
        return LibrarySwitch(self._host, [self._library()])

    def ceilings(self, clear: list[str] | None, threads: int) -> Ceilings:
        """The ceilings of this machine with these features and threads, from small models; takes some seconds."""
        return self._measured(CeilingsRequest(clear, threads, CEILINGS_SECONDS, _ANSWER))

    def identity(self) -> MachineIdentity:
        """What the ceilings of this machine and this library depend on."""
        library, (_, fields) = self._library(), fields_here()
        host = environment.host()
        return MachineIdentity.of(self.environment(), fields, host, cpu_revision(), fingerprint(library))

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """The same ceilings as these, measured again."""
        clear = sample.cleared or None
        return self._measured(CeilingsRequest(clear, sample.threads, DRIFT_SECONDS, _ANSWER, sample))

    def _measured(self, asked: CeilingsRequest) -> Ceilings:
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory, storage_errors(Path(directory)):
            work = Path(directory).resolve()
            switch = self._masked(asked.clear, work) if asked.clear is not None else None
            record = str(switch.record) if switch else None
            request = work / _REQUEST
            request.write_bytes(msgspec.json.encode(msgspec.structs.replace(asked, record=record)))
            command = GuardedCommand(
                words=[*module_command(self._modules.ceilings), str(request)],
                into=work,
                timeout=CEILINGS_LIMIT,
                variables={**path_variables(), **variables_of(switch)},
            )
            with self._host.started(command) as ended:
                return ceilings_response(ended.code, asked, work / _ANSWER, work / LOG)

    def _masked(self, clear: list[str], work: Path) -> PreparedSwitch:
        """The switch by the mechanism of this architecture."""
        usable = (one for one in (Mechanism.TRAP, Mechanism.HWCAP) if obstacle(one) is None)
        return self._switch().prepared_with(next(usable, Mechanism.TRAP), clear, work)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own, which ends with its time or the caller."""
        work = directory.resolve()
        try:
            switch = self._switch().prepared(job, work) if is_switched_outside(job) else None
            request = work / _REQUEST
            record = str(switch.record) if switch else None
            request.write_bytes(msgspec.json.encode(_asked(job, self._trace, record)))
            command = GuardedCommand(
                words=[*module_command(self._modules.child), "run", str(request)],
                into=work,
                timeout=job.timeout_seconds,
                nice=job.nice,
                variables={**path_variables(), **variables_of(switch)},
            )
            with self._host.started(command) as ended:
                return outcome_of(ended.code, work / _ANSWER, work / LOG, job.timeout_seconds)
        except (FeatureError, DeviceError, OSError) as error:
            return ended_by(error)
        finally:
            cleared_away(work)
            for name in (_REQUEST, _ANSWER):
                (work / name).unlink(missing_ok=True)


def _features() -> list[str] | None:
    """Feature groups of this CPU, as it states them itself; None where it cannot be asked."""
    try:
        arch, fields = fields_here()
    except FeatureError:
        return None
    return [group.name for group in isa.present(arch, frozenset(fields))]


def _asked(job: Job, trace: str, record: str | None) -> RunRequest:
    return RunRequest.of(
        job,
        program=str(Path(job.program).resolve()),
        values=str(Path(job.values).resolve()) if job.values else None,
        trace=trace if job.traced else None,
        outputs=OUTPUTS,
        answer=_ANSWER,
        record=record,
    )
