"""``opscope count``: what each operator executes, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.measuring import OPTIONS
from opscope.cli.output import JsonOption, QuietOption, show, split_words, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence


def command(
    model: Annotated[str, typer.Argument(help="A .pte, .tflite or .onnx, or a model that can be exported.")],
    ablate: Annotated[
        str, typer.Option(metavar="FEATURES", help="Count again with these feature groups off, such as avx2.")
    ] = "",
    ladder: Annotated[bool, typer.Option("--ladder", help="Count again with one group after the other off.")] = False,
    input: Annotated[  # noqa: A002 - the word of the command line
        list[str] | None, typer.Option("--input", metavar=OPTIONS["input"].metavar, help=OPTIONS["input"].help)
    ] = None,
    dim: Annotated[
        list[str] | None, typer.Option("--dim", metavar=OPTIONS["dim"].metavar, help=OPTIONS["dim"].help)
    ] = None,
    methods: Annotated[str, typer.Option(metavar="NAME[:N],...", help="Methods to call, as of profile.")] = "",
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Count what each operator executes, exactly.

    Example: opscope count model.pte --ablate avx2

    Of one inference, whatever else runs: instructions by class, bytes loaded and stored, and how far the model's
    multiplications fill the lanes of the instructions that make them. Needs Valgrind, which shows programs AVX2 at
    most. Sizes that the model leaves open are guessed. Nothing is in milliseconds: caches and waiting do not count.
    """
    from opscope.api import count

    found = count(
        model,
        inputs=input or (),
        dims=_sizes(dim or ()),
        methods=split_words(methods),
        ablate=split_words(ablate),
        ladder=ladder,
    )
    write_json(found, json)
    if not quiet and json != "-":
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.work import work_document

        show(terminal_document(work_document(found)))


def _sizes(words: Sequence[str]) -> dict[str, int]:
    from opscope.cli.measuring import sizes

    return sizes(words, "--dim")
