"""One bundle, or one result of a trace of tiles, made ready for a store. Runs in this process or on a worker."""

from __future__ import annotations

import hashlib
import math
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import verdicts_of
from opscope.bundle.bundle import MANIFEST, Bundle, is_bundle, is_held
from opscope.core.errors import BundleError, NotFoundError, OpscopeError, StorageError, TraceFormatError
from opscope.core.files import sha256_of
from opscope.core.json import from_json
from opscope.core.tracebacks import nothing_known
from opscope.core.version import __version__
from opscope.fleet.store.entries import StoreEntry
from opscope.fleet.store.rows import AnalysedBundle, BundleLabels, StoredComparison, bundle_rows, tile_rows
from opscope.fleet.store.schema import framed
from opscope.measurements.sides import compared_pairs
from opscope.npu.analysis.tiles_result import TilesAnalysis
from opscope.readers.compressed import content_sha256
from opscope.workflows.reports.reports import ANALYSIS, analysis_file, comparison_files, content_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import polars as pl

    from opscope.bundle.manifest import Manifest
    from opscope.fleet.store.schema import Row

_TILES = b"opscope.tiles/2"
_UNSAID = BundleLabels()
_REWRITE = "`opscope report` writes it from the traces; `opscope validate` lists what else was changed"
_RESTORE = "restore the file from a copy of the bundle, or leave the bundle out"
_Document = TypeVar("_Document", Analysis, StoredComparison)


class Ready(NamedTuple):
    """A bundle as it was read: what the store says of it, and its rows by the names of their tables."""

    entry: StoreEntry
    rows: dict[str, list[Row]]
    traced: bool = False  # whether its traces were analysed for it

    @property
    def size(self) -> int:
        """How many rows."""
        return sum(map(len, self.rows.values()))


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


def bundles_in(path: Path) -> list[Path]:
    """The bundles and results of tiles at a path or below it, in order of their paths."""
    if is_bundle(path) or _holds_tiles(path):
        return [path]
    if not path.exists():
        raise NotFoundError("no such file or directory", where=path, hint="give bundles, or directories of them")
    paths = sorted(_below(path, {path.resolve()})) if path.is_dir() else []
    if not paths:
        hint = "give what `opscope profile`, `opscope run` or `opscope aie --out` wrote, or a directory of such"
        raise NotFoundError("not a bundle, and none below", where=path, hint=hint)
    return paths


def content_id(path: Path) -> str:
    """Hash by which a bundle is known: of its manifest, which holds the hash of every trace."""
    file = path / (MANIFEST if is_bundle(path) else ANALYSIS)
    try:
        return sha256_of(file)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=file) from error


def ready(
    source: str, given: BundleLabels = _UNSAID, *, recompute: bool = False, checked: Collection[str] = ()
) -> Ready | Skipped:
    """A bundle made ready, or why that is impossible; an error that fits is a value here, so that others go on.

    Args:
        source: its path.
        given: what the person who adds it says.
        recompute: analyse its traces, also where the bundle has the analyses already.
        checked: paths of bundles whose analyses must be those that their traces give; of bundles of another version
            that cannot be told.
    """
    try:
        path = Path(source)
        if not is_bundle(path):
            return _of_tiles(path, given)
        bundle, traced = read_found(path, recompute=recompute), recompute
        if source in checked and not recompute and bundle.manifest.opscope == __version__:
            _check_figures(bundle, read_found(path, recompute=True), path)
            traced = True
        return _ready(bundle, path, given)._replace(traced=traced)
    except OpscopeError as error:
        return Skipped(source, str(error), error.hint)
    except RecursionError:
        return Skipped(source, f"{source}: one of its files is nested too deeply", _RESTORE)


def framed_together(found: Sequence[Ready]) -> Iterator[tuple[list[StoreEntry], dict[str, pl.DataFrame]] | Skipped]:
    """Bundles with their rows in one data frame a table, all in one where no value is in the way.

    A data frame costs as much as some hundred rows in it, so those of many bundles are made at once. Where a value fits
    into no table, its bundle is found by halves and refused; the others go on.
    """
    if not found:
        return
    rows: dict[str, list[Row]] = {}
    for one in found:
        for name, own in one.rows.items():
            rows.setdefault(name, []).extend(own)
    try:
        yield [one.entry for one in found], framed(rows, found[0].entry.source)
    except TraceFormatError as error:
        if len(found) == 1:
            yield Skipped(found[0].entry.source, str(error), error.hint)
            return
        half = len(found) // 2
        yield from framed_together(found[:half])
        yield from framed_together(found[half:])


