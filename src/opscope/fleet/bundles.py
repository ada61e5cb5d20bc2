"""Bundles, and results of traces of tiles, as a store takes them: read, and as rows of the tables.

Runs in this process or on a worker. Nothing is recomputed where a bundle holds the analyses of its traces.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timezone
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np

from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import COMPARISON_SCHEMA, ComparedSide, EndToEnd, MethodChange
from opscope.analysis.compare.outputs import OutputAgreement
from opscope.analysis.findings.message import Grade
from opscope.analysis.operators.operators import sums
from opscope.bundle.bundle import MANIFEST, Bundle, is_bundle, is_held
from opscope.bundle.documents import find_differences
from opscope.bundle.manifest import TracingMode, device_text
from opscope.core.errors import BundleError, NotFoundError, OpscopeError, StorageError, TraceFormatError
from opscope.core.files import sha256_of
from opscope.core.json import from_json
from opscope.core.tracebacks import nothing_known
from opscope.core.version import __version__
from opscope.fleet.store.schema import KEYS, TABLES, StoreEntry, parse_moment
from opscope.measurements.sides import compared_pairs
from opscope.npu.analysis.tiles_result import TilesAnalysis
from opscope.readers.compressed import content_sha256
from opscope.workflows.reports.reports import ANALYSIS, analysis_file, comparison_files, content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.operators.operators import Operator
    from opscope.bundle.manifest import Manifest, Repetition, Variant
    from opscope.fleet.store.schema import Row

_TILES_MARK = b"opscope.tiles/2"
_LARGEST = 1 << 63
"""Integers from here on fit into no column."""
_REWRITE = "`opscope report` writes it from the traces; `opscope validate` lists what else was changed"
_RESTORE = "restore the file from a copy of the bundle, or leave the bundle out"
_Document = TypeVar("_Document", "Analysis", "StoredComparison")
_NUMBER = re.compile(r" #\d+\Z")
_FRAMEWORK = "framework"


def _field_getter(table: str, *computed: str) -> Callable[[object], Row]:
    """Return what gives the cells of a row that are fields with the names of columns: all that are not computed."""
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


_NO_LABELS = BundleLabels()


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


class PreparedBundle(NamedTuple):
    """A bundle as it was read: its entry, and its rows by the names of their tables."""

    entry: StoreEntry
    rows: dict[str, list[Row]]


class Skipped(msgspec.Struct, frozen=True):
    """A bundle that was not stored, and why.

    Attributes:
        path: of it.
        problem: as one sentence without a full stop.
        hint: what to do; null when nothing can be advised.
    """

    path: str
    problem: str
    hint: str | None


def find_bundles(path: Path) -> list[Path]:
    """Return the bundles and results of tiles at a path or below it, in order of their paths.

    Raises NotFoundError where there is none.
    """
    if is_bundle(path) or _has_tiles(path):
        return [path]
    if not path.exists():
        raise NotFoundError("no such file or directory", where=path, hint="give bundles, or directories of them")
    paths = sorted(_find_below(path, {path.resolve()})) if path.is_dir() else []
    if not paths:
        hint = "give what `opscope profile`, `opscope run` or `opscope aie --out` wrote, or a directory of such"
        raise NotFoundError("not a bundle, and none below", where=path, hint=hint)
    return paths


def _find_below(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield the bundles below a directory. Links are followed; what several lead to is found once, so circles end."""
    for child in sorted(path.iterdir()):
        if not child.is_dir() or child.resolve() in seen:
            continue
        seen.add(child.resolve())
        if is_bundle(child) or _has_tiles(child):
            yield child
        else:
            yield from _find_below(child, seen)


def _has_tiles(path: Path) -> bool:
    try:
        with (path / ANALYSIS).open("rb") as file:
            return _TILES_MARK in file.read(200)
    except OSError:
        return False


def bundle_hash(path: Path) -> str:
    """Return the hash by which a bundle is known: of its manifest, which holds the hash of every trace."""
    file = path / (MANIFEST if is_bundle(path) else ANALYSIS)
    try:
        return sha256_of(file)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=file) from error


