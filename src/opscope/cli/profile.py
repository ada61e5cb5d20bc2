"""``opscope profile``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.measuring import Asked, with_settings
from opscope.cli.output import (
    JsonOption,
    PowerOption,
    QuietOption,
    RemoteDeviceOption,
    notice,
    say,
    show,
    write_json,
)
from opscope.core.printable import shell_command

if TYPE_CHECKING:
    from opscope.api import Profiled, Settings


@with_settings()
def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A model that can be exported (see `opscope models`), or the path of a .pte, .tflite or .onnx."
        ),
    ],
    asked: Asked,
    remote_device: RemoteDeviceOption = None,
    power: PowerOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the bundle. [default: opscope-out/MODEL-TIME]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the bundle in --out.")] = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Profile a model with acceleration on and off.

    Example: opscope profile mobilenet_v3_small --ablate avx512 --rounds 10

    Exports the model if needed, runs every variant in fresh processes in interleaved rounds, and writes a bundle with
    report.html, report.md, analysis.json and comparison.json.
    """
    from opscope.api import default_directory
    from opscope.core.errors import UsageError
    from opscope.machine.clock import SystemClock
    from opscope.workflows.measure.targets import phone_name

    if resume and out is None:
        raise UsageError("which bundle to finish?", where="--resume", hint="name its directory with --out DIR")
    target = phone_name(asked.given.get("target"), remote_device, power)
    settings = asked.settings(target=target)
    named = {*asked.words, *(["--target"] if remote_device or power else [])}
    place = out or default_directory(model, SystemClock().now())
    done = _profile(model, settings, place, resume=resume, quiet=quiet, named=named)
    write_json(done.content, json)
    if not quiet and json != "-":
        _tell(done)
    _check_complete(done)


def _profile(model: str, settings: Settings, out: Path, *, resume: bool, quiet: bool, named: set[str]) -> Profiled:
    from opscope.api import profile
    from opscope.cli.progress import run_progress
    from opscope.core.errors import InterruptedRunError

    try:
        with run_progress(shown=not quiet) as progress:
            return profile(
                model, settings=settings, out=out, resume=resume, progress=progress, named=named, notify=notice
            )
    except (KeyboardInterrupt, InterruptedRunError):
        raise InterruptedRunError(
            "interrupted; what was finished is kept", where=out, hint=_resume_hint(model, out)
        ) from None


def _resume_hint(model: str, out: Path) -> str:

    if not (out / "manifest.json").exists():
        return "nothing was measured yet"
    return f"finish it with: {shell_command(['opscope', 'profile', model, '--out', str(out), '--resume'])}"


def _tell(done: Profiled) -> None:
    from opscope.reports.report import summary
    from opscope.workflows.measure.machine import temporary_cache

    show(summary(done.content))
    for note in filter(None, [*done.notes, temporary_cache()]):
        say(f"note:  {note}", err=True)
    say()
    say(f"report: {done.path / 'report.html'}")


def _check_complete(done: Profiled) -> None:
    """Say by the exit code when repetitions are missing from the results."""
    from opscope.core.errors import IncompleteError
    from opscope.reports.content.content import missing

    lines = missing(done.content)
    if lines:
        hint = f"the results leave them out; try them again with --out {done.path} --resume"
        raise IncompleteError(f"{len(lines)} missing: {lines[0]}", where=done.path, hint=hint)