def read_found(path: Path, *, recompute: bool = False) -> AnalysedBundle:
    """A bundle with its analyses and comparisons: those it holds when they fit its manifest, else recomputed."""
    if is_held(path):
        raise BundleError("a run is using it", where=path, hint="add it after the run has ended")
    bundle, name = Bundle.open(path), content_id(path)
    manifest = bundle.manifest
    _check_traces(path, manifest)
    analyses = None if recompute else _held_analyses(path, manifest)
    comparisons = None if analyses is None else _held_comparisons(path, manifest, analyses)
    if analyses is None or comparisons is None:
        content = content_of(bundle)
        if content.has_gaps:
            raise nothing_known(content.bugs[0], path, None)  # a store would keep the gap for good
        analyses = {result.variant.name: result.analysis for result in content.variants if result.analysis}
        comparisons = [
            StoredComparison(one.baseline, one.candidate, one.end_to_end, one.outputs, one.methods)
            for one in content.comparisons
        ]
    return AnalysedBundle(name, str(path), manifest, analyses, comparisons)


def _check_figures(bundle: AnalysedBundle, traced: AnalysedBundle, path: Path) -> None:
    """Refuse a bundle whose figures are not those of its traces."""
    for name, one in traced.analyses.items():
        stated = bundle.analyses.get(name)
        if stated is None or not _alike(_figures(stated), _figures(one)):
            raise TraceFormatError(f"the analysis of {name} is not what its traces give", where=path, hint=_REWRITE)
    speedups = [
        [end.speedup for one in read.comparisons for end in verdicts_of(one.end_to_end, one.methods).values()]
        for read in (bundle, traced)
    ]
    if not _alike(*speedups):
        raise TraceFormatError("a comparison is not what its traces give", where=path, hint=_REWRITE)


def _figures(analysis: Analysis) -> list[float | None]:
    """What a store keeps of an analysis: the headline, also of methods, and the time of every operator."""
    methods = (own.median_ns for own, _ in analysis.by_method.values())
    return [analysis.latency.median_ns, *methods, *(operator.time_ns for operator in analysis.operators)]


def _alike(stated: Sequence[float | None], traced: Sequence[float | None]) -> bool:
    if len(stated) != len(traced):
        return False
    return all(
        one is other or (one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9))
        for one, other in zip(stated, traced, strict=True)
    )


def _ready(bundle: AnalysedBundle, path: Path, given: BundleLabels) -> Ready:
    manifest = bundle.manifest
    entry = StoreEntry(
        bundle=bundle.bundle,
        origin=origin_of(manifest),
        repetitions=sum(1 for repetition in manifest.repetitions if repetition.ok),
        model=manifest.model.name,
        device=given.device_of(manifest),
        variants=tuple(variant.name for variant in manifest.variants),
        created=manifest.created,
        added=_now(),
        source=str(path),
    )
    return Ready(entry, bundle_rows(bundle, given))


def _of_tiles(path: Path, given: BundleLabels) -> Ready:
    file = path / ANALYSIS
    try:
        analysis = from_json(file.read_bytes(), TilesAnalysis)
        written = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    except OSError as error:
        raise NotFoundError("neither a bundle nor an AI Engine result", where=path) from error
    except msgspec.MsgspecError as error:
        raise TraceFormatError(f"not a result that this opscope reads: {error}", where=file) from error
    name = content_id(path)
    rows = tile_rows(analysis, name, str(path), given, written)
    _, model, device, variant = rows["runs"][0][:4]
    entry = StoreEntry(
        bundle=name,
        origin=name,
        repetitions=1,
        model=model,
        device=device,
        variants=(variant,),
        created=written,
        added=_now(),
        source=str(path),
        kind="tiles",
    )
    return Ready(entry, rows)


