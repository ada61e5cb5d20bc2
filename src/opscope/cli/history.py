"""``opscope history``: a figure over the runs of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, StoreOption, show, write_json


def command(
    metric: Annotated[
        str,
        typer.Argument(
            metavar="METRIC",
            help="latency, mean, p90, p95, p99, load, memory, speedup; or category:, kind:, backend:, operator:, "
            "module: or kernel: and a NAME.",
        ),
    ],
    store: StoreOption = None,
    by: Annotated[
        str, typer.Option(metavar="ORDER", help="date, commit, version (of executorch) or version:PACKAGE.")
    ] = "date",
    where: Annotated[
        str, typer.Option(metavar="KEY=VALUE,...", help="Which runs: model, device, variant, since, last and so on.")
    ] = "",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with a picture of each series.")
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show how a figure went over dates, commits or versions, and where its level changed.

    Example: opscope history latency --by version --where model=mobilenet_v3_small,role=accelerated
    """
    from opscope.api import stored_history

    found = stored_history(metric, store, by=by, where=where)
    write_json(found, json)
    if html is not None:
        from opscope.core.files import write_atomically
        from opscope.fleet.reports.history import history_html

        write_atomically(html, history_html(found).encode())
    if not quiet and json != "-":
        from opscope.fleet.reports.history import history_summary

        show(history_summary(found))
        if html is not None:
            typer.echo(f"page: {html}")
