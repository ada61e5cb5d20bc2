"""``opscope analyze``: where the time goes in a trace or a bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, WarmupOption, note_unhashed, say, show, warmup_count, write_json

if TYPE_CHECKING:
    from opscope.api import Inspected


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="A trace, a directory of traces, a bundle, an Arm kit run, or RUN#variant; also a .pte, a .tflite, an "
            ".etrecord or an XNNPACK log.",
        ),
    ],
    warmup: WarmupOption = None,
    program: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="The traced program (.pte, .tflite, .onnx): adds shapes, costs."),
    ] = None,
    etrecord: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its export record (.etrecord): adds modules and source lines.")
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            metavar="A/N:K",
            help="Speculative decoding: A of N drafted tokens were kept, in rounds of K. Needs methods draft, "
            "verify_N, decode.",
        ),
    ] = None,
    json: JsonOption = None,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the tables as CSV files.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Split latency into operators, categories and backends.

    Example: opscope analyze trace.etdump --json analysis.json

    No torch needed. A bundle contains its program; for a trace alone, name it with --program. Several paths are
    analysed separately; JSON is then a list. For other files, prints their contents.
    """
    from opscope.api import inspect

    found = [inspect(path, warmup=warmup_count(warmup), program=program, etrecord=etrecord) for path in paths]
    if acceptance is not None:
        found = [_with_acceptance(value, acceptance) for value in found]
    write_json(found[0] if len(found) == 1 else found, json)
    if csv:
        _write_all_csv(found, csv)
    if not quiet and json != "-":
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.inspected import inspected_document

        for number, value in enumerate(found):
            if number:
                say()
            show(terminal_document(inspected_document(value)))
        note_unhashed(paths)


def _with_acceptance(value: Inspected, text: str) -> Inspected:
    """An analysis with what counts of kept tokens mean for its drafts."""
    import msgspec

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.tokens.speculation import with_acceptance
    from opscope.core.errors import UsageError

    form = re.fullmatch(r"(\d{1,12})/(\d{1,12}):(\d{1,4})", text)
    if form is None:
        raise UsageError(f"{text!r} is not a count of kept tokens", where="--acceptance", hint="write 812/1600:4")
    if not isinstance(value, Analysis) or not value.speculation:
        hint = "measure methods named draft, verify_5 (4 drafted tokens) and decode in one program"
        raise UsageError("nothing here drafts and verifies tokens", where="--acceptance", hint=hint)
    counts = [int(number) for number in form.groups()]
    try:
        judged = [with_acceptance(one, *counts) for one in value.speculation]
    except ValueError as error:
        raise UsageError(str(error), where="--acceptance", hint="write 812/1600:4") from error
    return msgspec.structs.replace(value, speculation=judged)


def _write_all_csv(found: list[Inspected], directory: Path) -> None:
    """Tables of every trace; of several, each in its own directory, numbered as they were given."""
    from opscope.analysis.analysis import Analysis
    from opscope.core.outputs import write_outputs
    from opscope.reports.formats.tables import csv_files

    for number, value in enumerate(found):
        if isinstance(value, Analysis):
            place = directory if len(found) == 1 else directory / f"{number}-{Path(value.trace.path).stem}"
            write_outputs({place / name: text.encode() for name, text in csv_files(value).items()})
