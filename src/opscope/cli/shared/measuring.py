"""Settings of a measurement as options of a command, made from what each setting says of itself."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import typer

from opscope.bundle.settings import Option, options_of
from opscope.cli.output import split_words
from opscope.experiment.planned import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_FIRST = "target"
_FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
_HINTS = get_type_hints(Settings)
OPTIONS = options_of(Settings)


class GivenSettings(NamedTuple):
    """The settings that were given on a command line, by their names; all others are as usual."""

    given: dict[str, Any]

    def settings(self, **others: Any) -> Settings:  # noqa: ANN401 - values of fields
        """All settings."""
        from opscope.experiment.config_errors import convert_options

        stated = {name: value for name, value in others.items() if value is not None}
        return convert_options(self.given | stated, Settings)

    @property
    def words(self) -> dict[str, Any]:
        """What was given, by the words of the command line."""
        return {OPTIONS[name].named(name): value for name, value in self.given.items()}


NOTHING_GIVEN = GivenSettings({})
"""In a signature: where the options of settings stand among the others of a command."""


def with_settings(
    only: Collection[str] | None = None,
    *,
    without: Collection[str] = (),
    common: Collection[str] | None = None,
    group: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each setting, in place of its parameter ``asked``, which holds what was given.

    Args:
        only: settings that get an option; None: all.
        without: settings that get none.
        common: settings that ``--help`` shows; None: those that say so themselves.
        group: heading in the help for all of them; empty: each has its own.
    """
    options = {name: OPTIONS[name] for name in OPTIONS if name not in without and (only is None or name in only)}
    if common is not None:
        options = {name: option._replace(common=name in common) for name, option in options.items()}
    names = sorted(options, key=lambda name: (name != _FIRST, list(options).index(name)))
    made = [_parameter(name, options[name], group) for name in names]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        # Python 3.10's get_type_hints would hide what typer looks for behind an Optional wherever a default is None.
        parameters = list(inspect.signature(command, eval_str=True).parameters.values())
        place = next(number for number, one in enumerate(parameters) if one.name == "asked")
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]

        @functools.wraps(command)
        def called(context: typer.Context, **values: Any) -> None:  # noqa: ANN401 - what the options hold
            named = {name: values.pop(name) for name in names}
            given = {name: value for name, value in named.items() if _was_given(context, name)}
            command(asked=GivenSettings({name: _read(name, value) for name, value in given.items()}), **values)

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        signature = inspect.Signature([context, *own[:place], *made, *own[place + 1 :]])
        called.__signature__ = signature  # type: ignore[attr-defined]  # typer reads both
        called.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        return called

    return decorated


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameter(name: str, said: Option, group: str) -> inspect.Parameter:
    word, kind, usual = said.named(name), _word_type(name, said), _usual(name, said)
    words = f"{word}/--no-{word.removeprefix('--')}" if kind == bool | None else word
    panel = group or said.group
    option = typer.Option(
        words, metavar=said.metavar or None, help=said.help, hidden=not said.common, rich_help_panel=panel
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=Annotated[kind, option])


def _word_type(name: str, said: Option) -> Any:  # noqa: ANN401 - a type
    """The type of an option as typer takes it: lists that stand in one word are a text."""
    hint = _HINTS[name]
    if said.each:
        return list[str] | None
    plain = {kind for kind in (hint, *get_args(hint)) if kind in {bool, int, float}}
    if len(plain) != 1 or _is_list(name):
        return str | None if _usual(name, said) is None else str
    return next(iter(plain)) if hint in plain else next(iter(plain)) | None


def _is_list(name: str) -> bool:
    """Whether a setting holds, or may hold, several entries."""
    return any(get_origin(kind) is tuple for kind in (_HINTS[name], *get_args(_HINTS[name])))


def _usual(name: str, said: Option) -> Any:  # noqa: ANN401 - of the option's type
    """The value that help texts show; None where there is none, or where words say it."""
    default = _FIELDS[name].default
    if said.off:
        return False
    if default is msgspec.NODEFAULT or default == ():
        return None
    return str(default) if _is_list(name) else default


def _read(name: str, value: Any) -> Any:  # noqa: ANN401 - what typer gives, and what the setting holds
    """The value of a setting from what stands on the command line."""
    said, hint = OPTIONS[name], _HINTS[name]
    if said.off:
        return not value
    if get_origin(hint) is dict:
        where = said.named(name)
        return sizes(value, where) if get_args(hint)[1] is int else pairs(value, where, _EXAMPLE)
    if said.each:
        return tuple(value)
    if not _is_list(name):
        return value
    numbers = name in {"threads", "affinity"}
    return _numbers(value, said.named(name)) if numbers else split_words(value)


_EXAMPLE = "graph_optimization_level=basic"


def pairs(words: Collection[str], where: str, example: str) -> Mapping[str, str]:
    """Entries as KEY=VALUE."""
    from opscope.core.errors import UsageError

    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise UsageError(f"{word!r} is not KEY=VALUE", where=where, hint=f"for example {example}")
        found[key.strip()] = value.strip()
    return found


def sizes(words: Collection[str], where: str) -> dict[str, int]:
    """Sizes by their names, of words NAME=SIZE."""
    from opscope.core.errors import UsageError

    named = pairs(words, where, "height=320")
    for key, value in named.items():
        if not re.fullmatch(r"\d{1,9}", value):
            raise UsageError(f"{value!r}, for {key}, is not a size", where=where, hint=f"for example {key}=320")
    return {key: int(value) for key, value in named.items()}


def _numbers(text: str, where: str) -> tuple[int, ...]:
    from opscope.core.errors import UsageError

    words = split_words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise UsageError(f"{text!r} is not a list of numbers", where=where, hint=f"for example {where} 1,2")
    return tuple(int(word) for word in words)
