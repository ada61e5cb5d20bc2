"""``opscope tune``: settings of the runtime that are faster than its default and compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import STANDARD_OUTPUT, JsonOption, QuietOption, notice, say, show, write_json
from opscope.cli.shared.measuring import GivenSettings, pairs, with_settings

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
    model: Annotated[str, typer.Argument(help="A program (.pte, .tflite, .onnx or .xml), or a model to export.")],
    asked: GivenSettings,
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
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find settings that are faster than the runtime's default.

    Example: opscope tune model.onnx

    Example: opscope tune model.xml --try INFERENCE_PRECISION_HINT=bf16 --minutes 5

    Tries threads, spinning and precision in fresh processes, compares all outputs, and confirms the best against the
    default in new interleaved rounds. The model is not changed: apply.md says what to write in your program. Exit code
    20: other processes used the CPUs, so no setting is named.
    """
    from opscope.api import tune
    from opscope.cli.shared.progress import run_progress
    from opscope.core.errors import UntrustedError

    with run_progress(shown=not quiet) as progress:
        result = tune(
            model,
            minutes=minutes,
            try_options=pairs(try_options or (), "--try", "INFERENCE_PRECISION_HINT=f32"),
            settings=asked.settings(),
            out=out,
            progress=progress,
            notify=notice,
        )
    write_json(result, json)
    if not quiet and json != STANDARD_OUTPUT:
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.tuning import tuning_document

        show(terminal_document(tuning_document(result)))
        say()
        say(f"report: {Path(result.directory) / 'report.html'}")
    if result.disturbed:
        hint = "stop other programs, and tune again; what was measured is kept"
        raise UntrustedError(result.disturbed, where=result.directory, hint=hint)