def origin_of(manifest: Manifest) -> str:
    """What a run keeps when it is resumed: its beginning. Two bundles with it are one run, the one fuller."""
    first = manifest.repetitions[:1]
    kept = (manifest.created, manifest.model.sha256, manifest.plan.seed, manifest.variants, manifest.environment, first)
    return hashlib.sha256(msgspec.json.encode(kept)).hexdigest()


class _Inside:
    """What lies in a directory, also when links are followed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._plain: dict[PurePosixPath, bool] = {PurePosixPath(): True}

    def holds(self, name: str) -> bool:
        """Whether the file of that name within the directory lies in it; one that is not there does, too."""
        part = PurePosixPath(name)
        if not part.is_absolute() and ".." not in part.parts and self._is_plain(part):
            return True
        return (self._path / name).resolve().is_relative_to(self._path.resolve())

    def _is_plain(self, part: PurePosixPath) -> bool:
        """Whether no part of a name is a link, so that resolving the whole path, step by step, is not needed."""
        if part not in self._plain:
            self._plain[part] = self._is_plain(part.parent) and not (self._path / part).is_symlink()
        return self._plain[part]


def _check_traces(path: Path, manifest: Manifest) -> None:
    """Make sure that the traces that count are there and whole."""
    inside = _Inside(path)
    for variant in manifest.variants:
        for repetition in manifest.completed(variant.name):
            if repetition.trace is None:
                continue
            file = path / repetition.trace
            if not inside.holds(repetition.trace):
                raise TraceFormatError("a trace outside its bundle", where=file, hint=_RESTORE)
            try:
                same = content_sha256(file) == repetition.trace_sha256
            except TraceFormatError as error:
                problem = f"a trace differs from the one in the manifest: {error.problem}"
                raise TraceFormatError(problem, where=file, hint=_RESTORE) from error
            except FileNotFoundError:
                raise TraceFormatError("a trace is missing", where=file, hint=_RESTORE) from None
            except OSError as error:
                raise StorageError(f"cannot be read: {error.strerror}", where=file) from error
            if not same:
                raise TraceFormatError("a trace differs from the one in the manifest", where=file, hint=_RESTORE)


def _held_analyses(path: Path, manifest: Manifest) -> dict[str, Analysis] | None:
    """Analyses that the bundle holds of all its variants with a result; None when one is missing or is of other traces.

    What was computed from traces can always be computed again, so a document that does not fit is not damage.
    """
    found = {}
    shown = _document(path / ANALYSIS, Analysis)
    for variant in manifest.variants:
        done = [repetition.data_sha256 for repetition in manifest.completed(variant.name)]
        if not done:
            continue
        analysis = _document(path / analysis_file(variant.name), Analysis) or shown
        if analysis is None or (analysis.variant, [file.sha256 for file in analysis.trace.files]) != (
            variant.name,
            done,
        ):
            return None
        found[variant.name] = analysis
    return found


def _held_comparisons(path: Path, manifest: Manifest, analyses: dict[str, Analysis]) -> list[StoredComparison] | None:
    """Comparisons with the baseline that the bundle holds; None when one is missing."""
    wanted = [pair for pair in compared_pairs(manifest) if analyses.keys() >= set(pair)]
    comparisons = []
    for (baseline, candidate), name in zip(wanted, comparison_files(wanted), strict=True):
        one = _document(path / name, StoredComparison)
        if one is None or (one.baseline.label, one.candidate.label) != (baseline, candidate):
            return None
        comparisons.append(one)
    return comparisons


def _document(file: Path, kind: type[_Document]) -> _Document | None:
    try:
        return from_json(file.read_bytes(), kind)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
        return None


def _below(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Bundles below a directory. Links are followed; what several lead to is found once, so circles end."""
    for child in sorted(path.iterdir()):
        if not child.is_dir() or child.resolve() in seen:
            continue
        seen.add(child.resolve())
        if is_bundle(child) or _holds_tiles(child):
            yield child
        else:
            yield from _below(child, seen)


def _holds_tiles(path: Path) -> bool:
    try:
        with (path / ANALYSIS).open("rb") as file:
            return _TILES in file.read(200)
    except OSError:
        return False


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
