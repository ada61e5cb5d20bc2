"""One target made of several: each variant has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import RunError
from opscope.experiment.target import RunTarget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.experiment.protocol import Job, ProbeAnswer
    from opscope.experiment.target import Capabilities, JobOutcome
    from opscope.hosts.lock import LockRequest, MachineHold
    from opscope.machine.ceilings_cache import MachineIdentity
    from opscope.program.ceilings import Ceilings


class VariantTargets(RunTarget):
    """Runs the jobs of each variant where that variant runs.

    Their runtimes may differ, the machine may not: it is asked, held and described by the first. A job's variant is
    told by its directory, which lies in that of its variant (``opscope.bundle.bundle``).
    """

    def __init__(self, targets: Mapping[str, RunTarget]) -> None:
        self._targets = dict(targets)
        self._first = next(iter(self._targets.values()))

    def describe(self) -> Target:
        """Kind of all targets; every distinct address."""
        told = [target.describe() for target in self._targets.values()]
        addresses = dict.fromkeys(one.address for one in told if one.address)
        return msgspec.structs.replace(told[0], address=", ".join(addresses))

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold | None]:
        """Hold the first target: all others are on the same machine."""
        return self._first.reserved(request)

    def capabilities(self) -> Capabilities:
        """What the first target can and cannot do; nothing is traced where one of them cannot be."""
        each = [target.capabilities() for target in self._targets.values()]
        untraceable = next((one.untraceable for one in each if one.untraceable), None)
        stand_in = next((one.stand_in for one in each if one.stand_in), None)
        always = any(one.always_traces for one in each)
        shared = each[0]._replace(untraceable=untraceable, stand_in=stand_in, always_traces=always)
        one = len(dict.fromkeys(self._targets.values())) == 1
        return shared if one else shared._replace(backend=None, libraries=None)

    def of(self, variant: str) -> RunTarget:
        """The target of a variant."""
        try:
            return self._targets[variant]
        except KeyError:
            raise RunError(f"no target given for the variant {variant}") from None

    def probe(self) -> ProbeAnswer:
        """The CPU's features, as the first target tells them."""
        return self._first.probe()

    def environment(self) -> Environment:
        """The machine as the first target tells it, with the versions of all runtimes, and all versions of one."""
        told = [target.environment() for target in dict.fromkeys(self._targets.values())]
        names = dict.fromkeys(name for one in told for name in one.versions)
        each = {name: dict.fromkeys(one.versions[name] for one in told if name in one.versions) for name in names}
        versions = {name: ", ".join(own) for name, own in each.items()}
        return msgspec.structs.replace(told[0], versions=versions)

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return self._first.conditions()

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job where its variant runs."""
        return self.of(directory.parent.name).execute(job, directory)

    def ceilings(self, clear: list[str] | None, threads: int) -> Ceilings | None:
        """The ceilings, as the first target measures them."""
        return self._first.ceilings(clear, threads)

    def identity(self) -> MachineIdentity | None:
        """What the ceilings of the first target depend on; None where it keeps none."""
        return self._first.identity()

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """The same ceilings as these, as the first target measures them again."""
        return self._first.ceilings_again(sample)
