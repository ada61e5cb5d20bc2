"""``opscope analyze``: where the time goes in a trace or a bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, WarmupOption, note_unhashed, say, show, warmup_count, write_json

if TYPE_CHECKING:
    from opscope.analysis.analysis import Analysis
    from opscope.analysis.tokens.claims import Claim
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
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLAIM",
            help="A published speedup or rate of tokens: can it be? 3x, 45/s, prefill_128:2x; 3x@int4:32 reckons with "
            "weights of 4 bits and a scale for each 32.",
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
    if claim:
        found = [_with_claims(value, claim) for value in found]
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


def _with_claims(value: Inspected, texts: list[str]) -> Inspected:
    """An analysis with what its machine allows of published figures."""
    import msgspec

    from opscope.analysis.analysis import Analysis
    from opscope.core.errors import UsageError

    if not isinstance(value, Analysis) or not value.tokens or value.ceilings is None:
        hint = "profile the language model without --quick and --no-ceilings, and name that run"
        raise UsageError("nothing here has phases and measured ceilings", where="--claim", hint=hint)
    return msgspec.structs.replace(value, claims=[_judged(value, text) for text in texts])


def _judged(analysis: Analysis, text: str) -> Claim:
    from opscope.analysis.tokens.claims import BITS, claimed_phase, measured_claim
    from opscope.core.errors import UsageError

    figure = r"(?P<stated>\d{1,9}(?:\.\d{1,9})?)(?P<unit>x|/s)"
    weights = rf"@(?P<type>{'|'.join(BITS)})(?::(?P<group>\d{{1,6}}))?"
    form = re.fullmatch(rf"(?:(?P<method>\w+):)?{figure}(?:{weights})?", text)
    if form is None or not float(form["stated"]) or form["group"] == "0":
        hint = "write 3x, 45/s, prefill_32:2x or 3x@int4:32"
        raise UsageError(f"{text!r} is not a claim", where="--claim", hint=hint)
    phase = claimed_phase(analysis.methods, analysis.tokens, form["method"])
    if phase is None or analysis.ceilings is None:
        names = ", ".join(one.method for one in analysis.tokens)
        raise UsageError(f"no phase that {text!r} is of was measured", where="--claim", hint=f"name one of {names}")
    group = int(form["group"]) if form["group"] else None
    try:
        return measured_claim(
            phase,
            analysis.ceilings,
            float(form["stated"]),
            speedup=form["unit"] == "x",
            weights=form["type"],
            group=group,
        )
    except ValueError as error:
        raise UsageError(str(error), where="--claim", hint="measure with a program whose weights are known") from error


def _write_all_csv(found: list[Inspected], directory: Path) -> None:
    """Tables of every trace; of several, each in its own directory, numbered as they were given."""
    from opscope.analysis.analysis import Analysis
    from opscope.core.outputs import write_outputs
    from opscope.reports.formats.tables import csv_files

    for number, value in enumerate(found):
        if isinstance(value, Analysis):
            place = directory if len(found) == 1 else directory / f"{number}-{Path(value.trace.path).stem}"
            write_outputs({place / name: text.encode() for name, text in csv_files(value).items()})
