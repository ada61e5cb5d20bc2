"""``opscope check``: the regression gate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from opscope.cli.output import STANDARD_OUTPUT, JsonOption, QuietOption, WarmupOption, show, warmup_count, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from opscope.analysis.gate.gate import GateReport, Outcome
    from opscope.npu.analysis.gate import TilesGate


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
        from opscope.fleet.history_gate import check_history

        _check_alone({"--budget": budget, "--force": force or None, "--warmup": warmup})
        report: GateReport | TilesGate = check_history(candidate, against, store=store, threshold=share)
    else:
        from opscope.api import check

        count = warmup_count(warmup)
        report = check(candidate, against, threshold=share, budget=budget, force=force, warmup=count)
    told = _told(report, lenient=inconclusive == "pass")
    for form, target in {"json": json, "markdown": markdown, "junit": junit}.items():
        if target:
            write(told.forms[form](), target)
    if not quiet and STANDARD_OUTPUT not in {json, markdown, junit}:
        show(told.summary())
    _decide(told, candidate)


class _Told(NamedTuple):
    """A decision, and the forms in which it is told; each is made when it is asked for."""

    outcome: Outcome
    let_through: bool
    problem: str | None
    advice: str | None
    summary: Callable[[], RenderableType]
    forms: dict[str, Callable[[], bytes]]


def _told(report: GateReport | TilesGate, *, lenient: bool) -> _Told:
    from opscope.analysis.gate.gate import GateReport

    return _of_operators(report, lenient) if isinstance(report, GateReport) else _of_tiles(report, lenient)


def _of_operators(found: GateReport, lenient: bool) -> _Told:
    from opscope.analysis.gate.gate import lenient as leniently
    from opscope.api import to_json
    from opscope.reports.gate import failing, gate_markdown, gate_summary

    def junit() -> bytes:
        from opscope.reports.formats.junit import junit_xml

        return junit_xml(report)

    report = leniently(found) if lenient else found
    deciding = failing(report)
    more = f" (and {len(deciding) - 1} more)" if len(deciding) > 1 else ""
    problem = f"{deciding[0].name}: {deciding[0].reason}{more}" if deciding else None
    forms = {"json": lambda: to_json(report), "markdown": lambda: gate_markdown(report).encode(), "junit": junit}
    return _Told(report.outcome, report.let_through, problem, report.advice, lambda: gate_summary(report), forms)


def _of_tiles(found: TilesGate, lenient: bool) -> _Told:
    from opscope.analysis.gate.gate import Outcome
    from opscope.api import to_json
    from opscope.npu.analysis.gate import lenient as leniently
    from opscope.npu.reports.comparison import tiles_gate_markdown, tiles_gate_summary, tiles_junit

    report = leniently(found) if lenient else found
    problem = None if report.outcome is Outcome.PASSED else f"{report.figure.name}: {report.reason}"
    forms = {
        "json": lambda: to_json(report),
        "markdown": lambda: tiles_gate_markdown(report).encode(),
        "junit": lambda: tiles_junit(report),
    }
    return _Told(report.outcome, report.let_through, problem, report.advice, lambda: tiles_gate_summary(report), forms)


def threshold_share(text: str) -> float:
    """A threshold as a fraction.

    Raises:
        UsageError: it is no number, negative, or 100 % and more.
    """
    from opscope.core.errors import UsageError

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
    from opscope.core.errors import UsageError

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
    from opscope.core.errors import NotFoundError, UsageError

    printed = [name for name, target in targets.items() if target == STANDARD_OUTPUT]
    if len(printed) > 1:
        raise UsageError(f"{printed[0]} is printed already", where=printed[1], hint="write one of the two to a file")
    for name, target in targets.items():
        if target not in {None, STANDARD_OUTPUT} and not Path(str(target)).absolute().parent.is_dir():
            raise NotFoundError(f"{name}: its directory does not exist", where=target, hint="make the directory first")


def _decide(told: _Told, candidate: str) -> None:
    """Say the outcome by the exit code.

    Raises:
        RegressionError: a criterion is not kept.
        InconclusiveError: a criterion cannot be decided, and that is not let through.
    """
    from opscope.analysis.gate.gate import Outcome
    from opscope.core.errors import InconclusiveError, RegressionError

    if told.problem is None:
        return
    if told.let_through:
        typer.echo(f"warning: {candidate}: inconclusive, and let through: {told.problem}", err=True)
        return
    kind = RegressionError if told.outcome is Outcome.REGRESSION else InconclusiveError
    raise kind(told.problem, where=candidate, hint=told.advice)
