"""Every command looks at its outputs before it reads anything: see :mod:`opscope.core.outputs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer.core import TyperCommand

from opscope.cli.output import STANDARD_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer._click import Context, Parameter

    from opscope.core.outputs import Output

_DIRECTORIES = {"csv", "kit_csv", "out", "directory"}
"""Parameters that name a directory to write into, beside those that name a file, whose metavar ends with ``|-``."""
_WRITTEN_BACK = {"known"}
"""Files that are read and written again."""


class GatedCommand(TyperCommand):
    """A command whose outputs lose no byte that opscope did not write."""

    def invoke(self, ctx: Context) -> object:
        """Check the outputs, then run the command."""
        _check(self.params, ctx.params)
        return super().invoke(ctx)


def is_output(parameter: Parameter) -> bool:
    """Whether a parameter names what is written."""
    metavar, name = str(getattr(parameter, "metavar", "") or ""), parameter.name or ""
    return metavar.endswith("|-") or name in _DIRECTORIES | _WRITTEN_BACK


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
    return Output(_option(parameter), path, metavar == "DIR" or (metavar == "PATH|-" and path.is_dir()))


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
