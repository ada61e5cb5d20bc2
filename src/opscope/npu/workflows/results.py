"""Comparisons of AI Engine traces, as the functions of the Python API return them: see ``measurements.results``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.measurements.notebook import NotebookResult
from opscope.npu.analysis.compare import TilesComparison
from opscope.npu.analysis.gate import TilesGate

if TYPE_CHECKING:
    import polars as pl

    from opscope.reports.notebook.card import Card


class TilesComparisonResult(NotebookResult, TilesComparison, frozen=True):
    """Verdict on two sides of AI Engine traces, as :func:`opscope.compare_tiles` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every figure of both sides in a row, the one that the verdict rests on first; ``part`` says which list."""
        from opscope.npu.reports.notebook import tiles_comparison_frame

        return tiles_comparison_frame(self)

    def _card(self) -> Card:
        from opscope.npu.reports.notebook import tiles_comparison_card

        return tiles_comparison_card(self)


class TilesGateResult(NotebookResult, TilesGate, frozen=True):
    """The decision of a gate over AI Engine traces, as :func:`opscope.check_tiles` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """The figure that was judged, then those that are shown to be worse, a row each."""
        from opscope.npu.reports.notebook import tiles_gate_frame

        return tiles_gate_frame(self)

    def _card(self) -> Card:
        from opscope.npu.reports.notebook import tiles_gate_card

        return tiles_gate_card(self)
