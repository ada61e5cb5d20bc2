"""What a dashboard keeps of a measurement, as OpenMetrics text: latency, its split, speedups and how far to trust them.

Times are seconds, shares of time are left to the dashboard. Samples have no time of their own: collectors that read
files refuse it. Operators are not in it: thousands of series a model are what such stores are not made for; the JSON
and CSV outputs have them.

Source of the format: OpenMetrics 1.0, https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.findings.message import Grade, Severity
from opscope.bundle.manifest import TracingMode, device_text
from opscope.core.stats.effect import Verdict
from opscope.reports.content.content import resources
from opscope.reports.document.text import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.message import Message, Quality
    from opscope.analysis.latency.latency import Latency
    from opscope.bundle.manifest import Manifest, Model, Variant
    from opscope.reports.content.content import ReportContent

    Labels = dict[str, str]

_NANO = 1e9
_ARMS = ("untraced", "traced")


class Family(NamedTuple):
    """A metric family: its name ends with its unit where it has one, and states are those of a state set."""

    name: str
    kind: str
    unit: str
    help: str


class Sample(NamedTuple):
    """A sample: what is added to the family's name, the labels and the value."""

    family: str
    labels: Labels
    value: float
    suffix: str = ""


FAMILIES = (
    Family("opscope_measurement", "info", "", "Model that was measured, and the machine."),
    Family("opscope_latency_seconds", "summary", "seconds", "Duration of an inference. Quantile 0 is the minimum."),
    Family("opscope_median_latency_seconds", "gauge", "seconds", "Median duration of an inference."),
    Family("opscope_median_bound_seconds", "gauge", "seconds", "Ends of the median's 95 % interval."),
    Family("opscope_processes", "gauge", "", "Number of measured processes."),
    Family("opscope_category_seconds", "gauge", "seconds", "Mean self time of an inference by category of operators."),
    Family("opscope_backend_seconds", "gauge", "seconds", "Mean self time of an inference by backend."),
    Family("opscope_operators", "gauge", "", "Operators of the program that ran, by backend."),
    Family("opscope_tracing_cost_ratio", "gauge", "ratio", "Ratio of traced to untraced duration."),
    Family("opscope_peak_memory_bytes", "gauge", "bytes", "Largest resident memory of a process, median of processes."),
    Family("opscope_load_seconds", "gauge", "seconds", "Loading the program, median of processes."),
    Family("opscope_first_inference_seconds", "gauge", "seconds", "The first inference, median of processes."),
    Family("opscope_speedup_ratio", "gauge", "ratio", "Ratio of baseline to candidate latency."),
    Family("opscope_speedup_bound_ratio", "gauge", "ratio", "Ends of the speedup's 95 % interval."),
    Family("opscope_verdict", "stateset", "", "Whether the candidate is faster than the baseline."),
    Family("opscope_quality", "stateset", "", "Measurement quality."),
    Family("opscope_findings", "gauge", "", "Findings by severity."),
    Family("opscope_repetitions", "gauge", "", "Planned repetitions by outcome."),
)


def openmetrics(content: ReportContent, device: str | None = None, commit: str | None = None) -> bytes:
    """The exposition of everything that a report shows.

    The name of the device is a label of every series; None: CPU, system and address of the manifest. What was measured
    of a commit has it as a label of ``opscope_measurement`` alone, since each commit would begin new series.
    """
    manifest = content.manifest
    named = _shown(result.variant.name for result in content.variants)
    base = _base(manifest)
    samples = [
        Sample("opscope_measurement", _measured(manifest, model), 1, "_info") for model in manifest.models.values()
    ]
    for result, name in zip(content.variants, named, strict=True):
        own = _labels(_base(manifest, result.variant.name), result.variant, name)
        samples += _variant(own, result.analysis) if result.analysis else []
    samples += _resources(base, content, named)
    sides = dict(zip((result.variant.name for result in content.variants), named, strict=True))
    for comparison in content.comparisons:
        samples += _comparison(base, comparison, sides)
    samples += _conclusions(base, content.quality, content.findings)
    return exposition(_given([*samples, *_repetitions(base, manifest)], device, commit))


