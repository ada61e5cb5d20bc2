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
        """Return the content of the file; ``results`` are analyses by variant, the accelerated one first."""
        ...


def _run_exporter(plug_in: PlugIn, exporter: Exporter, results: Sequence[tuple[str, Analysis]]) -> bytes:
    """Return what an exporter writes.

    Raises:
        MissingDependencyError: it fails, or returns anything but bytes.
    """
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
    """Return the names of the formats of other packages, including those that cannot be loaded."""
    return sorted({plug_in.name for plug_in in plug_ins(GROUP)})


def plug_in_format(name: str) -> tuple[PlugIn, Exporter] | None:
    """Return a format of another package by its name, with its exporter; None if there is none.

    Raises:
        MissingDependencyError: it cannot be used.
    """
    plug_in = next((candidate for candidate in plug_ins(GROUP) if candidate.name == name), None)
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
    """Options that only some formats need."""

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
        """Return what flame graphs are built from."""
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
    request = _check_conversion(path, to, warmup, options)
    output_path = None if out is None else Path(out)
    suffixes = _SEVERAL[to] if to in _SEVERAL else (_file_suffix(to),)
    foreseen = [_output_path(request, suffix, output_path) for suffix in suffixes or ()]
    check_outputs([Output("the output", target) for target in foreseen], [Path(request.path.partition("#")[0])])
    if not force:
        _check_new(foreseen)
    contents = _make_contents(request)
    targets = [_output_path(request, suffix, output_path) for suffix in contents]
    if not force:
        _check_new(targets)
    return write_outputs(dict(zip(targets, contents.values(), strict=True)))


def converted(
    path: str | Path, to: str, *, warmup: Warmup = None, options: ConvertOptions | None = None
) -> Iterable[bytes]:
    """Return the content of the one file that :func:`convert` would write, in parts.

    Raises:
        UsageError: the format is unknown, or has several files.
    """
    request = _check_conversion(path, to, warmup, options)
    if to in _SEVERAL:
        raise UsageError(f"{to} has several files", where="--out", hint="give a directory")
    (content,) = _make_contents(request).values()
    return [content] if isinstance(content, bytes) else content


def _check_conversion(path: str | Path, to: str, warmup: Warmup, options: ConvertOptions | None) -> Request:
    """Return what was asked for, checked as far as possible without reading a file."""
    from opscope.workflows.analyze.sides import program_files

    explicit_options = options or ConvertOptions()
    if to not in CONVERT_FORMATS and to not in plug_in_formats():
        known = (*CONVERT_FORMATS, *plug_in_formats())
        raise UsageError(f"unknown format {to!r}", where="--to", hint=did_you_mean(to, known))
    if explicit_options.by is not None:
        _check_by(to, explicit_options.by)
    if to in CONVERT_FORMATS and to not in _OF_PROGRAMS and (explicit_options.program or explicit_options.etrecord):
        hint = f"supported formats: {', '.join(_OF_PROGRAMS)}"
        raise UsageError(f"{to} has nothing about the program", where="--program", hint=hint)
    is_program_alone = explicit_options.etrecord and not explicit_options.program and _is_program(Path(path))
    files = program_files(path if is_program_alone else explicit_options.program, explicit_options.etrecord)
    stem = _kit_stem(str(path)) if to == "kit-csv" else _trace_stem(str(path))
    return Request(str(path), to, stem, warmup, files, explicit_options)


def _file_suffix(to: str) -> str:
    """Return the end of the name of a file, for a format of one file."""
    if to in _SUFFIXES:
        return _SUFFIXES[to]
    plug_in = plug_in_format(to)
    assert plug_in is not None  # noqa: S101 - what no package has was refused
    return plug_in[1].suffix


