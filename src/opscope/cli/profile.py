"""``opscope profile``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.bundle.settings import QUICK, ExperimentSettings, words_of
from opscope.cli.output import (
    STANDARD_OUTPUT,
    JsonOption,
    PowerOption,
    QuietOption,
    RemoteDeviceOption,
    notice,
    say,
    show,
    write_json,
)
from opscope.cli.shared.gating import (
    GATE,
    GateOutputs,
    InconclusiveOption,
    JunitOption,
    MarkdownOption,
    ThresholdOption,
    measured,
    refuse,
    resume_hint,
    tell,
    threshold_share,
)
from opscope.cli.shared.measuring import GivenSettings, with_settings
from opscope.core.printable import shell_command

if TYPE_CHECKING:
    from opscope.api import Profiled, ProgramCheck, Settings


@with_settings()
def command(
    model: Annotated[
        str,
        typer.Argument(help="A model that can be exported (`opscope models`), or a .pte, .tflite or .onnx."),
    ],
    asked: GivenSettings,
    remote_device: RemoteDeviceOption = None,
    power: PowerOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the bundle. [default: opscope-out/MODEL-TIME]")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A first look in seconds, without a verdict."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the bundle in --out.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OLD",
            help="Also measure this program, interleaved, and judge the difference.",
            rich_help_panel=GATE,
        ),
    ] = None,
    threshold: ThresholdOption = None,
    budget: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Limits for chosen operators, TOML or JSON.", rich_help_panel=GATE, hidden=True
        ),
    ] = None,
    inconclusive: InconclusiveOption = None,
    markdown: MarkdownOption = None,
    junit: JunitOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Profile a model with acceleration on and off, or two programs.

    Example: opscope profile mobilenet_v3_small --ablate avx512 --rounds 10

    Example: opscope profile model.onnx --quick

    Example: opscope profile new.pte --against old.pte --out speed --threshold 3%

    Exports the model if needed, runs every variant in interleaved rounds, and writes a bundle with report.html.

    With --against it runs two programs on the same inputs, switches nothing off, and ends like `opscope check`; the
    options from --threshold to --junit are for this gate. Exit code 0: passed. 1: slower by more than the threshold,
    or beyond a budget. 14: too few or too noisy measurements to tell. 20: measured, but not trustworthy.
    """
    from opscope.api import default_directory
    from opscope.core.errors import UsageError
    from opscope.machine.clock import SystemClock
    from opscope.workflows.measure.targets import phone_name

    if resume and out is None:
        raise UsageError("needs the bundle to finish", where="--resume", hint="name its directory with --out DIR")
    target = phone_name(asked.given.get("target"), remote_device, power)
    looks = {name: value for name, value in QUICK.items() if quick and name not in asked.given}
    settings = asked.settings(target=target, **looks)
    named = {*asked.words, *(["--target"] if remote_device or power else [])}
    place = out or default_directory(model, SystemClock().now())
    if against is not None:
        if quick:
            problem, hint = "too few rounds for a verdict", "leave it out; --rounds 6 is the minimum"
            raise UsageError(problem, where="--quick", hint=hint)
        _check_two_programs(model, against, settings)
        checked = measured(
            model,
            against,
            place,
            settings,
            threshold=threshold_share(threshold),
            budget=budget,
            quiet=quiet,
            resume=resume,
            named=named,
        )
        write_json(checked.profiled.content, json)
        outputs = GateOutputs(inconclusive == "pass", quiet or json == STANDARD_OUTPUT, None, markdown, junit)
        _finish(checked, model, outputs)
        return
    hint = f"{shell_command(['opscope', 'profile', model])} --against OLD {{name}} ..."
    gate = {"--threshold": threshold, "--budget": budget, "--inconclusive": inconclusive}
    gate |= {"--markdown": markdown, "--junit": junit}
    refuse(gate, "it needs a program to compare with (--against)", hint)
    done = _profile(model, settings, place, resume=resume, quiet=quiet, named=named)
    write_json(done.content, json)
    if not quiet and json != "-":
        _tell(done)
        if quick:
            say(f"for a verdict: {_full_run(done, settings, asked)}")
    _check_complete(done)


def _full_run(done: Profiled, settings: Settings, given_settings: GivenSettings) -> str:
    """The command for the same model in as many rounds as usual, with what was asked for beside the first look."""
    from opscope.workflows.measure.program_inputs import guessed_inputs

    manifest = done.content.manifest
    texts = guessed_inputs(done.path / manifest.model.program, manifest.plan, settings.input)
    guessed = ["guess_inputs"] if texts else []
    kept = {*guessed, *given_settings.given} & set(ExperimentSettings.__struct_fields__)
    target = [] if settings.target == "auto" else ["--target", settings.target]
    return shell_command(["opscope", "profile", manifest.model.source, *target, *words_of(settings, sorted(kept))])


def _check_two_programs(model: str, against: str, settings: Settings) -> None:
    """Refuse what was measured already."""
    from opscope.api import check_kinds
    from opscope.core.errors import UsageError

    if not check_kinds(model, against, Path(settings.models) if settings.models else None):
        hint = shell_command(["opscope", "check", model, "--against", against])
        raise UsageError("both were measured before; profile runs programs", where="--against", hint=hint)


def _finish(checked: ProgramCheck, model: str, outputs: GateOutputs) -> None:
    """Tell of two programs, and end as the gate does."""
    shown = not outputs.quiet and STANDARD_OUTPUT not in {outputs.markdown, outputs.junit}
    if shown:
        _tell(checked.profiled)
        say()
    tell(checked.decision, model, outputs)


def _profile(model: str, settings: Settings, out: Path, *, resume: bool, quiet: bool, named: set[str]) -> Profiled:
    from opscope.api import profile
    from opscope.cli.shared.progress import run_progress
    from opscope.core.errors import InterruptedRunError

    try:
        with run_progress(shown=not quiet) as progress:
            return profile(
                model, settings=settings, out=out, resume=resume, progress=progress, named=named, notify=notice
            )
    except (KeyboardInterrupt, InterruptedRunError):
        words = ["opscope", "profile", model, "--out", str(out), "--resume"]
        raise InterruptedRunError(
            "interrupted; what was finished is kept", where=out, hint=resume_hint(out, words)
        ) from None


def _tell(done: Profiled) -> None:
    from opscope.reports.report import summary
    from opscope.workflows.measure.machine import temporary_cache

    show(summary(done.content))
    for note in filter(None, [*done.notes, temporary_cache()]):
        say(f"note:  {note}", err=True)
    say()
    say(f"report: {done.path / 'report.html'}")


def _check_complete(done: Profiled) -> None:
    """Say by the exit code when repetitions are missing from the results."""
    from opscope.core.errors import IncompleteError
    from opscope.reports.content.content import missing

    lines = missing(done.content)
    if lines:
        hint = f"the results exclude them; rerun them with --out {done.path} --resume"
        raise IncompleteError(f"{len(lines)} missing: {lines[0]}", where=done.path, hint=hint)
