"""``opscope preflight``: what a program shows before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, RuntimeOption, show, write_json
from opscope.core.printable import shell_command


def command(
    model: Annotated[
        str,
        typer.Argument(help="A program (.pte, .bpte, .tflite, .onnx or .xml), or a model that can be exported."),
    ],
    runtime: RuntimeOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Predict what will be accelerated, and why the rest will not.

    Example: opscope preflight model.pte

    Example: opscope preflight my_net.py:build

    Measures nothing; programs need no device, torch, executorch or LiteRT, and a model in Python is exported first.
    Shows what XNNPACK takes and why the rest stays portable, work and bytes by category, and the share that SME and
    SME2 kernels can run. Also shows layout changes, delegate boundaries, and which part dominates at nominal rates.
    Runs an .onnx once, to get its shapes.
    """
    from opscope.workflows.analyze.preflight import preflight_model

    result = preflight_model(model, runtime=runtime)
    write_json(result, json)
    if not quiet and json != "-":
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.preflight import preflight_document

        show(terminal_document(preflight_document(result, _accelerated_here(model))))


def _accelerated_here(program: str) -> str | None:
    """What this machine has instead of SME, and how to see what it brings; None where it has SME or cannot tell."""
    from opscope.api import features
    from opscope.core.errors import OpscopeError

    try:
        report = features(mechanisms=False)
    except OpscopeError:
        return None
    names = [group.name for group in report.groups if group.present]
    if "sme" in names or not names:
        return None
    command = shell_command(["opscope", "profile", program])
    return f"No SME here but {', '.join(names)}; measure: {command}"
