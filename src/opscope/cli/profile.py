"""``opscope profile``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.bundle.settings import QUICK, ExperimentSettings, words_of
from opscope.cli.output import (
    JsonOption,
    PowerOption,
    QuietOption,
    RemoteDeviceOption,
    notice,
    say,
    say_next,
    show,
    write_json,
)
from opscope.cli.shared.gating import resume_hint
from opscope.cli.shared.measuring import GivenSettings, with_settings

if TYPE_CHECKING:
    from opscope.api import Profiled, Settings


@with_settings()
def command(
    model: Annotated[
        str,
        typer.Argument(help="A model that can be exported (`opscope models`), or a .pte, .tflite or .onnx."),
    ],
    asked: GivenSettings,
    remote_device: RemoteDeviceOption = None,
    power: PowerOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the bundle. [default: opscope-out/MODEL-TIME]")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A first look in seconds, without a verdict."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the bundle in --out.")] = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Profile a model with acceleration on and off.

    Example: opscope profile mobilenet_v3_small --ablate avx512 --rounds 10

    Example: opscope profile model.onnx --quick

    Exports the model if needed, runs every variant in interleaved rounds, and writes a bundle with report.html.
    """
    from opscope.api import default_directory
    from opscope.core.errors import UsageError
    from opscope.machine.clock import SystemClock
    from opscope.workflows.measure.targets import phone_name

    if resume and out is None:
        raise UsageError("needs the bundle to finish", where="--resume", hint="name its directory with --out DIR")
    target = phone_name(asked.given.get("target"), remote_device, power)
    looks = {name: value for name, value in QUICK.items() if quick and name not in asked.given}
    settings = asked.settings(target=target, **looks)
    named = {*asked.words, *(["--target"] if remote_device or power else [])}
    place = out or default_directory(model, SystemClock().now())
    done = _profile(model, settings, place, resume=resume, quiet=quiet, named=named)
    write_json(done.content, json)
    if not quiet and json != "-":
        _tell(done)
        if quick:
            say_next("for a verdict", _full_run(done, settings, asked))
        else:
            say_next("to open it", ["opscope", "report", str(done.path), "--open"])
    _check_complete(done)


def _full_run(done: Profiled, settings: Settings, given_settings: GivenSettings) -> list[str]:
    """Return the command for the same model in as many rounds as usual, with what was asked for beside --quick."""
    manifest = done.content.manifest
    guessed = ["guess_inputs"] if manifest.plan.guesses else []
    kept = {*guessed, *given_settings.given} & set(ExperimentSettings.__struct_fields__)
    target = [] if settings.target == "auto" else ["--target", settings.target]
    return ["opscope", "profile", manifest.model.source, *target, *words_of(settings, sorted(kept))]


def _profile(model: str, settings: Settings, out: Path, *, resume: bool, quiet: bool, named: set[str]) -> Profiled:
    from opscope.api import profile
    from opscope.cli.shared.progress import run_progress
    from opscope.core.errors import InterruptedRunError

    try:
        with run_progress(shown=not quiet) as progress:
            return profile(
                model, settings=settings, out=out, resume=resume, progress=progress, named=named, notify=notice
            )
    except (KeyboardInterrupt, InterruptedRunError):
        words = ["opscope", "profile", model]
        raise InterruptedRunError(
            "interrupted; what was finished is kept", where=out, hint=resume_hint(out, words)
        ) from None


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
    from opscope.reports.content.content import missing_sentences

    lines = missing_sentences(done.content)
    if lines:
        hint = f"the results exclude them; rerun them with --out {done.path} --resume"
        raise IncompleteError(f"{len(lines)} missing: {lines[0]}", where=done.path, hint=hint)
