"""``opscope validate``: is a bundle complete and true."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import STANDARD_OUTPUT, JsonOption, QuietOption, output_target, show, write, write_json

if TYPE_CHECKING:
    from opscope.bundle.validation import Validation

_LONG = 400


def command(
    bundle: Annotated[
        Path, typer.Argument(help="The directory that `opscope profile`, `opscope run` or the Arm kit wrote.")
    ],
    like: Annotated[
        Path | None,
        typer.Option(metavar="GOOD_BUNDLE", help="Compare files, fields and types with a known-good bundle or run."),
    ] = None,
    json: JsonOption = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-", help="Write Markdown for a pull request or a job's summary.", callback=output_target
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Check files, hashes, traces and figures of a bundle.

    Of the output directory of `opscope run`, all its bundles are checked.

    Example: opscope validate mb --json validation.json

    Exit code 0: every check passed or had nothing to check. 15: a check failed; each failure is listed with its place
    and what to do. 8: not a bundle. Changes nothing. Results are written before it exits.
    """
    from opscope.api import validate
    from opscope.core.errors import UsageError
    from opscope.reports.document.markdown import markdown_document
    from opscope.reports.document.terminal import terminal_document
    from opscope.reports.validation import validation_document
    from opscope.workflows.reports.reports import bundles_in

    directories = bundles_in(bundle)
    if len(directories) > 1 and (json or markdown):
        problem = f"there are {len(directories)} bundles in {bundle}"
        raise UsageError(problem, where="--json" if json else "--markdown", hint="validate them one by one")
    validations = [validate(directory, like=like) for directory in directories]
    for validation in validations:
        write_json(validation, json)
        if markdown:
            write(markdown_document(validation_document(validation), level=2).encode(), markdown)
        if not quiet and STANDARD_OUTPUT not in {json, markdown}:
            show(terminal_document(validation_document(validation)))
    for validation in validations:
        _decide(validation)


def _decide(validation: Validation) -> None:
    """Say the outcome by the exit code."""
    from opscope.core.errors import InvalidBundleError
    from opscope.reports.document.text import plain
    from opscope.reports.validation import answer, place_and_message

    failed = validation.failed()
    if failed:
        first = failed[0]
        where = f" ({place_and_message(first.problems[0])})" if first.problems else ""
        raise InvalidBundleError(
            f"{answer(validation)}{where}", where=validation.path, hint=plain(first.action or "", _LONG)
        )
