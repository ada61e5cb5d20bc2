"""``opscope doctor``: is this machine ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import JsonOption, RuntimeOption, say, write_json
from opscope.core.errors import NotReadyError, UsageError
from opscope.hosts.target_kinds import KINDS, forms

if TYPE_CHECKING:
    from opscope.api import FeatureReport

_WIDTH = 20


def command(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Also check what this model needs; tries one inference.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Check another target: {forms(kind for kind in KINDS if kind.remote or kind.emulated)}.",
        ),
    ] = None,
    runtime: RuntimeOption = None,
    json: JsonOption = None,
    features: Annotated[
        bool, typer.Option("--features", help="Show which CPU features can be switched off, and the ISA ladder.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="Only restore settings that a run left changed on an Android device.")
    ] = False,
) -> None:
    """Check for missing requirements and for noise sources.

    Example: opscope doctor model.onnx

    Example: opscope doctor --target ssh:board

    Example: opscope doctor --features
    """
    if features:
        if target or restore or model or runtime:
            raise UsageError(
                "--features shows those of this machine", where="--features", hint="leave out the other options"
            )
        _tell_features(json)
        return
    from opscope.api import Readiness, doctor
    from opscope.workflows.measure.targets import restored_settings

    checks = restored_settings(target or "") if restore else doctor(target=target, model=model, runtime=runtime)
    problems = [check for check in checks if check.state == "problem"]
    write_json(Readiness(not problems, target, checks), json)
    for check in checks if json != "-" else ():
        say(f"{check.state.value:<8} {check.name:<{_WIDTH}} {check.found}")
        if check.action and check.state != "ok":
            say(f"{'':<8} {'':<{_WIDTH}} -> {check.action}")
    if problems:
        names = ", ".join(check.name for check in problems)
        raise NotReadyError(f"not ready: {names}", hint=problems[0].action or None)


def _tell_features(json: str | None) -> None:
    """Show what this CPU has, what can be switched off, and the ladder."""
    from opscope.api import features

    report = features()
    write_json(report, json)
    if json != "-":
        _tell_groups(report)


def _tell_groups(report: FeatureReport) -> None:
    say(f"{report.arch}, as the ExecuTorch runtime on this machine sees it")
    say()
    for group in report.groups:
        say(f"{group.name:<8} {'yes' if group.present else 'no':<4} {group.meaning}")
    say()
    say(f"default of --ablate: {report.default or 'nothing can be switched off'}")
    steps = " -> ".join(["all on", *(f"without {name}" for name in report.ladder)])
    say(f"--ladder: {steps}")
    for state in report.mechanisms:
        say(f"--switch {state.name}: {'can be used' if state.available else f'no: {state.reason}'}")
