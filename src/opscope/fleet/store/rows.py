"""A bundle, or the result of a trace of AI Engine tiles, as rows of the tables; nothing is recomputed."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.compare.compare import COMPARISON_SCHEMA, ComparedSide, EndToEnd, MethodChange
from opscope.analysis.compare.outputs import OutputAgreement
from opscope.analysis.findings.message import Grade
from opscope.analysis.operators.operators import sums
from opscope.bundle.manifest import TracingMode, device_text
from opscope.fleet.store.schema import KEYS, TABLES, parse_moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.operators.operators import Operator
    from opscope.bundle.manifest import Manifest, Repetition, Variant
    from opscope.fleet.store.schema import Row
    from opscope.npu.analysis.tiles_result import TilesAnalysis

_NUMBER = re.compile(r" #\d+\Z")
_FRAMEWORK = "framework"


def _field_getter(table: str, *computed: str) -> Callable[[object], Row]:
    """What gives the cells of a row that are fields of the same names as the columns: all that are not computed."""
    return attrgetter(*(name for name in TABLES[table].names[len(KEYS) :] if name not in computed))


_PROCESS, _OPERATOR = _field_getter("latency", "arm"), _field_getter("operators", "shape")
_MODULE, _FINDING = _field_getter("modules"), _field_getter("findings")
_SHAPE = TABLES["operators"].names.index("shape") - len(KEYS)
_SPLIT = ("vector", "memory_stall", "stream_stall", "cascade_stall", "lock_stall", "other")


class BundleLabels(NamedTuple):
    """Names that the person who adds a bundle gives it.

    Attributes:
        device: name of the machine in the store; None: CPU, system and address of the manifest, or ``names``.
        commit: of the program or of what made it; None if unknown.
        names: what machines are called in the store already, see :func:`machine_key`: a machine without a name keeps
            the one that it has, though its system or its address is another one now.
    """

    device: str | None = None
    commit: str | None = None
    names: Mapping[tuple[str | None, ...], str] = {}

    def device_of(self, manifest: Manifest) -> str:
        """Return the name of the machine of a bundle."""
        return self.device or manifest.device or self.names.get(machine_key(manifest)) or device_text(manifest)


def machine_key(manifest: Manifest) -> tuple[str | None, ...]:
    """Return what stays the same of a machine, as the columns ``host``, ``cpu`` and ``machine`` hold it."""
    environment = manifest.environment
    return environment.host, environment.cpu, environment.machine


class StoredComparison(msgspec.Struct, frozen=True, tag_field="schema", tag=COMPARISON_SCHEMA):
    """As much of a comparison as the tables hold: decoding the rest takes as long as all else of a bundle."""

    baseline: ComparedSide
    candidate: ComparedSide
    end_to_end: EndToEnd
    outputs: OutputAgreement | None
    methods: list[MethodChange] = []


class AnalysedBundle(NamedTuple):
    """A bundle as it was read."""

    bundle: str  # its hash
    source: str  # where it is
    manifest: Manifest
    analyses: Mapping[str, Analysis]  # of its variants, by name; those without a result are left out
    comparisons: Sequence[StoredComparison]  # that it holds

    def processes(self, variant: str) -> int:
        """Return how many repetitions of a variant its latency rests on."""
        analysis = self.analyses.get(variant)
        arm = TracingMode.TIMED if analysis and analysis.traced else TracingMode.TRACED
        return len(self.manifest.completed(variant, arm))


def bundle_rows(bundle: AnalysedBundle, labels: BundleLabels, placed: str) -> dict[str, list[Row]]:
    """Return the rows of every table; variants without a result have a row in ``runs`` only.

    ``placed``: where the bundle stands in histories, ISO 8601.
    """
    rows: dict[str, list[Row]] = {}
    manifest = bundle.manifest
    for variant in manifest.variants:
        key = (bundle.bundle, manifest.model_of(variant.name).name, labels.device_of(manifest), variant.name)
        tables: dict[str, Iterable[Row]] = {"runs": [_run_cells(bundle, variant, labels, placed)]}
        if analysis := bundle.analyses.get(variant.name):
            tables |= {
                "methods": _method_rows(analysis, _find_comparison(bundle, variant)),
                "latency": _latency_rows(analysis),
                "operators": map(_operator_cells, analysis.operators),
                "modules": map(_MODULE, analysis.modules),
                "findings": map(_FINDING, analysis.findings),
                "kernels": _kernel_rows(analysis.operators),
            }
        for name, table_rows in tables.items():
            rows.setdefault(name, []).extend(key + cells for cells in table_rows)
    return rows


def _run_cells(bundle: AnalysedBundle, variant: Variant, labels: BundleLabels, placed: str) -> Row:
    manifest, environment = bundle.manifest, bundle.manifest.environment
    analysis, model = bundle.analyses.get(variant.name), manifest.model_of(variant.name)
    return (
        "bundle",
        parse_moment(manifest.created),
        labels.commit,
        manifest.opscope,
        _encode_object(environment.versions),
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
        environment.kernel,
        environment.phone and environment.phone.android,
        environment.phone and environment.phone.build,
        environment.revision,
        environment.governor,
        environment.phone and environment.phone.power,
        environment.usable_cpus,
        environment.memory_bytes,
        environment.emulator,
        environment.host,
        environment.firmware,
        variant.delegate,
        _encode_object(variant.options),
        _encode_object(environment.variables),
        model.sha256,
        bundle.source,
        manifest.status.value,
        bundle.processes(variant.name),
        sum(1 for repetition in manifest.failures() if repetition.variant == variant.name),
        *_figure_cells(
            analysis, [*manifest.completed(variant.name), *manifest.completed(variant.name, TracingMode.TIMED)]
        ),
        *_comparison_cells(_find_comparison(bundle, variant)),
        _worst_grade(analysis, bundle.comparisons, variant),
        analysis.quality.grade.value if analysis and analysis.quality else None,
        parse_moment(placed),
    )


def _encode_object(values: Mapping[str, str] | None) -> str | None:
    return None if values is None else msgspec.json.encode(values, order="sorted").decode()


def _figure_cells(analysis: Analysis | None, completed: Sequence[Repetition]) -> Row:
    measured = [repetition.measurement for repetition in completed if repetition.measurement]
    loads = [one.load_ns for one in measured if one.load_ns is not None]
    memory = [one.peak_rss_bytes for one in measured if one.peak_rss_bytes is not None]
    times = (None,) * 9 if analysis is None else _time_cells(analysis.latency, analysis.headline_of())
    return (*times, float(np.median(loads)) if loads else None, max(memory, default=None))


def _time_cells(latency: Latency, headline_ns: float) -> Row:
    ends = latency.ci95_median_ns or (None, None)
    quantiles = latency.p90_ns, latency.p95_ns, latency.p99_ns
    return (latency.source, headline_ns, latency.mean_ns, *quantiles, *ends, latency.cv)


def _find_comparison(bundle: AnalysedBundle, variant: Variant) -> StoredComparison | None:
    return next((one for one in bundle.comparisons if one.candidate.label == variant.name), None)


def _comparison_cells(comparison: StoredComparison | None) -> Row:
    if comparison is None:
        return (None,) * 6
    agreement = comparison.outputs
    return comparison.baseline.label, *_verdict_cells(comparison.end_to_end), agreement.agree if agreement else None


def _verdict_cells(end: EndToEnd | None) -> Row:
    if end is None:
        return (None,) * 4
    return (end.speedup, *(end.ci95 or (None, None)), end.verdict.value)


def _method_rows(analysis: Analysis, comparison: StoredComparison | None) -> Iterator[Row]:
    """Yield several methods one by one; one alone is the run itself."""
    if len(analysis.methods) < 2:  # noqa: PLR2004 - one method is the whole
        return
    ends = {one.method: one.end_to_end for one in comparison.methods} if comparison else {}
    for method in analysis.methods:
        phase = method.phase
        yield (
            method.method,
            *((phase.kind.value, phase.tokens, phase.position) if phase else (None, None, None)),
            analysis.calls_share(method.method),
            method.share,
            *_time_cells(method.latency, analysis.headline_of(method.method)),
            *_verdict_cells(ends.get(method.method)),
            method.tokens_per_second,
        )


def _worst_grade(analysis: Analysis | None, comparisons: Sequence[StoredComparison], variant: Variant) -> str | None:
    """Return how far its figures can be trusted: its own, and its speedup, whichever is worse."""
    grades = [one.end_to_end.grade for one in comparisons if one.candidate.label == variant.name]
    grades += [analysis.quality.grade] if analysis and analysis.quality else []
    worst_first = (Grade.DO_NOT_TRUST, Grade.USABLE, Grade.GOOD)
    return next((grade.value for grade in worst_first if grade in grades), None)


def _latency_rows(analysis: Analysis) -> Iterator[Row]:
    for latency in filter(None, (analysis.latency, analysis.traced)):
        yield from ((latency.source, *_PROCESS(one)) for one in latency.processes)


def _operator_cells(operator: Operator) -> Row:
    cells = _OPERATOR(operator)
    shape = None if operator.shape is None else "x".join(map(str, operator.shape))
    return (*cells[:_SHAPE], shape, *cells[_SHAPE:])


def _kernel_rows(operators: Sequence[Operator]) -> Iterator[Row]:
    """Yield operators by kind and microkernel, longest first; the framework's own time is in none."""
    groups: dict[tuple[tuple[str | None, ...], str], list[Operator]] = {}
    for operator in operators:
        if operator.kind != _FRAMEWORK:
            name = _NUMBER.sub("", operator.name).removeprefix("native_call_")
            columns = (name, operator.kernel, operator.category.value, operator.kind, operator.backend)
            groups.setdefault((columns, operator.method), []).append(operator)
    for (kind, method), members in sorted(groups.items(), key=lambda group: -sum(row.share for row in group[1])):
        macs = None if any(row.macs is None for row in members) else sum(row.macs or 0 for row in members)
        together = sums(members)
        yield (*kind, len(members), together.time_ns, together.share, macs, method)


