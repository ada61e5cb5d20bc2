"""Categories, layers, lines of code and limits in words."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from opscope.reports.document.blocks import Format, TableCell, column
from opscope.runtimes.registry import runtime_of_format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.roofline import Bound

CATEGORY = column("category", Format.NAME, lambda row: TableCell(row.category.value, category=row.category))
"""First column of a table whose rows are categories."""
_MOST_NAMES = 3
_BOUNDS = {
    "compute": "compute",
    "memory": "memory",
    "overhead": "overhead",
    "inefficient": "below both ceilings",
    "unresolved": "too short to tell",
}


def is_delegated(analysis: Analysis) -> bool:
    """Return whether the operators of a trace are events of delegates, rather than nodes of a session's graph."""
    runtime = runtime_of_format(analysis.trace.format)
    return runtime is None or runtime.has_delegates


class _OfMethod(Protocol):
    @property
    def method(self) -> str: ...


def method_prefix(analysis: Analysis) -> Callable[[_OfMethod], str]:
    """Return a function that gives a row's prefix: its method if the analysis has several, else nothing."""
    several = len({operator.method for operator in analysis.operators}) > 1
    return lambda row: f"{row.method}: " if several else ""


def layer_text(operator: Operator) -> str:
    """Return the layer that an operator belongs to, in a few words; empty if unknown."""
    if operator.change is not None:
        return f"between {boundary_text(operator.change.before)} and {boundary_text(operator.change.after)}"
    if operator.candidates:
        return f"one of {', '.join(operator.candidates[:_MOST_NAMES])}"
    if operator.module:
        return operator.module
    return (operator.aten or "").removesuffix(".default")


def boundary_text(names: Sequence[str]) -> str:
    """Return the layers on one side of a change of layout, in words."""
    if not names:
        return "unknown"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def source_text(source: str) -> str:
    """Return a source line without the directories of the machine that exported the model."""
    path, _, line = source.rpartition(":")
    return f"{PurePosixPath(path).name}:{line}"


def bound_text(bound: Bound | None) -> str:
    """Return what limits an operator, in words."""
    return "not known" if bound is None else _BOUNDS[bound.value]
