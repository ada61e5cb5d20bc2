"""A bundle, or the result of a trace of AI Engine tiles, as rows of the tables; nothing is recomputed."""

from __future__ import annotations

import re
from datetime import datetime, timezone
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
from opscope.fleet.store.schema import KEYS, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.operators.operators import Operator
    from opscope.bundle.manifest import Manifest, Repetition, Variant
    from opscope.fleet.store.schema import Row
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis

_NUMBER = re.compile(r" #\d+\Z")
_FRAMEWORK = "framework"


def _fields(table: str, *computed: str) -> Callable[[object], Row]:
    """What gives the cells of a row that are fields of the same names as the columns: all that are not computed."""
    return attrgetter(*(name for name in TABLES[table].names[len(KEYS) :] if name not in computed))


_PROCESS, _OPERATOR = _fields("latency", "arm"), _fields("operators", "shape")
_MODULE, _FINDING = _fields("modules"), _fields("findings")
_SHAPE = TABLES["operators"].names.index("shape") - len(KEYS)
_SPLIT = ("vector", "memory_stall", "stream_stall", "cascade_stall", "lock_stall", "other")


class BundleLabels(NamedTuple):
    """What the person who adds a bundle says about it.

    Attributes:
        device: name of the machine in the store; None: CPU, system and address of the manifest, or ``names``.
        commit: of the program or of what made it; None: not said.
        backfill: it is an old run, which stands in histories where it began. Otherwise it stands behind all others,
            since clocks of devices may be wrong; runs that are added together, by the times when they began.
        names: what machines are called in the store already, see :func:`machine_of`: a machine without a name keeps
            the one that it has, though its system or its address is another one now.
    """

    device: str | None = None
    commit: str | None = None
    backfill: bool = False
    names: Mapping[tuple[str | None, ...], str] = {}

    def device_of(self, manifest: Manifest) -> str:
        """Name of the machine of a bundle."""
        return self.device or manifest.device or self.names.get(machine_of(manifest)) or device_text(manifest)


def machine_of(manifest: Manifest) -> tuple[str | None, ...]:
    """What stays the same of a machine, as the columns ``host``, ``cpu`` and ``machine`` hold it."""
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
        """Repetitions of a variant that its latency rests on."""
        analysis = self.analyses.get(variant)
        arm = TracingMode.TIMED if analysis and analysis.traced else TracingMode.TRACED
        return len(self.manifest.completed(variant, arm))


def bundle_rows(bundle: AnalysedBundle, given: BundleLabels) -> dict[str, list[Row]]:
    """Rows of every table, of all variants that have a result; variants without one have a row in ``runs`` only."""
    rows: dict[str, list[Row]] = {
        name: [] for name in ("runs", "methods", "latency", "operators", "modules", "findings", "kernels")
    }
    manifest = bundle.manifest
    for variant in manifest.variants:
        key = (bundle.bundle, manifest.model_of(variant.name).name, given.device_of(manifest), variant.name)
        analysis = bundle.analyses.get(variant.name)
        rows["runs"].append(key + _run(bundle, variant, given))
        if analysis is not None:
            rows["methods"] += [key + cells for cells in _methods(analysis, _own(bundle.comparisons, variant))]
            rows["latency"] += [key + cells for cells in _latency(analysis)]
            rows["operators"] += [key + _operator(row) for row in analysis.operators]
            rows["modules"] += [key + _MODULE(one) for one in analysis.modules]
            rows["findings"] += [key + _FINDING(one) for one in analysis.findings]
            rows["kernels"] += [key + cells for cells in _kernels(analysis.operators)]
    return rows


