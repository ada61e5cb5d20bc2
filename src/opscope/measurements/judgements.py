"""Results that judge, as the functions of the Python API return them: see ``measurements.results``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.gate.gate import GateReport
from opscope.bundle.validation import Validation
from opscope.measurements.notebook import NotebookResult

if TYPE_CHECKING:
    import polars as pl

    from opscope.reports.notebook.card import Card


class GateResult(NotebookResult, GateReport, frozen=True):
    """The decision of a gate, as :func:`opscope.check` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every limit in a row, the end-to-end slowdown first; figures are in the unit of their ``quantity``."""
        from opscope.reports.formats.frames import gate_frame

        return gate_frame(self)

    def _card(self) -> Card:
        from opscope.reports.notebook.judged import gate_card

        return gate_card(self)


class ValidationResult(NotebookResult, Validation, frozen=True):
    """Whether a bundle is complete and true, as :func:`opscope.validate` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every check in a row, in their order; ``problems`` is how many each found."""
        from opscope.reports.formats.frames import validation_frame

        return validation_frame(self)

    def _card(self) -> Card:
        from opscope.reports.notebook.judged import validation_card

        return validation_card(self)
