"""``opscope store``: many runs in one place, to ask."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opscope.cli.output import (
    STANDARD_OUTPUT,
    JsonOption,
    QuietOption,
    StoreOption,
    notice,
    output_target,
    say,
    say_next,
    show,
    split_words,
    write,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opscope.fleet.results import AddReport

app = typer.Typer(
    help="Store many runs: SQL, history, and reports on a whole fleet.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
SchedulerOption = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Use the workers of this Dask scheduler.")]
_FEW = 20
_LISTED = 50


@app.command()
def add(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Bundles, results of `opscope aie --out`, or directories of them."),
    ],
    store: StoreOption = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Machine name. [default: its CPU and system]")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Measured commit, for `opscope history --by commit`.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Analyse the traces again, even if the bundle has analyses.")
    ] = False,
    scheduler: SchedulerOption = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Worker processes on this machine.")] = 1,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Add bundles; skip those that are already stored.

    Example: opscope store add opscope-out --commit 1f3c2ab

    An unreadable bundle is reported and skipped; the exit code is then 11.
    """
    from opscope.api import add_to_store
    from opscope.fleet.bundles import BundleLabels
    from opscope.workflows.measure.parallel.workers import Where

    with _bar(shown=sys.stderr.isatty() and not quiet) as progress:
        done = add_to_store(
            paths,
            store,
            given=BundleLabels(device, commit),
            where=Where(scheduler, jobs),
            recompute=recompute,
            progress=progress,
            notify=notice,
        )
    write_json(done, json)
    if not quiet and json != "-":
        for entry in done.added[:_FEW]:
            say(f"added {entry.bundle[:12]} {entry.model}, {entry.device}: {', '.join(entry.variants)}")
        if len(done.added) > _FEW:
            say(f"added {len(done.added) - _FEW} more")
        counts = f"{len(done.added)} added, {done.known} already there, {len(done.skipped)} left out"
        unchecked = len(done.added) - done.checked
        checks = f"{done.checked} checked against their traces, {unchecked} not checked"
        say(f"{counts}, {checks}: {done.store}")
        say_next("to report on all runs", ["opscope", "store", "report", "--store", str(done.store), "--out", "fleet"])
    _check_whole(done)


@app.command()
def query(
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="One SELECT over the views; with --views, a view.")
    ] = None,
    store: StoreOption = None,
    output: Annotated[
        Literal["table", "csv", "json", "parquet"], typer.Option("--format", help="Output format.")
    ] = "table",
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Write to a file; - is standard output.", callback=output_target),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="WHEN", help="Query an earlier version: a date and time, or a commit number."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Maximum number of rows; 0: no limit.")] = 10_000,
    views: Annotated[
        bool, typer.Option("--views", help="List the views, or the columns of one, with their types and meanings.")
    ] = False,
) -> None:
    """Query the store.

    Example: opscope store query "SELECT device, model, speedup FROM runs WHERE role = 'accelerated'"
    """
    from opscope.api import query_stream
    from opscope.core.errors import UsageError

    if views:
        _list_views(sql)
        return
    if sql is None:
        hint = "opscope store query 'SELECT ...'; --views lists what can be asked"
        raise UsageError("needs a query", where="SQL", hint=hint)
    if output == "parquet" and out is None:
        raise UsageError("Parquet is not text", where="--format", hint="write it to a file: --out FILE")
    with query_stream(sql, store, as_of=as_of, limit=limit or None) as stream:
        if output == "table" and out is None:
            from opscope.fleet.reports.tables import answer_table

            show(answer_table(stream.columns, stream.types, [row for part in stream.parts() for row in part]))
        else:
            from opscope.fleet.reports.tables import answer_parts

            write(answer_parts(stream.columns, stream.types, stream.parts(), output), out or STANDARD_OUTPUT)
    if stream.is_cut:
        notice(f"stopped after {limit:,} rows; --limit 0 writes all of them")


