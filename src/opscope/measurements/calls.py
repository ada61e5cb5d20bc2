"""What the callers of variants saw, as a manifest tells it, and which of several runtimes is the fastest by that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.bundle.manifest import Role, TracingMode
from opscope.runtimes.registry import runtime_of

if TYPE_CHECKING:
    from opscope.analysis.latency.latency import CallTimes
    from opscope.bundle.manifest import Manifest, Variant

_FEWEST = 3
"""Of two variants the one is compared with the other, whichever is faster."""


def calls_of(manifest: Manifest, variant: str, warmup: int) -> CallTimes | None:
    """Calls of a variant, without tracing too; None when nothing was timed without it."""
    from opscope.analysis.latency.latency import CallTimes

    walls = {
        arm: {r.round: r.measurement for r in manifest.completed(variant, arm) if r.measurement} for arm in TracingMode
    }
    if not walls[TracingMode.TIMED]:
        return None
    return CallTimes(
        untraced={number: own.wall_ns for number, own in walls[TracingMode.TIMED].items()},
        traced={number: own.wall_ns for number, own in walls[TracingMode.TRACED].items()},
        warmup=warmup,
        load_ns={number: own.load_ns for number, own in walls[TracingMode.TIMED].items() if own.load_ns is not None},
        order=tuple(manifest.plan.of(variant).calls),
        rounds=tuple(repetition.round for repetition in manifest.completed(variant)),
        off_cpu={
            number: own.off_cpu_ns for number, own in walls[TracingMode.TIMED].items() if own.off_cpu_ns is not None
        },
    )


def fastest_first(manifest: Manifest) -> list[str]:
    """Variants by latency, where three or more run a network in several runtimes; else empty.

    It is the question of such an experiment which of them is the fastest, so all others are compared with that one.
    Where features are switched off, thread counts differ or nothing was timed without tracing, it is another question.
    """
    done = [one for one in manifest.variants if one.role is not Role.CONTROL and manifest.completed(one.name)]
    ways = {(tuple(one.ablated or ()), one.threads, tuple(one.affinity)) for one in done}
    alike = len(ways) == 1 and not manifest.switches and all(one.role is not Role.ACCELERATED for one in done)
    if len(done) < _FEWEST or not alike or manifest.target.emulated or len(set(runtimes_of(manifest, done))) == 1:
        return []
    levels = {one.name: _level(manifest, one.name) for one in done}
    known = {name: level for name, level in levels.items() if level is not None}
    return sorted(known, key=lambda name: known[name]) if len(known) == len(done) else []


def runtimes_of(manifest: Manifest, variants: list[Variant]) -> list[str]:
    """Names of the runtimes of variants, each as often as it is there."""
    return [one.runtime or runtime_of(manifest.model_of(one.name).program).name for one in variants]


def _level(manifest: Manifest, variant: str) -> float | None:
    """The latency of a variant's headline; None where no untraced call of it is known to be behind the warm-up."""
    from opscope.core.stats.hierarchy import typical

    warmup = manifest.plan.of(variant).warmup
    calls = None if warmup is None else calls_of(manifest, variant, warmup)
    rounds = sorted(calls.settled()) if calls else []
    return typical(calls.durations(rounds)) if calls and rounds else None