def openmetrics_of(
    analysis: Analysis,
    model: str,
    manifest: Manifest | None = None,
    device: str | None = None,
    commit: str | None = None,
) -> bytes:
    """The exposition of one analysis."""
    named = analysis.variant or ""
    base = _base(manifest, named) if manifest else {"model": model, "device": ""}
    variant = manifest.variant(analysis.variant or "") if manifest else None
    labels = _labels(base, variant, variant.name) if variant else base | {"variant": analysis.variant or ""}
    info = (
        _measured(manifest, manifest.model_of(named))
        if manifest
        else {"model": model, "trace_sha256": analysis.trace.sha256 or ""}
    )
    samples = [Sample("opscope_measurement", info, 1, "_info"), *_variant(labels, analysis)]
    return exposition(_given([*samples, *_conclusions(labels, analysis.quality, analysis.findings)], device, commit))


def _given(samples: Iterable[Sample], device: str | None, commit: str | None) -> list[Sample]:
    """Samples with what was said of them."""
    every = {} if device is None else {"device": device}
    once = {"opscope_measurement": {"commit": commit or ""}}
    return [one._replace(labels=one.labels | every | once.get(one.family, {})) for one in samples]


def _conclusions(labels: Labels, quality: Quality | None, findings: Sequence[Message]) -> Iterator[Sample]:
    """How far figures can be trusted, and findings by severity."""
    if quality:
        yield from states("opscope_quality", labels, Grade, quality.grade)
    severities = [finding.severity for finding in findings]
    yield from (Sample("opscope_findings", labels | {"severity": s.value}, severities.count(s)) for s in Severity)


def _base(manifest: Manifest, variant: str = "") -> Labels:
    """Labels of every series: what ran, of a variant with a program of its own that one, and where."""
    return {
        "model": manifest.model_of(variant).name,
        "device": device_text(manifest),
        "target": manifest.target.kind,
        "cpu": manifest.environment.cpu or manifest.environment.machine or "",
    }


def _labels(base: Labels, variant: Variant, name: str) -> Labels:
    """Labels of a variant's series, whose name is shown as this."""
    role = variant.role.value if variant.role else ""
    return base | {"variant": name, "role": role, "threads": str(variant.threads or "")}


def _measured(manifest: Manifest, model: Model) -> Labels:
    environment = manifest.environment
    return _base(manifest) | {
        "model": model.name,
        "dtype": model.dtype or "",
        "model_sha256": model.sha256 or "",
        "system": environment.system or "",
        "machine": environment.machine or "",
        "executorch": environment.versions.get("executorch", ""),
        "opscope": manifest.opscope,
        "created": manifest.created,
        "status": manifest.status.value,
    }


def _variant(labels: Labels, analysis: Analysis) -> Iterator[Sample]:
    """Latency of a variant and its split."""
    for method, measured in analysis.by_method.items():
        for latency in filter(None, measured):
            yield from _latency(labels | {"arm": latency.source} | _of_method(method), latency)
    for category in analysis.categories:
        if category.time_ns is not None:
            own = labels | {"category": category.category.value}
            yield Sample("opscope_category_seconds", own, category.time_ns / _NANO)
    names = _shown(backend.backend for backend in analysis.backends)
    for backend, name in zip(analysis.backends, names, strict=True):
        own = labels | {"backend": name}
        if backend.time_ns is not None:
            yield Sample("opscope_backend_seconds", own, backend.time_ns / _NANO)
        count = sum(1 for operator in analysis.operators if operator.backend == backend.backend)
        yield Sample("opscope_operators", own, count)
    if analysis.tracing:
        yield Sample("opscope_tracing_cost_ratio", labels, analysis.factor)


