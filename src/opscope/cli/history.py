"""``opscope history``: a figure over the runs of a store."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from opscope.cli.output import (
    STANDARD_OUTPUT,
    JsonOption,
    QuietOption,
    StoreOption,
    output_target,
    say,
    show,
    write,
    write_json,
)


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
    since: Annotated[
        str, typer.Option(metavar="DATE", help="Show only changes since this date; all runs are analysed.")
    ] = "",
    fail_on: Annotated[
        Literal["none", "new"],
        typer.Option("--fail-on", help="new: exit code 1 on a regression that is shown."),
    ] = "none",
    html: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="Write an HTML page: charts of the newest changes, one row per series.",
            callback=output_target,
        ),
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Trend of a metric over dates, commits or versions.

    Example: opscope history latency --by version --where model=mobilenet_v3_small,role=accelerated
    """
    from opscope.api import check_new_changes, stored_history

    result = stored_history(metric, store, by=by, where=where, since=since)
    write_json(result, json)
    if html is not None:
        from opscope.core.tracebacks import page
        from opscope.fleet.reports.history import history_document
        from opscope.reports.document.html import html_document

        write(page("history.html", lambda: html_document(history_document(result), styles=("fleet.css",))), html)
    if not quiet and STANDARD_OUTPUT not in {json, html}:
        from opscope.fleet.reports.history import history_document
        from opscope.reports.document.terminal import terminal_document

        show(terminal_document(history_document(result, has_pictures=False)))
        if html is not None:
            say(f"page: {html}")
    if fail_on == "new":
        check_new_changes(result)
