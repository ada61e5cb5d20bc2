"""What the traces of a bundle give now: every derived document recomputed, as far as its sources are sound."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.bundle.bundle import MANIFEST, VARIANTS, Bundle
from opscope.core.errors import OpscopeError
from opscope.core.json import to_json
from opscope.measurements.analyses import analysis_of
from opscope.measurements.sides import bundle_side, compared_pairs
from opscope.workflows.reports.reports import content_of, file_name
from opscope.workflows.validate.traces import traced_variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opscope.bundle.manifest import Manifest
    from opscope.reports.content.content import ReportContent

    Json: TypeAlias = Any
    """A decoded document of any shape."""

ANALYSIS, COMPARISON, COMPARISONS = "analysis.json", "comparison.json", "comparisons"
MARKDOWN, HTML = "report.md", "report.html"


class Inconsistencies(NamedTuple):
    """What is known to be damaged, so that figures that rest on it cannot be recomputed."""

    variants: Mapping[str, str]  # reason by name; their traces or records cannot be used
    program: str = ""  # the program or its record is not the one that ran, so layers are not known; empty when it is
    ceilings: str = ""  # the measured ceilings cannot be used; empty when they can
    all: str = ""  # nothing can be computed; empty when it can
    unfinished: bool = False  # the run is not at its end, so reports may be of fewer repetitions than there are now


class Computed(NamedTuple):
    """What the traces give now."""

    analyses: Mapping[str, Json]  # documents by variant
    comparisons: Mapping[tuple[str, str], Json]  # documents by the names of baseline and candidate
    content: ReportContent | None  # what the reports show; None when a part of it cannot be computed
    shown: str | None  # the variant that the reports are about; None when that is not known
    problem: str = ""  # why there are no comparisons and reports; empty when there are


def derived_files(manifest: Manifest) -> dict[str, tuple[str, str] | str]:
    """Files that a finished run computes from its traces: of which variant, or of which pair, each is.

    The two reports are of none in particular, and so is the analysis beside them.
    """
    traced = set(traced_variants(manifest))
    if not traced:
        return {}
    files: dict[str, tuple[str, str] | str] = dict.fromkeys((ANALYSIS, MARKDOWN, HTML), "")
    files |= {f"{VARIANTS}/{file_name(v.name)}/{ANALYSIS}": v.name for v in manifest.variants if v.name in traced}
    compared = [] if manifest.target.emulated else compared_pairs(manifest)
    pairs = [pair for pair in compared if traced.issuperset(pair) and manifest.has_common_round(*pair)]
    for number, (baseline, candidate) in enumerate(pairs):
        other = f"{COMPARISONS}/{file_name(candidate)}-against-{file_name(baseline)}.json"
        files[other if number else COMPARISON] = (baseline, candidate)
    return files


def homes(manifest: Manifest) -> set[str]:
    """Names of the directories of all variants: of their repetitions and of their analyses."""
    names = [variant.name for variant in manifest.variants]
    return {*names, *map(file_name, names)}


def computed(bundle: Bundle, doubts: Inconsistencies) -> Computed:
    """Everything that the traces give, as far as they can be used."""
    reduced = _reduced(bundle, doubts)
    names = traced_variants(reduced.manifest)
    try:
        content = content_of(reduced)
    except OpscopeError as error:
        return Computed(_analyses_apart(reduced, names), {}, None, None, placeless(str(error), str(bundle.path)))
    analyses = {r.variant.name: r.analysis for r in content.variants if r.analysis}
    pairs = {(c.baseline.label, c.candidate.label): c for c in content.comparisons}
    shown = content.shown.variant if content.shown and not doubts.variants else None
    return Computed(
        {name: document_of(analysis, bundle) for name, analysis in analyses.items()},
        {labels: document_of(comparison, bundle) for labels, comparison in pairs.items()},
        None if doubts.variants else content,
        shown,
    )


def _reduced(bundle: Bundle, doubts: Inconsistencies) -> Bundle:
    """The bundle without what is damaged."""
    manifest = bundle.manifest
    model, programs = manifest.model, manifest.programs
    if doubts.program:
        # A file whose hash is not the program's: it is never read as one, and operators are known by name only.
        model, *others = (
            msgspec.structs.replace(one, program=MANIFEST, etrecord=None) for one in manifest.models.values()
        )
        programs = dict(zip(programs, others, strict=True))
    kept = [r for r in manifest.repetitions if r.variant not in doubts.variants]
    own = msgspec.structs.replace(manifest, model=model, programs=programs, repetitions=kept)
    return Bundle(bundle.path, own, hashes_checked=bundle.hashes_checked)


def _analyses_apart(bundle: Bundle, names: Iterable[str]) -> dict[str, Json]:
    found = {name: _analysis_apart(bundle, name) for name in names}
    return {name: document for name, document in found.items() if document is not None}


def _analysis_apart(bundle: Bundle, name: str) -> Json | None:
    """The analysis of one variant; None when it cannot be computed, which its checks then say."""
    try:
        return document_of(analysis_of(bundle_side(bundle, name, None)), bundle)
    except OpscopeError:
        return None


def document_of(value: msgspec.Struct, bundle: Bundle) -> Json:
    """A result as it is written, without the place of the bundle."""
    return without_place(msgspec.json.decode(to_json(value)), str(bundle.path))


def without_place(value: Json, root: str) -> Json:
    """A document whose paths and messages do not tell where the bundle was when it was written."""
    if isinstance(value, dict):
        return {name: without_place(own, root) for name, own in value.items()}
    if isinstance(value, list):
        return [without_place(own, root) for own in value]
    return placeless(value, root) if isinstance(value, str) else value


def placeless(text: str, root: str) -> str:
    """A text in which paths begin at the bundle's directory."""
    if root in {"", "."} or root not in text:
        return text
    return re.sub(rf"(?<![\w./-]){re.escape(root)}/", "", text)