def _make_contents(request: Request) -> dict[str, Content]:
    """Return the content of each file, by the end of its name."""
    if request.to in _FORMATS:
        return _FORMATS[request.to](request)
    plug_in = plug_in_format(request.to)
    assert plug_in is not None  # noqa: S101 - likewise
    return {plug_in[1].suffix: _run_exporter(*plug_in, _analyze_sides(request))}


def _check_by(to: str, by: str) -> None:
    known = (_BY_DEFAULT, "module")
    if to != _SPEEDSCOPE:
        raise UsageError(f"{to} has no stacks", where="--by", hint=f"it applies to {_SPEEDSCOPE}")
    if by not in known:
        raise UsageError(f"unknown grouping {by!r}", where="--by", hint=did_you_mean(by, known))


def _trace_stem(path: str) -> str:
    """Return the name of a trace's file without suffix, or of its directory, and the variant."""
    name, _, variant = path.partition("#")
    trace_path = Path(name)
    if not trace_path.name or trace_path.is_dir():
        stem = trace_path.resolve().name
    else:
        stem = (trace_path.with_suffix("") if trace_path.suffix in _PACKED else trace_path).stem
    return f"{stem}-{variant}" if variant else stem


def _kit_stem(path: str) -> str:
    """Return the name that the kit gives files of an experiment, ``MODEL_EXPERIMENT_tTHREADS``.

    A trace alone is named after its file.
    """
    from opscope.bundle.bundle import Bundle, is_bundle
    from opscope.kit.readers.json import ExperimentKey
    from opscope.measurements.sides import usual_variant
    from opscope.reports.formats.tables import plain_stem

    path_text, _, variant_name = path.partition("#")
    directory = Path(path_text)
    if not directory.is_dir() or is_kit(directory) or not is_bundle(directory):
        return _trace_stem(path)
    manifest = Bundle.open(directory).manifest
    variant = manifest.variant(variant_name) if variant_name else usual_variant(manifest)
    if variant is None:
        return _trace_stem(path)
    key = ExperimentKey(variant.name, threads=variant.threads)
    return plain_stem(f"{manifest.model_of(variant.name).name}_{key.text}")


def _output_path(request: Request, suffix: str, out: Path | None) -> Path:
    """Return the path of the file with this end of its name."""
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