def tile_rows(
    analysis: TilesAnalysis, bundle: str, source: str, labels: BundleLabels, created: str
) -> dict[str, list[Row]]:
    """Return the rows of ``runs`` and ``tiles``; ``created``: when the result was written, ISO 8601."""
    device = labels.device or (analysis.given.device.name if analysis.given.device else "unknown AI Engine")
    model = PurePath(analysis.trace.path).name.partition(".")[0] or "trace"
    key = bundle, model, device, analysis.given.dtype or "tiles"
    cells = {
        **dict(zip(KEYS, key, strict=True)),
        "kind": "tiles",
        "created": parse_moment(created),
        "placed": parse_moment(created),
        "commit": labels.commit,
        "versions": "{}",
        "dtype": analysis.given.dtype,
        "source": source,
        "status": "complete",
    }
    tiles = [
        (
            *(*key, tile.tile, tile.unit, tile.calls.paired, tile.window_cycles),
            *map(tile.cycles.of, _SPLIT),
            *(tile.mac_per_cycle, tile.utilisation, tile.coverage),
            tile.bound.by if tile.bound else None,
            len(tile.iterations),
        )
        for tile in analysis.tiles
    ]
    return {"runs": [tuple(map(cells.get, TABLES["runs"].names))], "tiles": tiles}
