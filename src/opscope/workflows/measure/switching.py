"""Which mechanism switches features in an experiment, and whether it has to be shown that it changes nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.compare.compare import changes_nothing
from opscope.bundle.manifest import Mechanism
from opscope.core.errors import FeatureError, MissingDependencyError, OpscopeError
from opscope.machine.switch.switch import is_shown, keep_shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.bundle.manifest import Manifest
    from opscope.experiment.planned import Experiment
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import RunTarget, SwitchOffer

AUTO = "auto"
"""The first mechanism that can be proved: ``cpuinfo``, else the one of the architecture."""
UNTOUCHED = "untouched"
"""Name of the variant that runs without the mechanism."""


class ChosenSwitch(NamedTuple):
    """A mechanism, and what it can do on the target."""

    mechanism: Mechanism  # that switches
    offer: SwitchOffer  # with the CPU's features

    @property
    def probe(self) -> ProbeAnswer:
        """The CPU's features."""
        return self.offer.probe

    @property
    def fixed(self) -> frozenset[str]:
        """Fields that it cannot switch off."""
        return frozenset((*self.probe.needed, *(self.probe.fixed if self.mechanism is Mechanism.HWCAP else ())))

    @property
    def recorded(self) -> Mechanism | None:
        """As a variant of the manifest says it."""
        return None if self.mechanism is Mechanism.CPUINFO else self.mechanism


def chosen_switch(target: RunTarget, asked: str = AUTO) -> ChosenSwitch:
    """The mechanism to switch features with on a target."""
    if asked != AUTO:
        mechanism = Mechanism(asked)
        return ChosenSwitch(mechanism, target.offer(mechanism))
    try:
        return ChosenSwitch(Mechanism.CPUINFO, target.offer(Mechanism.CPUINFO))
    except FeatureError as error:
        others = [mechanism for mechanism in target.mechanisms if mechanism is not Mechanism.CPUINFO]
        if not others:
            raise
        tried = [_tried(target, mechanism) for mechanism in others]
        found = next((one for one in tried if isinstance(one, ChosenSwitch)), None)
        if found is None:
            problem = "; ".join([error.problem, *(one for one in tried if isinstance(one, str))])
            raise FeatureError(problem, where=error.where, hint=error.hint) from error
        return found


def _tried(target: RunTarget, mechanism: Mechanism) -> ChosenSwitch | str:
    """A mechanism that needs no layout, or why it cannot be used."""
    try:
        return ChosenSwitch(mechanism, target.offer(mechanism))
    except (FeatureError, MissingDependencyError) as error:
        return error.problem


class MechanismState(msgspec.Struct, frozen=True):
    """Whether a mechanism can switch features.

    Attributes:
        name: as ``--switch`` takes it.
        available: whether it can be used.
        reason: why it cannot; null where it can.
    """

    name: str
    available: bool
    reason: str | None = None


def mechanism_states(target: RunTarget) -> list[MechanismState]:
    """Whether each mechanism can be used on a target, the one that is preferred first."""
    return [_state(target, mechanism) for mechanism in Mechanism]


def _state(target: RunTarget, mechanism: Mechanism) -> MechanismState:
    try:
        target.offer(mechanism)
    except OpscopeError as error:
        return MechanismState(mechanism.value, available=False, reason=error.problem)
    return MechanismState(mechanism.value, available=True)


def needs_control(experiment: Experiment, chosen: ChosenSwitch) -> bool:
    """Whether an experiment has a variant that runs without its mechanism.

    It has where the user asks for it, and where no earlier bundle on these libraries has shown that the mechanism
    itself changes nothing. ``cpuinfo`` runs no code of its own while a model runs.
    """
    if chosen.mechanism is Mechanism.CPUINFO:
        return False
    return not is_shown(chosen.offer.libraries) if experiment.untouched is None else experiment.untouched


def keep_control(target: RunTarget, manifest: Manifest, controls: Sequence[Comparison]) -> None:
    """Keep for later experiments that a mechanism changes nothing in these libraries, where this bundle shows it."""
    mechanism = next((variant.switch for variant in manifest.variants if variant.switch), None)
    shown = bool(controls) and all(map(changes_nothing, controls))
    if shown and mechanism in target.mechanisms:
        keep_shown(target.offer(mechanism).libraries)
