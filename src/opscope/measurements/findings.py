"""Findings of an experiment: of the variant that its report is about, of its first comparison, and of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.core.parts import part
from opscope.machine.pair_names import declared_features

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.message import Message
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.side import Side

_Value = TypeVar("_Value")


def findings_of(
    manifest: Manifest,
    sides: Mapping[str, Side],
    analyses: Mapping[str, Analysis],
    comparisons: Sequence[Comparison],
    analysis: Analysis | None,
) -> tuple[list[Message], list[Message]]:
    """Return what stands out in an experiment, most severe first, and what was checked and found in order."""
    if analysis is None:
        return [], []
    own_findings = analysis.findings, analysis.ruled_out
    return part(
        "findings of pairs", lambda: _collect_findings(manifest, sides, analyses, comparisons, analysis), own_findings
    )


def _collect_findings(
    manifest: Manifest,
    sides: Mapping[str, Side],
    analyses: Mapping[str, Analysis],
    comparisons: Sequence[Comparison],
    analysis: Analysis,
) -> tuple[list[Message], list[Message]]:
    from opscope.analysis.analysis import rule_evidence
    from opscope.analysis.findings.rule import ask_rules
    from opscope.analysis.rules.acceleration import outputs_agree
    from opscope.analysis.rules.evidence import ExperimentEvidence, PairEvidence, place_times
    from opscope.analysis.rules.rules import examine_comparison, examine_experiment, merge_findings, sort_messages
    from opscope.measurements.quality import distrust_reason

    evidence = {
        name: rule_evidence(side.table, analysis, side.known, side.calls, distrust_reason(side))
        for name, analysis in analyses.items()
        for side in (sides[name],)
    }
    groups = [(analysis.findings, analysis.ruled_out)]
    for comparison in comparisons[:1]:
        candidate = evidence.get(comparison.candidate.label)
        off, on = (manifest.variant(side.label) for side in (comparison.baseline, comparison.candidate))
        switched = switched_features(off, on, manifest.environment.features)
        switched = switched or declared_features(comparison.baseline.label, comparison.candidate.label) or switched
        pair = PairEvidence(comparison, candidate, switched, _ceilings_of_sides(analyses, comparison))
        if manifest.programs:  # the rest asks what acceleration does, and nothing was switched
            groups.append(sort_messages(ask_rules([outputs_agree], pair)))
        else:
            groups.append(examine_comparison(pair))
    name = analysis.variant or ""
    groups.append(
        examine_experiment(
            ExperimentEvidence(
                shown=evidence.get(name),
                name=name,
                by_threads=group_by_threads(manifest.variant(name), manifest.variants, evidence),
                switched={
                    group
                    for variant in manifest.variants
                    if variant.name in evidence
                    for group in variant.ablated or ()
                },
                disturbed=next(
                    (
                        candidate_evidence.disturbed
                        for candidate_evidence in evidence.values()
                        if candidate_evidence.disturbed
                    ),
                    None,
                ),
                backends=manifest.model_of(name).backends,
                features=manifest.environment.features,
                known_runtime=manifest.environment.known_runtime,
            )
        )
    )
    return merge_findings(groups, place_times(analysis.operators))


def group_by_threads(
    variant: Variant | None, variants: Sequence[Variant], values: Mapping[str, _Value]
) -> dict[int, _Value]:
    """Return values of a variant and of those that differ in threads alone, by thread count, its own first.

    Empty if the thread count is unknown, as in reports of other tools' directories.
    """
    if variant is None or variant.threads is None or variant.name not in values:
        return {}
    alike = [
        candidate
        for candidate in variants
        if msgspec.structs.replace(candidate, name=variant.name, threads=variant.threads) == variant
    ]
    known: dict[int, _Value] = {variant.threads: values[variant.name]}
    for candidate in alike:
        if candidate.threads is not None and candidate.name in values:
            known.setdefault(candidate.threads, values[candidate.name])
    return known


def _ceilings_of_sides(
    analyses: Mapping[str, Analysis], comparison: Comparison
) -> tuple[Ceilings | None, Ceilings | None]:
    """Return the ceilings of the baseline and of the candidate; None for a side without."""
    baseline, candidate = (analyses.get(side.label) for side in (comparison.baseline, comparison.candidate))
    return baseline.ceilings if baseline else None, candidate.ceilings if candidate else None


def switched_features(
    baseline: Variant | None, candidate: Variant | None, features: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Return the feature groups that were off on the baseline only; None if unknown.

    A group that the CPU lacks was not switched, nor was any if all that was cleared on the baseline was also cleared on
    the candidate.
    """
    if candidate is None or baseline is None or candidate.ablated is None or baseline.ablated is None:
        return None
    if baseline.cleared and set(baseline.cleared) <= set(candidate.cleared):
        return ()
    off = [name for name in baseline.ablated if name not in candidate.ablated]
    return tuple(name for name in off if features is None or name in features)
