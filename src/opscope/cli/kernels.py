"""``opscope kernels``: which kernels are there, were chosen, ran, and made a difference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import (
    STANDARD_OUTPUT,
    JsonOption,
    QuietOption,
    output_target,
    say,
    show,
    split_words,
    write,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="A bundle, Arm kit run, XNNPACK log, list of kernels, or kernels.counts; PATH#variant names the "
            "variant.",
        ),
    ],
    isa: Annotated[
        str | None, typer.Option(metavar="ISA,...", help="Only kernels for these instruction sets: sme2,sme,neon.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="TYPE,...", help="Only these number types: int8,fp32.")] = None,
    op: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only operators whose names contain one of these.")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="First rerun every variant of the bundles and count its kernels.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(metavar="NAME", help="With --count: where the bundle ran, if it names a device or a program."),
    ] = "auto",
    every: Annotated[bool, typer.Option("--all", help="Also list kernels that were not found.")] = False,
    library: Annotated[Path | None, typer.Option(metavar="FILE", help="The XNNPACK backend library that ran.")] = None,
    json: JsonOption = None,
    md: Annotated[
        str | None,
        typer.Option("--md", metavar="FILE|-", help="Write the view as Markdown.", callback=output_target),
    ] = None,
    kit_csv: Annotated[
        Path | None, typer.Option("--kit-csv", metavar="DIR", help="Write lists with the Arm kit's columns.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Show which kernels could run, did run, and ran faster.

    Example: opscope kernels BUNDLE --count --isa sme2,sme

    Example: opscope kernels BUNDLE --md kernels.md

    Enabled does not mean used: a kernel may be registered, or in the library, and never run. Counting runs go to the
    bundle's evidence arm; their timings are never used.
    """
    from opscope.api import kernel_filter, kernels
    from opscope.core.outputs import write_outputs
    from opscope.reports.document.markdown import markdown_document
    from opscope.reports.document.terminal import terminal_document
    from opscope.reports.formats.tables import kernel_csv
    from opscope.reports.kernel_evidence import kernel_document

    wanted = kernel_filter(split_words(isa), split_words(dtype), split_words(op))
    if count:
        _count(paths, target, quiet=quiet)
    view = kernels(paths, wanted=wanted, every=every, library=library)
    write_json(view, json)
    if md:
        write(markdown_document(kernel_document(view)).encode(), md)
    if kit_csv:
        write_outputs({kit_csv / name: content for name, content in kernel_csv(view).items()})
    if not quiet and STANDARD_OUTPUT not in {json, md}:
        show(terminal_document(kernel_document(view)))


def _count(paths: Sequence[str], target: str, *, quiet: bool) -> None:
    from opscope.api import count_kernels
    from opscope.core.errors import UsageError
    from opscope.workflows.kernel_view import split_label

    bundles = [path for path in paths if (split_label(path)[0] / "manifest.json").exists()]
    if not bundles:
        raise UsageError("none of the paths is a bundle", where="--count", hint="create one first with opscope profile")
    for path in bundles:
        runs = count_kernels(
            path, stated=target, progress=lambda name: None if quiet else say(f"counting: {name}", err=True)
        )
        from opscope.core.errors import RunError

        failed = [run for run in runs if run.failure]
        for run in failed:
            say(f"warning: {run.variant} was not counted: {run.failure.message if run.failure else ''}", err=True)
        if runs and len(failed) == len(runs):
            raise RunError("no variant could be counted", hint="see evidence/log.txt in the bundle")
