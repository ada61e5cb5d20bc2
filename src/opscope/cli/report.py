"""``opscope report``: write the reports of a bundle, or of a run of the Arm kit; one report over several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import BaselineOption, CandidateOption, QuietOption, say, split_words


def command(
    bundles: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE...",
            help="Directories that `opscope profile`, `run` or the Arm kit wrote; several bundles give one report.",
        ),
    ],
    formats: Annotated[
        str, typer.Option("--format", metavar="FORMAT,...", help="Any of html, md and json.")
    ] = "html,md,json",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE", help="Output directory, required for several; for one, also FILE.md or FILE.html."
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Title of the report, in place of the model's name.")
    ] = None,
    program: Annotated[
        Path | None, typer.Option(metavar="FILE.pte", help="Program of an Arm kit run, if it has moved.")
    ] = None,
    baseline: BaselineOption = None,
    candidate: CandidateOption = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write the reports of bundles; several give one report.

    Computes the reports from the traces and writes them into the bundle; for an Arm kit run, into opscope/ in its
    directory. Several bundles, of platforms or of versions, or all in the output directory of `opscope run`, give one
    report: combined.html, combined.md and combined.json. --baseline and --candidate choose which variants or
    experiments are compared, in each of them.

    Example: opscope report opscope-out/mobilenet_v3_small-20260102-101500 --format html

    Example: opscope report mac android linux --out platforms --title "MobileNet on our devices"

    Example: opscope report out_toy_cnn/runs/mac --baseline mac_sme2_off --candidate mac_sme2_on
    """
    paths = _written(bundles, split_words(formats), out, title, program, baseline, candidate)
    for path in paths:
        if not quiet:
            say(path)
    if open_page:
        _open_page(paths)


def _open_page(paths: list[Path]) -> None:
    """Open the page among the files of a report."""
    import webbrowser

    from opscope.core.errors import RunError, UsageError

    page = next((path for path in paths if path.suffix == ".html"), None)
    if page is None:
        raise UsageError("no page was written", where="--open", hint="leave out --format, or add html")
    if not webbrowser.open(page.resolve().as_uri()):
        hint = "open the file yourself; over ssh, copy it first, or read report.md"
        raise RunError("no browser could be started", where=page, hint=hint)


def _written(
    bundles: list[Path],
    formats: tuple[str, ...],
    out: Path | None,
    title: str | None,
    program: Path | None,
    baseline: str | None,
    candidate: str | None,
) -> list[Path]:
    """The files of the one report, or of the combined one."""
    from opscope.api import combined_report, report
    from opscope.core.errors import UsageError
    from opscope.workflows.reports.reports import bundles_in

    compared = (baseline, candidate) if baseline or candidate else None
    directories = [directory for path in bundles for directory in bundles_in(path)]
    if len(directories) == 1:
        return report(directories[0], formats, out=out, title=title, program=program, compared=compared)
    if program:
        raise UsageError("it applies to one run", where="--program", hint="report each run separately")
    if out is None and len(bundles) > 1:
        problem = "a report on several bundles needs an output directory"
        raise UsageError(problem, where="--out", hint="name it with --out DIR")
    return combined_report(directories, out or bundles[0], formats, title=title, compared=compared)
