"""The ceilings of a bundle's variants: kept ones where a short probe agrees with them, else measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Role
from opscope.core.errors import BundleError, InvalidBundleError, OpscopeError, StorageError
from opscope.core.system.stages import enter
from opscope.machine.ceilings.cache import CeilingsCache
from opscope.program.ceilings import Ceilings, NoCeilings, Origin, drift_of, drift_sample
from opscope.runtimes.ceilings.process import probes_version

if TYPE_CHECKING:
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Variant
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.program.ceilings import Drift

PROBES = 2
"""How often the short probe runs before kept ceilings are given up: a disturbance of a second must not cost four."""

_STAGE = "measuring the ceilings of the machine"


def measure_ceilings(bundle: Bundle, target: RunTarget, clock: TimeSource, *, anew: bool = False) -> None:
    """Find what is missing of the ceilings of every variant that has results, and save it in the bundle.

    That ceilings cannot be measured is no failure of the run: the reason is saved in their place, and tried again when
    the run is resumed. Nothing is saved for a target that cannot measure any; on an emulated CPU nothing is measured.
    """
    wanted = [
        variant
        for variant in bundle.manifest.variants
        if variant.role is not Role.CONTROL
        and bundle.manifest.completed(variant.name)
        and (anew or not isinstance(_read_saved_ceilings(bundle, variant), Ceilings))
    ]
    if not wanted or bundle.manifest.target.emulated:
        return
    enter(_STAGE)
    for number, variant in enumerate(wanted, 1):
        enter(_STAGE, f"variant {number} of {len(wanted)}")
        run_target = target.of(variant.name)
        earlier, problem = _open_earlier_ceilings(run_target)
        ceilings = _obtain_ceilings(run_target, bundle.manifest.as_run(variant), clock, earlier, anew=anew)
        if ceilings is not None:
            bundle.save_ceilings(variant.name, _with_notes(ceilings, problem))


def _read_saved_ceilings(bundle: Bundle, variant: Variant) -> Ceilings | NoCeilings | None:
    """Return the ceilings that a bundle holds; None if it holds none, or damaged ones, which are measured again."""
    try:
        return bundle.ceilings(variant.name)
    except (BundleError, InvalidBundleError):
        return None


def _obtain_ceilings(
    target: RunTarget,
    variant: Variant,
    clock: TimeSource,
    earlier: _EarlierCeilings | None,
    *,
    anew: bool,
) -> Ceilings | NoCeilings | None:
    """Return the ceilings of a variant, or why there are none; None for a target that measures none."""
    if variant.threads is None:
        return None
    valid, drift, problem = earlier.probe(variant, clock) if earlier and not anew else (None, None, "")
    if valid:
        return valid
    try:
        measured = target.ceilings(variant)
    except OpscopeError as error:
        return NoCeilings(str(error))
    if measured is None:
        return None
    ceilings = msgspec.structs.replace(measured, measured_at=_time_text(clock), drift=drift)
    return _with_notes(ceilings, problem, earlier.keep(ceilings) if earlier else "")


class _EarlierCeilings:
    """Ceilings of earlier runs on the machine of a target, which can try them again."""

    def __init__(self, target: RunTarget, cache: CeilingsCache) -> None:
        self._target, self._cache = target, cache

    def probe(self, variant: Variant, clock: TimeSource) -> tuple[Ceilings | None, Drift | None, str]:
        """Return a variant's ceilings if they still hold, the probe of them, and what went wrong; empty for nothing."""
        recalled = self._cache.recall(variant.cleared, variant.threads or 0)
        if isinstance(recalled, str):
            return None, None, recalled
        drift, problem = self._measure_drift(recalled, clock)
        holds = drift is not None and drift.agrees
        ceilings = msgspec.structs.replace(recalled, origin=Origin.CACHE, drift=drift) if holds else None
        return ceilings, drift, problem

    def _measure_drift(self, kept: Ceilings, clock: TimeSource) -> tuple[Drift | None, str]:
        """The probe of kept ceilings, and why it failed. Rates that are too low get a second chance."""
        probes: list[Ceilings] = []
        drift = None
        try:
            while len(probes) < PROBES and not (drift and (drift.agrees or drift.exceeded)):
                probes.append(self._target.ceilings_again(drift_sample(kept)))
                drift = drift_of(kept, probes, _time_text(clock))
        except OpscopeError as error:
            return drift, f"the probe of stored ceilings failed: {error}"
        return drift, ""

    def keep(self, ceilings: Ceilings) -> str:
        """Keep ceilings for later runs; why that was not done, or nothing.

        What other work disturbed is right for this run, which it disturbed too, and wrong for a later one.
        """
        if ceilings.disturbance():
            return f"not stored for later runs: {ceilings.disturbance()}"
        try:
            self._cache.keep(ceilings)
        except StorageError as error:
            return f"not stored for later runs: {error.problem}"
        return ""


def _open_earlier_ceilings(target: RunTarget) -> tuple[_EarlierCeilings | None, str]:
    """Return the ceilings that earlier runs stored for a target's machine, and why they cannot be used."""
    try:
        identity = target.identity()
        return (_EarlierCeilings(target, CeilingsCache(identity, probes_version())) if identity else None), ""
    except OpscopeError as error:
        return None, f"cannot use ceilings of earlier runs: {error.problem}"


def _with_notes(ceilings: Ceilings | NoCeilings, *notes: str) -> Ceilings | NoCeilings:
    """Return ceilings with further notes, except for empty ones."""
    texts = [note for note in notes if note]
    return (
        msgspec.structs.replace(ceilings, notes=[*ceilings.notes, *texts])
        if isinstance(ceilings, Ceilings)
        else ceilings
    )


def _time_text(clock: TimeSource) -> str:
    return clock.now().isoformat(timespec="seconds")
