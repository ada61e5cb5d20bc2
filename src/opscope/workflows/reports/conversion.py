"""A trace or a bundle in another format, for other tools or for reading it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from opscope.bundle.bundle import Bundle, is_bundle
from opscope.core.errors import BundleError, MissingDependencyError, OpscopeError, RunError, UsageError, did_you_mean
from opscope.core.files import head_of, is_stream
from opscope.core.outputs import Output, check_outputs, write_outputs
from opscope.core.plug_ins import PlugIn, plug_ins
from opscope.core.table import Clock
from opscope.workflows.analyze.sides import is_kit, side_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.bundle.manifest import Manifest
    from opscope.kit.run_files import KitOutput
    from opscope.program.model import ProgramModel
    from opscope.reports.content.content import ReportContent
    from opscope.reports.formats.perfetto import TrackGroup
    from opscope.reports.formats.speedscope import By
    from opscope.runtimes.side import ProgramFiles, Side, Warmup

GROUP = "opscope.exporters"
_HINT = "opscope's own formats are unaffected; update the plug-in, or report it to its authors"


@runtime_checkable
class Exporter(Protocol):
    """Writes analyses in a format; the name of its entry point is that of the format."""

    suffix: str
    """End of the names of its files, with the dot."""

    def export(self, results: Sequence[tuple[str, Analysis]]) -> bytes:
        """The content of the file: of a bundle with every variant, the accelerated one first, each with its name."""
        ...


def _exported(plug_in: PlugIn, exporter: Exporter, results: Sequence[tuple[str, Analysis]]) -> bytes:
    """What an exporter writes; MissingDependencyError where it fails, or gives anything but bytes."""
    try:
        written = exporter.export(results)
    except OpscopeError:
        raise
    except Exception as error:
        raise MissingDependencyError(plug_in.failed("failed", error), hint=_HINT) from error
    if not isinstance(written, bytes):
        problem = f"{plug_in.title} returned {type(written).__name__}, not bytes"
        raise MissingDependencyError(problem, hint=_HINT)
    return written


def plug_in_formats() -> list[str]:
    """Names of the formats of other packages, also of those that cannot be loaded."""
    return sorted({one.name for one in plug_ins(GROUP)})


def plug_in_format(name: str) -> tuple[PlugIn, Exporter] | None:
    """The format of that name of another package, with its exporter; None where there is none.

    Raises MissingDependencyError: there is, and it cannot be used.
    """
    plug_in = next((one for one in plug_ins(GROUP) if one.name == name), None)
    if plug_in is None:
        return None
    if plug_in.problem:
        raise MissingDependencyError(plug_in.problem, hint=_HINT)
    try:
        exporter = plug_in.loaded() if isinstance(plug_in.loaded, type) else plug_in.loaded
    except Exception as error:
        raise MissingDependencyError(plug_in.failed("cannot be made", error), hint=_HINT) from error
    if not isinstance(exporter, Exporter) or not isinstance(exporter.suffix, str):
        problem = f"{plug_in.title} is not an exporter: it needs a suffix and export(results)"
        raise MissingDependencyError(problem, hint=_HINT)
    return plug_in, exporter


Content: TypeAlias = "bytes | Iterable[bytes]"
_SUFFIXES = {
    "csv": ".csv",
    "parquet": ".parquet",
    "perfetto": ".perfetto.json",
    "speedscope": ".speedscope.json",
    "github-benchmark": ".benchmark.json",
}
_SEVERAL = {
    "model-explorer": None,
    "tables": ("_operators.csv", "_categories.csv"),
    "kit-csv": ("_exec_all_runs_timeline.csv", "_exec_run0_timeline.csv", "_exec_ops_stats.csv"),
    "kit": None,
}
"""Formats of several files, and the ends of their names; None: the variants decide."""
_BY_DEFAULT = "operator"
_SPEEDSCOPE = "speedscope"
_OF_PROGRAMS = ("model-explorer", "perfetto", "tables", _SPEEDSCOPE)
_PACKED = (".gz", ".zst")
CONVERT_FORMATS = (*_SUFFIXES, *_SEVERAL)


class ConvertOptions(NamedTuple):
    """What else is said about a conversion."""

    program: str | Path | None = None  # the .pte of a trace; a bundle has its own
    etrecord: str | Path | None = None  # of the same export
    by: str | None = None  # what flame graphs are built from, ``operator`` or ``module``; None: operators
    ticks: str | None = None  # clock of the runner that wrote an ETDump, as in analyze


class Request(NamedTuple):
    """A conversion that was asked for."""

    path: str  # what to convert
    to: str  # the format
    stem: str  # what the files are called, without what follows from the format
    warmup: Warmup  # as in analyze
    files: ProgramFiles | None  # the program that the user named
    options: ConvertOptions

    @property
    def by(self) -> By:
        """What flame graphs are built from."""
        from opscope.reports.formats.speedscope import By

        return By(self.options.by or _BY_DEFAULT)


def convert(
    path: str | Path,
    to: str,
    *,
    out: str | Path | None = None,
    warmup: Warmup = None,
    force: bool = False,
    options: ConvertOptions | None = None,
) -> list[Path]:
    """Write a trace or a bundle in another format.

    Of a bundle without ``#variant``, ``csv``, ``parquet`` and ``kit-csv`` hold the accelerated variant, the others all.

    Args:
        path: whatever :func:`opscope.api.read` takes; for ``model-explorer`` also a program alone.
        to: one of ``CONVERT_FORMATS``, or a format that another package adds.
        out: the file, for formats of several files the directory; None: beside the trace, with the format's suffix.
        warmup: inferences of each process to mark as warm-up; as in :func:`opscope.api.analyze`.
        force: replace files of the same format that opscope wrote.
        options: what only some formats need; None: nothing.

    Returns:
        The files that were written.

    Raises:
        UsageError: the format or an option is unknown, or cannot say what the trace holds.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged or of an unknown format.
        MismatchError: the program or the record is not the trace's.
        BundleError: an output file exists.
        MissingDependencyError: the format is another package's, which fails.
        OverwriteError: opscope did not write it, or it is an input.
        StorageError: the output cannot be written.
    """
    request = _request(path, to, warmup, options)
    place = None if out is None else Path(out)
    known = _SEVERAL[to] if to in _SEVERAL else (_suffix(to),)
    foreseen = [_target(request, suffix, place) for suffix in known or ()]
    check_outputs([Output("the output", target) for target in foreseen], [Path(request.path.partition("#")[0])])
    if not force:
        _check_new(foreseen)
    contents = _contents(request)
    targets = [_target(request, suffix, place) for suffix in contents]
    if not force:
        _check_new(targets)
    return write_outputs(dict(zip(targets, contents.values(), strict=True)))


def converted(
    path: str | Path, to: str, *, warmup: Warmup = None, options: ConvertOptions | None = None
) -> Iterable[bytes]:
    """The content of the one file that :func:`convert` would write, in parts.

    Raises:
        UsageError: the format is unknown, or has several files.
    """
    request = _request(path, to, warmup, options)
    if to in _SEVERAL:
        raise UsageError(f"{to} has several files", where="--out", hint="give a directory")
    (content,) = _contents(request).values()
    return [content] if isinstance(content, bytes) else content


def _request(path: str | Path, to: str, warmup: Warmup, options: ConvertOptions | None) -> Request:
    """What was asked for, checked as far as that goes without reading."""
    from opscope.workflows.analyze.sides import program_files

    given = options or ConvertOptions()
    if to not in CONVERT_FORMATS and to not in plug_in_formats():
        known = (*CONVERT_FORMATS, *plug_in_formats())
        raise UsageError(f"unknown format {to!r}", where="--to", hint=did_you_mean(to, known))
    if given.by is not None:
        _check_by(to, given.by)
    if to in CONVERT_FORMATS and to not in _OF_PROGRAMS and (given.program or given.etrecord):
        hint = f"supported formats: {', '.join(_OF_PROGRAMS)}"
        raise UsageError(f"{to} has nothing about the program", where="--program", hint=hint)
    alone = given.etrecord and not given.program and _is_program(Path(path))
    files = program_files(path if alone else given.program, given.etrecord)
    stem = _kit_stem(str(path)) if to == "kit-csv" else _stem(str(path))
    return Request(str(path), to, stem, warmup, files, given)


def _suffix(to: str) -> str:
    """The end of the name of a file of a format that has one."""
    if to in _SUFFIXES:
        return _SUFFIXES[to]
    found = plug_in_format(to)
    assert found is not None  # noqa: S101 - what no package has was refused
    return found[1].suffix


def _contents(request: Request) -> dict[str, Content]:
    """The content of each file, by the end of its name."""
    if request.to in _FORMATS:
        return _FORMATS[request.to](request)
    found = plug_in_format(request.to)
    assert found is not None  # noqa: S101 - likewise
    return {found[1].suffix: _exported(*found, _results(request))}


def _check_by(to: str, by: str) -> None:
    known = (_BY_DEFAULT, "module")
    if to != _SPEEDSCOPE:
        raise UsageError(f"{to} has no stacks", where="--by", hint=f"it applies to {_SPEEDSCOPE}")
    if by not in known:
        raise UsageError(f"unknown grouping {by!r}", where="--by", hint=did_you_mean(by, known))


def _stem(path: str) -> str:
    """What the trace is called: the name of its file without suffix, or of its directory, and the variant."""
    name, _, variant = path.partition("#")
    place = Path(name)
    if not place.name or place.is_dir():
        stem = place.resolve().name
    else:
        stem = (place.with_suffix("") if place.suffix in _PACKED else place).stem
    return f"{stem}-{variant}" if variant else stem


def _kit_stem(path: str) -> str:
    """As the kit calls the files of an experiment, ``MODEL_EXPERIMENT_tTHREADS``; of a trace alone as elsewhere."""
    from opscope.bundle.bundle import Bundle, is_bundle
    from opscope.kit.readers.json import ExperimentKey
    from opscope.measurements.sides import usual_variant
    from opscope.reports.formats.tables import plain_stem

    place, _, named = path.partition("#")
    directory = Path(place)
    if not directory.is_dir() or is_kit(directory) or not is_bundle(directory):
        return _stem(path)
    manifest = Bundle.open(directory).manifest
    variant = manifest.variant(named) if named else usual_variant(manifest)
    if variant is None:
        return _stem(path)
    key = ExperimentKey(variant.name, threads=variant.threads)
    return plain_stem(f"{manifest.model_of(variant.name).name}_{key.text}")


def _target(request: Request, suffix: str, out: Path | None) -> Path:
    """The file with this end of its name."""
    if out is not None and request.to not in _SEVERAL:
        return out
    if request.to == "kit":
        return (out or Path(request.path.partition("#")[0]).resolve().parent / f"{request.stem}-kit") / suffix
    return (out or Path(request.path.partition("#")[0]).resolve().parent) / f"{request.stem}{suffix}"


def _check_new(targets: list[Path]) -> None:
    for target in targets:
        if target.exists() and not is_stream(target):
            hint = "replace it with --force, or choose another place with --out"
            raise BundleError("the output exists", where=target, hint=hint)


_HEAD = 64


def _csv(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.event_files import events_csv

    return {".csv": events_csv(_side(request).table)}


def _parquet(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.event_files import parquet

    return {".parquet": parquet(_side(request).table)}


def _kit_csv(request: Request) -> dict[str, Content]:
    from opscope.kit.run_files import FILES, kit_csv

    files = kit_csv(_checked(_side(request)).table, request.stem)
    return {f"_{name}": file for name, file in zip(FILES, files, strict=True)}


def _kit(request: Request) -> dict[str, Content]:
    """A run directory of the kit: names of files in place of their ends."""
    from opscope.kit.run_files import FILES, kit_csv, run_files

    sides = [_checked(side) for side in _sides(request)]
    manifest = _kit_manifest(request, sides[0])
    written = {side.label: _kit_output(side, manifest) for side in sides}
    pairs = []
    if _is_whole(request):
        labels = [(one.candidate.label, one.baseline.label) for one in _report(request).comparisons]
        pairs = [(written[candidate], written[baseline]) for candidate, baseline in labels]
    created = manifest.created if manifest else "not known"
    files: dict[str, Content] = {}
    files |= run_files(_kit_model(sides[0], manifest), created, list(written.values()), pairs)
    for side in sides:
        output = written[side.label]
        tables = kit_csv(side.table, output.stem, with_warmup=False)
        files |= {output.file(f"_{name}"): file for name, file in zip(FILES, tables, strict=True)}
    return files


def _kit_manifest(request: Request, side: Side) -> Manifest | None:
    """What is recorded of a run: by a bundle, or by the kit itself; nothing of a trace alone."""
    from opscope.workflows.reports.reports import content

    directory = Path(request.path.partition("#")[0])
    return side.bundle.manifest if side.bundle else content(directory).manifest if is_kit(directory) else None


def _kit_model(side: Side, manifest: Manifest | None) -> tuple[str, str]:
    """What a program is called in names of files, and where it is."""
    from opscope.reports.formats.tables import plain_stem

    model = manifest.model_of(side.label) if manifest else None
    return (plain_stem(model.name), model.source) if model else (plain_stem(_stem(side.path)), side.path)


def _kit_output(side: Side, manifest: Manifest | None) -> KitOutput:
    from opscope.kit.readers.json import ExperimentKey
    from opscope.kit.run_files import KitOutput
    from opscope.measurements.analyses import analysis_of
    from opscope.reports.formats.tables import plain_stem

    threads = side.variant.threads if side.variant else None
    name = side.label.removesuffix("" if threads is None else f"_t{threads}") if side.variant else "trace"
    key = ExperimentKey(name, threads=threads)
    return KitOutput(
        key=key,
        directory=plain_stem(name),
        stem=plain_stem(f"{_kit_model(side, manifest)[0]}_{key.text}"),
        trace=side.files[0][0],
        analysis=analysis_of(side),
        runs=manifest.plan.runs if manifest else None,
        warmup=manifest.plan.warmup if manifest else None,
    )


def _perfetto(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.perfetto import perfetto

    sides = [_checked(side) for side in _sides(request)]
    return {".perfetto.json": perfetto([_part(side, request.stem, alone=len(sides) == 1) for side in sides])}


def _checked(side: Side) -> Side:
    """A side whose events can enclose each other."""
    if side.table.holds_tiles:
        hint = "csv and parquet keep its events; opscope aie TRACE writes reports with charts"
        raise UsageError("the format does not support AI Engine traces", where=side.path, hint=hint)
    return side


def _part(side: Side, stem: str, *, alone: bool) -> TrackGroup:
    """The processes of one side with their names, and what the program says about them."""
    from opscope.reports.content.content import off_text
    from opscope.reports.document.text import plain
    from opscope.reports.formats.perfetto import TrackGroup

    facts = side.known.attributions.operators if side.known else {}
    if side.bundle is None or side.variant is None:
        return TrackGroup(side.table, _processes(side, stem), facts, "" if alone else plain(side.label))
    rounds = [repetition.round for repetition in side.bundle.manifest.completed(side.variant.name)]
    names = [f"{plain(side.variant.name)}, round {number}" for number in rounds]
    threads = "" if side.variant.threads is None else f", threads: {side.variant.threads}"
    return TrackGroup(side.table, names, facts, f"{off_text(side.variant)}{threads}")


def _processes(side: Side, stem: str) -> list[str]:
    """What each process is called: its file, or its number where one file holds several."""
    if len(side.files) == side.table.processes:
        return [file for file, _ in side.files]
    return [f"{stem}, process {number}" for number in range(side.table.processes)]


def _speedscope(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.speedscope import speedscope

    return {".speedscope.json": speedscope(request.stem, _stackable(request), request.by)}


def _stackable(request: Request) -> list[tuple[str, Analysis]]:
    """The analyses that flame graphs are made of; with modules where these are asked for."""
    results = _results(request)
    if request.by == "module" and not any(analysis.modules for _, analysis in results):
        problem = "the modules of its operators are unknown"
        hint = "give the export's files with --program and --etrecord, or leave out --by module"
        raise UsageError(problem, where=request.path, hint=hint)
    return results


def _github_benchmark(request: Request) -> dict[str, Content]:
    from opscope.measurements.analyses import analysis_of
    from opscope.reports.formats.github_benchmark import analysis_benchmark, bundle_benchmark

    if _is_whole(request):
        return {".benchmark.json": bundle_benchmark(_report(request))}
    side = _checked(_side(request))
    if side.table.clock is not Clock.NS:
        problem = f"its figures are in milliseconds, but this trace counts {side.table.clock.value}"
        raise UsageError(problem, where="--to", hint="csv and speedscope keep the clock of the trace")
    manifest = side.bundle.manifest if side.bundle else None
    model = manifest.model_of(side.label).name if manifest else request.stem
    return {".benchmark.json": analysis_benchmark(analysis_of(side), model, manifest)}


def _tables(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.tables import variant_tables

    return {f"_{name}": text.encode() for name, text in variant_tables(_results(request)).items()}


def _model_explorer(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.model_explorer import model_explorer
    from opscope.workflows.reports.reports import file_name

    model, results, comparisons = _measured_program(request)
    files = model_explorer(model, request.stem, results, comparisons)
    return {f".{'.'.join(map(file_name, parts))}.json": content for parts, content in files.items()}


def _measured_program(request: Request) -> tuple[ProgramModel, list[tuple[str, Analysis]], list[Comparison]]:
    """The program of a bundle, of a trace, or alone, what was measured of it, and the comparisons between that."""
    from opscope.runtimes.registry import read_model

    if _is_program(Path(request.path)):
        return read_model(Path(request.path), request.files and request.files.etrecord), [], []
    if _is_whole(request):
        content = _report(request)
        results = [(r.variant.name, r.analysis) for r in content.variants if r.analysis]
        results.sort(key=lambda result: result[1] is not content.shown)
        comparisons = content.comparisons
    else:
        results, comparisons = _results(request), []
    program = next((analysis.program for _, analysis in results if analysis.program), None)
    if program is None:
        problem = "the graph needs the program that ran, which is unknown"
        raise UsageError(problem, where=request.path, hint="name it with --program, and its record with --etrecord")
    home = Path(request.path) if _is_whole(request) and not is_kit(Path(request.path)) else Path()
    etrecord = home / program.etrecord if program.etrecord else None
    own = [one for one in results if one[1].program is None or one[1].program.sha256 == program.sha256]
    if len(own) < len(results):  # a graph is that of one program: what ran another has no place in it
        results, comparisons = own, []
    return read_model(home / program.path, etrecord), results, comparisons


def _is_program(path: Path) -> bool:
    from opscope.runtimes.registry import runtime_of_content

    return path.is_file() and runtime_of_content(head_of(path, _HEAD)) is not None


def _is_whole(request: Request) -> bool:
    """Whether a whole bundle, or a whole run of the Arm kit, is to be converted."""
    directory = Path(request.path)
    return "#" not in request.path and (is_bundle(directory) or is_kit(directory))


def _report(request: Request) -> ReportContent:
    """What a report of a whole bundle shows."""
    from opscope.workflows.reports.reports import content

    if request.warmup is not None or request.files is not None or request.options.ticks is not None:
        problem = "the report covers the whole bundle"
        hint = "leave out --warmup, --program, --etrecord and --ticks, or name one variant as BUNDLE#variant"
        raise UsageError(problem, where=request.path, hint=hint)
    return content(request.path)


def _results(request: Request) -> list[tuple[str, Analysis]]:
    """The analysis of every side, with its name."""
    from opscope.measurements.analyses import analysis_of

    return [(side.label, analysis_of(side)) for side in _sides(request)]


def _side(request: Request) -> Side:
    return side_of(request.path, request.warmup, request.files, request.options.ticks)


def _sides(request: Request) -> Sequence[Side]:
    """Every variant of a whole bundle that was measured, the accelerated one first; else the side that was named."""
    from opscope.reports.content.content import FOREGROUND

    if not _is_whole(request):
        return [_side(request)]
    if is_kit(Path(request.path)):
        variants = [result.variant for result in _report(request).variants if result.analysis]
    else:
        manifest = Bundle.open(Path(request.path)).manifest
        variants = [variant for variant in manifest.variants if manifest.completed(variant.name)]
    if not variants:
        raise RunError("no repetition succeeded", where=request.path, hint="--resume retries them")
    ordered = sorted(variants, key=lambda variant: variant.role not in FOREGROUND)
    return [side_of(f"{request.path}#{variant.name}", request.warmup, request.files) for variant in ordered]


_FORMATS: dict[str, Callable[[Request], dict[str, Content]]] = {  # content of each file, by the end of its name
    "csv": _csv,
    "parquet": _parquet,
    "perfetto": _perfetto,
    "speedscope": _speedscope,
    "github-benchmark": _github_benchmark,
    "model-explorer": _model_explorer,
    "tables": _tables,
    "kit-csv": _kit_csv,
    "kit": _kit,
}
