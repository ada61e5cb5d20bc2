"""``opscope compare``: is the candidate faster, and where does the difference come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import (
    STANDARD_OUTPUT,
    JsonOption,
    QuietOption,
    TicksOption,
    WarmupOption,
    say_next,
    show,
    warmup_count,
    write,
    write_json,
)

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import Comparison
    from opscope.npu.analysis.compare import TilesComparison
    from opscope.reports.document.blocks import Document


def command(
    baseline: Annotated[
        str, typer.Argument(help="A trace, a directory of traces, a bundle, an Arm kit run, or RUN#variant.")
    ],
    candidate: Annotated[str, typer.Argument(help="The run to compare with it.")],
    warmup: WarmupOption = None,
    ticks: TicksOption = None,
    json: JsonOption = None,
    html: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write the comparison as an HTML page.")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write the comparison in Markdown.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Compare two runs: speedup, interval, verdict, operators.

    Example: opscope compare out#baseline out#accelerated

    Example: opscope compare before/ after/ --html change.html

    A run is a trace, a bundle or a variant. A directory of traces is one side, one repetition per trace; a single
    repetition per side gives no verdict. AI Engine traces and results of `opscope aie --out` are compared by calls,
    stalls and rates.
    """
    from opscope.workflows.analyze.analyses import compare_any

    comparison = compare_any(baseline, candidate, warmup=warmup_count(warmup), ticks=ticks)
    write_json(comparison, json)
    document = _document(comparison)
    if html:
        from opscope.reports.document.html import html_document

        write(html_document(document).encode(), html)
    if markdown:
        from opscope.reports.document.markdown import markdown_document

        write(markdown_document(document).encode(), markdown)
    if not quiet and STANDARD_OUTPUT not in {json, html, markdown}:
        from opscope.reports.document.terminal import terminal_document

        show(terminal_document(document))
        say_next("to gate on it", ["opscope", "check", candidate, "--against", baseline])


def _document(comparison: Comparison | TilesComparison) -> Document:
    from opscope.analysis.compare.compare import Comparison

    if isinstance(comparison, Comparison):
        from opscope.reports.comparison import comparison_document

        return comparison_document(comparison)
    from opscope.npu.reports.comparison import tiles_comparison_document

    return tiles_comparison_document(comparison)
