"""``opscope export``: a PyTorch model becomes a program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.models import ModelsOption  # noqa: TC001 - typer reads the annotations at run time
from opscope.cli.output import JsonOption, QuietOption, say_next, show, write_json


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A registered model or one of your own (see `opscope models`), MODULE:CALLABLE, FILE.py[:CALLABLE], "
            "transformers:CONFIGCLASS or executorch:NAME."
        ),
    ],
    dtype: Annotated[str, typer.Option(help="Number type: fp32, fp16, int8 (static), dynamic-int8 or 8da4w.")] = "fp32",
    backend: Annotated[str, typer.Option(help="Backend: xnnpack or portable.")] = "xnnpack",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New or empty directory. [default: opscope-out/MODEL_BACKEND_DTYPE]"),
    ] = None,
    models: ModelsOption = None,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="ERROR", help="Largest allowed error against PyTorch, relative to the largest output."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing export.")] = False,
    slim_record: Annotated[
        bool, typer.Option("--slim-record", help="Write the .etrecord without weights; opscope does not need them.")
    ] = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Export a model, run the result, report what is delegated.

    Example: opscope export mobilenet_v3_small --dtype int8 --out exported

    Writes MODEL_BACKEND_DTYPE.pte, the .etrecord next to it, graph.json, and export.json with versions, delegation and
    checks. The directory appears only once the program runs, its outputs match PyTorch and its record reads back.
    """
    from opscope.api import export
    from opscope.cli.shared.progress import steps_shown

    with steps_shown(shown=not quiet) as progress:
        done = export(
            model,
            dtype=dtype,
            backend=backend,
            out=out,
            models=models,
            tolerance=tolerance,
            overwrite=overwrite,
            slim_record=slim_record,
            heard=progress,
        )
    write_json(done.record, json)
    if not quiet and json != "-":
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.exporting import export_document

        show(terminal_document(export_document(done.record, str(done.path))))
        say_next("to measure it", ["opscope", "profile", str(done.path / done.record.program.name)])
