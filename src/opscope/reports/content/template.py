"""What all templates share: escaped names, filters that make them plain, the mark of opscope, nothing undefined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2

from opscope.analysis.findings.quality import grade_left
from opscope.core.outputs import MARKDOWN_MARK
from opscope.core.units import time_text
from opscope.reports.content.messages import first_clause, further_clauses, grade_text, sentence
from opscope.reports.content.text import markdown, plain
from opscope.reports.content.written_by import WRITTEN_BY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONG = 600
"""Longest text of the filters that allow a sentence."""


def environment(filters: Mapping[str, Callable[..., Any]]) -> jinja2.Environment:
    """The templates of this package, with filters for names (``clean``, ``md``) and for sentences, with ``_long``."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("opscope.reports"),
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
        "sentence": sentence,
        "limits_to": grade_left,
        "grade": grade_text,
        "first_clause": first_clause,
        "further_clauses": further_clauses,
        "time": time_text,
        **filters,
    }
    made.globals |= {"written_by": WRITTEN_BY, "markdown_mark": MARKDOWN_MARK}
    return made
