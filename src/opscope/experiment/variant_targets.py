"""One target made of several: each variant has its own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import RunError
from opscope.experiment.target import (
    Capabilities,
    RecallingTarget,
    SwitchOffer,
    capabilities,
    reserved,
    switch_offer,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Mechanism, Target
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import Job, JobOutcome, RunTarget
    from opscope.hosts.lock import LockRequest, MachineHold
    from opscope.machine.peak_rates_cache import MachineIdentity
    from opscope.program.peak_rates.peak_rates import PeakRates


class VariantTargets:
    """Runs the jobs of each variant where that variant runs.

    A job's variant is told by its directory, which lies in that of its variant (``opscope.bundle.bundle``).

    Args:
        targets: by the names of the variants, at least one. The machine and its state are asked of the first.
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
        return reserved(self._first, request)

    def capabilities(self) -> Capabilities:
        """What the first target can and cannot do."""
        return capabilities(self._first)

    def probe(self) -> ProbeAnswer:
        """The CPU's features, as the first target tells them."""
        return self._first.probe()

    def environment(self) -> Environment:
        """The machine and its software, as the first target tells them."""
        return self._first.environment()

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return self._first.conditions()

    def of(self, variant: str) -> RunTarget:
        """Where a variant runs."""
        return self._targets[variant]

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job where its variant runs."""
        return self._targets[directory.parent.name].execute(job, directory)

    def roofs(self, clear: list[str] | None, threads: int) -> PeakRates | None:
        """The ceilings, as the first target measures them."""
        return self._first.roofs(clear, threads)

    def identity(self) -> MachineIdentity | None:
        """What the ceilings of the first target depend on; None where it keeps none."""
        return self._first.identity() if isinstance(self._first, RecallingTarget) else None

    def roofs_again(self, sample: PeakRates) -> PeakRates:
        """The same ceilings as these, as the first target measures them again."""
        if not isinstance(self._first, RecallingTarget):
            raise RunError("this target keeps no ceilings")
        return self._first.roofs_again(sample)


class RuntimeTargets(VariantTargets):
    """Variants that run in several runtimes, all on one machine. Ceilings of one would not be those of another."""

    def _each(self) -> list[RunTarget]:
        return list(dict.fromkeys(self._targets.values()))

    def capabilities(self) -> Capabilities:
        """What all of them can; the libraries of operators and kernels are those of none."""
        own = [capabilities(target) for target in self._each()]
        return Capabilities(
            untraceable=next((one.untraceable for one in own if one.untraceable), None),
            always_traces=any(one.always_traces for one in own),
            host=own[0].host,
            stand_in=next((one.stand_in for one in own if one.stand_in), None),
        )

    def environment(self) -> Environment:
        """The machine, with the software of all of them."""
        told = [target.environment() for target in self._each()]
        versions = {name: version for one in told for name, version in one.versions.items()}
        return msgspec.structs.replace(told[0], versions=versions)

    def probe(self) -> ProbeAnswer:
        """The CPU's features, where they can be cleared in all of them.

        Raises:
            FeatureError: in one they cannot.
        """
        probes = [target.probe() for target in self._each()]
        return probes[0]

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for all of them.

        Raises:
            FeatureError: one of them cannot be switched so.
            MissingDependencyError: it needs a compiler.
        """
        offers = [switch_offer(target, mechanism) for target in self._each()]
        joined = "".join(offer.libraries for offer in offers)
        return SwitchOffer(offers[0].probe, hashlib.sha256(joined.encode()).hexdigest() if joined else "")

    def roofs(self, clear: list[str] | None, threads: int) -> None:
        """None are measured."""

    def identity(self) -> None:
        """None are kept."""
