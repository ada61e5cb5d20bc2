"""``opscope preflight``: what a program shows before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, RuntimeOption, say_next, show, write_json


def command(
    model: Annotated[
        str,
        typer.Argument(help="A program (.pte, .bpte, .tflite, .onnx or .xml), or a model that can be exported."),
    ],
    runtime: RuntimeOption = None,
    cpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="CPU to choose kernels for, such as apple-m4; without, this machine's."),
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Predict what will be accelerated, and why the rest will not.

    Example: opscope preflight model.pte

    Example: opscope preflight my_net.py:build --cpu apple-m4

    Measures nothing; programs need no device, torch, executorch or LiteRT, and a model in Python is exported first.
    Shows what XNNPACK takes and why the rest stays portable, work and bytes by category, and the kernels (SME2, AMX,
    VNNI, AVX-512, i8mm, ...) that the CPU gets for its matrix work. Also shows layout changes, delegate boundaries, and
    which part dominates at nominal rates. Runs an .onnx once, to get its shapes.
    """
    from opscope.workflows.analyze.preflight import preflight_model

    result = preflight_model(model, runtime=runtime, cpu=cpu)
    write_json(result, json)
    if not quiet and json != "-":
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.preflight import preflight_document

        show(terminal_document(preflight_document(result)))
        if cpu is None:
            say_next("to measure it", ["opscope", "profile", model])
