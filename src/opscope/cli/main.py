"""The ``opscope`` command: its commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from opscope.cli import (
    aie,
    analyze,
    check,
    compare,
    convert,
    doctor,
    export,
    features,
    history,
    init,
    init_model,
    kernels,
    models,
    preflight,
    profile,
    report,
    run,
    skills,
    store,
    validate,
)
from opscope.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, InterruptedRunError, OpscopeError
from opscope.version import __version__

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    name="opscope",
    help="Where the time of an on-device model goes, whether the accelerator is used, and what to do next.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    profile,
    export,
    run,
    init,
    init_model,
    analyze,
    compare,
    check,
    report,
    history,
    validate,
    preflight,
    kernels,
    convert,
    aie,
    models,
    features,
    doctor,
):
    app.command()(module.command)
    app.registered_commands[-1].name = module.NAME
app.add_typer(skills.app, name=skills.NAME)
app.add_typer(store.app, name=store.NAME)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"opscope {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Where the time of an on-device model goes, whether the accelerator is used, and what to do next.

    Example: opscope profile mobilenet_v3_small
    """


def main() -> NoReturn:
    """Run the command line and exit with the code of what happened."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except OpscopeError as error:
        _tell(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe went away; writing the rest would only raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_INTERNAL)
    except Exception:  # noqa: BLE001 - the last line of defence: a bug must not look like a regression (exit code 1)
        traceback.print_exc()
        typer.echo("error: this is a bug in opscope; please report it with the lines above", err=True)
        sys.exit(EXIT_INTERNAL)
    sys.exit(0)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """A polite request to end is treated like Ctrl-C, so that the bundle is left in order."""
    raise InterruptedRunError("ended by a signal")


def _tell(error: OpscopeError) -> None:
    where = f"{error.where}: " if error.where else ""
    typer.echo(f"error: {where}{error.problem}", err=True)
    if error.hint:
        typer.echo(f"hint:  {error.hint}", err=True)
