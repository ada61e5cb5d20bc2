"""Measuring the ceilings of a bundle's variants, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.errors import BundleError, OpscopeError
from opscope.program.roofs import NoRoofs, Roofs

if TYPE_CHECKING:
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Variant
    from opscope.run.target import RunTarget


def measure_roofs(bundle: Bundle, target: RunTarget) -> None:
    """Measure what is missing of the ceilings of every variant that has results, and keep it in the bundle.

    That ceilings cannot be measured is no failure of the run: the reason is kept in their place, and tried again when
    the run is resumed. Nothing is kept for a target that cannot measure any.

    Args:
        bundle: locked, its repetitions done.
        target: where they ran.

    Raises:
        StorageError: the system refused to write; the repetitions are safe.
    """
    for variant in bundle.manifest.variants:
        if bundle.manifest.completed(variant.name) and not isinstance(_kept(bundle, variant), Roofs):
            found = _measured(target, variant)
            if found is not None:
                bundle.save_roofs(variant.name, found)


def _kept(bundle: Bundle, variant: Variant) -> Roofs | NoRoofs | None:
    """What was measured before; damaged ceilings are measured anew."""
    try:
        return bundle.roofs(variant.name)
    except BundleError:
        return None


def _measured(target: RunTarget, variant: Variant) -> Roofs | NoRoofs | None:
    if variant.threads is None:
        return None
    try:
        return target.roofs(variant.cleared, variant.threads)
    except OpscopeError as error:
        return NoRoofs(str(error))
