"""The newest run of a configuration: a cell of the report on a fleet."""

from __future__ import annotations

import msgspec

from opscope.analysis.findings.quality import Grade
from opscope.fleet.analysis.nights import RunChange


class FleetRun(msgspec.Struct, frozen=True):
    """The newest run of a configuration.

    Attributes:
        bundle: its hash.
        model: name of the model, with its number type.
        device: name of the device, with the kind of target where several are in use.
        variant: its name.
        role: accelerated, baseline, intermediate or candidate; null where it is not known.
        created: when it began, ISO 8601.
        runs: of this configuration in the store.
        latency_ns: median; null when nothing was measured.
        arm: whether latency is of untraced or traced runs.
        speedup: over its baseline; null without one.
        ci95: its 95 % interval; null likewise, or with too few processes.
        verdict: faster, slower, no_difference, undecidable or withheld; null likewise.
        grade: how far it can be trusted; null where it was not judged.
        placed: when it was added to the store, ISO 8601, or when it began; empty where neither is known.
        change: against its predecessors; null for the first run, for baselines, and for runs before the newest night.
        times_best: of the fastest configuration of its model on its device: latency over that of the fastest device,
            timed in the same way; null for the others, and where one device ran the model.
    """

    bundle: str
    model: str
    device: str
    variant: str
    role: str | None
    created: str
    runs: int
    latency_ns: float | None
    arm: str | None
    speedup: float | None
    ci95: tuple[float, float] | None
    verdict: str | None
    grade: str | None
    placed: str = ""
    change: RunChange | None = None
    times_best: float | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether its speedup may lead a page; one that was not judged may."""
        return self.grade != Grade.DO_NOT_TRUST.value
