"""How templates of reports are filled: HTML escaped, Markdown by filters, and no name that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2

from opscope.report.text import markdown, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONG = 600
"""Longest text of a paragraph or a long cell; names are shorter, see ``opscope.report.text``."""


def environment(filters: Mapping[str, Callable[..., Any]]) -> jinja2.Environment:
    """The templates of this package, with these filters and those that keep names text.

    Args:
        filters: by name; ``md``, ``md_long``, ``clean`` and ``clean_long`` are there already.
    """
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("opscope.report"),
        autoescape=jinja2.select_autoescape(enabled_extensions=("html.j2",)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "md": markdown,
        "md_long": lambda text: markdown(text, LONG),
        "clean": plain,
        "clean_long": lambda text: plain(text, LONG),
        **filters,
    }
    return made
