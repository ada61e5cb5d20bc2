"""The ``opscope`` command: its commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import codecs
import io
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
from opscope.core.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    InterruptedRunError,
    OpscopeError,
    StorageError,
    UsageError,
)
from opscope.core.version import __version__

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
    _read_names_as_utf8()
    _print_what_can_be_printed()
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
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug must not look like a regression (exit code 1)
        known = _surroundings(error)
        if known is not None:
            _tell(known)
            sys.exit(known.exit_code)
        traceback.print_exc()
        typer.echo("error: this is a bug in opscope; please report it with the lines above", err=True)
        sys.exit(EXIT_INTERNAL)
    sys.exit(0)


def _read_names_as_utf8() -> None:
    """Begin again in Python's UTF-8 mode where the locale has ASCII only.

    There names of files with other letters fit neither into JSON nor into what other processes are told.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and not sys.flags.utf8_mode and sys.executable:
        terminal = f"{sys.stdout.encoding}:backslashreplace"
        environment = {"PYTHONIOENCODING": terminal, **os.environ}
        os.execve(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]], environment)  # noqa: S606 - itself


def _print_what_can_be_printed() -> None:
    """Write letters that the terminal's encoding does not have as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _surroundings(error: Exception) -> OpscopeError | None:
    """What Python raises anywhere because of where it runs, as an error that can be acted on; None for all else."""
    if isinstance(error, UnicodeEncodeError) and "surrogates not allowed" in error.reason:
        # Python keeps the bytes of a file's name that are no text like this.
        name = error.object.encode("utf-8", "backslashreplace").decode()
        return UsageError("a name is no text in UTF-8", where=name, hint="rename the file or directory, or link to it")
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        return StorageError("there is nowhere to put temporary files", hint="name a directory for them in TMPDIR")
    return None


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """A polite request to end is treated like Ctrl-C, so that the bundle is left in order."""
    raise InterruptedRunError("ended by a signal")


def _tell(error: OpscopeError) -> None:
    where = f"{error.where}: " if error.where else ""
    typer.echo(f"error: {where}{error.problem}", err=True)
    if error.hint:
        typer.echo(f"hint:  {error.hint}", err=True)
