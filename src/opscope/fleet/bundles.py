"""Bundles, and results of traces of tiles, as a store takes them. Runs in this process or on a worker."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.analysis.analysis import Analysis
from opscope.bundle.bundle import MANIFEST, Bundle, is_bundle, is_held
from opscope.bundle.documents import find_differences
from opscope.core.errors import BundleError, NotFoundError, OpscopeError, StorageError, TraceFormatError
from opscope.core.files import sha256_of
from opscope.core.json import from_json
from opscope.core.tracebacks import nothing_known
from opscope.core.version import __version__
from opscope.fleet.store.rows import AnalysedBundle, BundleLabels, StoredComparison, bundle_rows, tile_rows
from opscope.fleet.store.schema import StoreEntry
from opscope.measurements.sides import compared_pairs
from opscope.npu.analysis.tiles_result import TilesAnalysis
from opscope.readers.compressed import content_sha256
from opscope.workflows.reports.reports import ANALYSIS, analysis_file, comparison_files, content_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from opscope.bundle.manifest import Manifest
    from opscope.fleet.store.schema import Row

_TILES_MARK = b"opscope.tiles/2"
_LARGEST = 1 << 63
"""Integers from here on fit into no column."""
_NO_LABELS = BundleLabels()
_REWRITE = "`opscope report` writes it from the traces; `opscope validate` lists what else was changed"
_RESTORE = "restore the file from a copy of the bundle, or leave the bundle out"
_Document = TypeVar("_Document", Analysis, StoredComparison)


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
