"""``opscope check``: the regression gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from opscope.cli.output import (
    JsonOption,
    QuietOption,
    WarmupOption,
    say,
    warmup_count,
)
from opscope.cli.shared.gating import (
    GATE,
    AnnotationsOption,
    GateOutputs,
    InconclusiveOption,
    JunitOption,
    MarkdownOption,
    ThresholdOption,
    measured,
    refuse,
    tell,
    threshold_share,
)
from opscope.cli.shared.measuring import NOTHING_GIVEN, GivenSettings, with_settings
from opscope.core.printable import shell_command

if TYPE_CHECKING:
    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.work.gate import WorkEvidence
    from opscope.api import Settings


_TWO_PROGRAMS, _STORE = "Two programs, measured now", "Store histories"
_NOT_FOR_TWO = ("warmup", "ablate", "ladder")
"""Settings without an option: nothing is switched off, and ``--warmup`` is an option of the command's own."""
_NOT = "it does not apply when"
_TWO_SIDES = "leave it out; it needs two sides: opscope check NEW --against OLD"


@with_settings(without=_NOT_FOR_TWO, common=("target", "rounds"), group=_TWO_PROGRAMS)
def command(
    candidate: Annotated[
        str | None,
        typer.Argument(
            metavar="BUNDLE",
            help="Candidate: a program (.pte, .tflite, .onnx), a bundle, BUNDLE#variant, a trace or a directory.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="BASELINE", help="Baseline: the same, or store:FILTER for the stored history."),
    ] = None,
    new: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="Instead of two sides: judge all series by their runs since DATE.",
            rich_help_panel=_STORE,
        ),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="With --new: which runs, as in `opscope history`.",
            rich_help_panel=_STORE,
            hidden=True,
        ),
    ] = "",
    store: Annotated[
        str | None,
        typer.Option(metavar="DIR|URL", help="The store. [default: see `opscope store`]", rich_help_panel=_STORE),
    ] = None,
    threshold: ThresholdOption = None,
    budget: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Limits for chosen operators or, with --new, for series; TOML or JSON.",
            rich_help_panel=GATE,
        ),
    ] = None,
    inconclusive: InconclusiveOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare even if the two sides are not comparable.", hidden=True)
    ] = False,
    work: Annotated[
        bool,
        typer.Option(
            "--count",
            help="Judge exact work counts instead of time.",
            rich_help_panel=_TWO_PROGRAMS,
        ),
    ] = False,
    time: Annotated[bool, typer.Option("--time", help="With --count: also measure both; gives two verdicts.")] = False,
    warmup: WarmupOption = None,
    json: JsonOption = None,
    markdown: MarkdownOption = None,
    junit: JunitOption = None,
    annotations: AnnotationsOption = None,
    quiet: QuietOption = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Bundle directory for both programs. [default: opscope-out/MODEL-TIME]",
            rich_help_panel=_TWO_PROGRAMS,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Finish the bundle in --out.", rich_help_panel=_TWO_PROGRAMS, hidden=True),
    ] = False,
    asked: GivenSettings = NOTHING_GIVEN,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="How to measure, as in an `opscope run` configuration; TOML or JSON.",
            rich_help_panel=_TWO_PROGRAMS,
            hidden=True,
        ),
    ] = None,
) -> None:
    """Fail when a candidate is slower than its baseline.

    Example: opscope check new.pte --against old.pte --out speed --threshold 3%

    Example: opscope check new --against old --threshold 3% --junit check.xml

    Example: opscope check new --against store:last=30 --store runs

    Example: opscope check new.pte --against old.pte --count --time

    Example: opscope check --new 2026-01-31 --store runs --markdown check.md

    Programs are measured now, interleaved, into one bundle; bundles and traces are judged as they are. --new judges
    every series of a store against its history.

    Two programs get the same inputs, and all other options of `opscope profile` apply (see --help-all).

    Exit code 0: passed. 1: slower by more than the threshold, or beyond a budget. 14: too few or too noisy
    measurements to tell. 20: measured, but not trustworthy. 13: the two sides are not comparable. 15: a file of a
    bundle changed after the measurement. Results are written before it exits.
    """
    from opscope.api import check_kinds
    from opscope.core.errors import UsageError

    share = threshold_share(threshold)
    outputs = GateOutputs(inconclusive == "pass", quiet, json, markdown, junit, annotations)
    given: dict[str, object] = {"--out": out, "--config": config, "--resume": resume or None, **asked.words}
    if new is not None:
        _check_no_sides(candidate, against, new, store)
        refuse(
            {"--force": force or None, "--warmup": warmup} | given,
            f"{_NOT} all series of a store are judged",
            _TWO_SIDES,
        )
        from opscope.api import check_fleet

        fleet = check_fleet(new, store, where=where, threshold=share, budget=budget)
        tell(fleet, fleet.evidence.store, outputs)
        return
    if candidate is None or against is None:
        raise UsageError(
            "needs a candidate and a baseline",
            where="BUNDLE" if candidate is None else "--against",
            hint="opscope check NEW --against OLD, or opscope check --new DATE for all series of a store",
        )
    if where:
        raise UsageError("it chooses runs for --new only", where="--where", hint="--against store:KEY=VALUE,...")
    if against.startswith("store:"):
        from opscope.fleet.history import check_history

        beside = {"--budget": budget, "--force": force or None, "--warmup": warmup} | given
        refuse(beside, f"{_NOT} a stored history is the baseline", _TWO_SIDES)
        report: Decision[Any] = check_history(candidate, against, store=store, threshold=share)
    elif work and not time:
        beside = {"--budget": budget, "--force": force or None, "--warmup": warmup} | given
        refuse(beside, "work is counted, not measured", "leave it out; --threshold is how much more work passes")
        report = _counted(candidate, against, share)
    elif time and not work:
        raise UsageError("time is judged unless --count is given", where="--time", hint="leave it out, or add --count")
    elif check_kinds(candidate, against):
        from opscope.analysis.work.gate import join_with_time

        refuse({"--force": force or None}, "it is only for sides that are already measured", "leave it out")
        if warmup is not None:
            asked = GivenSettings(asked.given | {"warmup": _warmup_calls(warmup)})
        bundle = _bundle_directory(candidate, out, resume=resume)
        counted = (
            _counted(candidate, against, share) if work else None
        )  # first: what it lacks must not cost a measurement
        done = measured(
            candidate,
            against,
            bundle,
            _settings(config, asked),
            threshold=share,
            budget=budget,
            quiet=quiet,
            resume=resume,
            named=set(asked.words),
        )
        report = join_with_time(counted, done.decision) if counted else done.decision
        if not quiet:
            say(f"report: {done.profiled.path / 'report.html'}", err=True)
    else:
        from opscope.workflows.analyze.gate import check_any

        refuse(
            given | {"--count": work or None},
            "both sides are already measured",
            "leave it out, or give two programs, which are measured now",
        )
        count = warmup_count(warmup)
        report = check_any(candidate, against, threshold=share, budget=budget, force=force, warmup=count)
    tell(report, candidate, outputs._replace(sides=(against, candidate)))


