"""The tools for assistants that run programs: counting, and profiling within a budget of seconds."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Annotated

import msgspec

from opscope.assistants.tools import File, Limit, ToolAnswer, answered
from opscope.bundle.settings import Rounds, Runs, Text, Threads
from opscope.core.errors import InterruptedRunError, NotFoundError, RunError, UsageError
from opscope.core.system.stages import heard_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opscope.assistants.tools import Desk
    from opscope.bundle.manifest import Repetition
    from opscope.core.system.stop import StopRequest
    from opscope.reports.content.content import ReportContent

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


def count(asked: CountProgram, desk: Desk) -> ToolAnswer:
    """Count exactly what each operator of a program executes: instructions, bytes. Runs it under Valgrind."""
    from opscope.api import count as count_work

    place = _program(desk, asked.program, bundles=True)
    desk.tell("counting")
    with desk.stop.heard(), heard_by(lambda stage, detail: desk.tell(f"{stage} {detail}".strip())):
        found = count_work(place, ablate=asked.ablate)
    most = sorted(found.operators, key=lambda one: -one.instructions)
    return answered(found.answer, msgspec.structs.replace(found, operators=most), asked.limit)


def profile(asked: ProfileProgram, desk: Desk) -> ToolAnswer:
    """Profile a program with CPU acceleration on and off into a new bundle, within a budget of seconds.

    Leave the machine alone meanwhile. A bundle that the budget left unfinished is finished with resume.
    """
    from opscope.api import Settings
    from opscope.api import profile as profile_model

    place, out = _program(desk, asked.program), desk.roots.path(asked.out)
    if asked.resume:
        _check_begun(out, desk)
    settings = Settings(
        rounds=asked.rounds,
        runs=asked.runs,
        threads=asked.threads,
        ablate=asked.ablate,
        ceilings=None if asked.ceilings else False,
        lock="fail",
    )

    def heard(done: int, total: int, repetition: Repetition | None) -> None:  # noqa: ARG001 - the protocol's
        desk.tell(f"{done} of {total} processes")

    stopped = _Budget(asked.seconds, desk.stop)
    try:
        with (
            stopped.running(),
            desk.stop.heard(),
            heard_by(lambda stage, detail: desk.tell(f"{stage} {detail}".strip())),
        ):
            content = profile_model(
                place, settings=settings, out=out, resume=asked.resume, progress=heard, notify=desk.tell
            ).content
    except (KeyboardInterrupt, InterruptedRunError):
        if not stopped.over:
            raise
        content = _finished(out, asked.seconds)
    return _summary(content, out, asked)


def _check_begun(out: Path, desk: Desk) -> None:
    """Refuse to go on with a bundle that began elsewhere: it names a device, or a runner that would be executed."""
    from opscope.bundle.bundle import Bundle
    from opscope.hosts.target_kinds import LOCAL, NATIVE

    desk.roots.check_links(out)
    kind = Bundle.open(out).manifest.target.kind
    if kind not in {LOCAL.name, NATIVE.name}:
        hint = f"finish it with opscope profile --resume --out {out}"
        raise UsageError(f"it was begun on the target {kind}", where=out, hint=hint)


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

    found = content(out) if is_bundle(out) else None
    if found is None or found.shown is None:
        hint = "give more seconds" + ("" if found is None else ", with resume")
        raise RunError(f"nothing was finished within {seconds:g} s", where=out, hint=hint)
    report(out)
    return found


def _summary(content: ReportContent, out: Path, asked: ProfileProgram) -> ToolAnswer:
    from opscope.reports.combined.combined import BundlePart, combine
    from opscope.reports.content.content import missing

    (summary,) = combine([BundlePart(out.name, str(out), content)], [], []).bundles
    pending = len(content.manifest.pending())
    more = ["read_bundle and find_operators tell more of the bundle", *missing(content)[:3]]
    if pending:
        more.append(f"{pending} processes were not run: profile with resume=true goes on")
    return answered(summary.headline, summary, asked.limit, more)
