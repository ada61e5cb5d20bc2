"""Findings of a whole experiment: of the variant that its report is about, of its first comparison, and of the rest."""

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

_Found = TypeVar("_Found")


def findings_of(
    manifest: Manifest,
    sides: Mapping[str, Side],
    analyses: Mapping[str, Analysis],
    comparisons: Sequence[Comparison],
    shown: Analysis | None,
) -> tuple[list[Message], list[Message]]:
    """What stands out in an experiment, most severe first, and what was checked and found in order."""
    if shown is None:
        return [], []
    alone = shown.findings, shown.ruled_out
    return part("findings of pairs", lambda: _findings_of(manifest, sides, analyses, comparisons, shown), alone)


def _findings_of(
    manifest: Manifest,
    sides: Mapping[str, Side],
    analyses: Mapping[str, Analysis],
    comparisons: Sequence[Comparison],
    shown: Analysis,
) -> tuple[list[Message], list[Message]]:
    from opscope.analysis.analysis import rule_evidence
    from opscope.analysis.findings.rule import ask_rules
    from opscope.analysis.rules.acceleration import outputs_agree
    from opscope.analysis.rules.evidence import ExperimentEvidence, PairEvidence, place_times
    from opscope.analysis.rules.rules import examine_comparison, examine_experiment, merge_findings, sort_messages
    from opscope.measurements.quality import withheld_because

    evidence = {
        name: rule_evidence(side.table, analysis, side.known, side.calls, withheld_because(side))
        for name, analysis in analyses.items()
        for side in (sides[name],)
    }
    groups = [(shown.findings, shown.ruled_out)]
    for comparison in comparisons[:1]:
        candidate = evidence.get(comparison.candidate.label)
        off, on = (manifest.variant(side.label) for side in (comparison.baseline, comparison.candidate))
        switched = switched_features(off, on, manifest.environment.features)
        switched = switched or declared_features(comparison.baseline.label, comparison.candidate.label) or switched
        pair = PairEvidence(comparison, candidate, switched, _ceilings(analyses, comparison))
        if manifest.programs:  # the rest asks what acceleration does, and nothing was switched
            groups.append(sort_messages(ask_rules([outputs_agree], pair)))
        else:
            groups.append(examine_comparison(pair))
    name = shown.variant or ""
    groups.append(
        examine_experiment(
            ExperimentEvidence(
                shown=evidence.get(name),
                name=name,
                by_threads=by_threads(manifest.variant(name), manifest.variants, evidence),
                switched={group for one in manifest.variants if one.name in evidence for group in one.ablated or ()},
                disturbed=next((one.disturbed for one in evidence.values() if one.disturbed), None),
                backends=manifest.model_of(name).backends,
                features=manifest.environment.features,
                known_runtime=manifest.environment.known_runtime,
            )
        )
    )
    return merge_findings(groups, place_times(shown.operators))


def by_threads(variant: Variant | None, variants: Sequence[Variant], found: Mapping[str, _Found]) -> dict[int, _Found]:
    """What was found of a variant and of those that differ from it in threads alone, by their number, its own first.

    Empty where that is not known, as in reports of other tools' directories.
    """
    if variant is None or variant.threads is None or variant.name not in found:
        return {}
    alike = [
        one for one in variants if msgspec.structs.replace(one, name=variant.name, threads=variant.threads) == variant
    ]
    known: dict[int, _Found] = {variant.threads: found[variant.name]}
    for one in alike:
        if one.threads is not None and one.name in found:
            known.setdefault(one.threads, found[one.name])
    return known


def _ceilings(analyses: Mapping[str, Analysis], comparison: Comparison) -> tuple[Ceilings | None, Ceilings | None]:
    """Of the baseline and of the candidate, where they were measured."""
    baseline, candidate = (analyses.get(side.label) for side in (comparison.baseline, comparison.candidate))
    return baseline.ceilings if baseline else None, candidate.ceilings if candidate else None


def switched_features(
    baseline: Variant | None, candidate: Variant | None, features: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Feature groups that were off on the baseline only; None where that is not known.

    A group that the CPU lacks was not switched, nor was any where all that was cleared on the baseline was cleared on
    the candidate, too.
    """
    if candidate is None or baseline is None or candidate.ablated is None or baseline.ablated is None:
        return None
    if baseline.cleared and set(baseline.cleared) <= set(candidate.cleared):
        return ()
    off = [name for name in baseline.ablated if name not in candidate.ablated]
    return tuple(name for name in off if features is None or name in features)