def _convert_to_csv(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.event_files import events_csv

    return {".csv": events_csv(_read_side(request).table)}


def _convert_to_parquet(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.event_files import parquet

    return {".parquet": parquet(_read_side(request).table)}


def _convert_to_kit_csv(request: Request) -> dict[str, Content]:
    from opscope.kit.run_files import FILES, kit_csv

    files = kit_csv(_refuse_tiles(_read_side(request)).table, request.stem)
    return {f"_{name}": file for name, file in zip(FILES, files, strict=True)}


def _convert_to_kit(request: Request) -> dict[str, Content]:
    """Return the files of a run directory of the kit, by their whole names."""
    from opscope.kit.run_files import FILES, kit_csv, run_files

    sides = [_refuse_tiles(side) for side in _read_sides(request)]
    manifest = _kit_manifest(request, sides[0])
    written = {side.label: _kit_output(side, manifest) for side in sides}
    pairs = []
    if _is_whole(request):
        labels = [
            (comparison.candidate.label, comparison.baseline.label)
            for comparison in _read_report_content(request).comparisons
        ]
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
    """Return what a bundle, or the kit itself, records of a run; None for a trace alone."""
    from opscope.workflows.reports.reports import content

    directory = Path(request.path.partition("#")[0])
    return side.bundle.manifest if side.bundle else content(directory).manifest if is_kit(directory) else None


def _kit_model(side: Side, manifest: Manifest | None) -> tuple[str, str]:
    """Return a program's name in file names, and where it is."""
    from opscope.reports.formats.tables import plain_stem

    model = manifest.model_of(side.label) if manifest else None
    return (plain_stem(model.name), model.source) if model else (plain_stem(_trace_stem(side.path)), side.path)


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


def _convert_to_perfetto(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.perfetto import perfetto

    sides = [_refuse_tiles(side) for side in _read_sides(request)]
    return {
        ".perfetto.json": perfetto([_make_track_group(side, request.stem, alone=len(sides) == 1) for side in sides])
    }


def _refuse_tiles(side: Side) -> Side:
    """Return a side whose events can enclose each other; refuse AI Engine traces."""
    if side.table.holds_tiles:
        hint = "csv and parquet keep its events; opscope aie TRACE writes reports with charts"
        raise UsageError("the format does not support AI Engine traces", where=side.path, hint=hint)
    return side


def _make_track_group(side: Side, stem: str, *, alone: bool) -> TrackGroup:
    """Return the processes of one side with their names, and what the program says about them."""
    from opscope.reports.content.content import off_text
    from opscope.reports.document.text import plain
    from opscope.reports.formats.perfetto import TrackGroup

    facts = side.known.attributions.operators if side.known else {}
    if side.bundle is None or side.variant is None:
        return TrackGroup(side.table, _process_names(side, stem), facts, "" if alone else plain(side.label))
    rounds = [repetition.round for repetition in side.bundle.manifest.completed(side.variant.name)]
    names = [f"{plain(side.variant.name)}, round {number}" for number in rounds]
    threads = "" if side.variant.threads is None else f", threads: {side.variant.threads}"
    return TrackGroup(side.table, names, facts, f"{off_text(side.variant)}{threads}")


def _process_names(side: Side, stem: str) -> list[str]:
    """Return the name of each process: its file, or its number if one file holds several."""
    if len(side.files) == side.table.processes:
        return [file for file, _ in side.files]
    return [f"{stem}, process {number}" for number in range(side.table.processes)]


def _convert_to_speedscope(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.speedscope import speedscope

    return {".speedscope.json": speedscope(request.stem, _analyze_for_stacks(request), request.by)}


def _analyze_for_stacks(request: Request) -> list[tuple[str, Analysis]]:
    """Return the analyses that flame graphs are made of; refuse ``by`` module if no module is known."""
    results = _analyze_sides(request)
    if request.by == "module" and not any(analysis.modules for _, analysis in results):
        problem = "the modules of its operators are unknown"
        hint = "give the export's files with --program and --etrecord, or leave out --by module"
        raise UsageError(problem, where=request.path, hint=hint)
    return results


def _convert_to_github_benchmark(request: Request) -> dict[str, Content]:
    from opscope.measurements.analyses import analysis_of
    from opscope.reports.formats.github_benchmark import analysis_benchmark, bundle_benchmark

    if _is_whole(request):
        return {".benchmark.json": bundle_benchmark(_read_report_content(request))}
    side = _refuse_tiles(_read_side(request))
    if side.table.clock is not Clock.NS:
        problem = f"its figures are in milliseconds, but this trace counts {side.table.clock.value}"
        raise UsageError(problem, where="--to", hint="csv and speedscope keep the clock of the trace")
    manifest = side.bundle.manifest if side.bundle else None
    model = manifest.model_of(side.label).name if manifest else request.stem
    return {".benchmark.json": analysis_benchmark(analysis_of(side), model, manifest)}


def _convert_to_tables(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.tables import variant_tables

    return {f"_{name}": text.encode() for name, text in variant_tables(_analyze_sides(request)).items()}


def _convert_to_model_explorer(request: Request) -> dict[str, Content]:
    from opscope.reports.formats.model_explorer import model_explorer
    from opscope.workflows.reports.reports import file_name

    model, results, comparisons = _read_measured_program(request)
    files = model_explorer(model, request.stem, results, comparisons)
    return {f".{'.'.join(map(file_name, parts))}.json": content for parts, content in files.items()}


def _read_measured_program(request: Request) -> tuple[ProgramModel, list[tuple[str, Analysis]], list[Comparison]]:
    """Return a program, the analyses of its variants by name, and their comparisons.

    The program is that of a bundle, of a trace, or alone; then there are no analyses.
    """
    from opscope.runtimes.registry import read_model

    if _is_program(Path(request.path)):
        return read_model(Path(request.path), request.files and request.files.etrecord), [], []
    if _is_whole(request):
        content = _read_report_content(request)
        results = [(r.variant.name, r.analysis) for r in content.variants if r.analysis]
        results.sort(key=lambda result: result[1] is not content.shown)
        comparisons = content.comparisons
    else:
        results, comparisons = _analyze_sides(request), []
    program = next((analysis.program for _, analysis in results if analysis.program), None)
    if program is None:
        problem = "the graph needs the program that ran, which is unknown"
        raise UsageError(problem, where=request.path, hint="name it with --program, and its record with --etrecord")
    home = Path(request.path) if _is_whole(request) and not is_kit(Path(request.path)) else Path()
    etrecord = home / program.etrecord if program.etrecord else None
    of_program = [
        result for result in results if result[1].program is None or result[1].program.sha256 == program.sha256
    ]
    if len(of_program) < len(results):  # a graph is that of one program: what ran another has no place in it
        results, comparisons = of_program, []
    return read_model(home / program.path, etrecord), results, comparisons


def _is_program(path: Path) -> bool:
    from opscope.runtimes.registry import runtime_of_content

    return path.is_file() and runtime_of_content(head_of(path, _HEAD)) is not None


def _is_whole(request: Request) -> bool:
    """Return whether a whole bundle, or a whole run of the Arm kit, is to be converted."""
    directory = Path(request.path)
    return "#" not in request.path and (is_bundle(directory) or is_kit(directory))


def _read_report_content(request: Request) -> ReportContent:
    """Return the content of the report of a whole bundle."""
    from opscope.workflows.reports.reports import content

    if request.warmup is not None or request.files is not None or request.options.ticks is not None:
        problem = "the report covers the whole bundle"
        hint = "leave out --warmup, --program, --etrecord and --ticks, or name one variant as BUNDLE#variant"
        raise UsageError(problem, where=request.path, hint=hint)
    return content(request.path)


def _analyze_sides(request: Request) -> list[tuple[str, Analysis]]:
    """Return the analysis of every side, with its name."""
    from opscope.measurements.analyses import analysis_of

    return [(side.label, analysis_of(side)) for side in _read_sides(request)]


def _read_side(request: Request) -> Side:
    return side_of(request.path, request.warmup, request.files, request.options.ticks)


def _read_sides(request: Request) -> Sequence[Side]:
    """Return every measured variant of a whole bundle, the accelerated one first; else the side that was named."""
    from opscope.reports.content.content import FOREGROUND

    if not _is_whole(request):
        return [_read_side(request)]
    if is_kit(Path(request.path)):
        variants = [result.variant for result in _read_report_content(request).variants if result.analysis]
    else:
        manifest = Bundle.open(Path(request.path)).manifest
        variants = [variant for variant in manifest.variants if manifest.completed(variant.name)]
    if not variants:
        raise RunError("no repetition succeeded", where=request.path, hint="--resume retries them")
    ordered = sorted(variants, key=lambda variant: variant.role not in FOREGROUND)
    return [side_of(f"{request.path}#{variant.name}", request.warmup, request.files) for variant in ordered]


_FORMATS: dict[str, Callable[[Request], dict[str, Content]]] = {  # content of each file, by the end of its name
    "csv": _convert_to_csv,
    "parquet": _convert_to_parquet,
    "perfetto": _convert_to_perfetto,
    "speedscope": _convert_to_speedscope,
    "github-benchmark": _convert_to_github_benchmark,
    "model-explorer": _convert_to_model_explorer,
    "tables": _convert_to_tables,
    "kit-csv": _convert_to_kit_csv,
    "kit": _convert_to_kit,
}