def _counted(candidate: str, against: str, share: float | None) -> Decision[WorkEvidence]:
    """Two programs judged by what they execute."""
    from opscope.workflows.measure.counting import check_work

    return check_work(candidate, against, limit=share or 0.0)


def _settings(config: Path | None, settings: GivenSettings) -> Settings:
    """How two programs are measured: as a file says, but for what the command line does."""
    from opscope.experiment.config_errors import convert_options
    from opscope.experiment.config_rules import read_settings
    from opscope.experiment.planned import Settings

    # A gate asks for a difference: ceilings tell nothing of it, and take seconds.
    base = Settings(ceilings=False) if config is None else read_settings(config)
    ceilings = base.ceilings or False
    return convert_options(msgspec.structs.asdict(base) | {"ceilings": ceilings} | settings.given, Settings)


def _bundle_directory(candidate: str, out: Path | None, *, resume: bool) -> Path:
    """Return the directory that two programs are measured into; a new one of today unless the user names one."""
    from opscope.api import default_directory
    from opscope.core.errors import UsageError
    from opscope.machine.clock import SystemClock

    if resume and out is None:
        raise UsageError("needs the bundle to finish", where="--resume", hint="name its directory with --out DIR")
    return out or default_directory(candidate, SystemClock().now())


def _warmup_calls(text: str) -> int:
    """Return the number of warm-up calls of each process; two programs that are measured now need one."""
    from opscope.core.errors import UsageError

    count = warmup_count(text)
    if not isinstance(count, int):
        hint = "give a number; auto is for sides that are already measured"
        raise UsageError("two programs are measured with a number of warm-up calls", where="--warmup", hint=hint)
    return count


def _check_no_sides(candidate: str | None, against: str | None, new: str, store: str | None) -> None:
    """Refuse a candidate or a baseline beside ``--new``."""
    from opscope.core.errors import UsageError

    given = [text for text in (candidate, None if against is None else f"--against {against}") if text is not None]
    if not given:
        return
    stored = shell_command(["opscope", "check", "--new", new, "--store", store or "STORE"])
    two = shell_command(["opscope", "check", candidate or "NEW", "--against", against or "OLD"])
    raise UsageError(
        f"it judges all series of a store by their own histories and takes no sides: {' '.join(given)}",
        where="--new",
        hint=f"for the store: {stored}; for two sides: {two}",
    )