def run_origin(manifest: Manifest) -> str:
    """Return a hash of what a run keeps when it is resumed: two bundles with it are one run, the one fuller."""
    first = manifest.repetitions[:1]
    identity = (
        manifest.created,
        manifest.model.sha256,
        manifest.plan.seed,
        manifest.variants,
        manifest.environment,
        first,
    )
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()


def prepare_bundle(
    source: str, labels: BundleLabels = _NO_LABELS, *, recompute: bool = False, sample: Collection[str] = ()
) -> PreparedBundle | Skipped:
    """Return a bundle as a store takes it, or why it takes none, so that others go on.

    Args:
        source: path of the bundle.
        labels: what the person who adds it says.
        recompute: analyse its traces, also where the bundle has the analyses already.
        sample: paths of bundles whose figures must be those that their traces give. Another version of opscope may
            have computed other figures, so its bundles are stored as not checked.
    """
    try:
        path, added = Path(source), datetime.now(timezone.utc).isoformat(timespec="seconds")
        if is_bundle(path):
            prepared = _prepare_runs(path, labels, added, recompute=recompute, is_sampled=source in sample)
        else:
            prepared = _prepare_tiles(path, labels, added)
        for cell in (cell for rows in prepared.rows.values() for row in rows for cell in row):
            _check_cell(source, cell)
    except OpscopeError as error:
        return Skipped(source, str(error), error.hint)
    except RecursionError:
        return Skipped(source, f"{source}: one of its files is nested too deeply", _RESTORE)
    return prepared


def _prepare_runs(path: Path, labels: BundleLabels, added: str, *, recompute: bool, is_sampled: bool) -> PreparedBundle:
    bundle = read_bundle(path, recompute=recompute)
    manifest = bundle.manifest
    placed = manifest.created or added
    rows, is_checked = bundle_rows(bundle, labels, placed), recompute
    if is_sampled and not recompute and manifest.opscope == __version__:
        traced = bundle_rows(read_bundle(path, recompute=True), labels, placed)
        if next(find_differences(_list_figures(rows), _list_figures(traced)), None):
            raise TraceFormatError("its analysis is not what its traces give", where=path, hint=_REWRITE)
        is_checked = True
    entry = StoreEntry(
        bundle=bundle.bundle,
        origin=run_origin(manifest),
        repetitions=sum(1 for repetition in manifest.repetitions if repetition.ok),
        model=manifest.model.name,
        device=labels.device_of(manifest),
        variants=tuple(variant.name for variant in manifest.variants),
        created=manifest.created,
        added=added,
        source=str(path),
        placed=placed,
        checked=is_checked,
    )
    return PreparedBundle(entry, rows)


def _list_figures(rows: Mapping[str, Sequence[Row]]) -> list[list[float]]:
    """Return the figures of each table, row by row: all that a store keeps of what was computed from traces."""
    return [[cell for row in table for cell in row if isinstance(cell, float)] for table in rows.values()]


def _prepare_tiles(path: Path, labels: BundleLabels, added: str) -> PreparedBundle:
    file = path / ANALYSIS
    try:
        analysis = from_json(file.read_bytes(), TilesAnalysis)
        written = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    except OSError as error:
        raise NotFoundError("neither a bundle nor an AI Engine result", where=path) from error
    except msgspec.MsgspecError as error:
        raise TraceFormatError(f"not a result that this opscope reads: {error}", where=file) from error
    name = bundle_hash(path)
    rows = tile_rows(analysis, name, str(path), labels, written)
    _, model, device, variant = rows["runs"][0][:4]
    entry = StoreEntry(name, name, 1, model, device, (variant,), written, added, str(path), "tiles", written)
    return PreparedBundle(entry, rows)


