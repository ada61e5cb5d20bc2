"""The tools for assistants: each a function of its arguments and of what the server lets it see."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from opscope.analysis.findings.message import Message
from opscope.analysis.operators.operators import Operator
from opscope.analysis.roofline import Roofline
from opscope.bundle.settings import Rounds, Runs, Text, Threads
from opscope.core.errors import InterruptedRunError, NotFoundError, OpscopeError, RunError, UsageError
from opscope.core.printable import shell_command
from opscope.core.system.stages import heard_by
from opscope.core.units import counted_text
from opscope.program.ceilings import Ceilings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.manifest import Repetition
    from opscope.core.system.stop import StopRequest
    from opscope.reports.content.content import ReportContent

    Json: TypeAlias = Any
    """A document of any shape."""
    from collections.abc import Callable

    from opscope.assistants.roots import Roots
    from opscope.measurements.results import AnalysisResult

_LONGEST_TEXT = 2_000
_MORE_LISTS = 12


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a tool answers."""

    answer: str  # in one sentence
    # the document that the command line writes with --json, its long lists cut; its `schema` names the JSON schema that
    # describes it
    result: dict[str, Any]
    more: list[str]  # what was cut, and how to get it; empty where everything is here


def answered(answer: str, document: msgspec.Struct, most: int, more: Sequence[str] = ()) -> ToolAnswer:
    """A result as an answer, which says it in one sentence: the first ``most`` entries of its lists are kept.

    ``more`` is what else is to be said of how to get more.
    """
    cut: dict[str, int] = {}
    result = _cut(msgspec.to_builtins(document, str_keys=True), most, "", cut)
    lists = [f"{place}: the first {most} of {count:,}" for place, count in list(cut.items())[:_MORE_LISTS]]
    if len(cut) > _MORE_LISTS:
        lists.append(f"{len(cut) - _MORE_LISTS} more lists are cut")
    limit = [f"a larger `limit` shows more of each list (now {most})"] if cut else []
    return ToolAnswer(answer, result, [*lists, *limit, *more])


def _cut(value: Json, most: int, place: str, cut: dict[str, int]) -> Json:
    """A part of a document without the ends of its long lists, whose lengths are noted."""
    if isinstance(value, dict):
        return {name: _cut(one, most, f"{place}.{name}".lstrip("."), cut) for name, one in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > most:
            cut[place] = max(cut.get(place, 0), len(value))
        return [_cut(one, most, f"{place}[]", cut) for one in value[:most]]
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}..."
    return value


_MOST_DIRECTORIES = 20_000
_MANIFEST = "manifest.json"
_INNER = 10
"""Entries of the lists inside of what is asked for page by page."""

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=200, description="Entries of each list in the answer.")]
Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000_000, description="Entries to skip.")]
Warmup: TypeAlias = Annotated[
    int | Literal["auto"] | None,
    msgspec.Meta(description="Warm-up inferences to discard in each process; null: as the bundle says, or auto."),
]
Measured: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=4096, description="A trace, a directory of traces, a bundle, or BUNDLE#variant."
    ),
]
File: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
ShortText: TypeAlias = Annotated[str, msgspec.Meta(max_length=200)]


class Desk(NamedTuple):
    """What a call works with."""

    roots: Roots  # what it may see
    allow_run: bool  # whether it may run programs
    stop: StopRequest  # asks it to stop
    tell: Callable[[str], None]  # hears how far it is, as one line


