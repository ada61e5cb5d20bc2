"""``opscope tune``: settings of the runtime that are faster than its default and compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import STANDARD_OUTPUT, JsonOption, QuietOption, notice, say, show, write_json
from opscope.cli.shared.measuring import NOTHING_GIVEN, GivenSettings, pairs, with_settings
from opscope.core.printable import shell_command

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS = (
    "target",
    "runtime",
    "input",
    "inputs",
    "dim",
    "guess_inputs",
    "methods",
    "data",
    "dtype",
    "models",
    "timeout",
    "seed",
    "lock",
    "lock_limit",
)


@with_settings(_SETTINGS)
def command(
    model: Annotated[
        str | None, typer.Argument(help="A program (.pte, .tflite, .onnx or .xml), or a model to export.")
    ] = None,
    asked: GivenSettings = NOTHING_GIVEN,
    minutes: Annotated[
        float, typer.Option(metavar="MINUTES", min=0.1, max=1_440, help="Limit for search and confirmation.")
    ] = 3.0,
    try_options: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=VALUE", help="Also try this option of the runtime. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the results. [default: opscope-out/tune-MODEL-TIME]"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the tuning in --out for --minutes.")] = False,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Confirm again what the tuning in this directory named; takes no MODEL."),
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find settings that are faster than the runtime's default.

    Example: opscope tune model.onnx

    Example: opscope tune model.xml --try INFERENCE_PRECISION_HINT=bf16 --minutes 5

    Example: opscope tune --replay opscope-out/tune-model.onnx-20261130-101500

    Tries threads, spinning and precision in fresh processes, compares all outputs, and confirms the best against the
    default in new interleaved rounds. The model is not changed: apply.md says what to write in your program. Exit code
    20: other processes used the CPUs, so no setting is named.
    """
    from opscope.api import default_directory, replay_tuning, tune
    from opscope.cli.shared.progress import run_progress
    from opscope.core.errors import InterruptedRunError, UntrustedError, UsageError
    from opscope.machine.clock import SystemClock

    options = pairs(try_options or (), "--try", "INFERENCE_PRECISION_HINT=f32")
    _check_way(model, replay, asked, options, resume=resume)
    if resume and out is None:
        raise UsageError("needs the directory to go on with", where="--resume", hint="name it with --out DIR")
    directory = out or default_directory(f"tune-{Path(model).name if model else 'replay'}", SystemClock().now())
    try:
        with run_progress(shown=not quiet) as progress:
            if replay is not None:
                result = replay_tuning(
                    replay,
                    minutes=minutes,
                    settings=asked.settings(),
                    out=directory,
                    progress=progress,
                    notify=notice,
                )
            else:
                result = tune(
                    str(model),
                    minutes=minutes,
                    try_options=options,
                    settings=asked.settings(),
                    out=directory,
                    resume=resume,
                    progress=progress,
                    notify=notice,
                )
    except (KeyboardInterrupt, InterruptedRunError):
        words = [model, *_repeat_options(asked, options), "--out", str(directory), "--resume"] if model else []
        hint = f"go on with: {shell_command(['opscope', 'tune', *words])}" if words else "replay it again"
        raise InterruptedRunError("interrupted; what was measured is kept", where=directory, hint=hint) from None
    write_json(result, json)
    if not quiet and json != STANDARD_OUTPUT:
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.tuning import tuning_document

        show(terminal_document(tuning_document(result)))
        say()
        say(f"report: {Path(result.directory) / 'report.html'}")
    if result.disturbed is not None:
        hint = "stop other programs, and tune again; what was measured is kept"
        raise UntrustedError(result.disturbed, where=result.directory, hint=hint)


def _repeat_options(explicit: GivenSettings, options: Mapping[str, str]) -> list[str]:
    """Return the words that give the same options again."""
    from opscope.bundle.settings import ExperimentSettings, words_of

    settings = explicit.settings()
    target = [] if settings.target == "auto" else ["--target", settings.target]
    tried = [word for key, value in options.items() for word in ("--try", f"{key}={value}")]
    return [
        *target,
        *words_of(settings, sorted(explicit.given.keys() & set(ExperimentSettings.__struct_fields__))),
        *tried,
    ]


def _check_way(
    model: str | None, replay: Path | None, explicit: GivenSettings, options: Mapping[str, str], *, resume: bool
) -> None:
    """Raise UsageError unless a model is to be searched or a result is to be replayed, with options that fit it."""
    from opscope.core.errors import UsageError

    if (model is None) == (replay is None):
        problem = "a replay takes the model of its result" if model else "no model is named"
        hint = "leave out the model, or --replay" if model else "opscope tune MODEL, or opscope tune --replay DIR"
        raise UsageError(problem, where="--replay" if model else "MODEL", hint=hint)
    if replay is None:
        return
    recorded = [word for word in explicit.words if word not in {"--target", "--timeout", "--lock", "--lock-limit"}]
    refused = [*(["--try"] if options else []), *(["--resume"] if resume else []), *recorded]
    if refused:
        hint = "leave it out: a replay has the settings and inputs of its result"
        raise UsageError("has no meaning for a replay", where=refused[0], hint=hint)
