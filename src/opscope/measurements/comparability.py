"""Whether two sides can be compared as candidate and baseline of a gate, and what else differs between them.

A gate looks for changes of the program and its runtime. What else makes an inference slower must be the same on both
sides: the CPU, the number of threads, the CPUs that they stay on, the kind of target, and the arm that was timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.latency.methods import durations_by_method
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import Environment, Manifest, Variant
    from opscope.runtimes.side import Side

_NOT_KNOWN = "not known"


def mismatches(baseline: Side, candidate: Side) -> list[str]:
    """Why the two sides are not comparable, one sentence each; empty when nothing speaks against it.

    What one side does not tell is not a mismatch; see :func:`comparability_notes`.
    """
    found = []
    if [sha256 for _, sha256 in baseline.files] == [sha256 for _, sha256 in candidate.files]:
        found.append("both sides are the same traces")
    if baseline.table.clock is not candidate.table.clock:
        found.append(f"one side counts {baseline.table.clock.value}, the other {candidate.table.clock.value}")
    methods = [set(durations_by_method(side.table)) for side in (baseline, candidate)]
    if methods[0] != methods[1] and max(map(len, methods)) > 1:
        alone = ", ".join(sorted(methods[0] ^ methods[1]))
        found.append(f"only one of the sides calls {alone}")
    if (baseline.calls is None) is not (candidate.calls is None):
        without = "the baseline" if baseline.calls is None else "the candidate"
        found.append(f"{without} has no untraced timing, but the other side does")
    for name, side in _named(baseline, candidate):
        if side.bundle and side.bundle.manifest.target.emulated:
            found.append(f"{name} ran on an emulated CPU, whose timings do not represent any device")
    found += machine_mismatches(baseline, candidate)
    if baseline.variant and candidate.variant:
        found += _variants(baseline.variant, candidate.variant)
    return found


def comparability_notes(baseline: Side, candidate: Side) -> list[str]:
    """What limits the meaning of a comparison without forbidding it, one sentence each."""
    found = [note for name, side in _named(baseline, candidate) for note in _doubts(name, side)]
    if baseline.bundle is None or candidate.bundle is None:
        return [
            *found,
            "without a bundle, the machine and thread count of a side are unknown",
        ]
    from opscope.bundle.settings import COMPARED

    left, right = baseline.bundle.manifest, candidate.bundle.manifest
    found += measured_apart(baseline, candidate)
    pairs = (
        *_models(baseline, candidate),
        *([("device", left.device, right.device)] if left.device and right.device else []),
        ("governor", left.environment.governor, right.environment.governor),
        ("number of usable CPUs", left.environment.usable_cpus, right.environment.usable_cpus),
        ("number of measured inferences per process", left.plan.runs, right.plan.runs),
        ("warm-up per process", left.plan.warmup, right.plan.warmup),
        *(
            (one.compared, getattr(left.settings, name), getattr(right.settings, name))
            for name, one in COMPARED.items()
        ),
        ("set of CPU features switched off", _off(baseline.variant), _off(candidate.variant)),
    )
    return [*found, *(_differs(*pair) for pair in pairs if pair[1] != pair[2])]


def measured_apart(baseline: Side, candidate: Side) -> list[str]:
    """What it means that the sides are of two bundles, as one sentence; empty for variants of one bundle."""
    if baseline.bundle is None or candidate.bundle is None:
        return []
    if baseline.bundle.path.resolve() == candidate.bundle.path.resolve():
        return []
    return [_times(baseline.bundle.manifest, candidate.bundle.manifest)]


def _models(baseline: Side, candidate: Side) -> list[tuple[str, object, object]]:
    """What differs between the models; two programs of one bundle were named to be compared, whatever their names."""
    left, right = baseline.model, candidate.model
    if left is None or right is None:
        return []
    one = baseline.bundle and candidate.bundle and baseline.bundle.path.resolve() == candidate.bundle.path.resolve()
    names = [] if one else [("model", left.name, right.name)]
    return [*names, ("number type", left.dtype, right.dtype)]


def _times(left: Manifest, right: Manifest) -> str:
    """What it means that two bundles are not pairs: worse when one was finished before the other began."""
    spans = [sorted(r.started for r in manifest.repetitions if r.started) for manifest in (left, right)]
    if all(spans) and spans[0][0] <= spans[1][-1] and spans[1][0] <= spans[0][-1]:
        return "the two sides were measured over the same period, but not in pairs: drift widens the interval"
    return "the two sides were measured at different times: the interval does not include machine drift"


def _named(baseline: Side, candidate: Side) -> tuple[tuple[str, Side], ...]:
    return ("the baseline", baseline), ("the candidate", candidate)


def _doubts(name: str, side: Side) -> list[str]:
    """Repetitions of a side that are missing."""
    if side.bundle is None or side.variant is None:
        return []
    manifest, variant = side.bundle.manifest, side.variant.name
    failed = sum(1 for repetition in manifest.failures() if repetition.variant == variant)
    pending = sum(1 for place in manifest.pending() if place.variant == variant) - failed
    found = [f"{counted_text(failed, 'repetition')} of {name} failed"] if failed else []
    return [*found, *([f"{counted_text(pending, 'repetition')} of {name} did not run"] if pending > 0 else [])]


def machine_mismatches(baseline: Side, candidate: Side) -> list[str]:
    """List what differs between the machines and targets of two bundles, one sentence each, so that no ratio is told.

    Empty where one side is no bundle: its machine is not known.
    """
    if baseline.bundle is None or candidate.bundle is None:
        return []
    left, right = baseline.bundle.manifest, candidate.bundle.manifest
    found = [
        _differs(*pair)
        for pair in (
            ("CPU", left.environment.cpu, right.environment.cpu),
            ("architecture", left.environment.machine, right.environment.machine),
            ("kind of target", left.target.kind, right.target.kind),
        )
        if None not in pair and pair[1] != pair[2]
    ]
    return [*found, *_features(left.environment, right.environment)]


def _features(left: Environment, right: Environment) -> list[str]:
    if left.features is None or right.features is None or set(left.features) == set(right.features):
        return []
    only = [
        ", ".join(sorted(set(a) - set(b)))
        for a, b in ((left.features, right.features), (right.features, left.features))
    ]
    texts = [f"only {name} has {own}" for name, own in zip(("the baseline", "the candidate"), only, strict=True) if own]
    return [f"the CPUs' features differ: {', '.join(texts)}"]


def _variants(left: Variant, right: Variant) -> list[str]:
    variants = []
    if left.threads is not None and right.threads is not None and left.threads != right.threads:
        variants.append(_differs("number of threads", left.threads, right.threads))
    if left.affinity != right.affinity:
        variants.append(_differs("CPU pinning", _cpus(left.affinity), _cpus(right.affinity)))
    return variants


def _off(variant: Variant | None) -> str | None:
    return None if variant is None or variant.ablated is None else ", ".join(variant.ablated) or "none"


def _cpus(affinity: Sequence[int]) -> str:
    return " ".join(str(cpu) for cpu in affinity) or "all"


def _differs(what: str, left: object, right: object) -> str:
    values = [_NOT_KNOWN if value is None else value for value in (left, right)]
    return f"the {what} differs: {values[0]} in the baseline, {values[1]} in the candidate"
