"""``opscope check``: the regression gate."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opscope.cli.output import JsonOption, QuietOption, WarmupOption, show, warmup_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.analyze.gate import GateReport

NAME = "check"
_STANDARD_OUTPUT = "-"


def command(
    candidate: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="What is judged: a bundle, BUNDLE#variant, a trace or a directory.")
    ],
    against: Annotated[
        str,
        typer.Option(
            metavar="BASELINE", help="What it is measured by; likewise, or store:FILTER for the stored history."
        ),
    ],
    store: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="The store of that history. [default: see `opscope store`]")
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Largest slowdown let through, as 3% or 0.03. [default: as the budget says, or 3%]"
        ),
    ] = None,
    budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Limits of chosen operators, TOML or JSON.")
    ] = None,
    inconclusive: Annotated[
        Literal["fail", "pass"], typer.Option(help="Whether measurements that cannot tell fail or pass.")
    ] = "fail",
    force: Annotated[bool, typer.Option("--force", help="Compare sides that are not comparable.")] = False,
    warmup: WarmupOption = None,
    json: JsonOption = None,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write Markdown for a pull request or a job's summary.")
    ] = None,
    junit: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write JUnit XML.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Fail when a candidate is slower than its baseline by more than a threshold.

    Example: opscope check new --against old --threshold 3% --junit check.xml

    Example: opscope check new --against store:last=30 --store runs

    Exit code 0: passed. 1: slower by more than the threshold, or beyond a budget. 14: too few or too noisy
    measurements to tell. 13: the two sides are not comparable. Results are written before it exits.
    """
    _check_outputs({"--json": json, "--markdown": markdown, "--junit": junit})
    share = None if threshold is None else threshold_share(threshold)
    if against.startswith("store:"):
        from opscope.api.history_gate import check_history

        _check_alone({"--budget": budget, "--force": force or None, "--warmup": warmup})
        report = check_history(candidate, against, store=store, threshold=share)
    else:
        from opscope.api import check

        count = warmup_count(warmup)
        report = check(candidate, against, threshold=share, budget=budget, force=force, warmup=count)
    if inconclusive == "pass":
        from opscope.analyze.gate import lenient

        report = lenient(report)
    _write(report, json, markdown, junit)
    if not quiet and _STANDARD_OUTPUT not in {json, markdown, junit}:
        from opscope.report.gate import gate_summary

        show(gate_summary(report))
    _decide(report, candidate)


def threshold_share(text: str) -> float:
    """A threshold as a fraction.

    Raises:
        UsageError: it is no number, negative, or 100 % and more.
    """
    from opscope.errors import UsageError

    word = text.strip()
    try:
        value = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        problem = f"{text!r} is no share from 0 to below 100 %"
        raise UsageError(problem, where="--threshold", hint="for example 3% or 0.03")
    return value


def _check_alone(options: dict[str, object]) -> None:
    """Refuse options that a history cannot follow.

    Raises:
        UsageError: naming the first one.
    """
    from opscope.errors import UsageError

    for name, value in options.items():
        if value is not None:
            hint = "leave it out, or give a bundle as --against"
            raise UsageError("a stored history has no part for this option", where=name, hint=hint)


def _check_outputs(targets: dict[str, str | None]) -> None:
    """Refuse what could not be written, before anything is read.

    Raises:
        UsageError: two outputs would be mixed on standard output.
        NotFoundError: the directory of a file is missing.
    """
    from opscope.errors import NotFoundError, UsageError

    printed = [name for name, target in targets.items() if target == _STANDARD_OUTPUT]
    if len(printed) > 1:
        raise UsageError(f"{printed[0]} is printed already", where=printed[1], hint="write one of the two to a file")
    for name, target in targets.items():
        if target not in {None, _STANDARD_OUTPUT} and not Path(str(target)).absolute().parent.is_dir():
            raise NotFoundError(f"{name}: its directory does not exist", where=target, hint="make the directory first")


def _write(report: GateReport, json: str | None, markdown: str | None, junit: str | None) -> None:
    from opscope.api import to_json
    from opscope.report.gate import gate_markdown

    if json:
        _put(json, lambda: to_json(report))
    if markdown:
        _put(markdown, lambda: gate_markdown(report).encode())
    if junit:
        from opscope.report.junit import junit_xml

        _put(junit, lambda: junit_xml(report))


def _put(target: str, content: Callable[[], bytes]) -> None:
    from opscope.bundle.files import write_atomically

    if target == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(content())
        sys.stdout.buffer.flush()
    else:
        write_atomically(Path(target), content())


def _decide(report: GateReport, candidate: str) -> None:
    """Say the outcome by the exit code.

    Raises:
        RegressionError: a criterion is not kept.
        InconclusiveError: a criterion cannot be decided, and that is not let through.
    """
    from opscope.analyze.gate import Outcome
    from opscope.errors import InconclusiveError, RegressionError
    from opscope.report.gate import failing

    found = failing(report)
    if not found:
        return
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    problem = f"{found[0].name}: {found[0].reason}{more}"
    if report.let_through:
        typer.echo(f"warning: {candidate}: inconclusive, and let through: {problem}", err=True)
        return
    kind = RegressionError if report.outcome is Outcome.REGRESSION else InconclusiveError
    raise kind(problem, where=candidate, hint=report.advice)
