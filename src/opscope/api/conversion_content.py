"""What each format of a conversion holds: from the path that was named to the bytes of every file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.api.sides import is_kit, side_of
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.bundle.manifest import Role
from opscope.errors import RunError, UsageError
from opscope.table import Clock
from opscope.table.tiles import holds_tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analyze.analysis import Analysis
    from opscope.analyze.compare import Comparison
    from opscope.api.conversion import Content, Request
    from opscope.api.sides import Side
    from opscope.program.model import Model
    from opscope.report.content import ReportContent
    from opscope.report.perfetto import Part

_FIRST = (Role.ACCELERATED, Role.CANDIDATE)
_HEAD = 64


def contents(request: Request) -> dict[str, Content]:
    """Content of each file of a conversion, by the end of its name.

    Raises:
        UsageError: the format cannot say what the trace holds, or lacks something that was not given.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged or of an unknown format.
        MismatchError: the program or the record is not the trace's.
        RunError: no repetition of a bundle succeeded.
    """
    return _FORMATS[request.to](request)


def _csv(request: Request) -> dict[str, Content]:
    from opscope.report.events_csv import events_csv

    return {".csv": events_csv(_side(request).table)}


def _parquet(request: Request) -> dict[str, Content]:
    from opscope.report.parquet import parquet

    return {".parquet": parquet(_side(request).table)}


def _kit_csv(request: Request) -> dict[str, Content]:
    from opscope.report.kit_csv import FILES, kit_csv

    files = kit_csv(_checked(_side(request)).table, request.stem)
    return {f"_{name}": file for name, file in zip(FILES, files, strict=True)}


def _perfetto(request: Request) -> dict[str, Content]:
    from opscope.report.perfetto import perfetto

    sides = [_checked(side) for side in _sides(request)]
    return {".perfetto.json": perfetto([_part(side, request.stem, alone=len(sides) == 1) for side in sides])}


def _checked(side: Side) -> Side:
    """A side whose events can enclose each other.

    Raises:
        UsageError: they are those of AI Engine tiles.
    """
    if holds_tiles(side.table):
        hint = "csv and parquet hold its events; opscope aie TRACE writes reports with pictures"
        raise UsageError("the format cannot show a trace of AI Engine tiles", where=side.path, hint=hint)
    return side


def _part(side: Side, stem: str, *, alone: bool) -> Part:
    """The processes of one side with their names, and what the program says about them."""
    from opscope.report.content import off_text
    from opscope.report.perfetto import Part
    from opscope.report.text import plain

    facts = side.known.attributions.operators if side.known else {}
    if side.bundle is None or side.variant is None:
        return Part(side.table, _processes(side, stem), facts, "" if alone else plain(side.label))
    rounds = [repetition.round for repetition in side.bundle.manifest.completed(side.variant.name)]
    names = [f"{plain(side.variant.name)}, round {number}" for number in rounds]
    threads = "" if side.variant.threads is None else f", threads: {side.variant.threads}"
    return Part(side.table, names, facts, f"{off_text(side.variant)}{threads}")


def _processes(side: Side, stem: str) -> list[str]:
    """What each process is called: its file, or its number where one file holds several."""
    if len(side.files) == side.table.processes:
        return [file for file, _ in side.files]
    return [f"{stem}, process {number}" for number in range(side.table.processes)]


def _speedscope(request: Request) -> dict[str, Content]:
    from opscope.report.speedscope import speedscope
    from opscope.report.stacks import By

    results = _stackable(request)
    return {".speedscope.json": speedscope(request.stem, results, By(request.by))}


def _folded(request: Request) -> dict[str, Content]:
    from opscope.report.folded import folded
    from opscope.report.stacks import By

    return {".folded.txt": folded(_stackable(request), By(request.by))}


def _stackable(request: Request) -> list[tuple[str, Analysis]]:
    """The analyses that flame graphs are made of; with modules where these are asked for."""
    results = _results(request)
    if request.by == "module" and not any(analysis.modules for _, analysis in results):
        problem = "the modules of its operators are not known"
        hint = "give the export's files with --program and --etrecord, or leave out --by module"
        raise UsageError(problem, where=request.path, hint=hint)
    return results


def _tables(request: Request) -> dict[str, Content]:
    from opscope.report.tables import variant_tables

    return {f"_{name}": text.encode() for name, text in variant_tables(_results(request)).items()}


def _openmetrics(request: Request) -> dict[str, Content]:
    from opscope.report.openmetrics import openmetrics, openmetrics_of

    if _is_whole(request):
        return {".openmetrics.txt": openmetrics(_report(request))}
    side = _checked(_side(request))
    if side.table.clock is not Clock.NS:
        problem = f"its metrics are in seconds, and this trace counts {side.table.clock.value}"
        raise UsageError(problem, where="--to", hint="csv, speedscope and folded keep the clock of the trace")
    from opscope.api.analyses import analysis_of

    manifest = side.bundle.manifest if side.bundle else None
    return {".openmetrics.txt": openmetrics_of(analysis_of(side), request.stem, manifest)}


def _model_explorer(request: Request) -> dict[str, Content]:
    from opscope.api.reports import file_name
    from opscope.report.model_explorer import Measured, model_explorer

    found = _measured_program(request)
    files = model_explorer(found.model, request.stem, Measured(found.results, found.comparisons))
    return {f".{'.'.join(map(file_name, parts))}.json": content for parts, content in files.items()}


class _MeasuredProgram(NamedTuple):
    """A program, what was measured of it, and the comparisons between that."""

    model: Model
    results: list[tuple[str, Analysis]]
    comparisons: list[Comparison]


def _measured_program(request: Request) -> _MeasuredProgram:
    """The program of a bundle, of a trace, or alone.

    Raises:
        UsageError: the program is not known.
    """
    from opscope.api.attribution import read_model

    if _is_program(Path(request.path)):
        return _MeasuredProgram(read_model(Path(request.path), request.files and request.files.etrecord), [], [])
    if _is_whole(request):
        content = _report(request)
        results = [(r.variant.name, r.analysis) for r in content.variants if r.analysis]
        results.sort(key=lambda result: result[1] is not content.shown)
        comparisons = content.comparisons
    else:
        results, comparisons = _results(request), []
    program = next((analysis.program for _, analysis in results if analysis.program), None)
    if program is None:
        problem = "the graph is that of a program, and which one was run is not known"
        raise UsageError(problem, where=request.path, hint="name it with --program, and its record with --etrecord")
    etrecord = Path(program.etrecord) if program.etrecord else None
    return _MeasuredProgram(read_model(Path(program.path), etrecord), results, comparisons)


def _is_program(path: Path) -> bool:
    from opscope.read.pte import is_program

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return is_program(file.read(_HEAD))


def _is_whole(request: Request) -> bool:
    """Whether a whole bundle, or a whole run of the Arm kit, is to be converted."""
    directory = Path(request.path)
    return "#" not in request.path and (is_bundle(directory) or is_kit(directory))


def _report(request: Request) -> ReportContent:
    """What a report of a whole bundle shows.

    Raises:
        UsageError: something was given that a report does not take.
    """
    from opscope.api.reports import content

    if request.warmup is not None or request.files is not None:
        problem = "the figures of a whole bundle are those of its report"
        hint = "leave out --warmup, --program and --etrecord, or name one variant as BUNDLE#variant"
        raise UsageError(problem, where=request.path, hint=hint)
    return content(request.path)


def _results(request: Request) -> list[tuple[str, Analysis]]:
    """The analysis of every side, with its name."""
    from opscope.api.analyses import analysis_of

    return [(side.label, analysis_of(side)) for side in _sides(request)]


def _side(request: Request) -> Side:
    return side_of(request.path, request.warmup, request.files)


def _sides(request: Request) -> Sequence[Side]:
    """Every variant of a whole bundle that was measured, the accelerated one first; else the one side that was named.

    Raises:
        RunError: no repetition of a bundle succeeded.
    """
    if not _is_whole(request):
        return [_side(request)]
    if is_kit(Path(request.path)):
        variants = [result.variant for result in _report(request).variants if result.analysis]
    else:
        manifest = Bundle.open(Path(request.path)).manifest
        variants = [variant for variant in manifest.variants if manifest.completed(variant.name)]
    if not variants:
        raise RunError("no repetition succeeded", where=request.path, hint="--resume tries them again")
    ordered = sorted(variants, key=lambda variant: variant.role not in _FIRST)
    return [side_of(f"{request.path}#{variant.name}", request.warmup, request.files) for variant in ordered]


_FORMATS: dict[str, Callable[[Request], dict[str, Content]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "perfetto": _perfetto,
    "speedscope": _speedscope,
    "folded": _folded,
    "openmetrics": _openmetrics,
    "model-explorer": _model_explorer,
    "tables": _tables,
    "kit-csv": _kit_csv,
}
