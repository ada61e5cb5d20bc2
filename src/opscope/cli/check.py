"""``opscope check``: the regression gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from opscope.cli.gating import (
    BudgetOption,
    InconclusiveOption,
    JunitOption,
    MarkdownOption,
    ThresholdOption,
    Told,
    tell,
    threshold_share,
)
from opscope.cli.measuring import NOTHING_ASKED, Asked, with_settings
from opscope.cli.output import (
    JsonOption,
    PowerOption,
    QuietOption,
    RemoteDeviceOption,
    WarmupOption,
    notice,
    say,
    warmup_count,
)
from opscope.core.printable import shell_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.gate.gate import ComparisonEvidence
    from opscope.api import Settings

_OF_PROGRAMS = (
    *("target", "threads", "oversubscribe", "affinity", "nice", "rounds", "runs", "dtype", "cooldown_seconds"),
    *("max_temperature", "seed", "timeout", "untraced", "methods", "input", "inputs", "lock", "models"),
)


@with_settings(_OF_PROGRAMS, "Two programs: ")
def command(
    candidate: Annotated[
        str | None,
        typer.Argument(
            metavar="BUNDLE", help="Candidate: a program (.pte), a bundle, BUNDLE#variant, a trace or a directory."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="BASELINE", help="Baseline: the same, or store:FILTER for the stored history."),
    ] = None,
    new: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="In place of both: judge all series of the store by their runs since then."),
    ] = None,
    where: Annotated[
        str, typer.Option(metavar="KEY=VALUE,...", help="With --new: which runs, as of `opscope history`.")
    ] = "",
    store: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="The store of that history. [default: see `opscope store`]")
    ] = None,
    threshold: ThresholdOption = None,
    budget: BudgetOption = None,
    inconclusive: InconclusiveOption = "fail",
    force: Annotated[bool, typer.Option("--force", help="Compare even if the two sides are not comparable.")] = False,
    warmup: WarmupOption = None,
    json: JsonOption = None,
    markdown: MarkdownOption = None,
    junit: JunitOption = None,
    quiet: QuietOption = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Two programs: directory of the bundle of both. [default: opscope-out/MODEL-TIME]"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Two programs: finish the bundle in --out.")] = False,
    asked: Asked = NOTHING_ASKED,
    remote_device: RemoteDeviceOption = None,
    power: PowerOption = None,
) -> None:
    """Fail when a candidate is slower than its baseline.

    Example: opscope check new.pte --against old.pte --out speed --threshold 3%

    Example: opscope check new --against old --threshold 3% --junit check.xml

    Example: opscope check new --against store:last=30 --store runs

    Example: opscope check --new 2026-01-31 --store runs --markdown check.md

    Two programs are measured now, interleaved and on the same inputs, into one bundle with the variants new and old;
    bundles and traces are already measured. With --new, all models and devices of a store are judged by their
    histories.

    Exit code 0: passed. 1: slower by more than the threshold, or beyond a budget. 14: too few or too noisy
    measurements to tell. 20: measured, and not to be trusted. 13: the two sides are not comparable. 15: a file of a
    bundle is not the one that was measured. Results are written before it exits.
    """
    from opscope.core.errors import UsageError

    share = threshold_share(threshold)
    told = Told(inconclusive == "pass", quiet, json, markdown, junit)
    given: dict[str, object] = {
        "--out": out,
        "--resume": resume or None,
        "--remote-device": remote_device,
        "--power": power,
        **asked.words,
    }
    if new is not None:
        _check_no_sides(candidate, against, new, store)
        _check_stored({"--force": force or None, "--warmup": warmup} | given, "when all series of a store are judged")
        from opscope.api import check_fleet

        fleet = check_fleet(new, store, where=where, threshold=share, budget=budget)
        tell(fleet, fleet.evidence.store, told)
        return
    if candidate is None or against is None:
        raise UsageError(
            "a candidate and what it is measured by are needed",
            where="BUNDLE" if candidate is None else "--against",
            hint="opscope check NEW --against OLD, or opscope check --new DATE for all series of a store",
        )
    if where:
        raise UsageError("runs are chosen with --new alone", where="--where", hint="--against store:KEY=VALUE,...")
    if against.startswith("store:"):
        from opscope.fleet.history_gate import check_history

        _check_stored(
            {"--budget": budget, "--force": force or None, "--warmup": warmup} | given,
            "when a stored history is the baseline",
        )
        report: Decision[Any] = check_history(candidate, against, store=store, threshold=share)
    elif _are_programs(candidate, against, asked.given.get("models")):
        programs = _Programs(candidate, against, out, resume=resume)
        report = _measured(programs, _settings(asked, remote_device, power, warmup), share, budget, quiet=quiet)
    else:
        from opscope.workflows.analyze.gate import check_any

        _check_measured(given)
        count = warmup_count(warmup)
        report = check_any(candidate, against, threshold=share, budget=budget, force=force, warmup=count)
    tell(report, candidate, told._replace(sides=(against, candidate)))


def _are_programs(candidate: str, against: str, models: str | None) -> bool:
    """Whether both sides are to be measured now."""
    from opscope.api import check_kinds

    return check_kinds(candidate, against, Path(models) if models else None)


class _Programs(NamedTuple):
    """Two programs, and the bundle to measure them into."""

    candidate: str
    against: str
    out: Path | None
    resume: bool


def _settings(asked: Asked, remote_device: str | None, power: str | None, warmup: str | None) -> Settings:
    """How two programs are measured: the options that were given, and the usual rest."""
    from opscope.core.errors import UsageError
    from opscope.workflows.measure.targets import phone_name

    count = warmup_count(warmup)
    if count == "auto":
        raise UsageError("programs are measured with a planned warm-up", where="--warmup", hint="give a number from 0")
    target = phone_name(asked.given.get("target"), remote_device, power)
    # A gate asks for a difference: ceilings tell nothing of it, and take seconds.
    return asked.settings(target=target, warmup=count, ceilings=False)


def _measured(
    programs: _Programs, settings: Settings, threshold: float | None, budget: Path | None, *, quiet: bool
) -> Decision[ComparisonEvidence]:
    """Measure two programs, tell where their reports are, and judge them."""
    from opscope.api import check_programs, default_directory
    from opscope.cli.progress import run_progress
    from opscope.core.errors import InterruptedRunError, UsageError
    from opscope.machine.clock import SystemClock

    if programs.resume and programs.out is None:
        raise UsageError("which bundle to finish?", where="--resume", hint="name its directory with --out DIR")
    out = programs.out or default_directory(programs.candidate, SystemClock().now())
    try:
        with run_progress(shown=not quiet) as progress:
            done = check_programs(
                programs.candidate,
                programs.against,
                settings=settings,
                out=out,
                resume=programs.resume,
                threshold=threshold,
                budget=budget,
                progress=progress,
                notify=notice,
            )
    except (KeyboardInterrupt, InterruptedRunError):
        words = ["opscope", "check", programs.candidate, "--against", programs.against, "--out", str(out), "--resume"]
        begun = (out / "manifest.json").exists()
        hint = f"finish it with: {shell_command(words)}" if begun else "nothing was measured yet"
        raise InterruptedRunError("interrupted; what was finished is kept", where=out, hint=hint) from None
    if not quiet:
        say(f"report: {done.profiled.path / 'report.html'}", err=True)
    return done.decision


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


def _check_stored(options: Mapping[str, object], when: str) -> None:
    """Refuse options that say how two sides are measured or compared, where stored runs are judged."""
    from opscope.core.errors import UsageError

    for name, value in options.items():
        if value is not None:
            hint = "leave it out; it is for two sides: opscope check NEW --against OLD"
            raise UsageError(f"it does not apply {when}", where=name, hint=hint)


def _check_measured(options: Mapping[str, object]) -> None:
    """Refuse options that say how to measure, where everything was measured already."""
    from opscope.core.errors import UsageError

    for name, value in options.items():
        if value is not None:
            problem = "both sides are already measured"
            raise UsageError(
                problem, where=name, hint="leave it out, or give two programs (.pte), which are measured now"
            )
