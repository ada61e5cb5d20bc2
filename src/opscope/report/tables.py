"""Analyses as CSV files with documented columns."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from opscope.report.text import csv_cell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.analyze.analysis import Analysis

_OPERATORS = (
    "method instruction position name category kind backend calls time_ns share uncertainty_ns attribution".split()
)


def csv_files(analysis: Analysis) -> dict[str, str]:
    """Name and content of each file: operators, categories, backends and the samples of latency."""
    return {
        "operators.csv": _table(
            _OPERATORS, ([getattr(o, column) for column in _OPERATORS] for o in analysis.operators)
        ),
        "categories.csv": _table(
            ["category", "time_ns", "share"], ([c.category, c.time_ns, c.share] for c in analysis.categories)
        ),
        "backends.csv": _table(
            ["backend", "time_ns", "share"], ([b.backend, b.time_ns, b.share] for b in analysis.backends)
        ),
        "latency.csv": _table(["latency_ns"], ([sample] for sample in analysis.latency.samples_ns)),
    }


def _table(header: list[str], rows: Iterable[list[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """Text is guarded against formulas, null is an empty cell, enums are their text."""
    if value is None:
        return ""
    return csv_cell(str(getattr(value, "value", value))) if isinstance(value, str) else value
