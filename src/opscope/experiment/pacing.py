"""Rests between processes: a fixed cool-down, and a wait until the machine is cool enough, where it can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.bundle.settings import ExperimentSettings
    from opscope.experiment.target import RunTarget

_STEP_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 900.0
_HINT = "finish with --resume when it is cooler, or raise max_temperature"


class Rest:
    """Rests as an experiment asks for them.

    Args:
        settings: with the cool-down and the highest temperature.
        target: tells its temperature.
        sleep: how time is spent.
    """

    def __init__(self, settings: ExperimentSettings, target: RunTarget, sleep: Callable[[float], None]) -> None:
        self._cooldown, self._hottest = settings.cooldown_seconds, settings.max_temperature
        self._target, self._sleep = target, sleep
        self.unreadable = self._hottest is not None and target.conditions().temperature_celsius is None

    def take(self) -> None:
        """Rest once."""
        if self._cooldown:
            self._sleep(self._cooldown)
        waited = 0.0
        while self._too_hot():
            if waited >= _LONGEST_WAIT_SECONDS:
                raise RunError(f"still above {self._hottest:g} °C after {waited:.0f} s", hint=_HINT)
            self._sleep(_STEP_SECONDS)
            waited += _STEP_SECONDS

    def _too_hot(self) -> bool:
        if self._hottest is None or self.unreadable:
            return False
        now = self._target.conditions().temperature_celsius
        return now is not None and now > self._hottest
