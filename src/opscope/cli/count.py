"""``opscope count``: what each operator executes, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from opscope.cli.output import (
    STANDARD_OUTPUT,
    JsonOption,
    QuietOption,
    output_target,
    say,
    say_next,
    show,
    split_words,
    write,
    write_json,
)
from opscope.cli.shared.measuring import OPTIONS
from opscope.machine.instructions import SME_BITS, SVE_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 3


def command(
    model: Annotated[str, typer.Argument(help="A .pte, .tflite or .onnx, a model that can be exported, or a bundle.")],
    ablate: Annotated[
        str, typer.Option(metavar="FEATURES", help="Count again with these feature groups off, such as avx2.")
    ] = "",
    ladder: Annotated[
        bool, typer.Option("--ladder", help="Count again, turning groups off one after another.")
    ] = False,
    input: Annotated[  # noqa: A002 - the word of the command line
        list[str] | None, typer.Option("--input", metavar=OPTIONS["input"].metavar, help=OPTIONS["input"].help)
    ] = None,
    dim: Annotated[
        list[str] | None, typer.Option("--dim", metavar=OPTIONS["dim"].metavar, help=OPTIONS["dim"].help)
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="Where to count: native, or qemu-aarch64 for 64-bit Arm with SME2.")
    ] = "native",
    sve_bits: Annotated[int, typer.Option(metavar="BITS", help="SVE vector length under QEMU.")] = SVE_BITS,
    sme_bits: Annotated[
        int, typer.Option(metavar="BITS", help="SME vector length and tile width under QEMU.")
    ] = SME_BITS,
    methods: Annotated[
        str, typer.Option(metavar="NAME[:N],...", help="Methods to call, as in `opscope profile`.")
    ] = "",
    receipt: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-", callback=output_target, help="Write a receipt of the counts, to verify elsewhere."
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Recount and verify a receipt; exit code 1 if it differs."),
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Count exactly what each operator executes.

    Example: opscope count model.pte --ablate avx2

    For one inference, unaffected by other load: instructions by class, bytes, and how well the model's multiplications
    fill vector lanes and matrix tiles. Needs Valgrind, or QEMU for 64-bit Arm. Dynamic sizes are guessed. Counts work,
    not time. A bundle keeps its counts, and its reports show them next to the times.
    """
    from opscope.analysis.work.receipt import CountRequest, receipt_of
    from opscope.api import count, keep_counts
    from opscope.bundle.bundle import is_bundle
    from opscope.core.json import to_json

    if verify is not None:
        _verify(model, verify, target, quiet=quiet)
        return
    request = CountRequest(
        inputs=list(input or ()),
        dims=_sizes(dim or ()),
        methods=[*split_words(methods)],
        ablate=[*split_words(ablate)],
        ladder=ladder,
        target=target,
        sve_bits=sve_bits,
        sme_bits=sme_bits,
    )
    result = count(model, **msgspec.structs.asdict(request))
    if receipt is not None:
        write(to_json(receipt_of(result, request)), receipt)
    write_json(result, json)
    if is_bundle(Path(model)):
        keep_counts(model, result)
    if not quiet and STANDARD_OUTPUT not in {json, receipt}:
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.work import work_document

        show(terminal_document(work_document(result)))
        if receipt is None:
            receipt_name = f"{Path(model).stem}.work.json"
            say_next("to keep the counts for a gate", ["opscope", "count", model, "--receipt", receipt_name])
        else:
            say_next("to check them later", ["opscope", "count", model, "--verify", str(receipt)])


def _verify(model: str, receipt: Path, target: str, *, quiet: bool) -> None:
    """Count again, and report what differs from a receipt."""
    from opscope.core.errors import RegressionError
    from opscope.workflows.measure.counting import verify_work

    problems, changed_files = verify_work(model, receipt, target)
    if not problems:
        if not quiet:
            say(f"{model}: every operator matches {receipt}")
        return
    more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
    cause = f"files that differ from the receipt's may be the cause: {', '.join(changed_files)}"
    raise RegressionError(
        f"not what {receipt} states: {'; '.join(problems[:_SHOWN])}{more}",
        where=model,
        hint=cause if changed_files else None,
    )


def _sizes(words: Sequence[str]) -> dict[str, int]:
    from opscope.cli.shared.measuring import sizes

    return sizes(words, "--dim")
