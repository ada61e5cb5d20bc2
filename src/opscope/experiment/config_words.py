"""Messages about command line options, in the words of a configuration: its keys."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from opscope.bundle.settings import ExperimentSettings, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.core.errors import OpscopeError

_OPTION = re.compile(
    r"(?P<add>\badd )?(?P<word>--[a-z][a-z-]*)(?P<values>(?: '[^']*')(?: (?P=word) '[^']*')*| \d+\b| none\b|)"
)
_QUOTED = re.compile(r"'([^']*)'")
_ENDS_OF_COMMANDS = re.compile(r"[;`]|, (?:or|and) ")
_OF_RUN = frozenset({"oversubscribe"})
"""Settings that `opscope run` also has as options."""


def rename_options(text: str) -> str:
    """Return a text with the options that `opscope run` lacks as keys of its configuration.

    Options of commands that the text quotes stay.
    """
    return _OPTION.sub(_name_key, text)


def _name_key(match: re.Match[str]) -> str:
    """Return a setting of a configuration in place of an option; what the configuration does not have stays."""
    key, values = _KEYS.get(match["word"]), match["values"].strip()
    if key is None or "opscope " in _ENDS_OF_COMMANDS.split(match.string[: match.start()])[-1]:
        return match[0]
    if values.isdigit():
        values = f" = {values}"
    elif values:
        texts = _QUOTED.findall(values) or [values]
        values = f" = [{', '.join(json.dumps(value) for value in texts)}]"
    elif match["add"]:
        values = " = true"
    return f"{match['add'] or ''}{key}{values}"


def rename_options_of_error(error: OpscopeError) -> OpscopeError:
    """Return an error whose place, problem and hint name keys of the configuration in place of options."""
    where = None if error.where is None else rename_options(str(error.where))
    return type(error)(rename_options(error.problem), where=where, hint=rename_options(error.hint or "") or None)


def _words_of_settings() -> Iterator[tuple[str, str]]:
    """Yield the option of each setting, and the key of it in a configuration."""
    for key, option in options_of(ExperimentSettings).items():
        if key not in _OF_RUN and not option.off:
            yield option.word or f"--{key.replace('_', '-')}", key


_KEYS = dict(_words_of_settings())
