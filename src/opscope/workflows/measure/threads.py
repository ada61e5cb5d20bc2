"""Whether the threads that are asked for have CPUs to run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import Environment, Variant


def check_threads(variants: Sequence[Variant], there: Environment, *, oversubscribe: bool) -> None:
    """Refuse more threads than the target has usable CPUs: they wait for each other, and that is what is measured.

    One thread always fits, and where the number of usable CPUs is not known any number does.

    Args:
        variants: to run there.
        there: the target.
        oversubscribe: refuse nothing.

    Raises:
        UsageError: naming the count, the limit and where it comes from.
    """
    if oversubscribe:
        return
    for variant in variants:
        usable, reason = _usable(variant, there)
        if usable is not None and variant.threads is not None and variant.threads > max(1, usable):
            hint = f"at most {usable} here; --oversubscribe (in a file: oversubscribe = true) allows more"
            problem = f"{variant.threads} threads on {usable} usable CPU{'' if usable == 1 else 's'}{reason}"
            raise UsageError(f"{problem}: they would wait for each other", where="--threads", hint=hint)


def _usable(variant: Variant, there: Environment) -> tuple[int | None, str]:
    """CPUs that a variant may use, and why there are no more."""
    usable, quota = there.usable_cpus, there.cpu_quota
    if variant.affinity and (usable is None or len(variant.affinity) < usable):
        return len(variant.affinity), f" (affinity {', '.join(map(str, variant.affinity))})"
    if usable is not None and quota is not None and quota < usable + 1:
        return usable, f" (control groups grant the time of {quota:g})"
    if usable is not None and there.logical_cpus is not None and usable < there.logical_cpus:
        return usable, f" (of {there.logical_cpus}; the others are closed to this process)"
    return usable, ""
