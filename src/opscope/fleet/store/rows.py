"""A bundle as rows of the tables: its manifest and the results of its variants, and nothing recomputed."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.compare.compare import COMPARISON_SCHEMA, ComparedSide, EndToEnd
from opscope.analysis.compare.outputs import OutputAgreement
from opscope.analysis.findings.quality import Grade
from opscope.analysis.operators.operators import sums
from opscope.bundle.manifest import TracingMode, device_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator
    from opscope.bundle.manifest import Manifest, Repetition, Variant
    from opscope.fleet.store.schema import Row

_NUMBER = re.compile(r" #\d+\Z")
_FRAMEWORK = "framework"


class BundleLabels(NamedTuple):
    """What the person who adds a bundle says about it.

    Attributes:
        device: name of the machine in the store; None: CPU, system and address of the manifest.
        commit: of the program or of what made it; None: not said.
        backfill: it is an old run, which stands in histories where it began. Otherwise it stands behind all others,
            since clocks of devices may be wrong; runs that are added together, by the times when they began.
    """

    device: str | None = None
    commit: str | None = None
    backfill: bool = False


class StoredComparison(msgspec.Struct, frozen=True, tag_field="schema", tag=COMPARISON_SCHEMA):
    """As much of a comparison as the tables hold: decoding the rest takes as long as all else of a bundle."""

    baseline: ComparedSide
    candidate: ComparedSide
    end_to_end: EndToEnd
    outputs: OutputAgreement | None


class Found(NamedTuple):
    """A bundle as it was read."""

    bundle: str  # its hash
    source: str  # where it is
    manifest: Manifest
    analyses: Mapping[str, Analysis]  # of its variants, by name; those without a result are left out
    comparisons: Sequence[StoredComparison]  # that it holds

    def processes(self, variant: str) -> int:
        """Repetitions of a variant that its latency rests on."""
        analysis = self.analyses.get(variant)
        arm = TracingMode.TIMED if analysis and analysis.traced else TracingMode.TRACED
        return len(self.manifest.completed(variant, arm))


def bundle_rows(found: Found, given: BundleLabels) -> dict[str, list[Row]]:
    """Rows of every table, of all variants that have a result; variants without one have a row in ``runs`` only."""
    rows: dict[str, list[Row]] = {
        name: [] for name in ("runs", "latency", "operators", "modules", "findings", "kernels")
    }
    manifest = found.manifest
    for variant in manifest.variants:
        key = (found.bundle, manifest.model_of(variant.name).name, given.device or device_text(manifest), variant.name)
        analysis = found.analyses.get(variant.name)
        rows["runs"].append(key + _run(found, variant, given))
        if analysis is not None:
            rows["latency"] += [key + cells for cells in _latency(analysis)]
            rows["operators"] += [key + _operator(row) for row in analysis.operators]
            rows["modules"] += [key + cells for cells in _modules(analysis)]
            rows["findings"] += [key + cells for cells in _findings(analysis)]
            rows["kernels"] += [key + cells for cells in _kernels(analysis.operators)]
    return rows


def moment(text: str | None) -> datetime | None:
    """A time in ISO 8601 as one in UTC without a zone, as tables hold it; None for none, or what is not a time."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
    except ValueError:
        return None
    return found.astimezone(timezone.utc).replace(tzinfo=None) if found and found.tzinfo else found


def _run(found: Found, variant: Variant, given: BundleLabels) -> Row:
    manifest, environment = found.manifest, found.manifest.environment
    analysis, model = found.analyses.get(variant.name), manifest.model_of(variant.name)
    return (
        "bundle",
        moment(manifest.created),
        given.commit,
        manifest.opscope,
        msgspec.json.encode(environment.versions, order="sorted").decode(),
        variant.role.value if variant.role else None,
        model.dtype,
        variant.threads,
        " ".join(map(str, variant.affinity)),
        None if variant.ablated is None else ",".join(variant.ablated),
        manifest.target.kind,
        environment.cpu,
        environment.system,
        environment.machine,
        None if environment.features is None else ",".join(sorted(environment.features)),
        model.sha256,
        found.source,
        manifest.status.value,
        found.processes(variant.name),
        sum(1 for repetition in manifest.failures() if repetition.variant == variant.name),
        *_figures(analysis, [*manifest.completed(variant.name), *manifest.completed(variant.name, TracingMode.TIMED)]),
        *_comparison(found.comparisons, variant),
        _grade(analysis, found.comparisons, variant),
        analysis.quality.grade.value if analysis and analysis.quality else None,
        None,  # its place in histories is said when it is stored
    )


