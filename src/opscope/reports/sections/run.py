"""The parts of a report about the run itself: which configuration is best, and where the experiment's time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.latency.latency import latency_effect
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, ratio_text, share_text, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from opscope.analysis.latency.latency import Latency
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.reports.content.content import ReportContent

_EFFICIENT = 0.5
_SLOWER = 1.02


class ThreadSweepRow(NamedTuple):
    """A variant at one thread count."""

    configuration: Variant  # the variant
    median_ns: float  # its latency
    speedup: float  # over the smallest pool with the same features
    efficiency: float  # `speedup` for each time that the pool is larger; 1 is ideal

    @property
    def variant(self) -> str:
        """Its name."""
        return self.configuration.name


class ThreadSweep(NamedTuple):
    """All configurations of a sweep over threads; which is shown to be the fastest, and what stands out."""

    rows: list[ThreadSweepRow]
    answer: str
    notes: list[str]


def sweep(content: ReportContent) -> ThreadSweep | None:
    """The sweep over threads; None with one thread count."""
    measured = [
        (result.variant, result.analysis.latency)
        for result in content.variants
        if result.analysis is not None and result.variant.threads
    ]
    found = [(variant, latency.median_ns) for variant, latency in measured]
    if len({variant.threads for variant, _ in found}) < 2:  # noqa: PLR2004 - one is not a sweep
        return None
    smallest: dict[tuple[str, ...], tuple[int, float]] = {}
    for variant, median_ns in sorted(found, key=lambda pair: pair[0].threads or 0):
        smallest.setdefault(tuple(variant.cleared), (variant.threads or 1, median_ns))
    rows = []
    for variant, median_ns in found:
        threads, reference = smallest[tuple(variant.cleared)]
        speedup = reference / median_ns if median_ns else 1.0
        rows.append(ThreadSweepRow(variant, median_ns, speedup, speedup / ((variant.threads or 1) / threads)))
    latencies = {variant.name: latency for variant, latency in measured}
    return ThreadSweep(rows, _answer(rows, latencies), _notes(rows, _slower(found, latencies)))


def _answer(rows: Sequence[ThreadSweepRow], latencies: Mapping[str, Latency]) -> str:
    """The fastest configuration, where it is shown to be faster than every other one; else which ones it may be."""
    least = min(rows, key=lambda row: row.median_ns)
    told = (
        f"{least.variant}: {time_text(least.median_ns)} with {counted_text(least.configuration.threads or 1, 'thread')}"
    )
    others = [row for row in rows if row.variant != least.variant]
    rivals = [row for row in others if not _shown(latencies[row.variant], latencies[least.variant], Verdict.FASTER)]
    if not rivals:
        return f"Best: {told}"
    names = ", ".join(row.variant for row in rivals)
    return f"Lowest median: {told}; no difference detected to {names}"


def _slower(found: Sequence[tuple[Variant, float]], latencies: Mapping[str, Latency]) -> set[str]:
    """Configurations that are shown to be slower than the smallest pool with the same features."""
    smallest: dict[tuple[str, ...], str] = {}
    for variant, _ in sorted(found, key=lambda pair: pair[0].threads or 0):
        smallest.setdefault(tuple(variant.cleared), variant.name)
    return {
        variant.name
        for variant, _ in found
        if (first := smallest[tuple(variant.cleared)]) != variant.name
        and _shown(latencies[first], latencies[variant.name], Verdict.SLOWER)
    }


def _shown(before: Latency, after: Latency, verdict: Verdict) -> bool:
    return latency_effect(before, after).verdict() is verdict


def _notes(rows: Sequence[ThreadSweepRow], slower: AbstractSet[str]) -> list[str]:
    """Pools that do not pay: shown to be slower than the smallest one, or far from ideal."""
    notes = []
    for row in rows:
        if row.variant in slower and row.speedup * _SLOWER < 1:
            notes.append(
                f"{row.variant} is slower than with fewer threads ({ratio_text(row.speedup)}): threads contend"
            )
        elif row.efficiency < _EFFICIENT:
            notes.append(f"{row.variant} reaches {share_text(row.efficiency)} of ideal scaling")
    return notes


class TimeSpent(NamedTuple):
    """What the processes of a run did, all together, as parts of their wall time."""

    what: str
    time_ns: float
    share: float


def time_spent(manifest: Manifest) -> list[TimeSpent]:
    """Starting, loading, warming up, measuring, writing and the rest; empty when the run's processes did not tell."""
    reps = [(rep.seconds, rep.measurement) for rep in manifest.repetitions if rep.measurement]
    told = [(seconds, measured) for seconds, measured in reps if measured.start_ns is not None]
    whole = sum((seconds or 0.0) * 1e9 for seconds, _ in told)
    if not whole:
        return []
    warmup = manifest.plan.warmup or 0
    parts = {
        "starting the runtime": float(sum(own.start_ns or 0 for _, own in told)),
        "loading the program": float(sum(own.load_ns or 0 for _, own in told)),
        "warming up": float(sum(sum(own.wall_ns[:warmup]) for _, own in told)),
        "measuring": float(sum(sum(own.wall_ns[warmup:]) for _, own in told)),
        "writing traces and outputs": float(sum(own.write_ns or 0 for _, own in told)),
    }
    parts["ending, and all else"] = max(0.0, whole - sum(parts.values()))
    return [TimeSpent(what, time_ns, time_ns / whole) for what, time_ns in parts.items()]
