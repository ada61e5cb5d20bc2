"""How commands speak: results on standard output, progress and notes on standard error."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opscope.core.printable import printable, shell_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec
    from rich.console import RenderableType

STANDARD_OUTPUT = "-"
_DESCRIPTOR = 1


def output_target(value: str | None) -> str | None:
    """The value of an option that names a file: ``-`` for every path that is standard output, as /dev/stdout is."""
    from opscope.core.files import descriptor_of

    if value is not None and not value:
        from opscope.core.errors import UsageError

        raise UsageError("the output file name is empty", where="an output option", hint="give a file name, or -")
    return STANDARD_OUTPUT if value and descriptor_of(Path(value)) == _DESCRIPTOR else value


JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON.", callback=output_target),
]
RuntimeOption = Annotated[
    str | None, typer.Option("--runtime", metavar="NAME", help="Runtime of the model, where several can run it.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
RemoteDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--remote-device",
        metavar="HOST:PORT",
        help="An Android device on the network; short for --target.",
        rich_help_panel="Target",
        hidden=True,
    ),
]
PowerOption = Annotated[
    str | None,
    typer.Option(
        "--power",
        metavar="PROFILE",
        help="Power settings of an Android device during the run: boost or app-developer.",
        rich_help_panel="Target",
        hidden=True,
    ),
]
WarmupOption = Annotated[
    str | None,
    typer.Option(metavar="N|auto", help="Warm-up inferences to discard per process; 0: none."),
]
TicksOption = Annotated[
    str | None,
    typer.Option(
        metavar="FREQUENCY|UNIT",
        help="Clock of the runner that wrote an ETDump, such as 200MHz or us. [default: ns]",
        hidden=True,
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Variant or experiment that others are compared with. [default: as the file says]"
    ),
]
CandidateOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Variant or experiment that is compared with --baseline."),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="DIR|URL", help="The store. [default: $OPSCOPE_STORE, else opscope-store]"),
]


def show(renderable: RenderableType) -> None:
    """Print a summary: within the columns of a terminal; elsewhere sentences are whole, and only long names are cut."""
    from opscope.reports.document.console import WIDE, TextConsole, print_laid_out

    print_laid_out(renderable, TextConsole(width=None if sys.stdout.isatty() else WIDE))


def say(line: object = "", *, err: bool = False) -> None:
    """Print one line, whatever it holds: what no terminal shows is escaped, ends of lines too.

    A line for standard error that nobody reads is dropped: what a command does and its exit code are the same.
    """
    with contextlib.suppress(BrokenPipeError) if err else contextlib.nullcontext():
        typer.echo(printable(str(line)), err=err)


def say_next(purpose: str, words: Sequence[str]) -> None:
    """Print the one command that usually comes next, so that it can be copied, and what it is for."""
    say()
    say(f"{purpose}: {shell_command(words)}")


def notice(text: str) -> None:
    """Say on standard error what is to be known while a command goes on."""
    say(f"note:  {text}", err=True)


def write(content: bytes | Iterable[bytes], target: str | Path) -> None:
    """Write bytes, or parts of them, to a file or, for ``-``, to standard output."""
    from opscope.core.outputs import write_outputs

    if target == STANDARD_OUTPUT:
        sys.stdout.buffer.writelines([content] if isinstance(content, bytes) else content)
        sys.stdout.buffer.flush()
    else:
        write_outputs({Path(target): content})


def write_json(value: msgspec.Struct | Sequence[msgspec.Struct], target: str | None) -> None:
    """Write a result, or a list of them, as JSON to where it was asked for, if it was."""
    from opscope.api import to_json

    if target:
        write(to_json(value), target)


def warmup_count(text: str | None) -> int | Literal["auto"] | None:
    """The value of an option ``--warmup N|auto``; None when it was not given."""
    from opscope.core.errors import UsageError

    if text is None:
        return None
    if text == "auto":
        return "auto"
    if text.isdecimal():
        return int(text)
    raise UsageError(f"{text!r} is not a number of inferences", where="--warmup", hint="give a number from 0, or auto")


def split_words(text: str | None) -> tuple[str, ...]:
    """The words of a list separated by commas."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
