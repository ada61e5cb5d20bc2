"""``opscope report``: write the reports of a bundle, or of a run of the Arm kit; one report over several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import QuietOption, note_unhashed, say, split_words


def command(
    bundles: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE...", help="Directories that `opscope profile` or the Arm kit wrote; several: one report."
        ),
    ],
    formats: Annotated[
        str, typer.Option("--format", metavar="FORMAT,...", help="Any of html, md and json.")
    ] = "html,md,json",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output directory; required for several bundles.")
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Title of the report, in place of the model's name.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Write the reports of bundles; several give one report.

    Reports are computed from the traces and written into the bundle, those of an Arm kit run into opscope/ in its
    directory. Several bundles, of platforms or of versions, give one report: combined.html, combined.md and
    combined.json.

    Example: opscope report opscope-out/mobilenet_v3_small-20260102-101500 --format html

    Example: opscope report mac android linux --out platforms --title "MobileNet on our devices"
    """
    for path in _written(bundles, split_words(formats), out, title):
        if not quiet:
            say(path)
    if not quiet:
        note_unhashed(bundles)


def _written(bundles: list[Path], formats: tuple[str, ...], out: Path | None, title: str | None) -> list[Path]:
    """The files of the one report, or of the combined one."""
    from opscope.api import combined_report, report
    from opscope.core.errors import UsageError

    if len(bundles) == 1:
        return report(bundles[0], formats, out=out, title=title)
    if out is None:
        problem = "a report over several bundles has no bundle to go into"
        raise UsageError(problem, where="--out", hint="name its directory with --out DIR")
    return combined_report(bundles, out, formats, title=title)
