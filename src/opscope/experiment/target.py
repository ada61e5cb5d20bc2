"""Interface of a place where models run, as the engine needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from opscope.bundle.manifest import Conditions, Environment, Failure, Measurement, Mechanism, Target, Variant
from opscope.bundle.settings import ExperimentSettings, options_of
from opscope.core.errors import FeatureError, RunError, UsageError
from opscope.experiment.protocol import SETTINGS_OF_A_JOB, TRACE, Job
from opscope.machine import isa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opscope.experiment.protocol import ProbeAnswer
    from opscope.hosts.host import Host
    from opscope.hosts.lock import LockRequest, MachineHold
    from opscope.machine.ceilings.cache import MachineIdentity
    from opscope.program.ceilings import Ceilings


class JobOutcome(msgspec.Struct, frozen=True):
    """Outcome of a job: a measurement, or a failure."""

    measurement: Measurement | None = None
    failure: Failure | None = None


class SwitchOffer(NamedTuple):
    """Mechanism with which a target can switch features."""

    mechanism: Mechanism  # that switches
    probe: ProbeAnswer  # the CPU's features as its runtime sees them when none is off
    # hash of the libraries whose features it switches, and of what switches them; empty for `cpuinfo`
    libraries: str = ""

    @property
    def fixed(self) -> frozenset[str]:
        """Fields that the mechanism cannot switch off."""
        return frozenset((*self.probe.needed, *(self.probe.fixed if self.mechanism is Mechanism.HWCAP else ())))

    @property
    def recorded(self) -> Mechanism | None:
        """Mechanism as a variant of the manifest states it; None for ``cpuinfo``."""
        return None if self.mechanism is Mechanism.CPUINFO else self.mechanism


class Capabilities(NamedTuple):
    """Capabilities of a target, as it declares them itself."""

    untraceable: str | None = None  # why nothing is traced there, as one sentence; None: what is asked to be traced is
    # whether every run is traced, so that none shows the latency without tracing; false: none is, and None: what
    # is asked to be
    always_traces: bool | None = None
    # whether it is a build of the user's: its features were fixed when it was built, so that nothing can be
    # switched off, and it runs the method that it chooses
    is_build: bool = False
    host: Host | None = None  # the machine that it runs on; None for one that tells nothing of it
    # tells the library here whose kernels are called there, and can be counted; None where they cannot
    backend: Callable[[], Path] | None = None
    # tells the libraries here that register all operators and backends that it has; None where they are not known
    libraries: Callable[[], Sequence[Path]] | None = None
    # tells the files here that are brought there to run anything; None where none are
    brought: Callable[[], Sequence[Path]] | None = None
    # starts the loader that is brought there, and tells its version; None where none is
    loader: Callable[[], str] | None = None
    # why it stands in for a better target, and what that means for figures, as one sentence; None: it is the one
    # that was asked for
    stand_in: str | None = None
    trace: str = TRACE  # name of the file with the events of a traced run


class RunTarget(ABC):
    """Place where models run. Each job gets a process of its own.

    Attributes:
        honours: fields of a job and its variant, of those in ``SETTINGS_OF_A_JOB``, that it does not drop.
        mechanisms: mechanisms that its features can be switched with.
    """

    honours: frozenset[str]
    mechanisms: ClassVar[tuple[Mechanism, ...]] = (Mechanism.CPUINFO,)

    @abstractmethod
    def describe(self) -> Target:
        """Return kind and address, for the manifest."""

    @abstractmethod
    def probe(self) -> ProbeAnswer:
        """Return the CPU's features as the target's runtime sees them.

        Raises:
            MissingDependencyError: the runtime is not installed on the target.
            FeatureError: the CPU or the library is not one whose features can be switched.
        """

    @abstractmethod
    def environment(self) -> Environment:
        """Return the machine and its software."""

    @abstractmethod
    def conditions(self) -> Conditions:
        """Return the state of the machine now."""

    @abstractmethod
    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job; ``outputs.npz``, ``log.txt`` and of a traced one its trace are left in the directory.

        A crash, a timeout or a refusal of the runtime is an Outcome with a failure, never an exception.
        """

    def check_honoured(self, job: Job) -> None:
        """Refuse a job with a setting that the target would drop.

        Raises:
            UsageError: the job has such a setting; the message names it.
        """
        requested = {
            name for carrier in (job, job.variant) for name in SETTINGS_OF_A_JOB if getattr(carrier, name, None)
        }
        dropped = [setting for name, setting in SETTINGS_OF_A_JOB.items() if name in requested - self.honours]
        if dropped:
            known = options_of(ExperimentSettings)
            words = [known[setting].named(setting) for setting in dropped]
            kind = self.describe().kind
            hint = f"leave it out, or choose another --target than {kind}"
            raise UsageError(f"the runner there does not support {' or '.join(words)}", where=words[0], hint=hint)

    def ceilings(self, variant: Variant) -> Ceilings | None:  # noqa: ARG002 - for those that can
        """Return the ceilings of the target, measured in their own process; None if it cannot measure them.

        Args:
            variant: whose features are cleared and whose threads run, with the switch's mechanism stated.

        Raises:
            FeatureError: it cannot be proved that the features are off.
            RunError: the process crashed, hung or produced nothing.
            StorageError: there is no room for its answer.
        """
        return None

    def identity(self) -> MachineIdentity | None:
        """Return the facts of the machine that ceilings depend on; None if stored ceilings must not be used.

        Raises:
            OpscopeError: it cannot be asked.
        """
        return None

    def ceilings_again(self, sample: Ceilings) -> Ceilings:  # noqa: ARG002 - for those that can
        """Measure some ceilings again in their own process, with the features and threads that they state.

        Args:
            sample: which, see :func:`opscope.program.ceilings.drift_sample`.

        Raises:
            OpscopeError: as of :meth:`RunTarget.ceilings`.
        """
        raise RunError("this target does not store ceilings")

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """Return which features a mechanism can switch on the target.

        Args:
            mechanism: any; ``cpuinfo`` is that of :meth:`RunTarget.probe`.

        Raises:
            FeatureError: the mechanism cannot be used on the target; the message says why.
            MissingDependencyError: the mechanism needs something that is not installed.
        """
        if mechanism is Mechanism.CPUINFO:
            return SwitchOffer(mechanism, self.probe())
        problem = f"the target {self.describe().kind} switches features with cpuinfo only"
        raise FeatureError(problem, hint="leave out --switch")

    def capabilities(self) -> Capabilities:
        """Return what the target can and cannot do; by default it traces on request, and can be switched."""
        return Capabilities()

    def of(self, variant: str) -> RunTarget:  # noqa: ARG002 - for those that are made of several
        """Return the target that a variant runs on: one of several targets, or the only one."""
        return self

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold | None]:  # noqa: ARG002 - for those that others use
        """Hold the target for this process alone, and leave it as it was found.

        Args:
            request: what to do when another run measures on the target; see :meth:`opscope.hosts.host.Host.reserved`.

        Raises:
            BusyError: another run measures on the target.
            DeviceError: the target cannot be reached.
        """
        return nullcontext()


def feature_groups(probe: Callable[[], ProbeAnswer]) -> list[str] | None:
    """Return the feature groups that the runtime sees; None if they cannot be proved."""
    try:
        probed = probe()
    except FeatureError:
        return None
    return [group.name for group in isa.present(probed.arch, frozenset(probed.fields))]