def _latency(labels: Labels, latency: Latency) -> Iterator[Sample]:
    quantiles = {
        "0": latency.min_ns,
        "0.5": latency.p50_ns,
        "0.75": latency.p75_ns,
        "0.9": latency.p90_ns,
        "0.95": latency.p95_ns,
        "0.99": latency.p99_ns,
        "1": latency.max_ns,
    }
    for quantile, time in quantiles.items():
        yield Sample("opscope_latency_seconds", labels | {"quantile": quantile}, time / _NANO)
    yield Sample("opscope_latency_seconds", labels, latency.n, "_count")
    yield Sample("opscope_latency_seconds", labels, sum(latency.samples_ns) / _NANO, "_sum")
    yield Sample("opscope_median_latency_seconds", labels, latency.median_ns / _NANO)
    for bound, time in zip(("lower", "upper"), latency.ci95_median_ns or (), strict=False):
        yield Sample("opscope_median_bound_seconds", labels | {"bound": bound}, time / _NANO)
    yield Sample("opscope_processes", labels, len(latency.processes))


def _resources(base: Labels, content: ReportContent, named: Sequence[str]) -> Iterator[Sample]:
    for row, name in zip(resources(content), named, strict=True):
        labels = base | {"variant": name}
        if row.peak_rss_bytes is not None:
            yield Sample("opscope_peak_memory_bytes", labels, row.peak_rss_bytes)
        if row.load_ns is not None:
            yield Sample("opscope_load_seconds", labels, row.load_ns / _NANO)
        if row.first_ns is not None:
            yield Sample("opscope_first_inference_seconds", labels, row.first_ns / _NANO)


def _comparison(base: Labels, comparison: Comparison, sides: Mapping[str, str]) -> Iterator[Sample]:
    candidate, baseline = (sides.get(s.label, s.label) for s in (comparison.candidate, comparison.baseline))
    for method, result in comparison.verdicts.items():
        labels = base | {"candidate": candidate, "baseline": baseline} | _of_method(method)
        if result.speedup is not None:
            yield Sample("opscope_speedup_ratio", labels, result.speedup)
        for bound, value in zip(("lower", "upper"), result.ci95 or (), strict=False):
            yield Sample("opscope_speedup_bound_ratio", labels | {"bound": bound}, value)
        yield from states("opscope_verdict", labels, Verdict, result.verdict)


def _of_method(method: str) -> Labels:
    """The label of a series of one of several methods."""
    return {"method": method} if method else {}


def _repetitions(base: Labels, manifest: Manifest) -> Iterator[Sample]:
    """How many repetitions of the plan succeeded, failed, and were not run."""
    done = {(v.name, arm): len(manifest.completed(v.name, arm)) for v in manifest.variants for arm in TracingMode}
    failed = len(manifest.failures())
    counts = {"completed": sum(done.values()), "failed": failed}
    counts["not_run"] = max(0, len(manifest.pending()) - failed)
    for outcome, count in counts.items():
        yield Sample("opscope_repetitions", base | {"outcome": outcome}, count)


def states(name: str, labels: Labels, every: Iterable[Grade | Verdict], actual: Grade | Verdict) -> Iterator[Sample]:
    """A sample for each state of a state set, 1 for the one that is."""
    for state in every:
        yield Sample(name, labels | {name: state.value}, int(state is actual))


def exposition(samples: Sequence[Sample], families: Sequence[Family] = FAMILIES) -> bytes:
    """Families in their order, each with its samples together."""
    lines = []
    for family in families:
        own = [_line(family, sample) for sample in samples if sample.family == family.name]
        if own:
            lines += [f"# TYPE {family.name} {family.kind}"]
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            lines += [f"# HELP {family.name} {_escaped(family.help)}", *own]
    return "\n".join([*lines, "# EOF\n"]).encode()


def _line(family: Family, sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(_visible(value))}"' for name, value in sample.labels.items() if value)
    return f"{family.name}{sample.suffix}{{{labels}}} {_number(sample.value)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _visible(text: str) -> str:
    """A text without what is not a character of a text: unpaired surrogates and control characters."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in {"Cc", "Cs"} else c for c in text)


def _shown(names: Iterable[str]) -> list[str]:
    """The names as labels show them, each once, since series are told by their labels."""
    return distinct(map(_visible, names))
