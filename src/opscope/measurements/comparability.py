"""Comparability of two sides as candidate and baseline of a gate, and what else differs between them.

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
    """Return why the two sides are not comparable, one sentence each; empty if nothing contradicts it.

    A fact that one side does not state is not a mismatch; see :func:`comparability_notes`.
    """
    reasons = []
    if [sha256 for _, sha256 in baseline.files] == [sha256 for _, sha256 in candidate.files]:
        reasons.append("both sides are the same traces")
    if baseline.table.clock is not candidate.table.clock:
        reasons.append(f"one side counts {baseline.table.clock.value}, the other {candidate.table.clock.value}")
    methods = [set(durations_by_method(side.table)) for side in (baseline, candidate)]
    if methods[0] != methods[1] and max(map(len, methods)) > 1:
        unshared = ", ".join(sorted(methods[0] ^ methods[1]))
        reasons.append(f"only one of the sides calls {unshared}")
    if (baseline.calls is None) is not (candidate.calls is None):
        without = "the baseline" if baseline.calls is None else "the candidate"
        reasons.append(f"{without} has no untraced timing, but the other side does")
    for name, side in _sides_by_name(baseline, candidate):
        if side.bundle and side.bundle.manifest.target.emulated:
            reasons.append(f"{name} ran on an emulated CPU, whose timings do not represent any device")
    reasons += machine_mismatches(baseline, candidate)
    if baseline.variant and candidate.variant:
        reasons += _variant_mismatches(baseline.variant, candidate.variant)
    return reasons


def comparability_notes(baseline: Side, candidate: Side) -> list[str]:
    """Return what limits the meaning of a comparison without forbidding it, one sentence each."""
    notes = [note for name, side in _sides_by_name(baseline, candidate) for note in _missing_repetitions(name, side)]
    if baseline.bundle is None or candidate.bundle is None:
        return [
            *notes,
            "without a bundle, the machine and thread count of a side are unknown",
        ]
    from opscope.bundle.settings import COMPARED

    before, after = baseline.bundle.manifest, candidate.bundle.manifest
    notes += separate_bundles_note(baseline, candidate)
    pairs = (
        *_model_differences(baseline, candidate),
        *([("device", before.device, after.device)] if before.device and after.device else []),
        ("governor", before.environment.governor, after.environment.governor),
        ("number of usable CPUs", before.environment.usable_cpus, after.environment.usable_cpus),
        ("number of measured inferences per process", before.plan.runs, after.plan.runs),
        ("warm-up per process", before.plan.warmup, after.plan.warmup),
        *(
            (setting.compared, getattr(before.settings, name), getattr(after.settings, name))
            for name, setting in COMPARED.items()
        ),
        (
            "set of CPU features switched off",
            _switched_off_text(baseline.variant),
            _switched_off_text(candidate.variant),
        ),
    )
    return [*notes, *(_difference_sentence(*pair) for pair in pairs if pair[1] != pair[2])]


def separate_bundles_note(baseline: Side, candidate: Side) -> list[str]:
    """Return a sentence on what follows if the sides come from two bundles; empty if they come from one."""
    if baseline.bundle is None or candidate.bundle is None:
        return []
    if baseline.bundle.path.resolve() == candidate.bundle.path.resolve():
        return []
    return [_period_sentence(baseline.bundle.manifest, candidate.bundle.manifest)]


def _model_differences(baseline: Side, candidate: Side) -> list[tuple[str, object, object]]:
    """Return what may differ between the models; the names of two programs in one bundle do not count."""
    before, after = baseline.model, candidate.model
    if before is None or after is None:
        return []
    is_one_bundle = (
        baseline.bundle and candidate.bundle and baseline.bundle.path.resolve() == candidate.bundle.path.resolve()
    )
    names = [] if is_one_bundle else [("model", before.name, after.name)]
    return [*names, ("number type", before.dtype, after.dtype)]


def _period_sentence(before: Manifest, after: Manifest) -> str:
    """Return what unpaired bundles mean: drift counts fully if one was finished before the other began."""
    spans = [
        sorted(repetition.started for repetition in manifest.repetitions if repetition.started)
        for manifest in (before, after)
    ]
    if all(spans) and spans[0][0] <= spans[1][-1] and spans[1][0] <= spans[0][-1]:
        return "the two sides were measured over the same period, but not in pairs: drift widens the interval"
    return "the two sides were measured at different times: the interval does not include machine drift"


def _sides_by_name(baseline: Side, candidate: Side) -> tuple[tuple[str, Side], ...]:
    return ("the baseline", baseline), ("the candidate", candidate)


def _missing_repetitions(name: str, side: Side) -> list[str]:
    """Return how many repetitions of a side failed or did not run, one sentence each."""
    if side.bundle is None or side.variant is None:
        return []
    manifest, variant = side.bundle.manifest, side.variant.name
    failed = sum(1 for repetition in manifest.failures() if repetition.variant == variant)
    pending = sum(1 for slot in manifest.pending() if slot.variant == variant) - failed
    notes = [f"{counted_text(failed, 'repetition')} of {name} failed"] if failed else []
    return [*notes, *([f"{counted_text(pending, 'repetition')} of {name} did not run"] if pending > 0 else [])]


def machine_mismatches(baseline: Side, candidate: Side) -> list[str]:
    """List what differs between the machines and targets of two bundles, which forbids a ratio, one sentence each.

    Empty if a side is no bundle: its machine is unknown.
    """
    if baseline.bundle is None or candidate.bundle is None:
        return []
    before, after = baseline.bundle.manifest, candidate.bundle.manifest
    reasons = [
        _difference_sentence(*pair)
        for pair in (
            ("CPU", before.environment.cpu, after.environment.cpu),
            ("architecture", before.environment.machine, after.environment.machine),
            ("kind of target", before.target.kind, after.target.kind),
        )
        if None not in pair and pair[1] != pair[2]
    ]
    return [*reasons, *_feature_mismatches(before.environment, after.environment)]


def _feature_mismatches(before: Environment, after: Environment) -> list[str]:
    if before.features is None or after.features is None or set(before.features) == set(after.features):
        return []
    only = [
        ", ".join(sorted(set(one_side) - set(other_side)))
        for one_side, other_side in ((before.features, after.features), (after.features, before.features))
    ]
    texts = [
        f"only {name} has {features}"
        for name, features in zip(("the baseline", "the candidate"), only, strict=True)
        if features
    ]
    return [f"the CPUs' features differ: {', '.join(texts)}"]


def _variant_mismatches(before: Variant, after: Variant) -> list[str]:
    variants = []
    if before.threads is not None and after.threads is not None and before.threads != after.threads:
        variants.append(_difference_sentence("number of threads", before.threads, after.threads))
    if before.affinity != after.affinity:
        variants.append(_difference_sentence("CPU pinning", _cpus_text(before.affinity), _cpus_text(after.affinity)))
    return variants


def _switched_off_text(variant: Variant | None) -> str | None:
    return None if variant is None or variant.ablated is None else ", ".join(variant.ablated) or "none"


def _cpus_text(affinity: Sequence[int]) -> str:
    return " ".join(str(cpu) for cpu in affinity) or "all"


def _difference_sentence(subject: str, before: object, after: object) -> str:
    values = [_NOT_KNOWN if value is None else value for value in (before, after)]
    return f"the {subject} differs: {values[0]} in the baseline, {values[1]} in the candidate"