def _check_cell(source: str, cell: object) -> None:
    """Raise TraceFormatError for a value that fits into no column: an integer of more than 64 bits, or no Unicode."""
    if isinstance(cell, int) and not -_LARGEST <= cell < _LARGEST:
        raise TraceFormatError(f"it holds a value that no table can hold: {cell}", where=source)
    if isinstance(cell, str) and not cell.isascii() and any("\ud800" <= letter <= "\udfff" for letter in cell):
        raise TraceFormatError("it holds a value that no table can hold: a text that is no Unicode", where=source)


def read_bundle(path: Path, *, recompute: bool = False) -> AnalysedBundle:
    """Return a bundle with its analyses and comparisons: those it holds when they fit its manifest, else recomputed."""
    if is_held(path):
        raise BundleError("a run is using it", where=path, hint="add it after the run has ended")
    bundle, name = Bundle.open(path), bundle_hash(path)
    manifest = bundle.manifest
    for variant in manifest.variants:
        bundle.check_records(variant.name)
        for repetition in manifest.completed(variant.name):
            if repetition.trace is not None:
                _check_trace(path, repetition.trace, repetition.trace_sha256)
    analyses = None if recompute else _read_analyses(path, manifest)
    comparisons = None if analyses is None else _read_comparisons(path, manifest, analyses)
    if analyses is None or comparisons is None:
        content = content_of(bundle)
        if content.has_gaps:
            raise nothing_known(content.bugs[0], path, None)  # a store would keep the gap for good
        analyses = {result.variant.name: result.analysis for result in content.variants if result.analysis}
        comparisons = [
            StoredComparison(full.baseline, full.candidate, full.end_to_end, full.outputs, full.methods)
            for full in content.comparisons
        ]
    return AnalysedBundle(name, str(path), manifest, analyses, comparisons)


def _check_trace(path: Path, trace: str, sha256: str | None) -> None:
    """Raise an error for a trace that is outside of its bundle, missing, or another one."""
    file = path / trace
    if not file.resolve().is_relative_to(path.resolve()):
        raise TraceFormatError("a trace outside its bundle", where=file, hint=_RESTORE)
    try:
        problem = None if content_sha256(file) == sha256 else "a trace differs from the one in the manifest"
    except TraceFormatError as error:
        problem = f"a trace differs from the one in the manifest: {error.problem}"
    except FileNotFoundError:
        problem = "a trace is missing"
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=file) from error
    if problem:
        raise TraceFormatError(problem, where=file, hint=_RESTORE)


def _read_analyses(path: Path, manifest: Manifest) -> dict[str, Analysis] | None:
    """Return the analyses that the bundle holds; None when one is missing or is of other traces.

    What was computed from traces can always be computed again, so a document that does not fit is not damage.
    """
    analyses = {}
    main_analysis = _read_document(path / ANALYSIS, Analysis)
    for variant in manifest.variants:
        hashes = [repetition.data_sha256 for repetition in manifest.completed(variant.name)]
        if not hashes:
            continue
        analysis = _read_document(path / analysis_file(variant.name), Analysis) or main_analysis
        if analysis is None or analysis.variant != variant.name:
            return None
        if [file.sha256 for file in analysis.trace.files] != hashes:
            return None
        analyses[variant.name] = analysis
    return analyses


def _read_comparisons(path: Path, manifest: Manifest, analyses: dict[str, Analysis]) -> list[StoredComparison] | None:
    """Return the comparisons with the baseline that the bundle holds; None when one is missing."""
    pairs = [pair for pair in compared_pairs(manifest) if analyses.keys() >= set(pair)]
    comparisons = []
    for pair, name in zip(pairs, comparison_files(pairs), strict=True):
        comparison = _read_document(path / name, StoredComparison)
        if comparison is None or (comparison.baseline.label, comparison.candidate.label) != pair:
            return None
        comparisons.append(comparison)
    return comparisons


def _read_document(file: Path, kind: type[_Document]) -> _Document | None:
    try:
        return from_json(file.read_bytes(), kind)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
        return None


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
    model = Path(analysis.trace.path).name.partition(".")[0] or "trace"
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