@app.command(name="list")
def list_bundles(
    store: StoreOption = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Only the newest N; 0: all. [default: 50; of --json all]"),
    ] = None,
    json: JsonOption = None,
) -> None:
    """List the newest bundles of the store.

    Example: opscope store list

    In the order of histories, newest last.
    """
    from opscope.api import entries_stream

    if json:
        from opscope.core.json import array_parts

        with entries_stream(store, last=limit or None) as stream:
            write(array_parts(stream.entries), json)
    if json != "-":
        from opscope.fleet.reports.tables import ENTRY_COLUMNS, answer_table, entry_cells

        last = _LISTED if limit is None else limit or None
        with entries_stream(store, last=last) as stream:
            rows = [entry_cells(entry) for entry in stream.entries]
        show(answer_table(ENTRY_COLUMNS, ["VARCHAR"] * len(ENTRY_COLUMNS), rows))
        if len(rows) < stream.total:
            notice(f"the newest {len(rows)} of {stream.total:,} bundles; --limit 0 lists all of them")


@app.command()
def remove(
    bundles: Annotated[
        list[str] | None, typer.Argument(metavar="BUNDLE...", help="Hashes, or their first characters.")
    ] = None,
    older_than: Annotated[
        int | None,
        typer.Option("--older-than", metavar="DAYS", min=1, help="All bundles added more than this many days ago."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Remove bundles from the store and from its earlier versions. The bundles themselves are not touched.

    Example: opscope store remove 4f5c9a03b1d2
    """
    from opscope.api import remove_from_store
    from opscope.core.errors import UsageError

    if not bundles and older_than is None:
        raise UsageError("nothing to remove", where="opscope store remove", hint="give bundles, or --older-than DAYS")
    done = remove_from_store(bundles or [], store, older_than=older_than)
    write_json(done, json)
    if not quiet and json != "-":
        for entry in done.removed:
            say(f"removed {entry.bundle[:12]} {entry.model}, {entry.created}")


@app.command()
def report(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write fleet.html, fleet.md and fleet.json.")],
    store: StoreOption = None,
    where: Annotated[
        str, typer.Option(metavar="KEY=VALUE,...", help="Which runs: model, device, variant, since and so on.")
    ] = "",
    formats: Annotated[
        str, typer.Option("--format", metavar="FORMAT,...", help="Any of html, md and json.")
    ] = "html,md,json",
    quiet: QuietOption = False,
) -> None:
    """Report on the fleet: what got slower and where, which devices lag the best one, which operators dominate.

    Example: opscope store report --out fleet
    """
    from opscope.api import fleet_report

    for path in fleet_report(out, store, split_words(formats), where=where):
        if not quiet:
            say(path)


def _list_views(view: str | None) -> None:
    """Print the views of a store, or the columns of one."""
    from opscope.core.errors import NotFoundError, did_you_mean
    from opscope.fleet.store.schema import TABLES

    if view is None:
        for table in TABLES.values():
            say(f"{table.name:<10} {len(table.columns):>3} columns; a row is {table.row}")
        say("`opscope store query --views VIEW` lists the columns of one")
        return
    if view not in TABLES:
        raise NotFoundError("there is no such view", where=view, hint=did_you_mean(view, TABLES))
    for column in TABLES[view].columns:
        say(f"{column.name:<21} {column.type.sql:<10} {column.meaning}")


def _check_whole(done: AddReport) -> None:
    """Say by the exit code when a bundle was left out."""
    from opscope.core.errors import IncompleteError

    for one in done.skipped:
        say(f"left out: {one.problem}{f' ({one.hint})' if one.hint else ''}", err=True)
    if done.skipped:
        hint = "the others are stored; add these again once they are fixed"
        raise IncompleteError(f"{len(done.skipped)} not stored", where=done.skipped[0].path, hint=hint)


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that counts bundles."""
    if not shown:
        yield lambda _done, _total: None
        return
    from rich.progress import Progress

    from opscope.reports.document.console import TextConsole

    with Progress(console=TextConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("bundles", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