def moment(text: str | None) -> datetime | None:
    """A time in ISO 8601 as one in UTC without a zone, as tables hold it; None for none, or what is not a time."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
    except ValueError:
        return None
    return found.astimezone(timezone.utc).replace(tzinfo=None) if found and found.tzinfo else found


def _run(bundle: AnalysedBundle, variant: Variant, given: BundleLabels) -> Row:
    manifest, environment = bundle.manifest, bundle.manifest.environment
    analysis, model = bundle.analyses.get(variant.name), manifest.model_of(variant.name)
    return (
        "bundle",
        moment(manifest.created),
        given.commit,
        manifest.opscope,
        _object(environment.versions),
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
        _object(variant.options),
        _object(environment.variables),
        model.sha256,
        bundle.source,
        manifest.status.value,
        bundle.processes(variant.name),
        sum(1 for repetition in manifest.failures() if repetition.variant == variant.name),
        *_figures(analysis, [*manifest.completed(variant.name), *manifest.completed(variant.name, TracingMode.TIMED)]),
        *_comparison(bundle.comparisons, variant),
        _grade(analysis, bundle.comparisons, variant),
        analysis.quality.grade.value if analysis and analysis.quality else None,
        None,  # its place in histories is said when it is stored
    )


def _object(values: Mapping[str, str] | None) -> str | None:
    return None if values is None else msgspec.json.encode(values, order="sorted").decode()


def _figures(analysis: Analysis | None, done: Sequence[Repetition]) -> Row:
    measured = [repetition.measurement for repetition in done if repetition.measurement]
    loads = [one.load_ns for one in measured if one.load_ns is not None]
    memory = [one.peak_rss_bytes for one in measured if one.peak_rss_bytes is not None]
    machine = float(np.median(loads)) if loads else None, max(memory, default=None)
    if analysis is None:
        return (None,) * 9 + machine
    return (*_times(analysis.latency), *machine)


def _times(shown: Latency) -> Row:
    ends = shown.ci95_median_ns or (None, None)
    quantiles = shown.p90_ns, shown.p95_ns, shown.p99_ns
    return (shown.source, shown.median_ns, shown.mean_ns, *quantiles, *ends, shown.cv)


def _own(comparisons: Sequence[StoredComparison], variant: Variant) -> StoredComparison | None:
    return next((one for one in comparisons if one.candidate.label == variant.name), None)


def _comparison(comparisons: Sequence[StoredComparison], variant: Variant) -> Row:
    comparison = _own(comparisons, variant)
    if comparison is None:
        return (None,) * 6
    agreed = comparison.outputs
    return comparison.baseline.label, *_verdict(comparison.end_to_end), agreed.agree if agreed else None


def _verdict(end: EndToEnd | None) -> Row:
    if end is None:
        return (None,) * 4
    low, high = end.ci95 or (None, None)
    return end.speedup, low, high, end.verdict.value


def _methods(analysis: Analysis, comparison: StoredComparison | None) -> Iterator[Row]:
    """Several methods one by one; one alone is the run itself."""
    if len(analysis.methods) < 2:  # noqa: PLR2004 - one method is the whole
        return
    ends = {one.method: one.end_to_end for one in comparison.methods} if comparison else {}
    for one in analysis.methods:
        phase = one.phase
        about = (phase.kind.value, phase.tokens, phase.position) if phase else (None, None, None)
        shares = (analysis.calls_share(one.method), one.share)
        yield (
            one.method,
            *about,
            *shares,
            *_times(one.latency),
            *_verdict(ends.get(one.method)),
            one.tokens_per_second,
        )


def _grade(analysis: Analysis | None, comparisons: Sequence[StoredComparison], variant: Variant) -> str | None:
    """How far its figures can be trusted: its own, and the comparison's with its baseline, whichever is worse."""
    grades = [one.end_to_end.grade for one in comparisons if one.candidate.label == variant.name]
    grades += [analysis.quality.grade] if analysis and analysis.quality else []
    worst_first = (Grade.DO_NOT_TRUST, Grade.USABLE, Grade.GOOD)
    return next((grade.value for grade in worst_first if grade in grades), None)


def _latency(analysis: Analysis) -> Iterator[Row]:
    for latency in filter(None, (analysis.latency, analysis.traced)):
        yield from ((latency.source, *_PROCESS(one)) for one in latency.processes)


def _operator(row: Operator) -> Row:
    cells = _OPERATOR(row)
    shape = None if row.shape is None else "x".join(map(str, row.shape))
    return (*cells[:_SHAPE], shape, *cells[_SHAPE:])


def _kernels(operators: Sequence[Operator]) -> Iterator[Row]:
    """Operators by sort and microkernel, longest first; the framework's own time is in none."""
    groups: dict[tuple[tuple[str | None, ...], str], list[Operator]] = {}
    for row in operators:
        if row.kind != _FRAMEWORK:
            name = _NUMBER.sub("", row.name).removeprefix("native_call_")
            own_sort = (name, row.kernel, row.category.value, row.kind, row.backend)
            groups.setdefault((own_sort, row.method), []).append(row)
    for (sort, method), own in sorted(groups.items(), key=lambda group: -sum(row.share for row in group[1])):
        macs = None if any(row.macs is None for row in own) else sum(row.macs or 0 for row in own)
        together = sums(own)
        yield (*sort, len(own), together.time_ns, together.share, macs, method)


def tile_rows(
    analysis: TilesAnalysis, bundle: str, source: str, given: BundleLabels, created: str
) -> dict[str, list[Row]]:
    """Rows of ``runs`` and ``tiles``."""
    device = given.device or (analysis.given.device.name if analysis.given.device else "unknown AI Engine")
    model = PurePath(analysis.trace.path).name.partition(".")[0] or "trace"
    key = bundle, model, device, analysis.given.dtype or "tiles"
    said = {
        **dict(zip(("bundle", "model", "device", "variant"), key, strict=True)),
        "kind": "tiles",
        "created": moment(created),
        "commit": given.commit,
        "versions": "{}",
        "dtype": analysis.given.dtype,
        "source": source,
        "status": "complete",
    }
    return {
        "runs": [tuple(map(said.get, TABLES["runs"].names))],
        "tiles": [key + _tile(tile) for tile in analysis.tiles],
    }


def _tile(tile: TileRow) -> Row:
    return (
        tile.tile,
        tile.unit,
        tile.calls.paired,
        tile.window_cycles,
        *map(tile.cycles.of, _SPLIT),
        tile.mac_per_cycle,
        tile.utilisation,
        tile.coverage,
        tile.bound.by if tile.bound else None,
        len(tile.iterations),
    )
