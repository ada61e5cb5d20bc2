"""Where a model is run, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.experiment.target_names import parse_target
from opscope.experiment.variant_targets import VariantTargets
from opscope.runtimes.registry import runtime_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.bundle.manifest import Manifest
    from opscope.experiment.target import RunTarget


def target_running(model: str, name: str) -> RunTarget:
    """The target of a name for a model: that of its runtime."""
    return runtime_of(model).target(parse_target(name))


def recorded_target(manifest: Manifest) -> RunTarget:
    """The target that a manifest tells of, for its program."""
    if not manifest.programs:
        return target_running(manifest.model.program, manifest.target.name)
    return targets_running(
        {v.name: (manifest.model_of(v.name).program, manifest.target_of(v.name).name) for v in manifest.variants}
    )


def targets_running(variants: Mapping[str, tuple[str, str]]) -> RunTarget:
    """The target of several variants: one for each runtime among their models."""
    made: dict[tuple[str, str], RunTarget] = {}
    for model, name in variants.values():
        if (runtime_of(model).name, name) not in made:
            made[runtime_of(model).name, name] = target_running(model, name)
    if len(made) == 1:
        return next(iter(made.values()))
    return VariantTargets({own: made[runtime_of(model).name, name] for own, (model, name) in variants.items()})
