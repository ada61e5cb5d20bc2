"""``opscope run``: experiments from a file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import (
    BaselineOption,
    CandidateOption,
    JsonOption,
    PowerOption,
    QuietOption,
    RemoteDeviceOption,
    notice,
    say,
    show,
    write_json,
)
from opscope.cli.shared.measuring import NOTHING_GIVEN, GivenSettings, with_settings
from opscope.core.printable import shell_command
from opscope.core.units import counted_text
from opscope.hosts.target_kinds import KINDS, forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.analysis.compare.compare import Comparison
    from opscope.core.errors import InterruptedRunError
    from opscope.experiment.planned import Settings
    from opscope.workflows.measure.run_report import ExperimentResult, RunReport

_PHONES = forms(kind for kind in KINDS if kind.android)


@with_settings(("oversubscribe", "lock", "lock_limit", "keep_going"))
def command(
    config: Annotated[
        Path, typer.Argument(help="Configuration in TOML or JSON (see `opscope init`), or the Arm kit's JSON.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", hidden=True)] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...", help="Experiments, devices or variants to run; also --only NAME NAME. [default: all]"
        ),
    ] = None,
    analysis_only: Annotated[
        bool, typer.Option("--analysis-only", help="Run nothing; rewrite the reports of existing bundles.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish existing bundles.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the bundles. [default: as the file says]")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Run on this Android device instead: {_PHONES}. [default: as the file says]",
        ),
    ] = None,
    remote_device: RemoteDeviceOption = None,
    power: PowerOption = None,
    baseline: BaselineOption = None,
    candidate: CandidateOption = None,
    asked: GivenSettings = NOTHING_GIVEN,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run them on the workers of this Dask scheduler.")
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run the experiments of a configuration, and report each.

    Example: opscope run experiments.toml --only mobilenet_v3_small-local

    Every model on every target or device becomes its own bundle in the output directory, with report.html,
    report.md, analysis.json and comparison.json. Devices run side by side. When one fails, the others still run.
    """
    from opscope.core.errors import UsageError
    from opscope.workflows.measure.running import run
    from opscope.workflows.measure.targets import phone_name

    if analysis_only and resume:
        raise UsageError("nothing is run with --analysis-only", where="--resume", hint="leave out one of the two")
    if analysis_only and scheduler:
        raise UsageError("nothing is run with --analysis-only", where="--scheduler", hint="leave out one of the two")
    if analysis_only and (baseline or candidate):
        hint = "opscope report DIR --baseline NAME --candidate NAME"
        raise UsageError("roles are chosen when variants run", where="--baseline", hint=hint)
    if more and not only:
        hint = "give one; names of experiments follow --only"
        raise UsageError(f"there are several configurations: {', '.join([str(config), *more])}", hint=hint)
    only = [*(only or []), *(more or [])]  # the kit's option takes several words
    settings = asked.settings()
    running = functools.partial(
        run,
        config,
        only=only,
        out=out,
        analysis_only=analysis_only,
        resume=resume,
        target=phone_name(target, remote_device, power),
        oversubscribe=settings.oversubscribe,
        baseline=baseline,
        candidate=candidate,
    )
    words = _words(
        config,
        only=",".join(only),
        out=out,
        target=target,
        remote_device=remote_device,
        power=power,
        scheduler=scheduler,
        baseline=baseline,
        candidate=candidate,
        lock=asked.given.get("lock"),
        lock_limit=asked.given.get("lock_limit"),
    )
    words += ["--oversubscribe"] * settings.oversubscribe
    done = _run(running, words, scheduler, settings, shown=not quiet and not analysis_only)
    write_json(done, json)
    for note in done.notes:
        say(f"note:  {note}", err=True)
    if not quiet and json != "-":
        _tell(done)
    _check_complete(done, config)


