"""``opscope compare``: is the candidate faster, and where does the difference come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, WarmupOption, note_unhashed, show, warmup_count, write_json

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import Comparison
    from opscope.npu.analysis.compare import TilesComparison


def command(
    baseline: Annotated[
        str, typer.Argument(help="A trace, a directory of traces, a bundle, an Arm kit run, or RUN#variant.")
    ],
    candidate: Annotated[str, typer.Argument(help="Likewise.")],
    warmup: WarmupOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare two runs: speedup, interval, verdict, operators.

    Example: opscope compare out#baseline out#accelerated

    Two runs are two traces, bundles or variants. A directory of traces is one side with as many repetitions; one
    repetition per side decides nothing. Traces of
    AI Engine tiles, and what `opscope aie --out` wrote, are compared by calls, stalls and rates.
    """
    from opscope.workflows.analyze.analyses import compare_any

    comparison = compare_any(baseline, candidate, warmup=warmup_count(warmup))
    write_json(comparison, json)
    if not quiet and json != "-":
        _show(comparison)
        note_unhashed((baseline, candidate))


def _show(comparison: Comparison | TilesComparison) -> None:
    from opscope.analysis.compare.compare import Comparison

    if isinstance(comparison, Comparison):
        from opscope.reports.comparison import comparison_document
        from opscope.reports.document.terminal import terminal_document

        show(terminal_document(comparison_document(comparison)))
    else:
        from opscope.npu.reports.comparison import tiles_comparison_summary

        show(tiles_comparison_summary(comparison))
