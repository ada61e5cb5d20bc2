"""What the targets of all native runners share: each makes its runner when it is needed, and its jobs ask it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from opscope.bundle.manifest import Mechanism
from opscope.core.errors import RunError
from opscope.experiment.target import SwitchOffer, feature_groups
from opscope.machine import environment
from opscope.runtimes.hosted import HostedTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from opscope.bundle.manifest import Environment
    from opscope.experiment.protocol import Job, ProbeAnswer
    from opscope.experiment.target import JobOutcome, RunTarget
    from opscope.hosts.host import Host
    from opscope.machine.ceilings_cache import MachineIdentity
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.native.start import NativeProgram


class RunnerJobs(Protocol):
    """Repetitions with a runner."""

    @property
    def probed(self) -> ProbeAnswer:
        """The CPU's features."""
        ...

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job; see :meth:`opscope.experiment.target.RunTarget.execute`."""
        ...

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the runner's libraries, other than ``cpuinfo``."""
        ...


class RunnerTarget(HostedTarget, ABC):
    """Runs jobs with a native runner.

    Args:
        host: where.
        program: makes the runner when it is needed first, since it may depend on what the host is.
        versions: of the host's software that go with those of the runner.
        ceilings: a target of the same host that measures its ceilings; None where they are not measured.
    """

    mechanisms = tuple(Mechanism)

    def __init__(
        self,
        host: Host,
        program: Callable[[], NativeProgram],
        versions: Mapping[str, str],
        ceilings: RunTarget | None,
    ) -> None:
        super().__init__(host)
        self._make, self._versions, self._ceilings = program, dict(versions), ceilings

    @cached_property
    def program(self) -> NativeProgram:
        """The runner."""
        return self._make()

    def brought_files(self) -> list[Path]:
        """The runner and its libraries where they are brought to the host; none where those that are installed run."""
        folder = self.program.brought
        return list(folder.files()) if folder else []

    @property
    @abstractmethod
    def jobs(self) -> RunnerJobs:
        """What runs its jobs."""

    @abstractmethod
    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime there sees them, when they can be cleared in its memory."""

    def environment(self) -> Environment:
        """The machine and its software, the compiler included."""
        groups = feature_groups(lambda: self.jobs.probed)
        versions = {"opscope": environment.versions()["opscope"], **self._versions, **self.program.versions}
        return self._host.environment(groups, versions)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own, which ends with its time, the caller, or the connection."""
        return self.jobs.execute(job, directory)

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the runner's libraries."""
        return SwitchOffer(self.probe()) if mechanism is Mechanism.CPUINFO else self.jobs.offer(mechanism)

    def ceilings(self, clear: list[str] | None, threads: int) -> Ceilings | None:
        """The ceilings with these features and threads; None where they are not measured."""
        return self._ceilings.ceilings(clear, threads) if self._ceilings else None

    def identity(self) -> MachineIdentity | None:
        """What the ceilings depend on; None where they are not measured."""
        return self._ceilings.identity() if self._ceilings else None

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """The same ceilings as these, measured again."""
        if self._ceilings is None:
            raise RunError("this target measures no ceilings")
        return self._ceilings.ceilings_again(sample)