def _run(
    running: Callable[..., RunReport],
    words: list[str],
    scheduler: str | None,
    settings: Settings,
    *,
    shown: bool,
) -> RunReport:
    from opscope.cli.shared.progress import experiments_watched
    from opscope.core.errors import InterruptedRunError, OpscopeError
    from opscope.experiment.config_words import rename_options_of_error
    from opscope.workflows.measure.experiments import Means

    try:
        with experiments_watched(shown=shown) as watches:

            def finished(result: ExperimentResult, left: int) -> None:
                watches.end(result.name)
                if result.error and left and shown:
                    watches.tell(f"note:  {result.name} failed, {left} more to go: {result.error}")
                elif left and shown:
                    watches.tell(f"{result.name}: done, {left} to go")

            means = Means(
                scheduler=scheduler,
                lock=settings.lock,
                lock_limit=settings.lock_limit,
                notify=notice,
                progress_of=watches.progress_of,
                stages_of=watches.stages_of,
                finished=finished,
                keep_going=settings.keep_going,
            )
            return running(means=means)
    except InterruptedRunError:
        raise _describe_interruption(words) from None
    except OpscopeError as error:
        raise rename_options_of_error(error) from error
    except KeyboardInterrupt:
        raise _describe_interruption(words) from None


def _describe_interruption(words: list[str]) -> InterruptedRunError:
    """Return the error that says how an interrupted run is finished."""
    from opscope.core.errors import InterruptedRunError

    hint = f"finish it with: {shell_command([*words, '--resume'])}"
    return InterruptedRunError("interrupted; what was finished is kept", where=words[2], hint=hint)


def _words(config: Path, **options: Path | str | None) -> list[str]:
    """The command line again, as far as it says what is run."""
    told = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items() if value]
    return ["opscope", "run", str(config), *(word for pair in told for word in pair)]


def _tell(done: RunReport) -> None:
    from opscope.reports.report import summary
    from opscope.workflows.reports.reports import report_directory

    for number, result in enumerate(done.experiments):
        if number:
            say()
        say(result.name)
        if result.content is None:
            say(f"failed: {result.error}")
            continue
        show(summary(result.content))
        for compared in result.comparisons:
            say(_line(compared))
        say()
        say(f"report: {report_directory(Path(result.path)) / 'report.html'}")
    for evidence in done.evidence:
        text = (
            f"failed: {evidence.failure}"
            if evidence.failure
            else f"{counted_text(evidence.kernels, 'kernel')} registered"
        )
        say(f"{evidence.experiment} {evidence.variant}: {text}; {evidence.log}")


def _line(compared: Comparison) -> str:
    from opscope.reports.content.content import speedup_text
    from opscope.reports.document.blocks import verdict_text
    from opscope.reports.document.messages import COMPARISON, grade_text

    sides = f"{compared.candidate.label} against {compared.baseline.label}"
    grade = f" ({COMPARISON} {grade_text(compared.end_to_end.grade)})" if compared.end_to_end.grade else ""
    texts = [
        f"{f'{method}: ' if method else ''}{speedup_text(end)}, {end.reason or verdict_text(end.verdict)}"
        for method, end in compared.verdicts.items()
    ]
    return f"{sides}: {'; '.join(texts)}{grade}"


def _check_complete(done: RunReport, config: Path) -> None:
    """Say by the exit code when something is missing from the results."""
    from opscope.core.errors import FeatureError, IncompleteError, NotFoundError, UsageError, kinds
    from opscope.reports.content.content import missing_sentences

    failed = [f"{result.name} failed: {result.error}" for result in done.experiments if result.error]
    failed += [f"{one.experiment} {one.variant} failed: {one.failure}" for one in done.evidence if one.failure]
    lines = [line for result in done.experiments if result.content for line in missing_sentences(result.content)]
    codes = {result.exit_code for result in done.experiments}
    if failed and len(codes) == 1 and None not in codes:
        raise next(kind for kind in kinds() if kind.exit_code in codes)(failed[0], where=config)
    if failed or lines:
        fails_again = codes & {kind.exit_code for kind in (UsageError, FeatureError, NotFoundError)}
        first = "correct what the messages name, then" if fails_again else "to run them again,"
        hint = f"the results exclude them; {first} add --resume: what is finished stays"
        raise IncompleteError(f"{len(failed + lines)} missing: {(failed + lines)[0]}", where=config, hint=hint)
