"""The ``opscope`` command: its commands, and the one place where errors become messages and exit codes.

Every command looks at its outputs before it reads anything: see :mod:`opscope.core.outputs`. Neither Ctrl-C nor the
polite request to end is lost.

Help has two sizes: what most people need with ``--help``, and everything with ``--help-all``. An option that is not
common is ``hidden``, and ``rich_help_panel`` is the group that it stands in.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import errno
import inspect
import io
import itertools
import os
import signal
import sys
import threading
import traceback
from collections import UserDict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from opscope.cli.output import STANDARD_OUTPUT, say
from opscope.core.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    InterruptedRunError,
    MemoryLimitError,
    NotFoundError,
    OpscopeError,
    StorageError,
    UsageError,
)
from opscope.core.files import refusal, unknown_refusal
from opscope.core.grouping import grouped
from opscope.core.parts import failures_of_command
from opscope.core.system.memory import LEAST_DEFAULT, OPTION, VARIABLE, parse_size
from opscope.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from typer._click import Command, Context, HelpFormatter, Parameter

    from opscope.core.outputs import Output
    from opscope.core.parts import PartFailure


_ALL = "opscope.help_all"
_EXAMPLE = "Example:"
_MOST_EXAMPLES = 2


class HelpCommand(TyperCommand):
    """A command that shows its common options in groups, and all of them when asked."""

    def __init__(self, *words: Any, **settings: Any) -> None:  # noqa: ANN401 - typer's settings, passed on
        super().__init__(*words, **settings)
        self.has_more = any(isinstance(one, TyperOption) and one.hidden for one in self.params)
        self.params.append(_help_all(shown=self.has_more))

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """What the command does: with ``--help-all`` every paragraph, else what it is, examples and one more."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs if self._is_whole(ctx) else _short(paragraphs)))

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The arguments, then the options by group."""
        shown = list(self._shown(ctx))
        for heading, parameters in grouped(shown, _heading).items():
            records = [record for one in parameters if (record := one.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """What it runs that is not opscope's; in short, whether anything."""
        formatter.write_paragraph()
        with formatter.indentation():
            notice = self.epilog or ""
            formatter.write_text(notice if self._is_whole(ctx) else f"{notice.partition(':')[0].rstrip('.')}.")

    def _is_whole(self, ctx: Context) -> bool:
        return bool(ctx.meta.get(_ALL)) or not self.has_more

    def _shown(self, ctx: Context) -> Iterator[Parameter]:
        for one in self.get_params(ctx):
            if isinstance(one, TyperOption) and one.hidden and one.name != "help_all" and self._is_whole(ctx):
                one = copy.copy(one)  # noqa: PLW2901 - the same option, shown
                one.hidden = False
            yield one