def _figures(analysis: Analysis | None, done: Sequence[Repetition]) -> Row:
    measured = [repetition.measurement for repetition in done if repetition.measurement]
    loads = [one.load_ns for one in measured if one.load_ns is not None]
    memory = [one.peak_rss_bytes for one in measured if one.peak_rss_bytes is not None]
    machine = float(np.median(loads)) if loads else None, max(memory, default=None)
    if analysis is None:
        return (None,) * 9 + machine
    shown = analysis.latency
    ends = shown.ci95_median_ns or (None, None)
    quantiles = shown.p90_ns, shown.p95_ns, shown.p99_ns
    return (shown.source, shown.median_ns, shown.mean_ns, *quantiles, *ends, shown.cv, *machine)


def _comparison(comparisons: Sequence[StoredComparison], variant: Variant) -> Row:
    own = next((one for one in comparisons if one.candidate.label == variant.name), None)
    if own is None:
        return (None,) * 6
    end, agreed = own.end_to_end, own.outputs
    low, high = end.ci95 or (None, None)
    return own.baseline.label, end.speedup, low, high, end.verdict.value, agreed.agree if agreed else None


def _grade(analysis: Analysis | None, comparisons: Sequence[StoredComparison], variant: Variant) -> str | None:
    """How far its figures can be trusted: its own, and the comparison's with its baseline, whichever is worse."""
    told = [one.end_to_end.grade for one in comparisons if one.candidate.label == variant.name]
    told += [analysis.quality.grade] if analysis and analysis.quality else []
    worst_first = (Grade.DO_NOT_TRUST, Grade.USABLE, Grade.GOOD)
    return next((grade.value for grade in worst_first if grade in told), None)


def _latency(analysis: Analysis) -> Iterator[Row]:
    for latency in filter(None, (analysis.latency, analysis.traced)):
        for one in latency.processes:
            yield latency.source, one.process, one.n, one.median_ns, one.mean_ns, one.load_ns, one.first_ns


def _operator(row: Operator) -> Row:
    return (
        row.method,
        row.instruction,
        row.position,
        row.name,
        row.category.value,
        row.kind,
        row.backend,
        row.calls,
        row.time_ns,
        row.share,
        row.uncertainty_ns,
        row.module,
        row.aten,
        row.dtype,
        None if row.shape is None else "x".join(map(str, row.shape)),
        row.macs,
        row.bytes,
        row.kernel,
        row.attribution.value,
    )


def _modules(analysis: Analysis) -> Iterator[Row]:
    for one in analysis.modules:
        place = one.method, one.path, one.type, one.depth
        yield (*place, one.self_ns, one.total_ns, one.share, one.operators, one.macs)


def _findings(analysis: Analysis) -> Iterator[Row]:
    for one in analysis.findings:
        yield one.rule, one.severity.value, one.title, one.evidence, one.saving_ns, one.next_step


def _kernels(operators: Sequence[Operator]) -> Iterator[Row]:
    """Operators by sort and microkernel, longest first; the framework's own time is in none."""
    groups: dict[tuple[str | None, ...], list[Operator]] = {}
    for row in operators:
        if row.kind != _FRAMEWORK:
            name = _NUMBER.sub("", row.name).removeprefix("native_call_")
            groups.setdefault((name, row.kernel, row.category.value, row.kind, row.backend), []).append(row)
    for sort, own in sorted(groups.items(), key=lambda group: -sum(row.share for row in group[1])):
        macs = None if any(row.macs is None for row in own) else sum(row.macs or 0 for row in own)
        yield (*sort, len(own), *sums(own), macs)
