"""Numbers of a cost model, whoever gives them: a user, or a file of Stream's."""

from __future__ import annotations

import math

import msgspec

from opscope.core.errors import UsageError

_MOST = 1e15
_ROUNDING = 0.01


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a cost model, in cycles; made by :func:`cost_model`, which checks them."""

    iteration_step: float | None = None  # from the start of an iteration to the start of the next; null when not given
    overlap: float | None = None  # cycles in which an iteration and the next both run; below 0 for a gap; null likewise
    latency_per_iteration: float | None = None  # of one iteration; null likewise
    total: float | None = None  # of all iterations; null likewise
    iterations: int | None = None  # how many there are; null likewise
    # whether the latency is a sum over the slots of a schedule, transfers included, as Stream's is
    of_slots: bool = False

    @property
    def step(self) -> float | None:
        """The iteration step, as given, or from latency and overlap."""
        if self.iteration_step is None and self.latency_per_iteration is not None and self.overlap is not None:
            return self.latency_per_iteration - self.overlap
        return self.iteration_step

    @property
    def count(self) -> int | None:
        """The number of iterations, as given, or from the total where that is a whole number of steps."""
        if self.iterations is not None or self.total is None or self.latency_per_iteration is None:
            return self.iterations
        step, rest = self.step, self.total - self.latency_per_iteration
        if step is None or step <= 0 or rest < 0:
            return None
        further = round(rest / step)
        return further + 1 if math.isclose(rest / step, further, abs_tol=_ROUNDING) else None


def cost_model(*, iterations: int | None = None, of_slots: bool = False, **numbers: float | None) -> CostModel | None:
    """Numbers of a cost model, checked; None when none is given."""
    for name, value in numbers.items():
        _check(name, value, least=-_MOST if name == "overlap" else 1)
    _check("iterations", iterations, least=1)
    if any(value is not None for value in numbers.values()):
        return CostModel(iterations=iterations, of_slots=of_slots, **numbers)
    if iterations is None:
        return None
    named = ", ".join(name for name in CostModel.__struct_fields__ if name != "iterations")
    raise UsageError("a number of iterations alone gives no prediction", hint=f"give one of {named}")


def _check(name: str, value: float | None, least: float) -> None:
    if value is not None and not (math.isfinite(value) and least <= value <= _MOST):
        raise UsageError(f"{name} = {value:g} is impossible", hint="a cost model's numbers are counts of cycles")