def _help_all(*, shown: bool) -> TyperOption:
    return TyperOption(
        param_decls=["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=not shown,
        callback=_show_all,
        help="Show all options and exit.",
    )


def _show_all(ctx: Context, _option: Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        from opscope.cli.output import say

        for line in ctx.get_help().splitlines():
            say(line)
        ctx.exit()


def _heading(parameter: Parameter) -> str:
    group = getattr(parameter, "rich_help_panel", None)
    return group or ("Arguments" if isinstance(parameter, TyperArgument) else "Options")


def _short(paragraphs: list[str]) -> list[str]:
    examples = [one for one in paragraphs if one.startswith(_EXAMPLE)]
    others = [one for one in paragraphs if one not in examples]
    return [others[0], *examples[:_MOST_EXAMPLES], *others[1:2]]


_MODEL = "a model given as MODULE:CALLABLE or FILE.py:CALLABLE, or as a file of your model directory"
_RIGHTS = "in separate processes, with your permissions and no sandbox"

RUNS: dict[str, str] = {
    "profile": f"{_MODEL}; the program; and an executor_runner given to --target: {_RIGHTS}; a repetition ends "
    "after --timeout",
    "export": f"{_MODEL}, and the exported program: {_RIGHTS} and no time limit",
    "preflight": f"{_MODEL}, to export it: {_RIGHTS} and no time limit. Of programs: nothing but an .onnx, once",
    "run": f"what `opscope profile` runs, for every experiment of the file, and the runners it names: {_RIGHTS}",
    "check": f"for programs and models, what `opscope profile` runs: {_RIGHTS}. For bundles and traces: nothing",
    "bisect": f"the model, in environments with wheels that pip installs, or by the runners it names: {_RIGHTS}",
    "tune": f"what `opscope profile` runs of the model, once for every setting and round: {_RIGHTS}",
    "count": f"the model, as `opscope profile` does, under Valgrind or QEMU: {_RIGHTS}",
    "mcp": "with --allow-run, programs that assistants name, as `opscope profile`, `opscope count` and `opscope tune` "
    f"do: {_RIGHTS}. Without: nothing",
    "kernels": f"with --count, the program of the bundle, as `opscope profile` does: {_RIGHTS}. Without: nothing",
}
"""Commands that run code of the user's, and what of it."""
ASKS: dict[str, str] = {
    "doctor": "it starts the installed runtimes and tools to identify them, and runs MODEL once, if given",
}
"""Commands that start installed programs, and nothing of the user's."""
_NEVER = "Runs none of your code: reads files and never executes them."
_MOMENT_SECONDS = 0.05
_DIRECTORIES = {"csv", "kit_csv", "out", "directory"}
"""Parameters that name a directory to write into, beside those that name a file, whose metavar ends with ``|-``."""


def code_notice(command: str) -> str:
    """What a command runs that is not opscope's, as one or two sentences for its help."""
    if command in RUNS:
        return f"Runs your code: {RUNS[command]}."
    return f"Runs none of your code: {ASKS[command]}." if command in ASKS else _NEVER


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
GROUPS = {
    "Every day": ("profile", "analyze", "compare", "check", "report"),
    "Measure": ("tune", "export", "run"),
    "Understand": ("preflight", "count", "kernels", "aie"),
    "Compare": ("bisect", "history"),
    "Share": ("convert", "validate", "store"),
    "Set up": ("doctor", "init", "models", "skills", "mcp"),
}
"""The commands as the help screen shows them."""
COMMANDS = tuple(itertools.chain.from_iterable(GROUPS.values()))


class CommandModules(UserDict[str, "Command"]):
    """The commands by name, in the order of the help; only the one that is asked for is imported and built."""

    def __contains__(self, name: object) -> bool:
        """Whether there is such a command, imported or not."""
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the help."""
        return iter(COMMANDS)

    def __len__(self) -> int:
        """How many commands there are."""
        return len(COMMANDS)

    def __missing__(self, name: str) -> Command:
        """The command of a module that was not asked for before."""
        if name not in COMMANDS:
            raise KeyError(name)
        self.data[name] = command = typer.main.get_command(_registered(name))
        command.name = name
        return command


class CommandGroup(TyperGroup):
    """The ``opscope`` command: a group whose commands are imported when they are called."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's settings, passed on
        super().__init__(**settings)
        self.commands = CommandModules()

    def get_params(self, ctx: Context) -> list[Parameter]:
        """The options; typer's that writes into the files of a shell is not one: it rewrites what is not opscope's."""
        return [one for one in super().get_params(ctx) if one.name != "install_completion"]

    def make_context(self, *words: Any, **settings: Any) -> Context:  # noqa: ANN401 - click's arguments, passed on
        """Read the command line, and print what it only asks to see."""
        with _reader_gone():
            return super().make_context(*words, **settings)

    def invoke(self, ctx: Context) -> object:
        """Run the command."""
        with _reader_gone():
            return super().invoke(ctx)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:  # noqa: ARG002 - typer's signature
        """List the commands in their groups with the first line of their help; options are not built for that."""
        width = max(map(len, COMMANDS))
        for group, names in GROUPS.items():
            with formatter.section(group):
                # All groups in the same columns: click measures the names of each list by itself.
                formatter.write_dl([(f"{name:<{width}}", _help(name).partition("\n")[0]) for name in names])


def _registered(name: str) -> typer.Typer:
    """A command's module as typer has it: a group of its own, or one command."""
    module = import_module(f"opscope.cli.{name.replace('-', '_')}")
    if hasattr(module, "app"):
        group = cast("typer.Typer", module.app)
        group.info.epilog = code_notice(name)
        for command in group.registered_commands:
            command.epilog, command.cls = code_notice(name), GatedCommand
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, cls=GatedCommand, epilog=code_notice(name))(module.command)
    return alone


def _help(name: str) -> str:
    """The whole help of a command."""
    own = _registered(name)
    return own.info.help or inspect.getdoc(own.registered_commands[0].callback) or ""


app = typer.Typer(
    name="opscope",
    cls=CommandGroup,
    help="Where the time of an on-device model goes, whether the accelerator is used, and what to do next.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        say(f"opscope {__version__}")
        raise typer.Exit


def _limit_memory(value: str | None) -> None:
    if value is not None:
        os.environ[VARIABLE] = str(parse_size(value, OPTION))  # for processes that we start, too


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    max_memory: Annotated[
        str | None,
        typer.Option(
            OPTION,
            metavar="SIZE",
            callback=_limit_memory,
            help=f"Memory limit for reading a file, for example 8GiB. [default: ${VARIABLE}, else half of what is "
            f"available, at least {LEAST_DEFAULT >> 30} GiB]",
        ),
    ] = None,
) -> None:
    """Where the time of an on-device model goes, whether the accelerator is used, and what to do next.

    Example: opscope profile mobilenet_v3_small
    """


def main() -> NoReturn:
    """Run the command line and exit with the code of what happened."""
    _read_names_as_utf8()
    _print_what_can_be_printed()
    catch_signals()
    try:
        with failures_of_command() as failures:
            try:
                app(prog_name="opscope")
            finally:
                _tell_failures(failures)
    except OpscopeError as error:
        _tell(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # typer has nobody to tell what is wrong with the command line
        sys.exit(UsageError.exit_code)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug must not look like a regression (exit code 1)
        known = _surroundings(error)
        if known is not None:
            _tell(known)
            sys.exit(known.exit_code)
        for line in traceback.format_exc().splitlines():
            say(line, err=True)
        say("error: this is a bug in opscope; please report it with the lines above", err=True)
        sys.exit(EXIT_INTERNAL)
    sys.exit(0)


@contextlib.contextmanager
def _reader_gone() -> Iterator[None]:
    """End quietly when nobody reads standard output any more: typer would end with the exit code of a regression."""
    try:
        yield
    except BrokenPipeError:
        # Writing the rest would only raise again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(StorageError.exit_code)


def _read_names_as_utf8() -> None:
    """Begin again in Python's UTF-8 mode where the locale has ASCII only.

    There names of files with other letters fit neither into JSON nor into what other processes are told.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and not sys.flags.utf8_mode and sys.executable:
        terminal = f"{sys.stdout.encoding}:backslashreplace"
        environment = {"PYTHONIOENCODING": terminal, **os.environ}
        os.execve(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]], environment)  # noqa: S606 - itself


_SPELT = {"µ": "u", "…": "...", "·": "-", "°": "deg ", "±": "+-", "↳": ">", **dict.fromkeys("▁▂▃▄▅▆▇█", "#")}
"""What stands for signs of opscope's output in an encoding without them; all else is escaped."""


def _print_what_can_be_printed() -> None:
    """Spell signs that the terminal's encoding does not have, as ``us`` for microseconds, and escape other letters."""

    def spell(error: UnicodeError) -> tuple[str | bytes, int]:
        if isinstance(error, UnicodeEncodeError) and error.object[error.start] in _SPELT:
            return _SPELT[error.object[error.start]], error.start + 1
        return codecs.backslashreplace_errors(error)

    codecs.register_error("opscope-spell", spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="opscope-spell")


def _surroundings(error: Exception) -> OpscopeError | None:
    """What Python raises anywhere because of where it runs, as an error that can be acted on; None for all else."""
    if isinstance(error, UnicodeEncodeError) and "surrogates not allowed" in error.reason:
        # Python keeps the bytes of a file's name that are no text like this.
        name = error.object.encode("utf-8", "backslashreplace").decode()
        return UsageError(
            "a file name is not valid UTF-8", where=name, hint="rename the file or directory, or link to it"
        )
    if isinstance(error, MemoryError):
        return MemoryLimitError("out of memory", hint="process fewer or smaller files at once")
    return _refused(error) if isinstance(error, OSError) else None


def _refused(error: OSError) -> OpscopeError | None:
    """What the system refused, wherever that came up; None where it says neither what nor why."""
    if error.filename is None:
        return _refused_without_name(error)
    if error.errno is None or not isinstance(error.filename, str | bytes):
        return None
    name = os.fsdecode(error.filename)
    if isinstance(error, FileNotFoundError):
        return NotFoundError("no such file or directory", where=name)
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}… ({len(name):,} characters)"
    problem, hint = unknown_refusal(error)
    return StorageError(problem, where=shown, hint=hint)


def _refused_without_name(error: OSError) -> OpscopeError | None:
    if isinstance(error, FileNotFoundError):
        if "No usable temporary directory" in str(error):
            hint = "set TMPDIR to a writable directory"
            return StorageError("no writable directory for temporary files", hint=hint)
        return NotFoundError("the current directory no longer exists", hint="change to one that exists")  # of getcwd(2)
    if error.errno in _FULL:
        # Files are written through opscope.core.files, which names them; what has no name is what the shell opened.
        problem, hint = refusal(error, Path())
        return StorageError(f"cannot be written: {problem}", where="standard output", hint=hint)
    return None


def _tell_failures(failures: Sequence[PartFailure]) -> None:
    """Say what is not known because of bugs of ours, and what to report."""
    for failure in failures:
        if failure.file is None:
            for line in failure.trace.splitlines():
                say(line, err=True)
        say(f"warning: {failure.sentence}", err=True)
    if failures:
        kept = " ".join(dict.fromkeys(failure.file for failure in failures if failure.file))
        attached = f"{kept} and, if you can share them, the input files" if kept else _LINES_ABOVE
        say(f"hint:  everything else is unaffected; please report this bug in opscope, with {attached}", err=True)


_LINES_ABOVE = "the lines above and, if you can share them, the input files"
_LONGEST_NAME = 200


def _tell(error: OpscopeError) -> None:
    where = f"{error.where}: " if error.where else ""
    say(f"error: {where}{error.problem}", err=True)
    if error.hint:
        say(f"hint:  {error.hint}", err=True)


def catch_signals() -> None:
    """Treat SIGTERM like Ctrl-C, and give either again where Python had to drop what it raised.

    An exception cannot leave what Python runs while it disposes of an object: it is reported and forgotten, and the
    command would go on as if nobody had asked it to end.
    """
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _give_again


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Leave the bundle in order, as after Ctrl-C."""
    raise InterruptedRunError("terminated by a signal")


def _give_again(dropped: sys.UnraisableHookArgs) -> None:
    number = _number(dropped.exc_value)
    main_thread = threading.main_thread().ident
    if number is None or main_thread is None:
        sys.__unraisablehook__(dropped)
        return
    again = threading.Timer(_MOMENT_SECONDS, signal.pthread_kill, (main_thread, number))
    again.daemon = True
    again.start()


def _number(dropped: BaseException | None) -> signal.Signals | None:
    """The signal that raised it, if one did."""
    if isinstance(dropped, InterruptedRunError):
        return signal.SIGTERM
    return signal.SIGINT if isinstance(dropped, KeyboardInterrupt) else None


class GatedCommand(HelpCommand):
    """A command whose outputs lose no byte that opscope did not write."""

    def invoke(self, ctx: Context) -> object:
        """Check the outputs, then run the command."""
        _check(self.params, ctx.params)
        return super().invoke(ctx)


def is_output(parameter: Parameter) -> bool:
    """Whether a parameter names what is written."""
    metavar, name = str(getattr(parameter, "metavar", "") or ""), parameter.name or ""
    return metavar.endswith("|-") or name in _DIRECTORIES


def _check(parameters: list[Parameter], values: dict[str, object]) -> None:
    outputs, inputs = [], []
    for parameter in parameters:
        named = [word for word in _words(values.get(parameter.name or "")) if word]
        if is_output(parameter):
            outputs += [(parameter, word) for word in named]
        else:
            inputs += [path for word in named for path in _paths(word)]
    _check_printed([parameter for parameter, word in outputs if word == STANDARD_OUTPUT])
    if outputs:
        from opscope.core.outputs import check_outputs

        check_outputs([_output(*named) for named in outputs if named[1] != STANDARD_OUTPUT], inputs)


def _check_printed(parameters: list[Parameter]) -> None:
    """Refuse two results on standard output."""
    if len(parameters) > 1:
        from opscope.core.errors import UsageError

        first, second = (_option(parameter) for parameter in parameters[:2])
        raise UsageError(f"{first} is already printed", where=second, hint="write one of the two to a file")


def _output(parameter: Parameter, word: str) -> Output:
    from opscope.core.outputs import Output

    path, metavar = Path(word), str(getattr(parameter, "metavar", "") or "")
    directory = metavar == "DIR" or (metavar in {"PATH|-", "DIR|FILE"} and path.is_dir())
    if metavar == "DIR|FILE" and not directory:
        from opscope.workflows.reports.reports import ONE_FILE

        directory = path.suffix not in ONE_FILE
    return Output(_option(parameter), path, directory)


def _option(parameter: Parameter) -> str:
    return max(parameter.opts, key=len)


def _words(value: object) -> Iterator[str]:
    """The texts and paths of a parameter's value."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _words(one)


def _paths(word: str) -> Iterator[Path]:
    """The file or directory that a word names, with or without a variant; none where it names nothing."""
    for text in dict.fromkeys((word, word.partition("#")[0])):
        try:
            found = text and Path(text).exists()
        except (OSError, ValueError):  # too long for a name, or no name at all
            found = False
        if found:
            yield Path(text)
