"""Several bundles side by side, as :func:`opscope.combined` gives them: see ``measurements.results``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.measurements.notebook import NotebookResult
from opscope.reports.combined.values import CombinedReport

if TYPE_CHECKING:
    import polars as pl

    from opscope.reports.notebook.card import Card


class CombinedResult(NotebookResult, CombinedReport, frozen=True):
    """Several bundles side by side, as :func:`opscope.combined` gives them."""

    def to_polars(self) -> pl.DataFrame:
        """Every bundle at each of its thread counts in a row."""
        from opscope.reports.formats.frames import combined_frame

        return combined_frame(self)

    def _card(self) -> Card:
        from opscope.reports.notebook.judged import combined_card

        return combined_card(self)
