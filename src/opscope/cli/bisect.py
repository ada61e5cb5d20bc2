"""``opscope bisect``: which release or build made a model slower, and which operators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import STANDARD_OUTPUT, JsonOption, QuietOption, notice, say, show, split_words, write_json
from opscope.cli.shared.measuring import GivenSettings, with_settings
from opscope.core.printable import shell_command
from opscope.core.system.cache import KEPT

if TYPE_CHECKING:
    from opscope.analysis.bisection import Bisection

_SETTINGS = (
    "runtime",
    "threads",
    "rounds",
    "runs",
    "input",
    "inputs",
    "dim",
    "guess_inputs",
    "methods",
    "session_options",
)
_WHAT = "What is compared"


@with_settings(_SETTINGS)
def command(
    model: Annotated[str, typer.Argument(help="A .pte, .tflite or .onnx.")],
    asked: GivenSettings,
    good: Annotated[
        str | None,
        typer.Option(metavar="RELEASE", help="A release that is fast, or runner:PATH.", rich_help_panel=_WHAT),
    ] = None,
    bad: Annotated[
        str | None, typer.Option(metavar="RELEASE", help="One that is slow, likewise.", rich_help_panel=_WHAT)
    ] = None,
    versions: Annotated[
        str, typer.Option(metavar="A,B,...", help="Measure these releases, all of them.", rich_help_panel=_WHAT)
    ] = "",
    work: Annotated[
        bool, typer.Option("--work/--no-work", help="Count exact work where it can be counted.", rich_help_panel=_WHAT)
    ] = True,
    disk: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Disk that kept environments may take.", rich_help_panel=_WHAT, hidden=True),
    ] = KEPT,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the results. [default: opscope-out/MODEL-TIME]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the bisection in --out.")] = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the release that made a model slower, and the operators.

    Example: opscope bisect model.onnx --runtime onnxruntime --good 1.20.1 --bad 1.24.1

    Example: opscope bisect model.onnx --versions 1.20.1,1.22.0,1.24.1

    Each release runs in a separate environment, made by pip and kept. Releases are measured interleaved with both ends,
    halving what is left; the last two are measured again, and split into operators. Exit code 0: an answer, which may
    be that nothing changed. 14: none.
    """
    from opscope.api import bisect, default_directory
    from opscope.cli.shared.progress import run_progress
    from opscope.core.errors import InconclusiveError, InterruptedRunError, UsageError
    from opscope.machine.clock import SystemClock

    if resume and out is None:
        raise UsageError("needs the directory to finish", where="--resume", hint="name it with --out DIR")
    place = out or default_directory(model, SystemClock().now())
    try:
        with run_progress(shown=not quiet) as progress:
            result = bisect(
                model,
                good=good,
                bad=bad,
                versions=split_words(versions),
                work=work,
                disk=disk,
                settings=asked.settings(),
                out=place,
                resume=resume,
                progress=progress,
                notify=notice,
            )
    except (KeyboardInterrupt, InterruptedRunError):
        hint = shell_command(["opscope", "bisect", model, "...", "--out", str(place), "--resume"])
        raise InterruptedRunError("interrupted; what was measured is kept", where=place, hint=hint) from None
    write_json(result, json)
    if not quiet and json != STANDARD_OUTPUT:
        _tell(result, place)
    if result.is_inconclusive:
        raise InconclusiveError("no state can be named", where=place, hint="measure again alone, with more --rounds")


def _tell(bisection: Bisection, place: Path) -> None:
    from opscope.reports.bisection import bisection_document
    from opscope.reports.document.terminal import terminal_document

    show(terminal_document(bisection_document(bisection)))
    say()
    say(f"report: {place / 'report.html'}")
