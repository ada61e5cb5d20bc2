"""``opscope doctor``: is this machine ready."""

from __future__ import annotations

from typing import Annotated

import typer

from opscope.cli.output import JsonOption, say, write_json
from opscope.hosts.target_kinds import KINDS, forms

_WIDTH = 20


def command(
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Look at a target elsewhere: {forms(kind for kind in KINDS if kind.remote or kind.emulated)}.",
        ),
    ] = None,
    json: JsonOption = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Only restore settings that a run left changed on an Android device.")
    ] = False,
) -> None:
    """Check what profiling needs and what would disturb a measurement, and say what to type.

    Example: opscope doctor --target ssh:board
    """
    from opscope.api import Readiness, doctor
    from opscope.core.errors import NotReadyError
    from opscope.workflows.measure.target_checks import restored_settings

    checks = restored_settings(target or "") if restore else doctor(target=target)
    problems = [check for check in checks if check.state == "problem"]
    write_json(Readiness(not problems, target, checks), json)
    for check in checks if json != "-" else ():
        say(f"{check.state.value:<8} {check.name:<{_WIDTH}} {check.found}")
        if check.action and check.state != "ok":
            say(f"{'':<8} {'':<{_WIDTH}} -> {check.action}")
    if problems:
        names = ", ".join(check.name for check in problems)
        raise NotReadyError(f"not ready: {names}", hint=problems[0].action or None)
