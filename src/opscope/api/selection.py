"""Choosing experiments and variants of a file by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.run.planned import Experiment, Experiments, PlannedComparison


def selected(asked: Experiments, only: Sequence[str]) -> Experiments:
    """The part of a file that these names stand for.

    Args:
        asked: the whole.
        only: names of experiments, of variants, or of variants as the file calls them; empty for all.

    Raises:
        UsageError: nothing has one of the names.
    """
    if not only:
        return asked
    wanted = set(only)
    for name in only:
        known = {own for experiment in asked.experiments for own in _names(experiment)}
        if name not in known:
            problem = f"no experiment or variant {name!r} in {asked.file}"
            raise UsageError(problem, where="--only", hint=did_you_mean(name, known))
    kept = [part for experiment in asked.experiments if (part := _part(experiment, wanted))]
    pairs = tuple(pair for pair in asked.comparisons if _has_both(pair, kept))
    return msgspec.structs.replace(asked, experiments=tuple(kept), comparisons=pairs)


def _names(experiment: Experiment) -> set[str]:
    variants = {name for variant in experiment.variants for name in (variant.name, variant.group)}
    return {experiment.name, *variants}


def _part(experiment: Experiment, wanted: set[str]) -> Experiment | None:
    if experiment.name in wanted:
        return experiment
    variants = tuple(v for v in experiment.variants if {v.name, v.group} & wanted)
    return msgspec.structs.replace(experiment, variants=variants) if variants else None


def _has_both(pair: PlannedComparison, kept: list[Experiment]) -> bool:
    there = {(experiment.name, variant.name) for experiment in kept for variant in experiment.variants}
    return {pair.baseline, pair.candidate} <= there