class ListBundles(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``list_bundles``."""

    directory: Annotated[
        File | None, msgspec.Meta(description="Only below this directory; null: below all of the server's.")
    ] = None
    limit: Limit = 20
    offset: Offset = 0


class ReadBundle(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``read_bundle``."""

    path: Annotated[File, msgspec.Meta(description="A bundle; analysis and roofline also take BUNDLE#variant.")]
    part: Annotated[
        Literal["summary", "analysis", "findings", "roofline"],
        msgspec.Meta(description="Summary and findings are of all variants, analysis and roofline of one."),
    ] = "summary"
    limit: Limit = 5


class AnalyzeTrace(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``analyze_trace``."""

    path: Measured
    program: Annotated[File | None, msgspec.Meta(description="The program that was traced; a bundle has its own.")] = (
        None
    )
    etrecord: Annotated[File | None, msgspec.Meta(description="Its .etrecord: adds modules and source lines.")] = None
    warmup: Warmup = None
    limit: Limit = 5


class FindOperators(AnalyzeTrace, forbid_unknown_fields=True):
    """Arguments of ``find_operators``."""

    category: Annotated[
        Literal["Convolution", "GEMM", "Data Movement", "Elementwise", "Other"] | None,
        msgspec.Meta(description="Only of this category."),
    ] = None
    kind: Annotated[ShortText | None, msgspec.Meta(description="Only of this kind, such as depthwise.")] = None
    backend: Annotated[ShortText | None, msgspec.Meta(description="Only of this backend, such as portable.")] = None
    name: Annotated[ShortText | None, msgspec.Meta(description="Only with this text in the name, in any case.")] = None
    module: Annotated[ShortText | None, msgspec.Meta(description="Only of this layer and those in it.")] = None
    min_share: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="Only with at least this share of the latency.")
    ] = 0.0
    limit: Limit = 20
    offset: Offset = 0


class Compare(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``compare``."""

    baseline: Measured
    candidate: Measured
    warmup: Warmup = None
    limit: Limit = 5


class CheckMeasured(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``check``."""

    candidate: Measured
    against: Measured
    threshold: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=10)] | None,
        msgspec.Meta(description="Largest slowdown that passes, as a fraction; null: 0.03."),
    ] = None
    budget: Annotated[File | None, msgspec.Meta(description="A file with limits of operators, TOML or JSON.")] = None
    limit: Limit = 20


class PreflightProgram(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``preflight``."""

    program: Annotated[File, msgspec.Meta(description="A .pte, .tflite or .onnx.")]
    cpu: Annotated[
        Text | None, msgspec.Meta(description="CPU to choose kernels for, such as apple-m4; null: this machine's.")
    ] = None
    limit: Limit = 5


class FoundBundle(msgspec.Struct, frozen=True):
    """A bundle below the directories of a server; `problem` says why the rest is null."""

    path: str
    model: str | None = None
    dtype: str | None = None
    created: str | None = None
    status: str | None = None
    target: str | None = None
    variants: list[str] = []
    problem: str | None = None


class BundleList(msgspec.Struct, frozen=True):
    """Bundles, by path; `total` counts those of other pages, too."""

    bundles: list[FoundBundle]
    total: int


class OperatorList(msgspec.Struct, frozen=True):
    """Operators of an analysis, the longest first; `total` counts those of other pages, too."""

    path: str  # what was analysed
    variant: str | None  # of it; null for a trace
    headline_ns: float | None  # what all operators of it add up to
    total: int  # operators that were asked for
    share: float  # of all of them together
    operators: list[Operator]  # of this page


class BundleRoofline(msgspec.Struct, frozen=True):
    """Operators of a variant under what its machine can reach; null where that was not measured."""

    path: str
    roofline: Roofline | None
    ceilings: Ceilings | None


class FindingList(msgspec.Struct, frozen=True):
    """What stands out in a bundle, the most severe first, and the rules that found nothing."""

    path: str
    findings: list[Message]
    ruled_out: list[Message]


def list_bundles(request: ListBundles, desk: Desk) -> ToolAnswer:
    """List the bundles (results of earlier measurements) below the directories of this server."""
    homes = desk.roots.directories if request.directory is None else (desk.roots.path(request.directory),)
    for home in homes:
        if not home.is_dir():
            raise NotFoundError("no such directory", where=home, hint="list_bundles without a directory lists all")
    paths, whole = _bundles(homes)
    shown = [_bundle_entry(path) for path in paths[request.offset : request.offset + request.limit]]
    more = _next_page("list_bundles", request.offset + len(shown), len(paths))
    more += [] if whole else [f"stopped after {_MOST_DIRECTORIES:,} directories: name a directory"]
    text = f"{counted_text(len(paths), 'bundle')}, {len(shown)} shown"
    return answered(text, BundleList(shown, len(paths)), max(request.limit, _INNER), more)


def _bundles(homes: tuple[Path, ...]) -> tuple[list[Path], bool]:
    """Directories of bundles, and whether all directories were looked at."""
    paths = set[Path]()
    for number, (directory, files) in enumerate(_directories(homes)):
        if number >= _MOST_DIRECTORIES:
            return sorted(paths), False
        if _MANIFEST in files:
            paths.add(directory)
    return sorted(paths), True


def _directories(homes: tuple[Path, ...]) -> Iterator[tuple[Path, list[str]]]:
    """Directories with their files; nothing below a bundle, nothing hidden, and no links."""
    for home in homes:
        for directory, inner, files in os.walk(home):
            inner[:] = [] if _MANIFEST in files else sorted(name for name in inner if not name.startswith("."))
            yield Path(directory), files


def _bundle_entry(path: Path) -> FoundBundle:
    from opscope.bundle.bundle import Bundle

    try:
        manifest = Bundle.open(path).manifest
    except OpscopeError as error:
        return FoundBundle(str(path), problem=error.problem)
    return FoundBundle(
        path=str(path),
        model=manifest.model.name,
        dtype=manifest.model.dtype,
        created=manifest.created,
        status=manifest.status.value,
        target=manifest.target.kind,
        variants=[variant.name for variant in manifest.variants],
    )


def read_bundle(request: ReadBundle, desk: Desk) -> ToolAnswer:
    """Read a bundle: its summary (latency, speedup, bottleneck, advice), the analysis of a variant, or its findings."""
    place = _side(desk, request.path)
    if request.part == "analysis":
        return _analysis(place, request.limit)
    if request.part == "roofline":
        return _roofline(place, request.limit)
    from opscope.api import content

    _check_bundle(place, request.part)
    shown = content(place)
    if request.part == "findings":
        ruled_out = [*shown.ruled_out, *(shown.shown.ruled_out if shown.shown else [])]
        finding_list = FindingList(place, shown.advice, ruled_out)
        return answered(counted_text(len(finding_list.findings), "finding"), finding_list, request.limit)
    from opscope.reports.combined.combined import BundlePart, combine

    (summary,) = combine([BundlePart(Path(place).name, place, shown)], [], []).bundles
    more = ["part analysis or findings, and find_operators, tell more of it"]
    return answered(summary.headline, summary, request.limit, more)


def _side(desk: Desk, text: str) -> str:
    """The trace, directory or bundle that a path means: one that keeps its files inside."""
    from opscope.workflows.analyze.sides import is_kit

    place = desk.roots.side(text)
    if is_kit(Path(place.partition("#")[0])):
        hint = "name a trace in it, and with analyze_trace its program"
        raise UsageError("an Arm kit run, which names files elsewhere", where=place, hint=hint)
    return place


def _check_bundle(place: str, part: str) -> None:
    if "#" in place:
        raise UsageError(f"{part} is of all variants", where=place, hint="leave out #variant, or ask for the analysis")
    if not (Path(place) / _MANIFEST).is_file():
        hint = "list_bundles lists the bundles; analyze_trace reads traces"
        raise NotFoundError("not a bundle", where=place, hint=hint)


def analyze_trace(request: AnalyzeTrace, desk: Desk) -> ToolAnswer:
    """Say where the time goes in a trace or a variant: latency, categories, operators, findings with next steps."""
    return _analysis(_side(desk, request.path), request.limit, **_files(request, desk), warmup=request.warmup)


def _analysis(
    place: str, limit: int, program: Path | None = None, etrecord: Path | None = None, warmup: Warmup = None
) -> ToolAnswer:
    from opscope.api import analyze

    result = analyze(place, warmup=warmup, program=program, etrecord=etrecord)
    more = ["find_operators lists operators by category, kind, backend, name, layer or share"]
    more += ["read_bundle has roofline and ceilings as part roofline"] if result.roofline else []
    shown = msgspec.structs.replace(result, operators=_longest_first(result.operators), roofline=None, ceilings=None)
    return answered(result.answer, shown, limit, more)


def _roofline(place: str, limit: int) -> ToolAnswer:
    from opscope.api import analyze

    result = analyze(place)
    text = "operators under the measured ceilings" if result.roofline else "no ceilings were measured"
    return answered(text, BundleRoofline(place, result.roofline, result.ceilings), limit)


def _longest_first(operators: list[Operator]) -> list[Operator]:
    return sorted(operators, key=lambda one: -one.share)


def _files(request: AnalyzeTrace, desk: Desk) -> dict[str, Path | None]:
    given = {"program": request.program, "etrecord": request.etrecord}
    return {name: None if text is None else desk.roots.path(text) for name, text in given.items()}


def find_operators(request: FindOperators, desk: Desk) -> ToolAnswer:
    """List operators of a trace or a variant, the longest first, by category, kind, backend, name, layer or share."""
    from opscope.api import analyze

    place, files = _side(desk, request.path), _files(request, desk)
    result = analyze(place, warmup=request.warmup, program=files["program"], etrecord=files["etrecord"])
    wanted = _longest_first([one for one in result.operators if _fits(one, request)])
    if not wanted:
        raise _none_fits(result, place)
    shown = wanted[request.offset : request.offset + request.limit]
    share = min(1.0, sum(one.share for one in wanted))
    listed = OperatorList(place, result.variant, result.headline_ns, len(wanted), share, shown)
    text = f"{counted_text(len(wanted), 'operator')} with {share:.1%} of the latency, {len(shown)} shown"
    more = _next_page("find_operators", request.offset + len(shown), len(wanted))
    return answered(text, listed, max(request.limit, _INNER), more)


def _fits(one: Operator, request: FindOperators) -> bool:
    module = (
        request.module is None or one.module == request.module or (one.module or "").startswith(f"{request.module}.")
    )
    return (
        module
        and request.category in {None, one.category.value}
        and request.kind in {None, one.kind}
        and (request.backend is None or request.backend.lower() == one.backend.lower())
        and (request.name is None or request.name.lower() in one.name.lower())
        and one.share >= request.min_share
    )


def _none_fits(result: AnalysisResult, place: str) -> NotFoundError:
    kinds, backends = ({getattr(one, name) for one in result.operators} for name in ("kind", "backend"))
    hint = f"its kinds: {', '.join(sorted(kinds))}; its backends: {', '.join(sorted(backends))}"
    return NotFoundError("no operator fits", where=place, hint=hint)


def compare(request: Compare, desk: Desk) -> ToolAnswer:
    """Compare two traces, bundles or variants: the verdict with its interval, and the operators that differ."""
    from opscope.workflows.analyze.analyses import compare_any

    baseline, candidate = _side(desk, request.baseline), _side(desk, request.candidate)
    found = compare_any(baseline, candidate, warmup=request.warmup)
    return answered(found.answer, found, request.limit)


def check(request: CheckMeasured, desk: Desk) -> ToolAnswer:
    """Judge whether a candidate is slower than a baseline by more than a threshold lets through."""
    from opscope.workflows.analyze.gate import check_any, is_program

    candidate, against = _side(desk, request.candidate), _side(desk, request.against)
    program = next((one for one in (candidate, against) if is_program(one)), None)
    if program is not None:
        raise UsageError("a program, not a measurement", where=program, hint="profile it first, and check its bundle")
    budget = None if request.budget is None else desk.roots.path(request.budget)
    found = check_any(candidate, against, threshold=request.threshold, budget=budget)
    return answered(found.answer, found, request.limit)


def preflight(request: PreflightProgram, desk: Desk) -> ToolAnswer:
    """Say what of a program will be accelerated, and what holds it back, without measuring."""
    from opscope.api import preflight as preflight_program
    from opscope.runtimes.registry import RUNTIMES

    place = desk.roots.path(request.program)
    runtime = next((one for one in RUNTIMES if place.is_file() and one.holds(place)), None)
    if runtime is not None and runtime.preflight_runs and not desk.allow_run:
        hint = "start the server with --allow-run"
        raise UsageError(f"{runtime.title} runs the program to tell its shapes", where=place, hint=hint)
    result = preflight_program(place, cpu=request.cpu)
    return answered(result.answer, result, request.limit)


def _next_page(tool: str, seen: int, total: int) -> list[str]:
    return [f"{tool} with offset={seen} goes on"] if seen < total else []


Groups = Annotated[
    tuple[Text, ...],
    msgspec.Meta(max_length=20, description="CPU feature groups to switch off in the baseline, such as avx512."),
]


class CountProgram(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``count``."""

    program: Annotated[File, msgspec.Meta(description="A .pte, .tflite or .onnx, or a bundle.")]
    ablate: Groups = ()
    limit: Limit = 10


class ProfileProgram(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``profile``."""

    program: Annotated[File, msgspec.Meta(description="A .pte, .tflite or .onnx.")]
    out: Annotated[
        File, msgspec.Meta(description="Directory of the new bundle; with resume, the bundle to go on with.")
    ]
    seconds: Annotated[
        float, msgspec.Meta(gt=0, le=3600, description="Budget: stops then and reports what was finished.")
    ]
    rounds: Annotated[Rounds, msgspec.Meta(description="Processes of each variant; a verdict needs 6 or more.")] = 10
    runs: Annotated[Runs, msgspec.Meta(description="Measured inferences of each process.")] = 50
    threads: Annotated[Threads, msgspec.Meta(description="Size of the thread pool.")] = 1
    ablate: Groups = ()
    ceilings: Annotated[
        bool, msgspec.Meta(description="Measure what this machine can reach, too: half a minute more, once.")
    ] = False
    resume: Annotated[bool, msgspec.Meta(description="Go on with the bundle in out.")] = False
    limit: Limit = 10


class TuneProgram(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of ``tune``."""

    program: Annotated[File, msgspec.Meta(description="A .pte, .tflite, .onnx or .xml.")]
    out: Annotated[File, msgspec.Meta(description="New directory of the result.")]
    minutes: Annotated[float, msgspec.Meta(gt=0, le=60, description="Limit for search and confirmation.")] = 3.0
    limit: Limit = 10


def count(request: CountProgram, desk: Desk) -> ToolAnswer:
    """Count exactly what each operator of a program executes: instructions, bytes. Runs it under Valgrind."""
    from opscope.api import count as count_work

    place = _program(desk, request.program, bundles=True)
    desk.tell("counting")
    with desk.stop.heard(), heard_by(lambda stage, detail: desk.tell(f"{stage} {detail}".strip())):
        result = count_work(place, ablate=request.ablate)
    most = sorted(result.operators, key=lambda operator: -operator.instructions)
    return answered(result.answer, msgspec.structs.replace(result, operators=most), request.limit)


def profile(request: ProfileProgram, desk: Desk) -> ToolAnswer:
    """Profile a program with CPU acceleration on and off into a new bundle, within a budget of seconds.

    Leave the machine alone meanwhile. A bundle that the budget left unfinished is finished with resume.
    """
    from opscope.api import Settings
    from opscope.api import profile as profile_model

    place, out = _program(desk, request.program), desk.roots.path(request.out)
    if request.resume:
        _check_begun(out, desk)
    settings = Settings(
        rounds=request.rounds,
        runs=request.runs,
        threads=request.threads,
        ablate=request.ablate,
        ceilings=None if request.ceilings else False,
        lock="fail",
    )

    def heard(done: int, total: int, repetition: Repetition | None) -> None:  # noqa: ARG001 - the protocol's
        desk.tell(f"{done} of {total} processes")

    stopped = _Budget(request.seconds, desk.stop)
    try:
        with (
            stopped.running(),
            desk.stop.heard(),
            heard_by(lambda stage, detail: desk.tell(f"{stage} {detail}".strip())),
        ):
            content = profile_model(
                place, settings=settings, out=out, resume=request.resume, progress=heard, notify=desk.tell
            ).content
    except (KeyboardInterrupt, InterruptedRunError):
        if not stopped.over:
            raise
        content = _finished(out, request.seconds)
    return _summary(content, out, request)


def tune(request: TuneProgram, desk: Desk) -> ToolAnswer:
    """Find settings of the runtime (threads, spinning, precision) that are faster than its default, outputs equal.

    Leave the machine alone meanwhile: under other load no setting is named, and `disturbed` tells the reason.
    """
    from opscope.api import Settings
    from opscope.api import tune as tune_model
    from opscope.reports.tuning import answer_text

    program, directory = _program(desk, request.program), desk.roots.path(request.out)

    def tell_progress(done: int, total: int, repetition: Repetition | None) -> None:  # noqa: ARG001 - the protocol's
        desk.tell(f"{done} of {total} processes")

    with desk.stop.heard(), heard_by(lambda stage, detail: desk.tell(f"{stage} {detail}".strip())):
        tuning = tune_model(
            program,
            minutes=request.minutes,
            settings=Settings(lock="fail"),
            out=directory,
            progress=tell_progress,
            notify=desk.tell,
        )
    return answered(answer_text(tuning), tuning, request.limit)


def _check_begun(out: Path, desk: Desk) -> None:
    """Raise UsageError for a bundle that must not be finished by an assistant.

    Its manifest may come from somebody else, and an address in it is a program that would be started or a machine that
    would be connected to.
    """
    from opscope.bundle.bundle import Bundle
    from opscope.hosts.target_kinds import LOCAL, NATIVE

    desk.roots.check_links(out)
    manifest = Bundle.open(out).manifest
    for target in (manifest.target, *manifest.targets.values()):
        if target.address or target.kind not in {LOCAL.name, NATIVE.name}:
            again = shell_command(["opscope", "profile", manifest.model.source, "--out", str(out), "--resume"])
            hint = f"if you trust it, finish it on the command line: {again} --target TARGET"
            raise UsageError(f"it was begun on the target {target.name}", where=out, hint=hint)


class _Budget:
    """Asks to stop when the time is up."""

    def __init__(self, seconds: float, stop: StopRequest) -> None:
        self.over, self._stop = False, stop
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def _end(self) -> None:
        self.over = True
        self._stop.ask()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the time run within the block."""
        self._timer.start()
        try:
            yield
        finally:
            self._timer.cancel()


def _program(desk: Desk, text: str, *, bundles: bool = False) -> Path:
    """The program that a path means: no module or registered name, whose code would be executed."""
    from opscope.bundle.bundle import is_bundle
    from opscope.runtimes.registry import RUNTIMES

    place = desk.roots.path(text)
    if bundles and is_bundle(place):
        desk.roots.check_links(place)
        return place
    if not place.is_file():
        raise NotFoundError("no such program", where=place, hint="give the path of a .pte, .tflite or .onnx")
    if not any(runtime.holds(place) for runtime in RUNTIMES):
        raise UsageError("not a program", where=place, hint="give a .pte, .tflite or .onnx; export models beforehand")
    return place


def _finished(out: Path, seconds: float) -> ReportContent:
    """What the reports of an unfinished bundle show, once they are written."""
    from opscope.api import content, report
    from opscope.bundle.bundle import is_bundle

    report_content = content(out) if is_bundle(out) else None
    if report_content is None or report_content.shown is None:
        hint = "give more seconds" + ("" if report_content is None else ", with resume")
        raise RunError(f"nothing was finished within {seconds:g} s", where=out, hint=hint)
    report(out)
    return report_content


def _summary(content: ReportContent, out: Path, request: ProfileProgram) -> ToolAnswer:
    from opscope.reports.combined.combined import BundlePart, combine
    from opscope.reports.content.content import missing_sentences

    (summary,) = combine([BundlePart(out.name, str(out), content)], [], []).bundles
    pending = len(content.manifest.pending())
    more = ["read_bundle and find_operators tell more of the bundle", *missing_sentences(content)[:3]]
    if pending:
        more.append(f"{pending} processes were not run: profile with resume=true goes on")
    return answered(summary.headline, summary, request.limit, more)
